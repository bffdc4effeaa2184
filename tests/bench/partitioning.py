"""The time of compat partitions and of the fewest groups against torch's CapabilityBasedPartitioner.

    python tests/bench/partitioning.py [--rounds N]

The graphs are those of `fx.partition_graphs`: chains, residual blocks, and random graphs in which a node
reads up to three of the 12 nodes before it. 80 % of the nodes are supported. In each round, both propose
partitions of the same graph module, one after the other, and the proposals are compared. The fewest groups
have to be as many as torch's partitions, and the fewest connected groups have to be right. Larger graphs are
measured with ours alone. Takes ten minutes, almost all of them in torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from fx.partition_graphs import SHAPES, Case, graph_of, named, ours, random_support, torchs
from tosaic import _core

SHAPES_WITH_TORCH = ("chain", "residual", "window of 12")
SIZES_WITH_TORCH = (100, 300, 1000, 3000)
ALONE = ("chain", "residual", "series-parallel", "window of 12", "any order")
SIZES_ALONE = (2500, 10_000, 40_000)
SHARE = 0.8
LEAST_RATIO, FROM_SIZE = 100.0, 1000
LEAST_RATIO_OF_LEVELS = 1000.0
MOST_GROWTH = 8.0
"""How many times as long four times as many nodes may take."""


@dataclass(frozen=True)
class Against:
    """Median seconds of both on one graph, and whether all proposals were equal."""

    shape: str
    nodes: int
    torchs: float
    ours: float
    partitions: int
    equal: bool
    levels: float
    connected: float
    groups: int
    at_least: int

    @property
    def ratio(self) -> float:
        return self.torchs / self.ours

    @property
    def ok(self) -> bool:
        """True if all are fast enough, and equal or right."""
        fast = (
            self.ratio >= LEAST_RATIO
            and self.torchs / self.levels >= LEAST_RATIO_OF_LEVELS
            and self.torchs / self.connected >= LEAST_RATIO
        )
        return self.equal and (fast or self.nodes < FROM_SIZE)


@dataclass(frozen=True)
class Alone:
    """Median seconds of ours, by size, for one shape."""

    shape: str
    skip_horizontal_fusion: bool
    seconds: tuple[float, ...]
    partitions: int  # of the largest graph


@dataclass(frozen=True)
class Measured:
    """Both tables."""

    against: tuple[Against, ...]
    alone: tuple[Alone, ...]
    rounds: int


@cache
def case(shape: str, nodes: int, skip_horizontal_fusion: bool = False) -> Case:
    """Returns the graph with this number of nodes, and a few more to close the last block."""
    module = graph_of(SHAPES[shape](Random(nodes), nodes))
    return random_support(module, Random(nodes), SHARE, skip_horizontal_fusion=skip_horizontal_fusion)


def _seconds(propose: Callable[[Case], Any], of: Case) -> tuple[float, Any]:
    start = perf_counter()
    partitions = propose(of)
    return perf_counter() - start, named(partitions)


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
    laps: dict[str, list[float]] = {"torch": [], "ours": [], "levels": [], "connected": []}
    of = case(shape, nodes)
    alone = replace(of, options={**of.options, "allows_single_node_partition": True})
    equal = len(ours(alone)) == int(_levels(of).max()) + 1  # a warm-up, too; torch takes too long for one
    dag, _ = _dag_of(of)
    for _ in range(rounds):
        seconds, expected = _seconds(torchs, of)
        laps["torch"].append(seconds)
        seconds, got = _seconds(ours, of)
        laps["ours"].append(seconds)
        seconds, levels = _timed(_levels, of)
        laps["levels"].append(seconds)
        seconds, (groups, at_least) = _timed(_connected, of)
        laps["connected"].append(seconds)
        equal &= expected == got
        equal &= dag.path_back(levels) is None and dag.path_back(groups) is None
        equal &= dag.disconnected_group(groups) is None
    by = {name: median(each) for name, each in laps.items()}
    count = int(groups.max()) + 1
    return Against(
        shape, nodes, by["torch"], by["ours"], len(got), equal, by["levels"], by["connected"], count, at_least
    )


def _alone(shape: str, skip_horizontal_fusion: bool, rounds: int) -> Alone:
    cases = [case(shape, size, skip_horizontal_fusion) for size in SIZES_ALONE]
    laps: list[list[float]] = [[] for _ in cases]
    for _ in range(rounds + 1):  # the first is a warm-up
        for lap, each in zip(laps, cases, strict=True):
            seconds, partitions = _seconds(ours, each)
            lap.append(seconds)
    return Alone(shape, skip_horizontal_fusion, tuple(median(lap[1:]) for lap in laps), len(partitions))


def run(rounds: int = 3) -> Measured:
    """Measures all graphs."""
    return Measured(
        tuple(_against(shape, nodes, rounds) for nodes in SIZES_WITH_TORCH for shape in SHAPES_WITH_TORCH),
        tuple(_alone(shape, skip, 3 * rounds) for shape in ALONE for skip in (False, True)),
        rounds,
    )


def ok(result: Measured) -> bool:
    """True if all proposals are equal and the limits hold."""
    linear = all(
        row.seconds[-1] <= MOST_GROWTH * row.seconds[-2]
        for row in result.alone
        if not row.skip_horizontal_fusion
    )
    return linear and all(row.ok for row in result.against)


def section(result: Measured) -> Section:
    """Returns the section of docs/benchmarks.md."""
    header = (
        *("graph", "nodes", "partitions", "torch, ms", "ours, ms", "ratio"),
        *("fewest", "connected", "groups", "at least", "right"),
    )
    against = [
        (
            row.shape,
            f"{row.nodes:,}",
            str(row.partitions),
            milliseconds(row.torchs),
            milliseconds(row.ours),
            f"{row.ratio:,.0f}",
            f"{row.torchs / row.levels:,.0f}",
            f"{row.torchs / row.connected:,.0f}",
            f"{row.groups:,}",
            f"{row.at_least:,}",
            "yes" if row.equal else "NO",
        )
        for row in result.against
    ]
    sizes = tuple(f"{size:,} nodes" for size in SIZES_ALONE)
    alone = [
        (
            f"{row.shape}, {'only with users' if row.skip_horizontal_fusion else 'horizontal'}",
            *(milliseconds(seconds) for seconds in row.seconds),
            f"{1e6 * row.seconds[-1] / SIZES_ALONE[-1]:.2f}",
            f"{row.partitions:,}",
        )
        for row in result.alone
    ]
    text = (
        "Partitions in compat mode, against torch's `CapabilityBasedPartitioner.propose_partitions` on the\n"
        f"same graph modules (`tests/fx/partition_graphs.py`; {SHARE:.0%} of the nodes supported; medians of "
        f"{result.rounds} rounds).\n"
        "*fewest* and *connected* are the ratios of torch's time to ours for the fewest groups and the\n"
        "fewest connected groups; *groups* and *at least* belong to the latter. *right*: in every round the\n"
        "partitions had the same ids, nodes and order, and the groups could run one after another.\n\n"
        f"{table(header, against)}\n\n"
        "Ours alone, in milliseconds. *Only with users*: with `skip_horizontal_fusion`.\n\n"
        f"{table(('graph', *sizes, 'µs a node', 'partitions'), alone)}\n\n"
        f"From {FROM_SIZE:,} nodes on, ours has to be at least {LEAST_RATIO:g} times as fast, and\n"
        f"{LEAST_RATIO_OF_LEVELS:,g} times for the fewest groups. Four times as\n"
        f"many nodes may take at most {MOST_GROWTH:g} times as long with horizontal fusion."
    )
    return Section("partitioning", "Partitions as torch.fx proposes them", text, ok(result))


def main() -> int:
    return section(run(options_of(__doc__, rounds=3).rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
