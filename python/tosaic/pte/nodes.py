"""Writes a node of the host as kernel calls, by its row or by the rows of the operators that it expands to.

hardswish -> add, clamp, mul, div        no kernel has hardswish; `decompose` has an expansion
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tosaic import _core
from tosaic.base.operator_facts import elementwise_operators
from tosaic.program.node_graph import graph_of_node
from tosaic.pte.host import Held, Host, is_channels_last
from tosaic.pte.kernels import ROWS
from tosaic.torch_operators.arguments import OP

_IMAGE_RANK = 4

_WITH_NUMBERS = ("add", "sub", "mul", "div")
"""Kernels that accept a number as operand in every dim order, except for 16-bit floats. Other kernels of
ExecuTorch 1.5 broadcast a number as if the result were row-major."""
_OF_IMAGES = ("resize", "max_pool")
"""Operators whose kernels also take channels-last images. The kernel of ``avg_pool2d`` does not."""


def write_node(host: Host, node: _core.Node, operands: Sequence[Held | None]) -> list[Held] | None:
    """Writes the calls that compute a node; returns its results. None if no kernels compute it.

    Elementwise nodes, and some image nodes, compute in the dim order of their operands, others row-major.
    """
    order = _common_order(node, operands)
    if order is None:
        given = [None if each is None else host.in_order(each, tuple(range(each.rank))) for each in operands]
    else:
        given = [None if each is None else host.spread(each, order) for each in operands]
    row = ROWS.get(node.op)
    with host.computing_in(order):
        made = None if row is None else row(host, node, given)
    if made is not None:
        return made if isinstance(made, list) else [made]
    return _expanded(host, node, given)


def _common_order(node: _core.Node, operands: Sequence[Held | None]) -> tuple[int, ...] | None:
    """Returns the dim order in which a kernel computes a node; None for row-major.

    All operands of an elementwise node have this order and the shape of the result; some kernels also take
    a number as operand.
    """
    image = operands[0] if operands else None
    if node.op in _OF_IMAGES and image is not None and image.rank == _IMAGE_RANK:
        return image.order if is_channels_last(image.order) else None
    if node.op not in elementwise_operators() or len(node.results) != 1:
        return None
    shape = tuple(node.results[0].shape)
    spans = [each for each in operands if each is not None and math.prod(each.shape) != 1]
    orders = {each.order for each in spans}
    if len(orders) != 1 or any(each.shape != shape for each in spans):
        return None
    if len(spans) < len(operands) and (
        node.op not in _WITH_NUMBERS or node.results[0].dtype in ("f16", "bf16")
    ):
        return None
    (order,) = orders
    return order if is_channels_last(order) else None


def _expanded(host: Host, node: _core.Node, operands: Sequence[Held | None]) -> list[Held] | None:
    """Writes the nodes of the node's expansion by `decompose`; None if there is none or no kernels exist."""
    if node.op not in OP or node.regions or node.op == "opaque":
        return None
    graph = _core.run_pass("decompose", graph_of_node(node))
    if any(each.op == node.op for each in graph.nodes):
        return None
    held = {port.value.id: each for port, each in zip(graph.inputs, _present(node, operands), strict=True)}
    for each in graph.nodes:
        entering = [None if value is None else _held(host, held, value) for value in each.operands]
        made = write_node(host, each, entering)
        if made is None:
            return None
        held |= {value.id: result for value, result in zip(each.results, made, strict=True)}
    return [_held(host, held, port.value) for port in graph.outputs]


def _held(host: Host, held: dict[int, Held], value: _core.Value) -> Held:
    constant = value.constant
    if value.id not in held and constant is not None:
        held[value.id] = host.weight(constant)
    return held[value.id]


def _present(node: _core.Node, operands: Sequence[Held | None]) -> list[Held]:
    """Returns the operands that are not constants, each value once."""
    found = {
        value.id: each
        for value, each in zip(node.operands, operands, strict=True)
        if value is not None and each is not None and value.constant is None
    }
    return list(found.values())
