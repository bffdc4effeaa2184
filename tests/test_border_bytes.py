"""Moving nodes between groups so that fewer bytes cross: against all groupings of small graphs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import tosaic
from partitions.random_dags import NONE, RandomDag, all_groupings, fault_of, random_dag
from tosaic import _core

Value = tuple[int | None, list[int], int, bool]


def random_values(rng: random.Random, dag: RandomDag) -> list[Value]:
    """Returns a value or two for each node and some inputs; the dag's edges say who reads them."""
    found: list[Value] = []
    for node in range(dag.size):
        readers = [to for of, to in dag.edges if of == node]
        size = rng.choice((1, 2, 8, 64, 1000))
        if len(readers) > 1 and rng.random() < 0.3:
            cut = rng.randint(1, len(readers) - 1)
            found.append((node, readers[:cut], size, False))
            found.append((node, readers[cut:], rng.choice((1, 30)), rng.random() < 0.2))
        else:
            found.append((node, readers, size, not readers or rng.random() < 0.1))
    for size in (5, 70):
        found.append((None, rng.sample(range(dag.size), rng.randint(1, 3)), size, False))
    return found


def bytes_across(values: Sequence[Value], groups: Sequence[int]) -> int:
    """Returns the bytes that cross, by the definition."""
    total = 0
    for maker, readers, size, is_output in values:
        parts = {groups[reader] for reader in readers} | ({NONE} if is_output else set())
        total += size * len(parts - {NONE if maker is None else groups[maker]})
    return total


def smallest_groupings(dag: RandomDag, *, connected: bool) -> list[list[int]]:
    """Returns all groupings that have the fewest groups, by trying all."""
    found: list[list[int]] = []
    for groups in all_groupings(dag):
        least = max(found[0], default=NONE) if found else dag.size
        if max(groups, default=NONE) <= least and not fault_of(dag, groups, connected=connected):
            found = [groups] if max(groups, default=NONE) < least else [*found, groups]
    return found


@pytest.mark.parametrize("connected", [True, False])
def test_small_graphs_reach_the_fewest_bytes_from_any_grouping(connected: bool) -> None:
    rng = random.Random(20)
    tried = improvable = worse = 0
    while tried < 40:
        dag = random_dag(rng, rng.randint(5, 9))
        if not 4 <= sum(dag.supported) <= 6:
            continue
        groupings = smallest_groupings(dag, connected=connected)
        if len(groupings) < 2 or max(groupings[0]) < 1:
            continue
        tried += 1
        values = random_values(rng, dag)
        made = [_core.BorderValue(*value) for value in values]
        costs = [bytes_across(values, groups) for groups in groupings]
        for start in rng.sample(groupings, min(5, len(groupings))):
            groups = np.array(start)
            moved = dag.dag.with_fewer_border_bytes(groups, made, connected=connected)
            assert fault_of(dag, moved.tolist(), connected=connected) == ""
            assert ((moved == NONE) == (groups == NONE)).all()
            assert moved.max() == groups.max()
            after = bytes_across(values, moved.tolist())
            assert _core.border_bytes(made, moved) == after
            assert min(costs) <= after <= bytes_across(values, start)
            improvable += bytes_across(values, start) > min(costs)
            worse += after > min(costs)
    assert improvable > 25
    # Pairs of groups are looked at, which is not always enough.
    assert worse <= improvable // 20, (worse, improvable)


@pytest.mark.parametrize("connected", [True, False])
def test_large_graphs_stay_right_and_gain_only(connected: bool) -> None:
    rng = random.Random(4)
    for size, graphs in ((12, 300), (30, 100), (200, 8)):
        for _ in range(graphs):
            dag = random_dag(rng, size)
            made = [_core.BorderValue(*value) for value in random_values(rng, dag)]
            groups = (
                dag.dag.connected_groups(dag.supported)[0]
                if connected
                else dag.dag.level_groups(dag.supported)[0]
            )
            moved = dag.dag.with_fewer_border_bytes(groups, made, connected=connected)
            assert fault_of(dag, moved.tolist(), connected=connected) == ""
            assert moved.max(initial=NONE) <= groups.max(initial=NONE)
            assert _core.border_bytes(made, moved) <= _core.border_bytes(made, groups)
            again = dag.dag.with_fewer_border_bytes(moved, made, connected=connected)
            assert _core.border_bytes(made, again) == _core.border_bytes(made, moved)
            for work in (0, 1, 1000):
                some = dag.dag.with_fewer_border_bytes(groups, made, connected=connected, work=work)
                assert fault_of(dag, some.tolist(), connected=connected) == ""


class Shrinking(torch.nn.Module):
    """What is between the two groups may be in either: the smallest value is after the pool."""

    def __init__(self, grows: bool) -> None:
        super().__init__()
        self.grows = grows
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        between = (
            torch.nn.functional.interpolate(y, scale_factor=2)
            if self.grows
            else torch.nn.functional.avg_pool2d(y, 4)
        )
        sampled = torch.lgamma(y.mean((2, 3), keepdim=True))
        return torch.relu(between) + torch.sigmoid(sampled)


@pytest.mark.parametrize("grows", [True, False])
def test_a_plan_cuts_where_the_values_are_small(grows: bool) -> None:
    exported = torch.export.export(Shrinking(grows).eval(), (torch.randn(1, 3, 16, 16),))
    plan = tosaic.partition(exported, ["TOSA-1.0+FP"])
    assert len(plan.groups) == 2
    assert plan.is_minimal
    first = {node.op for node in plan.nodes_of(0)}
    assert ("avg_pool" in first or "relu" in first) is (not grows)
    crossing = {
        border.value: border.bytes for border in plan.borders if border.made_by == 0 and 1 in border.read_by
    }
    assert list(crossing.values()) == ([8192] if grows else [512])


def test_a_least_size_holds() -> None:
    # 4 is the host's and runs between the groups {0 1 ...} and {... 5 6}. 2 and 3 may be in either.
    edges = [(0, 1), (1, 2), (2, 3), (3, 5), (1, 4), (4, 5), (5, 6)]
    dag = RandomDag(7, edges, [True, True, True, True, False, True, True])
    made_by = [(0, [1], 9), (1, [2], 9), (1, [4], 1), (2, [3], 9), (3, [5], 1), (5, [6], 9)]
    values = [_core.BorderValue(*value) for value in made_by]
    flags = np.array(dag.supported)

    def claimed(least: int, values: Sequence[_core.BorderValue], sizes: list[int] | None = None) -> list[int]:
        groups, *_ = dag.dag.claim([(flags, True, sizes, least, None)], [], values)
        return [int(group) for group in groups]

    assert claimed(2, []) == [0, 0, 1, 1, NONE, 1, 1]
    assert claimed(2, values) == [0, 0, 0, 0, NONE, 1, 1]
    assert claimed(3, values) == [NONE, NONE, 0, 0, NONE, 0, 0]
    # Without 2 and 3, the size of the second group would be 2.
    assert claimed(3, values, [3, 0, 1, 1, 0, 1, 1]) == [0, 0, 1, 1, NONE, 1, 1]
