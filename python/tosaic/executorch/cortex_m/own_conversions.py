"""Adds quantize and dequantize calls in which ExecuTorch's passes find the quantization of a call.

::

    dequantize ─▶ conv ─▶ relu ─▶ quantize         no quantization between conv and relu
    dequantize ─▶ max_pool ─▶ output               none after max_pool
    dequantize ─▶ matmul ─▶ quantize               decomposed: dequantize ─▶ view ─▶ bmm ─▶ view ─▶ quantize

The passes find the quantization of a call in the dequantize and quantize calls next to it. The plan has
qparams also for values without such calls: a pool selects integers, and a ReLU clamps them. Adding a quantize
and a dequantize call with the plan's qparams then changes no number. The same holds between the parts of a
decomposed call, one of which moves elements.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from tosaic.base.quantization import QParams
from tosaic.executorch.cortex_m.call_marks import add_mark, is_claimed, nodes_by_call
from tosaic.fx.io.quantize_calls import inserted_by, is_dequantize, is_move, is_quantize, is_tensor

_DTYPES = {"i8": torch.int8, "u8": torch.uint8, "i16": torch.int16}


def with_own_conversions(graph: Graph, results: Mapping[str, QParams], operators: tuple[Any, Any]) -> None:
    """Adds conversions to the claimed parts of a graph that lack them.

    Parameters
    ----------
    graph : Graph
        The graph of an edge program, with marks. The function changes it.
    results : mapping of str to QParams
        The plan's qparams of the results of calls, by the name of the call.
    operators : tuple
        The operators that quantize and dequantize by tensor, in the dialect of the program.
    """
    for call, nodes in nodes_by_call(graph).items():
        if call in results and results[call].dtype in _DTYPES:
            for node in nodes:
                readers = [each for each in node.users if not is_quantize(each) and each not in nodes]
                if is_claimed(node.meta) and is_tensor(node) and readers:
                    _add_planned(call, node, readers, results[call], operators)
    for node in list(graph.nodes):
        operand = _operand(node)
        if operand is not None and _moves(node) and is_dequantize(operand):
            readers = [each for each in node.users if not is_quantize(each)]
            quantize = operand.args[0]
            if readers and isinstance(quantize, Node) and is_quantize(quantize):
                _add_pair(node, readers, quantize, operand)
    for node in reversed(list(graph.nodes)):
        operand = _operand(node)
        if operand is not None and _moves(node) and not is_dequantize(operand):
            pair = _conversions_behind(node)
            if pair is not None and is_claimed(operand.meta):
                _add_pair(operand, [node], *pair)


def conversion_of(call: str) -> str:
    """Returns the name in the mark of the dequantize call that is added after a call."""
    return f"{call}.dequantize"


def _add_planned(
    call: str, value: Node, readers: Sequence[Node], qparams: QParams, operators: tuple[Any, Any]
) -> None:
    """Inserts a quantize and a dequantize call with the plan's qparams after a value."""
    if qparams.axis is not None:
        return
    dtype = _DTYPES[qparams.dtype]
    numbers = (qparams.scales[0], qparams.zero_points[0], qparams.qmin, qparams.qmax, dtype)
    with value.graph.inserting_after(value):
        integers = value.graph.call_function(operators[0], (value, *numbers))
    with value.graph.inserting_after(integers):
        floats = value.graph.call_function(operators[1], (integers, *numbers))
    integers.meta["val"] = value.meta["val"].to(dtype)
    floats.meta["val"] = value.meta["val"]
    add_mark(floats, conversion_of(call))
    for reader in readers:
        reader.replace_input_with(value, floats)


def _operand(node: Node) -> Node | None:
    """Returns the first operand of a claimed call."""
    is_call = node.op == "call_function" and is_claimed(node.meta) and bool(node.args)
    return node.args[0] if is_call and isinstance(node.args[0], Node) else None


def _moves(node: Node) -> bool:
    return is_move(node) and inserted_by(node) is None


def _conversions_behind(node: Node) -> tuple[Node, Node] | None:
    """Returns the quantize call of a value and its dequantize call; None if readers do not agree."""
    users = list(node.users)
    if not users or not all(map(is_quantize, users)) or len({each.args[1:] for each in users}) > 1:
        return None
    found = [(users[0], each) for each in users[0].users if is_dequantize(each)]
    return found[0] if found else None


def _add_pair(value: Node, readers: Sequence[Node], quantize: Node, dequantize: Node) -> None:
    """Inserts copies of a quantize and a dequantize call between a value and its readers."""
    integers = _call_like(quantize, value)
    floats = _call_like(dequantize, integers)
    floats.meta["val"] = value.meta["val"]
    integers.meta["val"] = value.meta["val"].to(quantize.meta["val"].dtype)
    for reader in readers:
        reader.replace_input_with(value, floats)


def _call_like(call: Node, operand: Node) -> Node:
    """Copies a call with another first operand, and inserts it after that operand."""
    target: Any = call.target
    with operand.graph.inserting_after(operand):
        made = operand.graph.call_function(target, (operand, *call.args[1:]), dict(call.kwargs))
    made.meta = copy.copy(call.meta)
    return made
