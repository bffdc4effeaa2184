"""Replaces the quantize calls of constants that a graph computes by the integers.

::

    ones = ones([3, 1, 5, 5])
    div = div(ones, 25)
    q = quantize_per_channel(div, s, z, ..)         q = _folded0
    w = dequantize_per_channel(q, s, z, ..)         w = dequantize_per_channel(q, s, z, ..)

In-place calls are computed, too, if they write to tensors that the graph computes from constants. States,
which are buffers that a call writes, are not constants.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from tosaic.fx.io.quantize_calls import is_dequantize, is_quantize
from tosaic.fx.quantizer.memory import Roots, attribute_of, written_arguments
from tosaic.fx.reading.decomposed import is_random


def fold_quantized_constants(module: GraphModule) -> None:
    """Replaces quantize calls that depend on no input by buffers with their results.

    Parameters
    ----------
    module : torch.fx.GraphModule
        The module gets new buffers. Its own tensors are not changed.
    """
    quantized = [each for each in _constants(module) if is_quantize(each)]
    if not quantized:
        return
    written = {
        each: frozenset().union(*map(roots.of, arguments))
        for roots in [Roots()]
        for each in module.graph.nodes
        if (arguments := list(written_arguments(each)))
    }
    constants = _constants(module, written) if written else _constants(module)
    needed: set[Node] = set()
    pending = [each for each in constants if is_quantize(each) or each in written]
    while pending:
        if (node := pending.pop()) not in needed:
            needed.add(node)
            pending += node.all_input_nodes
    for node, found in _computed(node for node in constants if node in needed):
        name = f"_folded{sum(1 for _ in module.named_buffers())}"
        own = found.detach().clone(memory_format=torch.contiguous_format)
        module.register_buffer(name, own, persistent=False)
        with module.graph.inserting_before(node):
            made = module.graph.get_attr(name)
        made.meta["val"] = own
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
    module.recompile()


def _constants(module: GraphModule, written: dict[Node, frozenset[object]] | None = None) -> dict[Node, None]:
    """Returns the nodes that depend on no input and on no state, in order.

    Parameters
    ----------
    written : dict of Node to frozenset
        The memory that each call writes. None: as if no call wrote.
    """
    roots, written = Roots(), written or {}
    spoiled: frozenset[object] = frozenset()
    while True:
        found: dict[Node, None] = {}
        for node in module.graph.nodes:
            is_held = node.op == "get_attr" and isinstance(attribute_of(node), torch.Tensor)
            is_computed = _is_pure(node) and all(each in found for each in node.all_input_nodes)
            if (is_held or is_computed) and not (spoiled and roots.of(node) & spoiled):
                found[node] = None
        held = (roots.of(node) for node in module.graph.nodes if node.op in ("get_attr", "placeholder"))
        states = frozenset().union(*held) if written else frozenset()
        writes = [memory & states if node in found else memory for node, memory in written.items()]
        if spoiled.issuperset(again := frozenset().union(*writes)):
            return found
        spoiled |= again


def _is_pure(node: Node) -> bool:
    """True for a call that depends on its operands alone; False for dequantize, which has to stay."""
    if node.op != "call_function" or is_dequantize(node):
        return False
    return node.target is operator.getitem or (
        isinstance(node.target, OpOverload) and not is_random(node.target)
    )


def _computed(nodes: Iterator[Node]) -> Iterator[tuple[Node, torch.Tensor]]:
    """Yields quantize calls and their results."""
    values: dict[Node, Any] = {}
    with torch.no_grad():
        for node in nodes:
            if node.op == "get_attr":
                values[node] = attribute_of(node).detach()
                continue
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
            if is_quantize(node):
                yield node, values[node]
