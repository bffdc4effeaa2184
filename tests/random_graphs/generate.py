"""Generates a program of 5 to 60 calls from a seed."""

from __future__ import annotations

import torch

from random_graphs.builder import Builder, Unfit
from random_graphs.programs import RandomProgram
from random_graphs.rows import ROWS

_ATTEMPTS = 12
_EXTENTS = (1, 1, 2, 2, 3, 4, 5, 6, 7, 8)


def _shape(b: Builder, rank: int, most: int = 512) -> list[int]:
    while True:
        shape = [b.rng.choice(_EXTENTS) for _ in range(rank)]
        count = 1
        for extent in shape:
            count *= extent
        if count <= most:
            return shape


def _add_inputs(b: Builder) -> None:
    for _ in range(b.rng.randint(1, 3)):
        b.leaf("input", torch.float32, _shape(b, b.rng.choice([0, 1, 2, 2, 3, 3, 4, 4, 4, 5])), -3.0, 3.0)
    b.leaf("input", torch.float32, _shape(b, 4), -3.0, 3.0)
    for dtype in (torch.int64, torch.int32, torch.bool):
        if b.rng.random() < 0.4:
            b.leaf("input", dtype, _shape(b, b.rng.randint(0, 3), 64), -9, 9)


def _try(b: Builder, op: str) -> bool:
    mark = b.snapshot()
    try:
        ROWS[op](b)
    except Unfit:
        b.rollback(mark)
        return False
    return True


def generate(seed: int) -> RandomProgram:
    """Returns the program of a seed.

    Seed n has operator n (modulo the number of rows) if a step for it is found, so consecutive seeds cover
    the operator table.
    """
    b = Builder(seed)
    ops = list(ROWS)
    _add_inputs(b)
    size = b.rng.randint(5, 60)
    focus = ops[seed % len(ops)]
    placed = None
    while len(b.steps) < size:
        if placed is None and len(b.steps) >= min(size // 2, 12):
            if any(_try(b, focus) for _ in range(_ATTEMPTS)):
                placed = b.steps[-1].results[0]
                continue
            placed = ""
        _try(b, b.rng.choice(ops))
    return b.program(_outputs(b, placed or ""))


def _outputs(b: Builder, placed: str) -> list[str]:
    """Returns up to 12 results without a user, `placed`, and half of the time any other result."""
    results = [name for step in b.steps for name in step.results]
    ends = [name for name in results if name not in b.used]
    picked = ends if len(ends) <= 12 else b.rng.sample(ends, 12)
    if b.rng.random() < 0.5:
        picked = [*picked, b.rng.choice(results)]
    if placed:
        picked = [*picked, placed]
    return list(dict.fromkeys(picked)) or [results[-1]]
