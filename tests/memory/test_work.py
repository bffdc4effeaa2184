"""Planning takes work in proportion to the schedule: tests count instructions of Python, not seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from counted_work import Work
from tosaic.memory.plan_options import PlanOptions
from tosaic.memory.planner import plan_schedule
from tosaic.memory.schedule import Schedule, Step, Value


class Built:
    """A schedule of tensors of one size, which is built step by step."""

    def __init__(self) -> None:
        self.schedule = Schedule("program")

    def new(self, kind: str = "result", *, blocks: int = 1, **facts: Any) -> int:
        nbytes = 64 * blocks
        name = f"v{len(self.schedule.values)}"
        return self.schedule.add(Value(name, kind, "i8", (nbytes,), nbytes, **facts))

    def step(self, *reads: int, results: int = 1, blocks: int = 1, **facts: Any) -> int:
        """Adds a step that may compute over any of its operands; returns the first result."""
        writes = tuple(self.new(blocks=blocks) for _ in range(results))
        name = f"step{len(self.schedule.steps)}"
        self.schedule.steps.append(Step(name, reads=reads, writes=writes, in_place=reads, **facts))
        return writes[0]

    def output(self, *values: int) -> Schedule:
        self.schedule.outputs += [(f"out{i}", value) for i, value in enumerate(values)]
        return self.schedule


def many_outputs(count: int) -> Schedule:
    built = Built()
    x = built.new("input")
    return built.output(*(built.step(x) for _ in range(count)))


def chain(count: int) -> Schedule:
    built = Built()
    x = built.new("input")
    for _ in range(count):
        x = built.step(x)
    return built.output(x)


def many(kind: str) -> Callable[[int], Schedule]:
    def make(count: int) -> Schedule:
        built = Built()
        given = [built.new(kind) for _ in range(count)]
        x = given[0]
        for each in given[1:]:
            x = built.step(x, each)
            if kind == "state":
                built.schedule.new_values.append((each, x))
        return built.output(x)

    return make


def views(count: int) -> Schedule:
    built = Built()
    x = built.new("input")
    read = [x := built.new(view_of=(x, 0)) for _ in range(count)]
    for each in read:
        built.step(each)
    return built.output(x)


def split_and_joined(count: int) -> Schedule:
    built = Built()
    x = built.new("input", blocks=count)
    read = [built.new(view_of=(x, 64 * i)) for i in range(count)]
    made = [built.step(each) for each in read]
    parts = tuple((each, 64 * i) for i, each in enumerate(made))
    return built.output(built.step(*made, blocks=count, parts=parts))


def one_step_of_many_results(count: int) -> Schedule:
    built = Built()
    first = built.step(built.new("input"), results=count)
    return built.output(*range(first, first + count))


def one_step_of_many_operands(count: int) -> Schedule:
    built = Built()
    x = built.new("input")
    return built.output(built.step(*(built.step(x, scratch=100) for _ in range(count))))


def loops(count: int) -> Schedule:
    made = chain(count)
    made.loops += [(i, i + 1) for i in range(0, count - 1, 3)]
    return made


@pytest.mark.parametrize("memories", [{}, {"fast": (4000, 16), "slow": (None, 16)}], ids=["one", "two"])
@pytest.mark.parametrize(
    "make",
    [
        many_outputs,
        chain,
        many("input"),
        many("state"),
        views,
        split_and_joined,
        one_step_of_many_results,
        one_step_of_many_operands,
        loops,
    ],
    ids=lambda make: make.__qualname__.split(".")[0],
)
def test_four_times_the_schedule_is_at_most_five_times_the_work(
    make: Callable[[int], Schedule], memories: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop over all values for each of them would be sixteen times the work."""
    work, options = Work(monkeypatch), PlanOptions(memories=memories)
    plan_schedule(make(4), options)  # imports modules
    small, large = (work.of(lambda n=n: plan_schedule(make(n), options))[0] for n in (50, 200))
    assert large <= 5 * small
