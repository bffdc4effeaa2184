"""Copies dequantize nodes, so that each reader has its own.

::

    x ─▶ dequantize ─┬▶ a        x ─┬▶ dequantize ─▶ a
                     └▶ b           └▶ dequantize ─▶ b

A delegate that supports integers only takes a dequantize node together with its reader. If two readers in
different delegates, or in a delegate and on the host, shared such a node, floats would enter a delegate.
"""

from __future__ import annotations

import copy
from typing import Any

from torch.fx import Node

from tosaic.fx.io.graph_copy import copied_graph, with_names_of_results
from tosaic.fx.io.io_quantization import program_with
from tosaic.fx.io.quantize_calls import is_dequantize


def with_own_dequantize(program: Any) -> Any:
    """Returns the program in which each dequantize node has one reader.

    The program itself is returned if each dequantize node has one reader already. It is not changed.
    """
    if not any(map(_is_shared, program.graph.nodes)):
        return program
    graph, _ = copied_graph(program.graph)
    for node in list(graph.nodes):
        if _is_shared(node):
            for reader in list(node.users)[1:]:
                _separate(node, reader)
    signature = with_names_of_results(program.graph_signature, graph)
    return program_with(program, graph, signature, program.example_inputs)


def _is_shared(node: Node) -> bool:
    return is_dequantize(node) and len(node.users) > 1


def _separate(node: Node, reader: Node) -> None:
    with node.graph.inserting_after(node):
        made = node.graph.node_copy(node)
    made.meta = copy.copy(node.meta)
    reader.replace_input_with(node, made)
