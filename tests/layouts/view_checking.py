"""Checks one random graph of views: bytes transposed without and with `choose-shapes`, and the minimum."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
from tosaic import _core

from layouts.view_graphs import random_view_graph

__all__ = ["CheckedViews", "check_views", "least_bytes"]

_TARGET = "TOSA-1.0+INT+FP"
_BEFORE = (
    *("fold-constants", "dead-code", "common-subexpressions", "simplify", "fold-batch-norm"),
    *("decompose", "fold-constants", "sink-reshapes", "simplify", "common-subexpressions"),
)
_MOST_CHOICES = 500
_BYTES = 4
_MOST_AXES = 6  # a TOSA tensor has at most 6 axes

Placement = tuple[int, ...]  # for each place in memory, the row-major index of its element


@dataclass
class CheckedViews:
    """The outcome of one graph.

    Attributes
    ----------
    nodes : int
    before, after : int
        The bytes that the layout plan transposes without and with the pass choose-shapes.
    least : int or None
        The minimum that brute force found; None if it was not computed.
    failures : list of str
    """

    nodes: int = 0
    before: int = 0
    after: int = 0
    least: int | None = None
    failures: list[str] = field(default_factory=list)

    @property
    def above_least(self) -> bool:
        """True if brute force found a lowering that moves fewer bytes than ours."""
        return self.least is not None and self.after > self.least


def check_views(seed: int, *, plain: bool = False) -> CheckedViews:
    """Lowers and runs the graph of a seed, for each objective, and computes the minimum for plain graphs."""
    graph = random_view_graph(seed, plain=plain)
    out = CheckedViews(len(graph.nodes))
    rng = np.random.default_rng(seed)
    arrays = [_drawn(port, rng) for port in graph.inputs]
    expected = _core.Session(graph, reference=True).run(arrays)
    before = graph
    for name in _BEFORE:
        before = _core.run_pass(name, before)
    for objective in ("bytes", "count"):
        lowered = _core.lower(graph, pipeline=_TARGET, objective=objective)
        plans = [_core.plan_layout(each, objective=objective) for each in (before, lowered.decomposed)]
        was, now = ((plan["bytes"], len(plan["transposes"])) for plan in plans)
        if objective == "bytes":
            out.before, out.after = was[0], now[0]
        else:
            was, now = was[::-1], now[::-1]
        if now > was:
            out.failures.append(f"{objective}: {now}, and {was} before")
        moved = [node.results[0] for node in lowered.tosa.nodes if node.op == "tosa.transpose"]
        if sum(_BYTES * prod(value.shape) for value in moved) > plans[1]["bytes"]:
            out.failures.append(f"{objective}: the file moves more than the plan")
        for got, wanted in zip(_core.Session(lowered.tosa).run(arrays), expected, strict=True):
            if got.dtype != wanted.dtype or not np.array_equal(got, wanted):
                out.failures.append(f"{objective}: other results")
    if plain:
        out.least = least_bytes(before)
    return out


def _drawn(port: Any, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Returns random integers, which f32 represents exactly, with the declared strides of the input."""
    array = rng.integers(-20, 20, port.shape).astype(np.float32 if port.dtype == "f32" else np.int32)
    return np.ascontiguousarray(array.transpose(port.dim_order)).transpose(np.argsort(port.dim_order))


def least_bytes(graph: _core.Graph) -> int | None:
    """Returns the minimum of the bytes that must be transposed, or None if there are too many choices.

    Every node other than pools and views may compute in any placement that pools, inputs or outputs require
    somewhere, carried to the node through views and elementwise operators. All combinations are tried. A
    placement is the list of all elements in their order in memory, so it is not restricted to the dim orders
    of a shape.
    """
    wants = _Wants(graph)
    nodes = [node for node in graph.nodes if not _is_view(node) and node.op != "max_pool"]
    choices = [sorted(wants.known[node.results[0].name]) for node in nodes]
    if prod(map(len, choices)) > _MOST_CHOICES:
        return None
    return min(
        wants.bytes({node.results[0].name: way for node, way in zip(nodes, ways, strict=True)})
        for ways in product(*choices)
    )


def _is_view(node: _core.Node) -> bool:
    return node.op in ("permute", "reshape")


def _lying(shape: tuple[int, ...], order: tuple[int, ...]) -> Placement:
    return tuple(int(i) for i in np.arange(prod(shape)).reshape(shape).transpose(order).ravel())


class _Wants:
    def __init__(self, graph: _core.Graph) -> None:
        self._graph = graph
        self.known: dict[str, set[Placement]] = {value.name: set() for value in graph.values}
        for port in graph.inputs:
            self.known[port.name].add(_lying(tuple(port.shape), tuple(port.dim_order)))
        for port in graph.outputs:
            self.known[port.value.name].add(_lying(tuple(port.value.shape), tuple(port.dim_order)))
        for node in graph.nodes:
            if node.op == "max_pool":
                for value in (*self._operands(node), node.results[0]):
                    self.known[value.name].add(_lying(tuple(value.shape), (0, 2, 3, 1)))
        self._spread()
        for node in graph.nodes:  # values that no placement reaches are row-major
            if not self.known[node.results[0].name]:
                shape = tuple(node.results[0].shape)
                self.known[node.results[0].name].add(_lying(shape, tuple(range(len(shape)))))
                self._spread()

    def _operands(self, node: _core.Node) -> list[Any]:
        return [value for value in node.operands if value is not None and value.kind != "constant"]

    def _through(self, node: _core.Node) -> np.ndarray[Any, Any] | None:
        """Returns, for each element of the operand, its index in the result; None if all are equal."""
        if node.op != "permute":
            return None
        shape = tuple(node.operands[0].shape)
        taken = np.arange(prod(shape)).reshape(shape).transpose(node.attrs["perm"]).ravel()
        return np.argsort(taken)

    def _spread(self) -> None:
        changed = True
        while changed:
            changed = False
            for node in self._graph.nodes:
                if node.op == "max_pool":
                    continue
                result, to = self.known[node.results[0].name], self._through(node)
                for value in self._operands(node):
                    operand = self.known[value.name]
                    forward = {_mapped(each, to) for each in operand} - result
                    back = {
                        _mapped(each, None if to is None else np.argsort(to)) for each in result
                    } - operand
                    changed |= bool(forward or back)
                    result |= forward
                    operand |= back

    def bytes(self, ways: dict[str, Placement]) -> int:
        made: dict[str, Placement] = {}
        shown: dict[str, tuple[str, np.ndarray[Any, Any] | None]] = {}
        wanted: dict[str, set[Placement]] = {}
        size = {value.name: _BYTES * prod(value.shape) for value in self._graph.values}

        def read(name: str, placement: Placement) -> None:
            data, to = shown[name]
            wanted[data].add(_mapped(placement, None if to is None else np.argsort(to)))

        def make(name: str, placement: Placement) -> None:
            made[name], shown[name], wanted[name] = placement, (name, None), set()

        for port in self._graph.inputs:
            make(port.name, _lying(tuple(port.shape), tuple(port.dim_order)))
        for node in self._graph.nodes:
            result = node.results[0]
            if _is_view(node):
                data, to = shown[node.operands[0].name]
                own = self._through(node)
                shown[result.name] = data, own if to is None else to if own is None else own[to]
                continue
            last = _lying(tuple(result.shape), (0, 2, 3, 1)) if node.op == "max_pool" else None
            for value in self._operands(node):
                read(value.name, last or ways[result.name])
            make(result.name, last or ways[result.name])
        for port in self._graph.outputs:
            read(port.value.name, _lying(tuple(port.value.shape), tuple(port.dim_order)))
        return sum(size[name] * _transposes(placement, wanted[name]) for name, placement in made.items())


def _transposes(made: Placement, wanted: set[Placement]) -> int:
    """Returns the number of TRANSPOSEs from placement `made` to all of `wanted`.

    One TRANSPOSE is enough between two placements if there is a shape whose axes can be ordered to either of
    them. Otherwise two are needed: via the row-major placement or another placement between.
    """
    count, known, left = 0, {made}, wanted - {made}
    row_major = tuple(range(len(made)))
    while left:
        direct = {each for each in left if any(_in_one_shape(each, other) for other in known)}
        if not direct and row_major in known:  # via a placement between
            direct = {min(left)}
            count += 1
        elif not direct:
            direct = {row_major}
        count += len(direct)
        known |= direct
        left -= direct
    return count


@cache
def _cuts(placement: Placement) -> frozenset[int]:
    """Returns the cuts of a placement (placement.h): stride, and stride times extent, of each run."""
    cuts, at = {1, len(placement)}, np.asarray(placement)
    while at.size > 1:
        stride = int(at[1] - at[0])
        run = 1
        while run < at.size and at[run] == at[0] + run * stride:
            run += 1
        cuts |= {stride, stride * run}
        at = at[::run]
    return frozenset(cuts)


@cache
def _in_one_shape(a: Placement, b: Placement) -> bool:
    cuts = sorted(_cuts(a) | _cuts(b))
    return all(n % m == 0 for m, n in pairwise(cuts)) and len(cuts) <= _MOST_AXES + 1


def _mapped(placement: Placement, to: np.ndarray[Any, Any] | None) -> Placement:
    return placement if to is None else tuple(int(to[i]) for i in placement)
