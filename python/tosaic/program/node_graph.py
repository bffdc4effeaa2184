"""`graph_of_node`: a graph of one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tosaic import _core
from tosaic.torch_operators.arguments import OP

_NO_ORIGIN = ("", "", "", "", 0)


def graph_of_node(
    node: _core.Node, types: Mapping[int, tuple[str, Sequence[int]]] | None = None
) -> _core.Graph:
    """Returns a graph at stage ``exported`` that has only this node.

    The node's constants stay constants. Its other operands become inputs, one for each value.

    Parameters
    ----------
    node : Node
        Without regions.
    types : mapping of int to (str, sequence of int), optional
        By id of an operand, a dtype and shape that replace its own. The types of the results follow from
        those of the operands, so this is for nodes with one result.
    """
    builder = _core.GraphBuilder("node")
    values: dict[int, int] = {}
    for value in node.operands:
        if value is None or value.id in values:
            continue
        if value.constant is not None:
            values[value.id] = builder.add_constant(value.constant)
        else:
            dtype, shape = (types or {}).get(value.id, (value.dtype, value.shape))
            values[value.id] = builder.add_input(value.name, dtype, shape, value.name)
    entering = [-1 if value is None else values[value.id] for value in node.operands]
    if len(node.results) == 1:
        first = builder.add(OP[node.op], node.attrs, entering, node.name, _NO_ORIGIN, None, None)
    else:
        made: list[tuple[int, Sequence[int]]] = [
            (_core.DTYPES.index(value.dtype), value.shape) for value in node.results
        ]
        first = builder.add_many(OP[node.op], node.attrs, entering, node.name, _NO_ORIGIN, made)
    for i in range(len(node.results)):
        builder.add_output(first + i, f"out{i}")
    return builder.finish()
