"""Quantize and dequantize calls around parts that only move or clamp elements.

::

    dequantize ─▶ matmul ─▶ quantize         decomposed: dequantize ─▶ view ─▶ bmm ─▶ view ─▶ quantize
    dequantize ─▶ conv ─▶ relu ─▶ quantize

ExecuTorch's passes find the quantization of a call in the dequantize and quantize calls next to it. Parts of
a decomposed call may have none, and a convolution in front of a ReLU has none either. Operators that move
elements have one quantization on both sides. So have those that clamp: rounding is monotone, so a clamp of
rounded numbers is the rounded clamp. A pair of conversions between such an operator and its neighbour changes
no number.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from executorch.backends.cortex_m.passes.quantized_clamp_activation_pass import QuantizedClampActivationPass
from torch.fx import Graph, Node

from tosaic.executorch.cortex_m_marks import is_claimed
from tosaic.fx.outside import is_dequantize, is_quantize
from tosaic.fx.quantize_calls import inserted_by, is_move

__all__ = ["with_own_conversions"]


def with_own_conversions(graph: Graph) -> None:
    """Gives claimed parts that move or clamp elements conversions on both sides, if one side has one.

    Parameters
    ----------
    graph : Graph
        Of an edge program. It is changed.
    """
    for node in list(graph.nodes):
        operand = _operand(node)
        if operand is not None and _moves(node) and is_dequantize(operand):
            readers = [each for each in node.users if not is_quantize(each)]
            quantize = operand.args[0]
            if readers and isinstance(quantize, Node) and is_quantize(quantize):
                _add_pair(node, readers, quantize, operand)
    for node in reversed(list(graph.nodes)):
        operand = _operand(node)
        if operand is not None and (_moves(node) or _clamps(node)) and not is_dequantize(operand):
            pair = _conversions_behind(node)
            if pair is not None and is_claimed(operand.meta):
                _add_pair(operand, [node], *pair)


def _operand(node: Node) -> Node | None:
    """Returns the first operand of a claimed call."""
    is_call = node.op == "call_function" and is_claimed(node.meta) and bool(node.args)
    return node.args[0] if is_call and isinstance(node.args[0], Node) else None


def _moves(node: Node) -> bool:
    return is_move(node) and inserted_by(node) is None


def _clamps(node: Node) -> bool:
    return node.target in QuantizedClampActivationPass.TARGETS


def _conversions_behind(node: Node) -> tuple[Node, Node] | None:
    """Returns the quantize call of a value and the call that dequantizes it; None if its readers differ."""
    users = list(node.users)
    if not users or not all(map(is_quantize, users)) or len({each.args[1:] for each in users}) > 1:
        return None
    found = [(users[0], each) for each in users[0].users if is_dequantize(each)]
    return found[0] if found else None


def _add_pair(value: Node, readers: Sequence[Node], quantize: Node, dequantize: Node) -> None:
    """Puts a quantize and a dequantize call, as those of another value, between a value and its readers."""
    integers = _call_like(quantize, value)
    floats = _call_like(dequantize, integers)
    floats.meta["val"] = value.meta["val"]
    integers.meta["val"] = value.meta["val"].to(quantize.meta["val"].dtype)
    for reader in readers:
        reader.replace_input_with(value, floats)


def _call_like(call: Node, operand: Node) -> Node:
    """Adds a call with another first operand behind that operand."""
    target: Any = call.target
    with operand.graph.inserting_after(operand):
        made = operand.graph.call_function(target, (operand, *call.args[1:]), dict(call.kwargs))
    made.meta = copy.copy(call.meta)
    return made
