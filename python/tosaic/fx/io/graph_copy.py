"""Copies FX graphs."""

from __future__ import annotations

import copy

from torch.fx import Graph, Node


def copied_graph(graph: Graph) -> tuple[Graph, dict[Node, Node]]:
    """Returns a copy with the same names and its own metadata, and a map from new nodes to old ones."""
    out = Graph()
    new_of: dict[Node, Node] = {}
    results = out.graph_copy(graph, new_of)
    old_output = next(iter(reversed(graph.nodes)))
    output = out.output(results)
    output.meta = copy.copy(old_output.meta)
    for old, new in new_of.items():
        new.name = old.name  # a graph renames nodes like `input`, which export uses
    return out, {new: old for old, new in new_of.items()} | {output: old_output}
