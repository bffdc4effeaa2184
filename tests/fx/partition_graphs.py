"""Random FX graphs for partitioners, and the comparison of ours with torch's CapabilityBasedPartitioner."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner, Partition
from torch.fx.passes.operator_support import OperatorSupportBase, create_op_support
from tosaic.fx.partitioning import compat_partitions

__all__ = [
    "SHAPES",
    "Case",
    "Proposed",
    "graph_of",
    "has_cycle",
    "ours",
    "random_case",
    "random_support",
    "torchs",
    "with_support",
]

Inputs = list[list[int]]
"""By node: the nodes that it reads."""
Proposed = list[tuple[int, list[str]]]
"""Partitions as ids and names of nodes."""


@dataclass(frozen=True)
class Case:
    """A graph module, what is supported, and the options of the partitioner."""

    module: fx.GraphModule
    support: OperatorSupportBase
    options: dict[str, Any] = field(default_factory=dict)


def torchs(case: Case) -> list[Partition]:
    """Returns what torch's partitioner proposes."""
    return CapabilityBasedPartitioner(case.module, case.support, **case.options).propose_partitions()


def ours(case: Case) -> list[Partition]:
    """Returns what our function proposes."""
    return compat_partitions(case.module, case.support, **case.options)


def named(partitions: Iterable[Partition]) -> Proposed:
    """Returns ids and names, in order."""
    return [(partition.id, [node.name for node in partition.nodes]) for partition in partitions]


def difference(case: Case) -> str:
    """Returns how ours differs from torch's; "" if it does not."""
    expected, got = named(torchs(case)), named(ours(case))
    return "" if expected == got else f"expected {expected}, got {got} ({case.options})\n{case.module.graph}"


def has_cycle(module: fx.GraphModule, partitions: Iterable[Partition]) -> bool:
    """Returns whether partitions, each run at once, wait for each other."""
    unit: dict[fx.Node, Any] = {node: p.id for p in partitions for node in p.nodes}
    waits: dict[Any, set[Any]] = {unit.get(node, node): set() for node in module.graph.nodes}
    for node in module.graph.nodes:
        waits[unit.get(node, node)] |= {unit.get(i, i) for i in node.all_input_nodes}
    for key in waits:
        waits[key].discard(key)
    users: dict[Any, list[Any]] = {key: [] for key in waits}
    for key, inputs in waits.items():
        for each in inputs:
            users[each].append(key)
    missing = {key: len(inputs) for key, inputs in waits.items()}
    ready = [key for key, count in missing.items() if count == 0]
    for key in ready:
        for user in users[key]:
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    return len(ready) < len(waits)


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


def _sparse(random: Random, size: int) -> Inputs:
    """Returns a graph that has many sources and loose parts."""
    return [
        sorted({random.randrange(max(0, i - 6), i) for _ in range(random.choice((0, 1, 1, 2, 2)))})
        if i
        else []
        for i in range(size)
    ]


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
    "sparse": _sparse,
    "window of 3": lambda random, size: _window(random, size, 3),
    "window of 12": lambda random, size: _window(random, size, 12),
    "any order": lambda random, size: _window(random, size, size),
}
"""By name: a function of the random numbers and the number of nodes."""


# ---- FX graphs ----

_CALLS = (torch.relu, torch.ops.aten.view, torch.ops.aten.add.Tensor, torch.sigmoid)


def _many(*tensors: Any) -> tuple[Any, ...]:
    """A function with several results."""
    return tensors


def graph_of(inputs: Inputs, random: Random | None = None) -> fx.GraphModule:
    """Returns a graph of these nodes. With random numbers, they are of all kinds, getitem among them."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    nodes: list[fx.Node] = []
    for of in inputs:
        nodes.append(_node(graph, x, [nodes[i] for i in of], random))
        if random and nodes[-1].target is _many and random.random() < 0.8:
            # Most of the time, the results are taken one by one, some out of tuples in tuples.
            item = nodes[-1]
            for _ in range(random.choice((1, 1, 2, 3))):
                item = graph.call_function(operator.getitem, (item, 0))
            nodes[-1] = item
    graph.output(tuple(node for node in graph.nodes if not node.users))
    if random:  # a node that is given its arguments again becomes the last one of their users
        for node in graph.nodes:
            if random.random() < 0.1:
                node.args = tuple(node.args)
    return fx.GraphModule({"weight": torch.zeros(1), "layer": torch.nn.ReLU()}, graph)


def _node(graph: fx.Graph, x: fx.Node, of: list[fx.Node], random: Random | None) -> fx.Node:
    args = tuple(of) or (x,)
    if random is None:
        return graph.call_function(torch.relu, args)
    kind = random.random()
    if not of and kind < 0.3:
        return graph.get_attr("weight")
    if kind < 0.05:
        return graph.call_module("layer", args)
    if kind < 0.10:
        return graph.call_method("add", args)
    if kind < 0.20:
        return graph.call_function(_many, args)
    if kind < 0.25:
        return graph.call_function(operator.getitem, (args[0], 0))
    return graph.call_function(random.choice(_CALLS), args)


def with_support(module: fx.GraphModule, supported: Callable[[fx.Node], bool], **options: Any) -> Case:
    """Returns the case of a function that says which nodes are supported. Each node is asked once here."""
    known = {node: supported(node) for node in module.graph.nodes}
    return Case(module, create_op_support(lambda _modules, node: known[node]), options)


def random_support(module: fx.GraphModule, random: Random, share: float, **options: Any) -> Case:
    """Returns a case in which this share of the calls is supported, and sometimes other nodes are, too."""
    others = random.choice((0.0, 0.0, 0.5))
    return with_support(
        module, lambda node: random.random() < (share if node.op.startswith("call") else others), **options
    )


def random_case(seed: int, most_nodes: int = 80) -> Case:
    """Returns the graph of a seed, with random support and options."""
    random = Random(seed)
    shape = random.choice(list(SHAPES.values()))
    module = graph_of(shape(random, random.randint(3, most_nodes)), random)
    return random_support(
        module,
        random,
        random.choice((0.3, 0.5, 0.7, 0.9, 1.0)),
        allows_single_node_partition=random.random() < 0.6,
        non_compute_ops=random.choice((None, ["torch.relu"], ["torch.sigmoid", "torch.relu"])),
        allowed_single_node_partition_ops=random.choice((None, None, ["torch.relu", "_operator.getitem"])),
        skip_horizontal_fusion=random.random() < 0.5,
    )
