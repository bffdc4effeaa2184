"""Random graphs with many views and elementwise operators, and pools that require channels last.

Every graph has about `NODES` nodes at most. A reshape may have any shape with the same number of elements,
and often has the shape of an earlier value. Elementwise operators have one or two operands of the same shape,
values that broadcast, or constants of any shape that broadcasts; they compute in f32 and i32. A plain graph
has only pools, permutes, reshapes and elementwise operators, and no operand but constants of rank 0
broadcasts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tosaic import _core
from tosaic.base.dim_order import channels_last

__all__ = ["NODES", "random_view_graph"]

NODES = 12
_ID = {op.name: op.id for op in _core.ops()}
_NOWHERE = ("", "", "", "", 0)
_EXTENTS = (1, 2, 2, 3, 4, 4, 6)
_MOST_ELEMENTS = 600

Shape = tuple[int, ...]


class _Growing:
    def __init__(self, seed: int, *, plain: bool) -> None:
        self.rng = random.Random(seed)
        self.builder = _core.GraphBuilder("views")
        self.values: dict[int, tuple[str, Shape]] = {}
        self.plain = plain
        self.nodes = 0
        self.last = ""

    def add_input(self) -> None:
        drawn = [self.rng.choice(_EXTENTS) for _ in range(self.rng.choice((3, 4, 4, 4, 4)))]
        while prod(drawn) > _MOST_ELEMENTS:
            drawn[self.rng.randrange(len(drawn))] = 1
        name, shape = f"x{len(self.values)}", tuple(drawn)
        order = channels_last(len(shape)) if self.rng.random() < 0.3 else None
        dtype = "i32" if self.rng.random() < 0.15 and not self.plain else "f32"
        self.values[self.builder.add_input(name, dtype, shape, name, order=order)] = (dtype, shape)

    def add(self, op: str, operands: int | Sequence[int], made: str, **attributes: Any) -> int:
        """Adds a node with one result of dtype `made`."""
        name, values = f"{op}_{self.nodes}", [operands] if isinstance(operands, int) else list(operands)
        value = self.builder.add(_ID[op], attributes, values, name, _NOWHERE, None, None)
        self.nodes += 1
        self.values[value] = (made, tuple(self.builder.type(value)[1]))
        return value

    def constant(self, dtype: str, shape: Shape) -> int:
        numbers = [self.rng.choice((-2, -1, 1, 2, 3)) for _ in range(prod(shape))]
        array = np.array(numbers, np.float32 if dtype == "f32" else np.int32).reshape(shape)
        constant = _core.Constant(
            f"c{self.nodes}", "lifted", dtype, shape, array.ctypes.data, array.nbytes, array
        )
        return int(self.builder.add_constant(constant))

    def view(self, x: int) -> None:
        dtype, shape = self.values[x]
        known = [s for _, s in self.values.values() if prod(s) == prod(shape) and s != shape]
        to = self.rng.choice(known) if known and self.rng.random() < 0.4 else _regrouped(self.rng, shape)
        self.add("reshape", x, dtype, shape=to)

    def permute(self, x: int) -> None:
        dtype, shape = self.values[x]
        rank = len(shape)
        last, first = channels_last(rank), (0, rank - 1, *range(1, rank - 1))
        drawn = tuple(self.rng.sample(range(rank), rank))
        perm = self.rng.choice((last, first, drawn)) if rank > 2 else drawn
        self.add("permute", x, dtype, perm=perm)

    def pool(self, x: int) -> None:
        one, none = (1, 1), (0, 0)
        self.add("max_pool", x, "f32", kernel=one, stride=one, padding=none, dilation=one)

    def unary(self, x: int) -> None:
        dtype, _ = self.values[x]
        drawn = self.rng.choice(("relu", "neg", "abs", "cast", "clamp"))
        if drawn == "cast":
            to = dtype if self.plain else "i32" if dtype == "f32" else "f32"
            bounded = self.add("clamp", x, dtype, min=-999, max=999)
            if to != dtype:
                self.add("cast", bounded, to, dtype=to)
        elif drawn == "clamp":
            self.add("clamp", x, dtype, min=-1, max=3)
        else:
            self.add(drawn, x, dtype)

    def binary(self, x: int) -> None:
        dtype, shape = self.values[x]
        alike = [
            v
            for v, (d, s) in self.values.items()
            if d == dtype and (s == shape or (not self.plain and _broadcasts(s, shape)))
        ]
        drawn = self.rng.random()
        if drawn < 0.5 and alike:
            other = self.rng.choice(alike)
        elif drawn < 0.65:
            other = self.constant(dtype, ())
        elif drawn < 0.8 or self.plain:
            other = self.constant(dtype, shape)
        else:
            other = self.constant(dtype, tuple(self.rng.choice((1, extent)) for extent in shape))
        op = self.rng.choice(("add", "sub", "maximum", "minimum"))
        attributes = {"alpha": 1} if op in ("add", "sub") else {}
        self.add(op, self.rng.sample((x, other), 2), dtype, **attributes)

    def reduce(self, x: int) -> None:
        dtype, shape = self.values[x]
        self.add("amax", x, dtype, axes=(self.rng.randrange(len(shape)),), keepdim=True)

    def cat(self, x: int) -> None:
        dtype, shape = self.values[x]
        self.add("cat", (x, x), dtype, axis=self.rng.randrange(len(shape)))

    def step(self) -> None:
        x = self.rng.choice([*self.values, *[list(self.values)[-1]] * 3][-6:])
        dtype, shape = self.values[x]
        last = self.last
        views = {"": 2, "pool": 8, "view": 0, "elementwise": 6}[last]
        work = {"": 1, "pool": 1, "view": 4, "elementwise": 1}[last]
        steps = [(self.view, views), (self.unary, work), (self.binary, work)]
        steps.append((self.permute, 1 if len(shape) > 1 else 0))
        if dtype == "f32" and len(shape) == 4:
            steps.append((self.pool, {"": 6, "pool": 0, "view": 8, "elementwise": 2}[last]))
        if not self.plain and shape:
            steps += [(self.reduce, 1), (self.cat, 1 if prod(shape) < _MOST_ELEMENTS else 0)]
        calls, weights = zip(*steps, strict=True)
        call = self.rng.choices(calls, weights)[0]
        kinds = {self.view: "view", self.pool: "pool", self.unary: "elementwise", self.binary: "elementwise"}
        self.last = kinds.get(call, last)
        call(x)


def _broadcasts(a: Sequence[int], b: Shape) -> bool:
    return len(a) <= len(b) and all(m in (1, n) for m, n in zip(reversed(a), reversed(b), strict=False))


def _regrouped(rng: random.Random, shape: Shape) -> Shape:
    """Returns a random shape with the same number of elements, of rank 4 half of the time."""
    left, out = prod(shape), []
    rank = rng.choice((1, 2, 3, 4, 4, 4, 4, 5))
    for _ in range(rank - 1):
        divisors = [n for n in range(1, left + 1) if left % n == 0 and n <= 12]
        out.append(rng.choice(divisors))
        left //= out[-1]
    out.insert(rng.randrange(len(out) + 1), left)
    return tuple(out)


def random_view_graph(seed: int, *, plain: bool = False) -> _core.Graph:
    """Returns the graph of a seed."""
    g = _Growing(seed, plain=plain)
    for _ in range(g.rng.choice((1, 1, 2))):
        g.add_input()
    wanted = g.rng.randint(3, NODES)
    for _ in range(4 * NODES):
        if g.nodes >= wanted:
            break
        g.step()
    results = list(g.values)
    for i, value in enumerate({results[-1], g.rng.choice(results)}):
        rank = len(g.values[value][1])
        order = channels_last(rank) if rank == 4 and g.rng.random() < 0.3 else None
        g.builder.add_output(value, f"out[{i}]", order=order)
    return g.builder.finish()
