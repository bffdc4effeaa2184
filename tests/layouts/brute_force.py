"""The minimum cost of a graph over all choices of layout options, by trying all of them.

The code is independent of the solver.
"""

from __future__ import annotations

from itertools import product
from math import prod
from zlib import crc32

from tosaic import _core

__all__ = ["OBJECTIVES", "cost_of", "least_costs", "number_of_choices", "own_cost"]

Order = tuple[int, ...]
Way = tuple[tuple[Order | None, ...], tuple[Order, ...]]
_BYTES = 4  # per element of f32, and of i64, which becomes i32 in TOSA


def own_cost(name: str, shape: tuple[int, ...], dtype: str, size: int) -> int:
    """Returns a cost function of the caller, hardly related to bytes: often 0, sometimes large."""
    return (0, 0, 1, 2, 7, size, 1000)[crc32(f"{name}{shape}{dtype}".encode()) % 7]


OBJECTIVES = ("bytes", "count", own_cost)


def _in_memory(shape: tuple[int, ...], order: Order) -> Order:
    return tuple(axis for axis in order if shape[axis] != 1)


def cost_of(graph: _core.Graph, ways: tuple[Way, ...]) -> dict[object, tuple[int, int]]:
    """Returns the cost of a choice of layout options, by objective: (what is minimised, what decides ties).

        bytes       (bytes transposed, number of transposes)
        count       (number of transposes, bytes transposed)
        own_cost    (sum of own costs, number of transposes)

    A value and its views share data. The data is transposed once for each order in which it, or a view of it,
    is read, other than the order in which it is made.
    """
    made: dict[str, Order] = {}
    shapes = {value.name: tuple(value.shape) for value in graph.values}
    views = _views(graph)
    wanted: dict[str, set[Order]] = {name: set() for name in shapes}

    def read(name: str, order: Order) -> None:
        data, axes = views[name]
        lying = (axes[axis] for axis in order)
        wanted[data].add(_in_memory(shapes[data], tuple(axis for axis in lying if axis is not None)))

    for port in graph.inputs:
        made[port.name] = _in_memory(port.shape, port.dim_order)
    for node, (operands, results) in zip(graph.nodes, ways, strict=True):
        if _is_view(node):
            continue
        for value, order in zip(node.operands, operands, strict=True):
            if value is not None and order is not None:
                read(value.name, order)
        for value, order in zip(node.results, results, strict=True):
            made[value.name] = _in_memory(shapes[value.name], order)
    for port in graph.outputs:
        read(port.value.name, port.dim_order)
    transposes = [(name, len(wanted[name] - {order})) for name, order in made.items()]
    size = sum(_BYTES * prod(shapes[name]) * count for name, count in transposes)
    own = sum(
        own_cost(name, shapes[name], "f32", _BYTES * prod(shapes[name])) * count for name, count in transposes
    )
    number = sum(count for _, count in transposes)
    return {"bytes": (size, number), "count": (number, size), own_cost: (own, number)}


def _is_view(node: _core.Node) -> bool:
    """True for a permute, and for a reshape that only adds or removes axes of extent 1."""
    (operand, *_), result = node.operands, node.results[0]
    if node.op != "reshape":
        return node.op == "permute"
    assert operand is not None
    return [n for n in operand.shape if n != 1] == [n for n in result.shape if n != 1]


def _views(graph: _core.Graph) -> dict[str, tuple[str, tuple[int | None, ...]]]:
    """Returns, for each value, the value whose data it shows, and for each axis the axis of that value.

    An axis of extent 1 that was added has None.
    """
    out: dict[str, tuple[str, tuple[int | None, ...]]] = {
        value.name: (value.name, tuple(range(len(value.shape)))) for value in graph.values
    }
    for node in graph.nodes:
        if not _is_view(node):
            continue
        operand, result = node.operands[0], node.results[0]
        assert operand is not None
        data, axes = out[operand.name]
        if node.op == "permute":
            shown = tuple(axes[axis] for axis in node.attrs["perm"])
        else:
            left = iter([axis for axis, extent in zip(axes, operand.shape, strict=True) if extent != 1])
            shown = tuple(next(left) if extent != 1 else None for extent in result.shape)
        out[result.name] = (data, shown)
    return out


def _choices(graph: _core.Graph) -> list[list[Way]]:
    """Returns the layout options of each node. For views one is enough, since they do not count."""
    return [
        ways[:1] if _is_view(node) else ways
        for node, ways in zip(graph.nodes, _core.layout_choices(graph), strict=True)
    ]


def number_of_choices(graph: _core.Graph) -> int:
    """Returns the number of choices: the product of the numbers of layout options."""
    count = 1
    for ways in _choices(graph):
        count *= len(ways)
    return count


def least_costs(graph: _core.Graph) -> dict[object, tuple[int, int]]:
    """Returns the minimum cost over all choices, for each objective."""
    costs = [cost_of(graph, ways) for ways in product(*_choices(graph))]
    return {objective: min(cost[objective] for cost in costs) for objective in OBJECTIVES}
