"""Plans of schedules: rules of sharing, brute force on small cases, runs on real bytes, and the check."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tosaic
from tosaic.memory.buffers import MemoryBuffer
from tosaic.memory.check import Place, fault_of
from tosaic.memory.plan import MemoryPlan
from tosaic.memory.plan_options import options_of
from tosaic.memory.planner import plan_schedule
from tosaic.memory.schedule import Schedule, Step, Value

from memory.random_schedules import random_schedule, run_apart, run_planned

SEEDS = range(400)


def _plan(schedule: Schedule, **options: Any) -> MemoryPlan:
    return plan_schedule(schedule, options_of(**{"alignment": 8, **options}))


class Built:
    """A schedule that is written down in one line per step."""

    def __init__(self, *inputs: str, size: int = 64) -> None:
        self.schedule, self._size = Schedule("built"), size
        self._at: dict[str, int] = {}
        for name in inputs:
            self._new(name, "input")

    def _new(self, name: str, kind: str = "result", size: int | None = None, **facts: Any) -> int:
        nbytes = self._size if size is None else size
        self._at[name] = self.schedule.add(Value(name, kind, "i8", (nbytes,), nbytes, **facts))
        return self._at[name]

    def state(self, name: str) -> Built:
        self._new(name, "state")
        return self

    def step(
        self, result: str, *operands: str, over: Sequence[str] = (), size: int | None = None, scratch: int = 0
    ) -> Built:
        reads = tuple(self._at[name] for name in operands)
        in_place = tuple(self._at[name] for name in over)
        writes = (self._new(result, size=size),)
        self.schedule.steps.append(Step(f"make_{result}", "host", reads, writes, in_place, scratch=scratch))
        return self

    def view(self, name: str, base: str, offset: int = 0, size: int | None = None) -> Built:
        self._new(name, size=size, view_of=(self._at[base], offset))
        self.schedule.steps.append(Step(f"view_{name}"))
        return self

    def output(self, *names: str) -> Built:
        self.schedule.outputs += [(f"out{i}", self._at[name]) for i, name in enumerate(names)]
        return self

    def new_value(self, old: str, new: str) -> Built:
        self.schedule.new_values.append((self._at[old], self._at[new]))
        return self

    def plan(self, **options: Any) -> MemoryPlan:
        return _plan(self.schedule, **options)


# ---- sharing ----


def test_a_result_is_computed_over_a_dead_value_of_the_host() -> None:
    plan = Built("x").step("a", "x").step("b", "a", over=["a"]).output("b").plan()
    assert (plan.buffer("b").alias, plan.buffer("b").alias_of) == ("in_place", "a")
    assert plan.buffer("b").offset == plan.buffer("a").offset
    assert (plan.peak, plan.gap) == (128, 0)


def test_a_value_that_is_read_later_is_not_overwritten() -> None:
    plan = Built("x").step("a", "x", over=["x"]).step("b", "x", "a", over=["x", "a"]).output("b").plan()
    assert plan.buffer("a").alias == "none"
    assert plan.buffer("b").alias_of == "x"


def test_a_value_that_a_view_shows_later_is_not_overwritten() -> None:
    built = Built("x").step("a", "x").view("v", "a").step("b", "a", over=["a"]).step("c", "v", "b")
    assert built.output("c").plan().buffer("b").alias == "none"


def test_chains_of_views_have_the_memory_of_their_base() -> None:
    plan = Built("x").step("a", "x").view("v", "a", 16, 32).view("w", "v", 8, 8).output("w").plan()
    assert plan.buffer("w").offset == plan.buffer("a").offset + 24
    assert plan.buffer("a").last == 3, "the base is needed as long as its views"


def test_a_part_of_a_buffer_is_not_overwritten_by_a_result() -> None:
    plan = Built("x").step("a", "x").view("v", "a", 0, 32).step("b", "v", over=["v"], size=32)
    assert plan.output("b").plan().buffer("b").alias == "none"


def test_an_operand_that_another_operand_shows_is_not_overwritten() -> None:
    built = Built("x").step("a", "x").view("v", "a").step("b", "a", "v", over=["a"]).output("b")
    assert built.plan().buffer("b").alias == "none"


def test_a_returned_input_stays_where_it_is() -> None:
    for options in ({}, {"plan_inputs": False, "plan_outputs": False}):
        plan = Built("x").step("a", "x", over=["x"]).output("x", "a").plan(**options)
        assert plan.buffer("a").alias == "none"
        assert plan.buffer("x").last == len(plan.steps)
    assert plan.peak == 0, "the input and the output are the caller's"


def test_the_callers_input_is_not_overwritten_unless_it_is_planned() -> None:
    built = Built("x").step("a", "x", over=["x"]).step("b", "a", over=["a"]).output("b")
    assert built.plan().peak == 64
    theirs = built.plan(plan_inputs=False)
    assert (theirs.buffer("a").alias, theirs.buffer("x").arena, theirs.peak) == ("none", "caller", 64)


def test_outputs_in_the_callers_memory_take_what_leads_to_them_along() -> None:
    plan = Built("x").step("a", "x").step("b", "a", over=["a"]).output("b").plan(plan_outputs=False)
    assert [plan.buffer(name).arena for name in "xab"] == ["activations", "caller", "caller"]
    assert plan.peak == 64


def test_two_outputs_with_one_memory_are_not_both_the_callers() -> None:
    built = Built("x").step("a", "x").view("v", "a", 0, 32).output("v", "a")
    plan = built.plan(plan_outputs=False)
    assert {plan.buffer(name).arena for name in "av"} == {"caller"}
    half = Built("x").step("a", "x").view("v", "a", 0, 32).output("v").plan(plan_outputs=False)
    assert half.buffer("v").arena == "activations", "half of a buffer is copied at the end"


def test_a_state_is_overwritten_by_its_own_new_value_only() -> None:
    built = Built("x").state("s").step("a", "s", over=["s"]).step("b", "a", "x", over=["a"]).output("b")
    assert built.plan().buffer("a").alias == "none"
    own = Built("x").state("s").step("a", "s", over=["s"]).step("b", "a", "x", over=["x"]).output("b")
    plan = own.new_value("s", "a").plan()
    assert (plan.buffer("a").alias_of, plan.buffer("a").arena) == ("s", "states")
    assert {arena.name: arena.nbytes for arena in plan.arenas} == {"states": 64, "activations": 64}


def test_the_callers_input_is_overwritten_by_its_own_new_value() -> None:
    built = Built("x").step("a", "x", over=["x"]).output("a").new_value("x", "a")
    assert built.plan(plan_inputs=False, plan_outputs=False).peak == 0


def test_scratch_takes_bytes_that_are_free_at_its_step() -> None:
    built = Built("x", size=64).step("a", "x", size=8).step("b", "a", size=8, scratch=64).output("b")
    plan = built.plan()
    scratch = plan.buffer("make_b.scratch")
    assert (scratch.first, scratch.last, scratch.nbytes, scratch.kind) == (1, 1, 64, "scratch")
    assert plan.peak == plan.lower_bound == 80
    assert built.plan(scratch=False).peak == 72


def test_loops_need_what_they_read_until_they_end() -> None:
    built = Built("x").step("a", "x").step("b", "a", over=["a"]).step("c", "b").output("c")
    built.schedule.loops.append((1, 2))
    plan = built.plan()
    assert (plan.buffer("a").first, plan.buffer("a").last) == (0, 2)
    assert (plan.buffer("b").first, plan.buffer("b").last) == (1, 2)
    assert plan.buffer("b").alias == "none"


def test_arenas_are_chosen_by_name_then_kind_then_part() -> None:
    built = Built("x").step("a", "x", over=["x"]).step("b", "a", scratch=8).output("b")
    arenas = {"a": "fast", "host": "slow", "output": "dma", "scratch": "sram"}
    plan = built.plan(arenas=arenas)
    assert [plan.buffer(name).arena for name in ("x", "a", "b", "make_b.scratch")] == [
        "slow",
        "fast",
        "dma",
        "sram",
    ]
    assert plan.buffer("a").alias == "none", "nothing is computed over a buffer of another arena"
    assert plan.peak == sum(arena.nbytes for arena in plan.arenas) == 64 + 64 + 64 + 64


@pytest.mark.parametrize(
    ("arenas", "got"),
    [
        (5, "got 5"),
        ({"x": ""}, "got {'x': ''}"),
        ({"x": "caller"}, "got {'x': 'caller'}"),
        ({3: "a"}, "got {3: 'a'}"),
        ({"nothing": "a"}, "got 'nothing'"),
    ],
)
def test_wrong_arenas_are_refused(arenas: Any, got: str) -> None:
    with pytest.raises(tosaic.InvalidGraph, match="unknown value of 'arenas'") as error:
        Built("x").output("x").plan(arenas=arenas)
    assert str(error.value).endswith(got)


def test_a_schedule_without_steps_or_values_is_empty() -> None:
    plan = _plan(Schedule("nothing"))
    assert (plan.peak, plan.gap, plan.buffers, plan.arenas, plan.live_bytes) == (0, 0, (), (), (0,))
    assert "memory of nothing" in str(plan)


# ---- the least memory ----


def _roots(plan: MemoryPlan) -> list[tuple[int, int, int]]:
    """Returns bytes and steps of what is placed: buffers with all that share their memory."""
    target = {each.name: each.alias_of for each in plan.buffers}

    def root(name: str) -> str:
        return root(target[name]) if target[name] else name

    spans: dict[str, tuple[int, int, int]] = {}
    for each in plan.buffers:
        name, own = root(each.name), (each.nbytes, each.first, each.last)
        known = spans.get(name, own)
        spans[name] = (max(known[0], own[0]), min(known[1], own[1]), max(known[2], own[2]))
    return list(spans.values())


def _least(spans: Sequence[tuple[int, int, int]], alignment: int) -> int:
    """Returns the least arena: some order of placing each buffer at its lowest free offset is optimal."""
    best = None
    for order in itertools.permutations(span for span in spans if span[0]):
        placed: list[tuple[int, int, int, int]] = []
        for nbytes, first, last in order:
            size, at = -(-nbytes // alignment) * alignment, 0
            for offset, end, begin, until in sorted(placed):
                if first <= until and begin <= last and offset < at + size and at < end:
                    at = end
            placed.append((at, at + size, first, last))
        top = max((end for _, end, _, _ in placed), default=0)
        best = top if best is None else min(best, top)
    return best or 0


@pytest.mark.parametrize("seed", range(60))
def test_small_plans_are_the_least_that_brute_force_finds(seed: int) -> None:
    schedule = random_schedule(seed, steps=4)
    plan = _plan(schedule, arenas={"state": "activations"}, scratch=False)
    spans = [span for span in _roots(plan) if span[0]]
    if len(spans) > 7:
        spans = spans[:0]
        assert plan.gap == 0
    else:
        assert plan.peak == _least(spans, 8)


# ---- runs on real bytes ----


@pytest.mark.parametrize("options", [{}, {"in_place": False}, {"alignment": 1}])
def test_planned_runs_return_what_runs_without_sharing_return(options: dict[str, Any]) -> None:
    shared = 0
    for seed in SEEDS:
        schedule = random_schedule(seed)
        plan = _plan(schedule, **options)
        shared += sum(each.alias == "in_place" for each in plan.buffers)
        assert plan.lower_bound <= plan.peak
        for found, expected in zip(run_planned(schedule, plan), run_apart(schedule), strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=f"seed {seed}")
    assert (shared == 0) == (options == {"in_place": False})


def _fault(schedule: Schedule, plan: MemoryPlan, buffers: Sequence[MemoryBuffer]) -> str:
    places: dict[str, Place] = {
        each.name: Place(each.arena, each.offset) for each in buffers if each.arena != "constants"
    }
    sizes = {arena.name: arena.nbytes for arena in plan.arenas}
    values = [places.get(value.name) for value in schedule.values]
    scratch = [places.get(f"{step.name}.scratch") for step in schedule.steps]
    return fault_of(schedule, values, scratch, sizes, alignment=8)


def test_the_check_finds_every_misplaced_buffer_that_changes_a_result() -> None:
    changed = 0
    for seed in SEEDS:
        rng, schedule = random.Random(seed), random_schedule(seed)
        plan = _plan(schedule)
        assert _fault(schedule, plan, plan.buffers) == ""
        own = [each for each in plan.buffers if each.nbytes and each.alias == "none"]
        if not own:
            continue
        moved = rng.choice(own)
        room = next(arena.nbytes for arena in plan.arenas if arena.name == moved.arena) - moved.nbytes
        offset = rng.randrange(0, room + 1, 8)
        buffers = [replace(each, offset=offset) if each is moved else each for each in plan.buffers]
        wrong = replace(plan, buffers=tuple(buffers))
        pairs = zip(run_planned(schedule, wrong), run_apart(schedule), strict=True)
        if any((found != expected).any() for found, expected in pairs):
            changed += 1
            assert _fault(schedule, plan, buffers), f"seed {seed}: {moved.name} at {offset}"
    assert changed > 40


@pytest.mark.parametrize(
    ("places", "fault"),
    [
        ((0, 64, 128), ""),
        ((0, 64, 64), "make_b reads a, which was overwritten"),
        ((0, 0, 64), "make_a writes a over x"),
        ((0, 64, 160), "b is outside of m"),
        ((0, 68, 128), "a is not aligned"),
    ],
)
def test_the_check_names_the_fault(places: Sequence[int], fault: str) -> None:
    schedule = Built("x").step("a", "x").step("b", "a", "x").output("b").schedule
    if fault.startswith("make_b reads"):
        schedule = Built("x").step("a", "x").step("c", "x").step("b", "a", "c").output("b").schedule
        places = (*places, 0)
    found = fault_of(
        schedule,
        [Place("m", offset) for offset in places],
        [None] * len(schedule.steps),
        {"m": 192},
        alignment=8,
    )
    assert found == fault


def test_the_check_finds_an_overwritten_output_state_and_input() -> None:
    def fault(built: Built, places: Sequence[tuple[str, int]], owned: Sequence[str] = ()) -> str:
        none = [None] * len(built.schedule.steps)
        where = [Place(*place) for place in places]
        sizes = {"m": 192, "s": 64}
        return fault_of(built.schedule, where, none, sizes, alignment=8, owned=owned)

    outputs = Built("x").step("a", "x").step("b", "x").output("a", "b")
    wrong = fault(outputs, [("m", 0), ("m", 64), ("m", 64)])
    assert wrong == "a is needed at the end, and was overwritten"
    state = Built("x").state("s").step("a", "x").output("a")
    assert fault(state, [("m", 0), ("s", 0), ("s", 0)]) == "s is not the program's, and was overwritten"
    given = Built("x", "y").step("a", "x").output("a")
    assert fault(given, [("m", 0), ("m", 64), ("m", 64)]) == ""
    assert (
        fault(given, [("m", 0), ("s", 0), ("s", 0)], ["s"]) == "y is not the program's, and was overwritten"
    )
    both = fault(given, [("m", 0), ("m", 0), ("m", 64)])
    assert both == "x and another input or state have the same bytes"


def test_the_check_keeps_scratch_away_from_operands_and_results() -> None:
    schedule = Built("x").step("a", "x", scratch=64).output("a").schedule
    places = [Place("m", 0), Place("m", 64)]
    for offset, fault in ((0, "has bytes of x"), (64, "has bytes of a"), (128, "")):
        found = fault_of(schedule, places, [Place("m", offset)], {"m": 192}, alignment=8)
        assert found == (f"the scratch of make_a {fault}" if fault else "")
