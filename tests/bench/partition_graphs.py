"""Graphs of torch.fx for partitioners, and the partitions of torch's CapabilityBasedPartitioner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner, Partition
from torch.fx.passes.operator_support import OperatorSupportBase, create_op_support

__all__ = ["SHAPES", "Case", "graph_of", "random_support", "torchs"]

Inputs = list[list[int]]
"""By node: the nodes that it reads."""


@dataclass(frozen=True)
class Case:
    """A graph module, the operators that are supported, and the options of the partitioner."""

    module: fx.GraphModule
    support: OperatorSupportBase
    options: dict[str, Any] = field(default_factory=dict)


def torchs(case: Case) -> list[Partition]:
    """Returns what torch's partitioner proposes."""
    return CapabilityBasedPartitioner(case.module, case.support, **case.options).propose_partitions()


# ---- shapes of graphs ----


def _chain(_random: Random, size: int) -> Inputs:
    return [[i - 1] if i else [] for i in range(size)]


def _window(random: Random, size: int, width: int) -> Inputs:
    most = random.choice((1, 2, 3))
    inputs: Inputs = []
    for i in range(size):
        first = max(0, i - width)
        count = random.randint(1, most) if i else 0
        inputs.append(sorted({random.randrange(first, i) for _ in range(count)}))
    return inputs


def _residual(random: Random, size: int) -> Inputs:
    """Returns blocks of up to four branches that are joined, one block after the other."""
    inputs: Inputs = [[]]
    last = 0
    while len(inputs) < size:
        ends = set()
        for _ in range(random.randint(1, 4)):
            end = last
            for _ in range(random.randint(0, 6)):
                inputs.append([end])
                end = len(inputs) - 1
            ends.add(end)
        inputs.append(sorted(ends))
        last = len(inputs) - 1
    return inputs


def _series_parallel(random: Random, size: int) -> Inputs:
    """Returns a graph that is divided again and again, in series or in parallel."""
    inputs: Inputs = [[]]

    def add(*of: int) -> int:
        inputs.append(sorted(set(of)))
        return len(inputs) - 1

    def build(start: int, count: int) -> int:
        if count <= 2:
            for _ in range(count):
                start = add(start)
            return start
        first = random.randint(count // 4, count - count // 4)
        if random.random() < 0.5:
            return build(build(start, first), count - first)
        return add(build(start, first), build(start, count - first))

    build(0, size - 1)
    return inputs


SHAPES: dict[str, Callable[[Random, int], Inputs]] = {
    "chain": _chain,
    "residual": _residual,
    "series-parallel": _series_parallel,
    "window of 12": lambda random, size: _window(random, size, 12),
    "any order": lambda random, size: _window(random, size, size),
}
"""By name: a function of the random numbers and the number of nodes."""


# ---- FX graphs ----


def graph_of(inputs: Inputs) -> fx.GraphModule:
    """Returns a graph of calls of relu that read these nodes."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    nodes: list[fx.Node] = []
    for of in inputs:
        nodes.append(graph.call_function(torch.relu, tuple(nodes[i] for i in of) or (x,)))
    graph.output(tuple(node for node in graph.nodes if not node.users))
    return fx.GraphModule({}, graph)


def random_support(module: fx.GraphModule, random: Random, share: float, **options: Any) -> Case:
    """Returns a case in which this share of the calls is supported."""
    known = {node: node.op == "call_function" and random.random() < share for node in module.graph.nodes}
    return Case(module, create_op_support(lambda _modules, node: known[node]), options)
