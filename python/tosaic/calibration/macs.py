"""Multiply-accumulates by call: those of the contractions that the operators of a graph are made of."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tosaic import _core
from tosaic.pipeline import Pipeline

__all__ = ["macs_by_call", "macs_by_node"]


def macs_by_call(graph: _core.Graph) -> Counter[str]:
    """Returns the multiply-accumulates of a run, by the name of torch's call or, without one, of the node.

    Composites such as attentions and recurrent layers count as the contractions of their expansions. Bodies
    of control flow do not count, since the number of their runs is not known.
    """
    found: Counter[str] = Counter()
    if graph.stage == "quantized":
        graph = _core.unfold_qdq(graph)
    for node in Pipeline.default()["decompose/decompose"].run(graph).nodes:
        if count := _core.multiply_adds(node):
            found[_call_of(node)] += count
    return found


def macs_by_node(graph: _core.Graph) -> list[int]:
    """Returns the multiply-accumulates of a run, by node.

    A composite counts as the contractions that it expands to.
    """
    composites = {op.name for op in _core.ops() if "composite" in op.traits}
    found = []
    for node in graph.nodes:
        count = _core.multiply_adds(node)
        if not count and node.op in composites:
            groups = np.full(len(graph.nodes), -1)
            groups[node.id] = 0
            count = sum(macs_by_call(_core.split(graph, groups)[1][0][0]).values())
        found.append(count)
    return found


def _call_of(node: _core.Node) -> str:
    origins = node.origins
    return str(origins[0].fx_name) if origins else node.name
