"""Graphs of any size with conflicting dim orders, as in networks: residual blocks of images, and matmuls."""

from __future__ import annotations

from typing import Any

from tosaic import _core

__all__ = ["network_graph"]

_ID = {op.name: op.id for op in _core.ops()}
_NOWHERE = ("", "", "", "", 0)


class _Building:
    def __init__(self) -> None:
        self.builder = _core.GraphBuilder("network")
        self.nodes = 0

    def add(self, op: str, *operands: int, **attributes: Any) -> int:
        self.nodes += 1
        name = f"{op}_{self.nodes}"
        return self.builder.add(_ID[op], attributes, list(operands), name, _NOWHERE, None, None)

    def pool(self, x: int) -> int:
        one = (1, 1)
        return self.add("max_pool", x, kernel=one, stride=one, padding=(0, 0), dilation=one)

    def gate(self, x: int, *, rows: bool) -> int:
        """Adds branches that meet again. Their operators require no particular dim order."""
        a, b = self.add("relu", x), self.add("tanh", x)
        top = self.add("amax", b, axes=(2, 3) if not rows else (1,), keepdim=True)
        return self.add("add", self.add("mul", a, self.add("sigmoid", top)), b)

    def residual(self, x: int) -> int:
        y = self.pool(self.gate(self.pool(x), rows=False))
        return self.add("relu", self.add("add", y, x))

    def as_rows(self, x: int, shape: tuple[int, int, int, int]) -> int:
        n, c, h, w = shape
        rows = self.add("permute", self.add("reshape", x, shape=(n, c, h * w)), perm=(0, 2, 1))
        mixed = self.add("matmul", rows, self.add("permute", rows, perm=(0, 2, 1)))
        back = self.add("matmul", mixed, self.gate(rows, rows=True))
        return self.add("reshape", self.add("permute", back, perm=(0, 2, 1)), shape=shape)


def network_graph(nodes: int) -> _core.Graph:
    """Returns a graph of at least `nodes` nodes, and not many more."""
    g = _Building()
    shape = (2, 6, 4, 5)
    x = g.builder.add_input("x", "f32", shape, "x")
    skip = x
    while g.nodes < nodes:
        for _ in range(4):
            x = g.residual(x)
        x = g.add("add", g.as_rows(x, shape), skip)
        skip = x
    g.builder.add_output(x, "out")
    return g.builder.finish()
