"""Multiply-accumulates by call: those of the contractions that the operators of a graph are made of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

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
        count = _COUNT.get(node.op)
        if count is not None:
            found[_call_of(node)] += count(node)
    return found


def macs_by_node(graph: _core.Graph) -> list[int]:
    """Returns the multiply-accumulates of a run, by node.

    A composite counts as the contractions that it expands to.
    """
    composites = {op.name for op in _core.ops() if "composite" in op.traits}
    found = []
    for node in graph.nodes:
        count = _COUNT.get(node.op)
        if count is None and node.op in composites:
            groups = np.full(len(graph.nodes), -1)
            groups[node.id] = 0
            found.append(sum(macs_by_call(_core.split(graph, groups)[1][0][0]).values()))
        else:
            found.append(0 if count is None else count(node))
    return found


def _call_of(node: _core.Node) -> str:
    origins = node.origins
    return str(origins[0].fx_name) if origins else node.name


def _of_conv(node: Any) -> int:
    data, weight = node.operands[:2]
    attrs = node.attrs
    outer: Sequence[int] = data.shape if attrs["transposed"] else node.results[0].shape
    return math.prod(outer) * math.prod(map(int, weight.shape[1:]))


def _by_length(operand: int, axis: int) -> Callable[[Any], int]:
    """For products whose sums run over one axis of an operand."""

    def count(node: Any) -> int:
        outer: Sequence[int] = node.results[0].shape
        return math.prod(outer) * int(node.operands[operand].shape[axis])

    return count


_COUNT: dict[str, Callable[[Any], int]] = {
    "conv": _of_conv,
    "linear": _by_length(1, -1),
    "matmul": _by_length(0, -1),
    "addmm": _by_length(1, -1),
    "baddbmm": _by_length(1, -1),
}
