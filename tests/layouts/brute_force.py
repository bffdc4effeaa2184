"""The least cost of a graph over all choices of ways, by trying them; written apart from the solver."""

from __future__ import annotations

from itertools import product
from math import prod

from tosaic import _core

__all__ = ["cost_of", "least_cost", "number_of_choices"]

Order = tuple[int, ...]
Way = tuple[tuple[Order | None, ...], tuple[Order, ...]]
_BYTES = 4  # f32, and i64, which TOSA has as i32


def _in_memory(shape: tuple[int, ...], order: Order) -> Order:
    return tuple(axis for axis in order if shape[axis] != 1)


def cost_of(graph: _core.Graph, ways: tuple[Way, ...]) -> tuple[int, int]:
    """Bytes and number of transposes: each value once for every other order that is read."""
    made: dict[str, Order] = {}
    shapes = {value.name: tuple(value.shape) for value in graph.values}
    sizes = {name: _BYTES * prod(shape) for name, shape in shapes.items()}
    wanted: dict[str, set[Order]] = {name: set() for name in shapes}
    for port in graph.inputs:
        made[port.name] = _in_memory(port.shape, port.dim_order)
    for node, (operands, results) in zip(graph.nodes, ways, strict=True):
        for value, order in zip(node.operands, operands, strict=True):
            if value is not None and order is not None:
                wanted[value.name].add(_in_memory(shapes[value.name], order))
        for value, order in zip(node.results, results, strict=True):
            made[value.name] = _in_memory(shapes[value.name], order)
    for port in graph.outputs:
        wanted[port.value.name].add(_in_memory(port.shape, port.dim_order))
    transposes = [(name, len(wanted[name] - {order})) for name, order in made.items()]
    return sum(sizes[name] * count for name, count in transposes), sum(count for _, count in transposes)


def number_of_choices(graph: _core.Graph) -> int:
    """How many there are to try."""
    count = 1
    for ways in _core.layout_choices(graph):
        count *= len(ways)
    return count


def least_cost(graph: _core.Graph) -> tuple[int, int]:
    """The least bytes, then the fewest transposes."""
    return min(cost_of(graph, ways) for ways in product(*_core.layout_choices(graph)))
