"""Parts of a TOSA graph as graphs of their own: the operators over integers, and those over floats.

If a quantizer leaves some operators in float (islands of floats), the integer part must be exact and the
float part within tolerance. To check this, each part is run on the values that it reads in a run of the whole
graph. A part need not be connected. Every value that it reads from outside is an input, and every value that
is read outside is an output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tosaic import _core

__all__ = ["Part", "over_floats", "part_of"]

_FLOATS = ("f8e4m3", "f8e5m2", "f16", "bf16", "f32", "f64")
_IDS = {op.name: op.id for op in _core.ops()}
_NO_ORIGIN = ("", "", "", "", 0)


@dataclass(frozen=True)
class Part:
    """Some operators of a graph, as a graph.

    Attributes
    ----------
    graph : Graph
        The part.
    inputs, outputs : tuple of str
        For each input and output of `graph`, in order: the name of the value of the whole graph.
    """

    graph: _core.Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def over_floats(node: Any) -> bool:
    """True if an operand or a result of the node is a float."""
    values = [*node.operands, *node.results]
    return any(value is not None and value.dtype in _FLOATS for value in values)


def part_of(graph: _core.Graph, wanted: Callable[[Any], bool]) -> Part | None:
    """Returns the operators for which `wanted` returns true, as a graph, or None if there are none.

    The graph must be at stage tosa, without regions, and every wanted operator must have one result.
    """
    nodes = [node for node in graph.nodes if wanted(node)]
    if not nodes:
        return None
    kept = {node.id for node in nodes}
    builder = _core.GraphBuilder("part", graph.stage)
    made: dict[int, int] = {}
    inputs = []

    def operand(value: Any) -> int:
        if value is None:
            return -1
        if value.id not in made:
            if value.constant is not None:
                made[value.id] = builder.add_constant(value.constant)
            else:
                made[value.id] = builder.add_input(value.name, value.dtype, value.shape, value.name)
                inputs.append(value.name)
        return made[value.id]

    for node in nodes:
        (result,) = node.results
        operands = [operand(value) for value in node.operands]
        made[result.id] = builder.add(
            _IDS[node.op], node.attrs, operands, node.name, _NO_ORIGIN, result.dtype, result.shape
        )
    outputs = []
    for node in nodes:
        (result,) = node.results
        if result.is_output or any(user.id not in kept for user in result.users):
            builder.add_output(made[result.id], result.name)
            outputs.append(result.name)
    return Part(builder.finish(), tuple(inputs), tuple(outputs))
