"""The time of the fewest groups against torch's CapabilityBasedPartitioner.

    python tests/bench/partitioning.py [--rounds N]

The graphs come from `bench.partition_graphs`: chains, residual blocks, and random graphs in which a node
reads up to three of the 12 nodes before it. 80 % of the nodes are supported. In each round, all find groups
of the same graph, one after the other. The fewest groups have to be as many as torch's partitions with single
nodes or fewer, the fewest connected groups have to be connected, and both have to be able to run one after
another. Larger graphs are measured with ours alone. Takes ten minutes, almost all of them in torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from bench.page import Section, milliseconds, options_of, table
from bench.partition_graphs import SHAPES, Case, graph_of, random_support, torchs
from tosaic import _core

SHAPES_WITH_TORCH = ("chain", "residual", "window of 12")
SIZES_WITH_TORCH = (100, 300, 1000, 3000)
SIZES_ALONE = (2500, 10_000, 40_000)
SHARE = 0.8
LEAST_RATIO, FROM_SIZE = 100.0, 1000
LEAST_RATIO_OF_LEVELS = 1000.0
MOST_GROWTH = 8.0
"""How many times as long the fewest groups of four times as many nodes may take."""


@dataclass(frozen=True)
class Against:
    """Median seconds of all algorithms on one graph, and whether all groups were right."""

    shape: str
    nodes: int
    torchs: float
    levels: float
    connected: float
    partitions: int
    fewest: int
    groups: int
    at_least: int
    right: bool

    @property
    def ok(self) -> bool:
        """True if our algorithms are fast enough, and their groups right."""
        fast = (
            self.torchs / self.levels >= LEAST_RATIO_OF_LEVELS and self.torchs / self.connected >= LEAST_RATIO
        )
        return self.right and (fast or self.nodes < FROM_SIZE)


@dataclass(frozen=True)
class Alone:
    """Median seconds of the fewest groups, by size, for one shape."""

    shape: str
    seconds: tuple[float, ...]
    groups: int  # the number of groups of the largest graph


@dataclass(frozen=True)
class Measured:
    """Both tables."""

    against: tuple[Against, ...]
    alone: tuple[Alone, ...]
    rounds: int


@cache
def case(shape: str, nodes: int) -> Case:
    """Returns the graph with this number of nodes, and a few more to close the last block."""
    module = graph_of(SHAPES[shape](Random(nodes), nodes))
    return random_support(module, Random(nodes), SHARE, allows_single_node_partition=True)


def _dag_of(of: Case) -> tuple[_core.Dag, list[bool]]:
    nodes = list(of.module.graph.nodes)
    index = {node: i for i, node in enumerate(nodes)}
    edges = [(i, index[user]) for i, node in enumerate(nodes) for user in node.users]
    supported = [of.support.is_node_supported({}, node) for node in nodes]
    return _core.Dag(len(nodes), np.array(edges, np.uint32)), supported


def _levels(of: Case) -> Any:
    dag, supported = _dag_of(of)
    return dag.level_groups(supported)[0]


def _connected(of: Case) -> tuple[Any, int]:
    dag, supported = _dag_of(of)
    groups, at_least = dag.connected_groups(supported)
    return groups, at_least


def _timed(function: Callable[[Case], Any], of: Case) -> tuple[float, Any]:
    start = perf_counter()
    found = function(of)
    return perf_counter() - start, found


def _against(shape: str, nodes: int, rounds: int) -> Against:
    laps: dict[str, list[float]] = {"torch": [], "levels": [], "connected": []}
    of = case(shape, nodes)
    _levels(of), _connected(of)  # a warm-up; torch takes too long for one
    dag, _ = _dag_of(of)
    right = True
    for _ in range(rounds):
        seconds, partitions = _timed(torchs, of)
        laps["torch"].append(seconds)
        seconds, levels = _timed(_levels, of)
        laps["levels"].append(seconds)
        seconds, (groups, at_least) = _timed(_connected, of)
        laps["connected"].append(seconds)
        fewest = int(levels.max()) + 1
        right &= fewest <= len(partitions)
        right &= dag.path_back(levels) is None and dag.path_back(groups) is None
        right &= dag.disconnected_group(groups) is None
    by = {name: median(each) for name, each in laps.items()}
    count = int(groups.max()) + 1
    return Against(
        shape,
        nodes,
        by["torch"],
        by["levels"],
        by["connected"],
        len(partitions),
        fewest,
        count,
        at_least,
        right,
    )


def _alone(shape: str, rounds: int) -> Alone:
    cases = [case(shape, size) for size in SIZES_ALONE]
    laps: list[list[float]] = [[] for _ in cases]
    for _ in range(rounds + 1):  # the first is a warm-up
        for lap, each in zip(laps, cases, strict=True):
            seconds, levels = _timed(_levels, each)
            lap.append(seconds)
    return Alone(shape, tuple(median(lap[1:]) for lap in laps), int(levels.max()) + 1)


def run(rounds: int = 3) -> Measured:
    """Measures all graphs."""
    return Measured(
        tuple(_against(shape, nodes, rounds) for nodes in SIZES_WITH_TORCH for shape in SHAPES_WITH_TORCH),
        tuple(_alone(shape, 3 * rounds) for shape in SHAPES),
        rounds,
    )


def ok(result: Measured) -> bool:
    """True if all groups are right and the limits hold."""
    linear = all(row.seconds[-1] <= MOST_GROWTH * row.seconds[-2] for row in result.alone)
    return linear and all(row.ok for row in result.against)


def section(result: Measured) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    header = (
        *("graph", "nodes", "torch, ms", "fewest, ms", "ratio", "connected, ms", "ratio"),
        *("partitions", "fewest", "connected", "at least", "right"),
    )
    against = [
        (
            row.shape,
            f"{row.nodes:,}",
            milliseconds(row.torchs),
            milliseconds(row.levels),
            f"{row.torchs / row.levels:,.0f}",
            milliseconds(row.connected),
            f"{row.torchs / row.connected:,.0f}",
            f"{row.partitions:,}",
            f"{row.fewest:,}",
            f"{row.groups:,}",
            f"{row.at_least:,}",
            "yes" if row.right else "NO",
        )
        for row in result.against
    ]
    sizes = tuple(f"{size:,} nodes" for size in SIZES_ALONE)
    alone = [
        (
            row.shape,
            *(milliseconds(seconds) for seconds in row.seconds),
            f"{1e6 * row.seconds[-1] / SIZES_ALONE[-1]:.2f}",
            f"{row.groups:,}",
        )
        for row in result.alone
    ]
    text = (
        "The fewest groups and the fewest connected groups, against torch's\n"
        "`CapabilityBasedPartitioner.propose_partitions` with single nodes on the same graphs\n"
        f"(`tests/bench/partition_graphs.py`; {SHARE:.0%} of the nodes supported; medians of "
        f"{result.rounds} rounds).\n"
        "*ratio*: of torch's time to ours. *at least* is a lower bound of the connected groups. *right*: in\n"
        "every round the fewest groups were no more than torch's partitions, and the groups could run one\n"
        "after another.\n\n"
        f"{table(header, against)}\n\n"
        "The fewest groups alone, in milliseconds.\n\n"
        f"{table(('graph', *sizes, 'µs a node', 'groups'), alone)}\n\n"
        f"From {FROM_SIZE:,} nodes on, the fewest connected groups have to be at least {LEAST_RATIO:g} times "
        "as fast\n"
        f"as torch, and the fewest groups {LEAST_RATIO_OF_LEVELS:,g} times. Four times as many nodes may\n"
        f"take at most {MOST_GROWTH:g} times as long."
    )
    return Section("partitioning", "The fewest groups", text, ok(result))


def main() -> int:
    return section(run(options_of(__doc__, rounds=3).rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
