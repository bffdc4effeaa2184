"""Generates a module of 20 to 60 calls from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from random_graphs.builder import Unfit
from random_graphs.rows import ROWS

from random_modules.building import ModuleBuilder
from random_modules.programs import RandomModule
from random_modules.rows import MODULE_ROWS

__all__ = ["generate"]

_EXTENTS = (1, 1, 2, 2, 3, 4, 5, 6, 8)
_WRITES = [name for name in MODULE_ROWS if name.startswith("write")]
_OTHERS = [name for name in MODULE_ROWS if not name.startswith("write")]
_REFUSED = (Unfit, ValueError, IndexError, ZeroDivisionError)
_MOST_TRIES = 600
_MOST_WRITTEN = 4


@dataclass(frozen=True)
class _Habits:
    """What a module has: how many of its steps write, and whether values may be empty or large.

    Empty tensors and most writes into views end a check early, since TOSA has no empty tensors and the import
    refuses what it cannot follow. So most modules have none or few of them.
    """

    writes: float
    empty: bool
    large: bool

    @classmethod
    def of(cls, b: ModuleBuilder) -> _Habits:
        return cls(b.rng.choice([0.0, 0.03, 0.06, 0.2]), b.rng.random() < 0.1, b.rng.random() < 0.7)


def _shape(b: ModuleBuilder, rank: int, empty: bool) -> list[int]:
    while True:
        shape = [0 if empty and b.rng.random() < 0.08 else b.rng.choice(_EXTENTS) for _ in range(rank)]
        count = 1
        for extent in shape:
            count *= extent
        if count <= 256:
            return shape


def _add_inputs(b: ModuleBuilder, empty: bool) -> None:
    for _ in range(b.rng.randint(1, 2)):
        size = b.rng.choice([0.5, 1.0, 3.0, 3.0, 30.0])
        low = 0.0 if b.rng.random() < 0.2 else -size
        b.leaf("input", torch.float32, _shape(b, b.rng.choice([0, 1, 2, 3, 3, 4, 4]), empty), low, size)
    b.leaf("input", torch.float32, _shape(b, 4, False), -2.0, 2.0)
    for dtype in (torch.int64, torch.bool):
        if b.rng.random() < 0.3:
            b.leaf("input", dtype, _shape(b, b.rng.randint(0, 3), empty), 0, 7)


def _step(b: ModuleBuilder, habits: _Habits) -> None:
    mark = b.snapshot()
    roll = b.rng.random()
    if roll < habits.writes:
        make = MODULE_ROWS[b.rng.choice(_WRITES)]
    elif roll < habits.writes + 0.12:
        make = MODULE_ROWS["view"]
    elif roll < habits.writes + 0.4:
        make = MODULE_ROWS[b.rng.choice(_OTHERS)]
    else:
        make = ROWS[b.rng.choice(list(ROWS))]  # type: ignore[assignment]
    large = make in (MODULE_ROWS["masked"], MODULE_ROWS["joined_constant"])
    try:
        if large and not habits.large:
            raise Unfit("no large constants")
        make(b)
        if not habits.empty and any(
            0 in b.infos[name].shape for step in b.steps[mark[1] :] for name in step.results
        ):
            raise Unfit("empty")
    except _REFUSED:
        b.rollback(mark)


def generate(seed: int) -> RandomModule:
    """Returns the module of a seed."""
    b = ModuleBuilder(seed)
    habits = _Habits.of(b)
    _add_inputs(b, habits.empty)
    size = b.rng.randint(20, 60)
    for _ in range(_MOST_TRIES):
        _step(b, habits)
        if len(b.steps) >= size:
            break
    return b.program(_outputs(b))


def _outputs(b: ModuleBuilder) -> list[str]:
    """Returns up to 8 results without a user, half of the time any other result, and what is written."""
    results = [name for step in b.steps for name in step.results]
    ends = [name for name in results if name not in b.used]
    picked = ends if len(ends) <= 8 else b.rng.sample(ends, 8)
    if b.rng.random() < 0.5:
        picked = [*picked, b.rng.choice(results)]
    picked = [*picked, *_written(b)]
    return list(dict.fromkeys(picked)) or [results[-1]]


def _written(b: ModuleBuilder) -> list[str]:
    """Returns the results into which the last statements write, without which many writes would show nowhere.

    Inputs are compared anyway, and later calls read the states.
    """
    leaves = {leaf.name for leaf in b.leaves}
    written = dict.fromkeys(step.operands[0] for step in b.steps if step.writes)  # type: ignore[attr-defined]
    return [name for name in written if name not in leaves][-_MOST_WRITTEN:]
