"""Copies FX graphs, and names what changed graphs return."""

from __future__ import annotations

import copy

from torch.export.graph_signature import ExportGraphSignature, OutputSpec, TensorArgument
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


def with_names_of_results(signature: ExportGraphSignature, graph: Graph) -> ExportGraphSignature:
    """Returns the signature of a changed graph, which returns as many results as before."""
    results = next(iter(reversed(graph.nodes))).args[0]
    specs = [
        OutputSpec(spec.kind, TensorArgument(name=result.name), spec.target)
        if isinstance(result, Node) and isinstance(spec.arg, TensorArgument)
        else spec
        for result, spec in zip(results, signature.output_specs, strict=True)
    ]
    return ExportGraphSignature(list(signature.input_specs), specs)
