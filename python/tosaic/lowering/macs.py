"""Multiply-accumulates by call, counted over the contractions that a graph's operators expand to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from tosaic import _core
from tosaic.lowering.pipeline import Pipeline


def macs_by_call(graph: _core.Graph) -> Counter[str]:
    """Returns the multiply-accumulates of a run, by the name of torch's call or, without one, of the node.

    Composites such as attentions and recurrent layers count as the contractions of their expansions. Bodies
    of control flow do not count, since the number of their runs is not known.
    """
    found: Counter[str] = Counter()
    if graph.stage == "quantized":
        graph = _core.unfold_qdq(graph)
    for node in _expanded(graph):
        if count := _core.multiply_adds(node):
            found[_call_of(node)] += count
    return found


def _expanded(graph: _core.Graph) -> Iterator[_core.Node]:
    """Yields the nodes of the expansions. A node without expansion, such as a large sort, yields none."""
    expand = Pipeline.default()["decompose/decompose"]
    try:
        yield from expand.run(graph).nodes
        return
    except _core.UnsupportedOp:
        if len(graph.nodes) == 1:
            return
    for node in graph.nodes:
        yield from _expanded(_alone(graph, node))


def _alone(graph: _core.Graph, node: _core.Node) -> _core.Graph:
    groups = np.full(len(graph.nodes), -1)
    groups[node.id] = 0
    part: _core.Graph = _core.split(graph, groups)[1][0][0]
    return part


def macs_by_node(graph: _core.Graph) -> list[int]:
    """Returns the multiply-accumulates of a run, by node.

    A composite counts as the contractions that it expands to.
    """
    composites = {op.name for op in _core.ops() if "composite" in op.traits}
    found = []
    for node in graph.nodes:
        count = _core.multiply_adds(node)
        if not count and node.op in composites:
            count = sum(macs_by_call(_alone(graph, node)).values())
        found.append(count)
    return found


def _call_of(node: _core.Node) -> str:
    origins = node.origins
    return str(origins[0].fx_name) if origins else node.name
