"""Random schedules, and a run of them on real bytes.

A step computes each result from the bytes of its operands, its own number and the position of the byte, so a
buffer that was overwritten too early changes what the program returns. The run shares no code with the
planner or with the check of plans.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from tosaic.memory.plan import MemoryPlan
from tosaic.memory.schedule import Schedule, Step, Value

__all__ = ["random_schedule", "run_apart", "run_planned"]

Bytes = np.ndarray[Any, Any]


def random_schedule(seed: int, *, steps: int = 8) -> Schedule:
    """Returns a schedule with inputs, perhaps a state, views, results in place, and scratch."""
    rng = random.Random(seed)
    made = Schedule(f"seed{seed}")
    live = [_add(made, rng, "input") for _ in range(rng.randint(1, 3))]
    states = [_add(made, rng, "state")] if rng.random() < 0.4 else []
    live += states
    for number in range(rng.randint(0, steps)):
        operands = [rng.choice(live) for _ in range(rng.randint(1, 2))]
        if rng.random() < 0.25:
            live.append(_add_view(made, rng, operands[0]))
            made.steps.append(Step(f"step{number}"))
            continue
        if rng.random() < 0.2:
            live.append(_add_concat(made, number, operands))
            continue
        size = made.values[operands[0]].nbytes if rng.random() < 0.7 else None
        results = [_add(made, rng, "result", size)]
        if rng.random() < 0.2:
            results.append(_add(made, rng, "result"))
        over = tuple(o for o in dict.fromkeys(operands) if rng.random() < 0.8)
        scratch = rng.choice((0, 0, 0, 8, 40))
        made.steps.append(
            Step(f"step{number}", "host", tuple(operands), tuple(results), over, scratch=scratch)
        )
        live += results
    made.outputs = [(f"out{i}", rng.choice(live)) for i in range(rng.randint(1, 2))]
    same = [i for i in live if states and made.values[i].nbytes == made.values[states[0]].nbytes]
    if states and same:
        made.new_values = [(states[0], rng.choice(same))]
    return made


def _add(made: Schedule, rng: random.Random, kind: str, nbytes: int | None = None) -> int:
    size = rng.choice((0, 1, 3, 8, 8, 16, 24)) if nbytes is None else nbytes
    return made.add(Value(f"v{len(made.values)}", kind, "i8", (size,), size))


def _add_concat(made: Schedule, number: int, operands: Sequence[int]) -> int:
    """Adds a concatenation; its step has a name by which a run knows it."""
    sizes = [made.values[each].nbytes for each in operands]
    value = made.add(Value(f"v{len(made.values)}", "result", "i8", (sum(sizes),), sum(sizes)))
    parts: dict[int, int] = {}
    for at, each in enumerate(operands):
        if sizes[at] and sum(sizes[:at]) % 8 == 0:
            parts.setdefault(each, sum(sizes[:at]))
    made.steps.append(Step(f"concat{number}", "host", tuple(operands), (value,), parts=tuple(parts.items())))
    return value


def _add_view(made: Schedule, rng: random.Random, base: int) -> int:
    total = made.values[base].nbytes
    first = rng.choice([0, 0, total // 2])
    size = rng.choice([total - first, (total - first) // 2])
    value = Value(f"v{len(made.values)}", "result", "i8", (size,), size, view_of=(base, first))
    return made.add(value)


def _result(number: int, place: int, operands: Sequence[Bytes], size: int) -> Bytes:
    total = np.arange(size, dtype=np.uint8) * 7 + (number * 31 + place * 13 + 5) % 256
    for factor, operand in enumerate(operands, 3):
        if operand.size:
            total += np.resize(operand, size) * np.uint8(2 * factor + 1)
    return total


def _given(schedule: Schedule) -> dict[int, Bytes]:
    rng = np.random.default_rng(len(schedule.values))
    return {
        i: rng.integers(0, 256, value.nbytes, np.uint8)
        for i, value in enumerate(schedule.values)
        if value.kind in ("input", "state", "constant")
    }


def run_apart(schedule: Schedule) -> list[Bytes]:
    """Returns outputs and new values; every value has memory of its own."""
    held = _given(schedule)

    def read(value: int) -> Bytes:
        base, offset = schedule.contents(value)
        return held[base][offset : offset + schedule.values[value].nbytes]

    for number, step in enumerate(schedule.steps):
        operands = [read(value).copy() for value in step.reads]
        for place, value in enumerate(step.writes):
            held[value] = (
                np.concatenate(operands)
                if step.name.startswith("concat")
                else _result(number, place, operands, schedule.values[value].nbytes)
            )
    return [read(value).copy() for value in schedule.final]


def run_planned(schedule: Schedule, plan: MemoryPlan) -> list[Bytes]:
    """Returns outputs and new values of a run in the arenas of a plan, with everything planned."""
    arenas = {arena.name: np.full(arena.nbytes, 0xEE, np.uint8) for arena in plan.arenas}
    buffers = {each.name: each for each in plan.buffers}

    def bytes_of(value: int) -> Bytes:
        each = buffers[schedule.values[value].name]
        if each.arena not in arenas:
            assert each.nbytes == 0
            return np.zeros(0, np.uint8)
        return arenas[each.arena][each.offset : each.offset + each.nbytes]

    for value, array in _given(schedule).items():
        bytes_of(value)[:] = array
    for number, step in enumerate(schedule.steps):
        if step.scratch and (each := buffers.get(f"{step.name}.scratch")):
            arenas[each.arena][each.offset : each.offset + each.nbytes] = 0xAB
        operands = [bytes_of(value).copy() for value in step.reads]
        for place, value in enumerate(step.writes):
            concat = step.name.startswith("concat")
            nbytes = schedule.values[value].nbytes
            bytes_of(value)[:] = (
                np.concatenate(operands) if concat else _result(number, place, operands, nbytes)
            )
    return [bytes_of(value).copy() for value in schedule.final]
