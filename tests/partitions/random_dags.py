"""Random dags with claimants, and checks that know nothing of how groups are made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx
import numpy as np
from tosaic import _core

NONE = -1


@dataclass(frozen=True)
class RandomDag:
    """Nodes 0 to size - 1 in topological order, the edges between them, and which of them are supported."""

    size: int
    edges: list[tuple[int, int]]
    supported: list[bool]

    @property
    def dag(self) -> _core.Dag:
        """The dag of our core."""
        return _core.Dag(self.size, np.array(self.edges, dtype=np.uint32).reshape(-1, 2))


def random_dag(rng: random.Random, size: int) -> RandomDag:
    """Returns a dag in which a node reads some of the nodes shortly before it."""
    window, most, share = rng.randint(1, size), rng.randint(1, 3), rng.choice((0.5, 0.7, 0.9))
    edges = {
        (rng.randint(max(0, node - window), node - 1), node)
        for node in range(1, size)
        for _ in range(rng.randint(0, most))
    }
    return RandomDag(size, sorted(edges), [rng.random() < share for _ in range(size)])


def fault_of(dag: RandomDag, groups: list[int], *, connected: bool = False) -> str:
    """Returns what is wrong with groups, or an empty string."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(dag.size))
    graph.add_edges_from(dag.edges)
    block = {node: ("group", group) if group != NONE else ("node", node) for node, group in enumerate(groups)}
    quotient = nx.DiGraph((block[a], block[b]) for a, b in dag.edges if block[a] != block[b])
    if not nx.is_directed_acyclic_graph(quotient):
        return f"groups wait for each other: {nx.find_cycle(quotient)}"
    for group in set(groups) - {NONE}:
        members = [node for node, other in enumerate(groups) if other == group]
        if connected and not nx.is_weakly_connected(graph.subgraph(members)):
            return f"group {group} is not connected"
    return ""


def all_groupings(dag: RandomDag) -> Iterator[list[int]]:
    """Yields every way to divide the supported nodes into groups."""
    nodes = [node for node in range(dag.size) if dag.supported[node]]

    def extend(at: int, groups: list[int], count: int) -> Iterator[list[int]]:
        if at == len(nodes):
            yield groups
            return
        for group in range(count + 1):
            yield from extend(at + 1, [*groups, group], max(count, group + 1))

    for groups in extend(0, [], 0):
        found = [NONE] * dag.size
        for node, group in zip(nodes, groups, strict=True):
            found[node] = group
        yield found


def least_counts(dag: RandomDag) -> tuple[int, int]:
    """Returns the least number of groups, and the least number of connected groups, by trying all."""
    any_shape = connected = sum(dag.supported)
    for groups in all_groupings(dag):
        count = max(groups, default=NONE) + 1
        if count < connected and not fault_of(dag, groups):
            any_shape = min(any_shape, count)
            if not fault_of(dag, groups, connected=True):
                connected = count
    return any_shape, connected
