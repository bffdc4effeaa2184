"""Small random graphs with conflicting dim orders: pools, matmuls, views, concats, broadcasts, permutes.

Every graph has at most `NODES` nodes. A pool requires channels last, an argmax row-major order, and inputs
and outputs the orders that are drawn for them. All other operators require no particular order. Extents of 1
are frequent, and values may be read by several nodes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tosaic import _core
from tosaic.base.dim_order import channels_last

__all__ = ["NODES", "random_graph"]

NODES = 12
_ID = {op.name: op.id for op in _core.ops()}
_NOWHERE = ("", "", "", "", 0)


class _Growing:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.builder = _core.GraphBuilder("drawn")
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.nodes = 0

    def order(self, rank: int) -> tuple[int, ...] | None:
        """Returns a random dim order of a graph input or output; None: row-major."""
        if rank < 3 or self.rng.random() < 0.5:
            return None
        if self.rng.random() < 0.7:
            return channels_last(rank)
        return tuple(self.rng.sample(range(rank), rank))

    def add_input(self) -> None:
        rank = self.rng.choice((2, 3, 4, 4, 4, 5, 6))
        shape = tuple(self.rng.choice((1, 2, 3, 4)) for _ in range(rank))
        name = f"x{len(self.shapes)}"
        value = self.builder.add_input(name, "f32", shape, name, order=self.order(rank))
        self.shapes[value] = shape

    def add(self, op: str, operands: Sequence[int], **attributes: Any) -> None:
        value = self.builder.add(_ID[op], attributes, operands, f"{op}_{self.nodes}", _NOWHERE, None, None)
        self.nodes += 1
        self.shapes[value] = tuple(self.builder.type(value)[1])

    def any(self, *ranks: int) -> tuple[int, tuple[int, ...]] | None:
        fitting = [v for v, s in self.shapes.items() if not ranks or len(s) in ranks]
        if not fitting:
            return None
        value = self.rng.choice(fitting[-4:])
        return value, self.shapes[value]


def _elementwise(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    if g.rng.random() < 0.4:
        return g.add("relu", [x])
    alike = [v for v, s in g.shapes.items() if _broadcasts(s, shape)]
    return g.add(g.rng.choice(("add", "mul", "maximum")), [x, g.rng.choice(alike)])


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(m == n or m == 1 or n == 1 for m, n in pairs)


def _permute(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    rank = len(shape)
    last, first = channels_last(rank), (0, rank - 1, *range(1, rank - 1))
    drawn = tuple(g.rng.sample(range(rank), rank))
    g.add("permute", [x], perm=g.rng.choice((last, first, drawn)) if rank > 2 else drawn)


def _view(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    rank = len(shape)
    at = g.rng.randrange(rank)
    if g.rng.random() < 0.6 and rank > 1:
        at = min(at, rank - 2)
        to = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    elif shape[at] == 4 and rank < 6:
        to = (*shape[:at], 2, 2, *shape[at + 1 :])
    elif rank < 6:
        to = (*shape[:at], 1, *shape[at:])
    else:
        to = (shape[0], -(-_size(shape) // shape[0]))
    g.add("reshape", [x], shape=to)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def _concat(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    axis = g.rng.randrange(len(shape))
    alike = [
        v
        for v, s in g.shapes.items()
        if len(s) == len(shape)
        and all(m == n or i == axis for i, (m, n) in enumerate(zip(s, shape, strict=True)))
    ]
    g.add("cat", [x, *g.rng.choices(alike, k=g.rng.choice((1, 1, 2)))], axis=axis)


def _reduce(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    axes = sorted(g.rng.sample(range(len(shape)), g.rng.choice((1, 1, 2)) if len(shape) > 1 else 1))
    g.add(g.rng.choice(("sum", "amax")), [x], axes=tuple(axes), keepdim=g.rng.random() < 0.5)


def _pad(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    before = tuple(g.rng.choice((0, 0, 1)) for _ in shape)
    g.add("pad", [x], before=before, after=tuple(0 for _ in shape))


def _slice(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    axis = g.rng.randrange(len(shape))
    g.add("slice", [x], axis=axis, start=0, end=max(1, shape[axis] - 1), step=1)


def _flip(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    g.add("flip", [x], axes=(g.rng.randrange(len(shape)),))


def _expand(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    g.add("expand", [x], shape=tuple(g.rng.choice((1, 3)) if extent == 1 else extent for extent in shape))


def _pool(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    one, none = (1, 1), (0, 0)
    g.add("max_pool", [x], kernel=one, stride=one, padding=none, dilation=one)


def _lookup(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    g.add("argmax", [x], axis=g.rng.randrange(len(shape)), keepdim=False)
    g.shapes.popitem()  # no other node reads the positions


def _matmul(g: _Growing, x: int, shape: tuple[int, ...]) -> None:
    other = [
        v
        for v, s in g.shapes.items()
        if len(s) > 1 and s[-2] == shape[-1] and _broadcasts(s[:-2], shape[:-2])
    ]
    if other:
        g.add("matmul", [x, g.rng.choice(other)])


_STEPS: tuple[tuple[Callable[[_Growing, int, tuple[int, ...]], None], int, tuple[int, ...]], ...] = (
    (_elementwise, 5, ()),
    (_permute, 3, (2, 3, 4, 5, 6)),
    (_view, 3, (1, 2, 3, 4, 5, 6)),
    (_concat, 2, (1, 2, 3, 4, 5, 6)),
    (_reduce, 2, (1, 2, 3, 4, 5, 6)),
    (_pad, 1, (1, 2, 3, 4, 5, 6)),
    (_slice, 1, (1, 2, 3, 4, 5, 6)),
    (_flip, 1, (1, 2, 3, 4, 5, 6)),
    (_expand, 1, (1, 2, 3, 4, 5, 6)),
    (_pool, 5, (4,)),
    (_lookup, 1, (1, 2, 3, 4, 5, 6)),
    (_matmul, 2, (2, 3, 4, 5)),
)


def random_graph(seed: int) -> _core.Graph:
    """Returns the random graph of a seed."""
    g = _Growing(seed)
    for _ in range(g.rng.choice((1, 2, 3))):
        g.add_input()
    steps, weights = list(_STEPS), [step[1] for step in _STEPS]
    wanted = g.rng.randint(2, NODES)
    for _ in range(4 * NODES):
        if g.nodes >= wanted:
            break
        step, _, ranks = g.rng.choices(steps, weights)[0]
        drawn = g.any(*ranks)
        if drawn is not None and _size(drawn[1]) <= 4096:
            step(g, *drawn)
    results = list(g.shapes)
    for i, value in enumerate({results[-1], g.rng.choice(results)}):
        g.builder.add_output(value, f"out[{i}]", order=g.order(len(g.shapes[value])))
    return g.builder.finish()
