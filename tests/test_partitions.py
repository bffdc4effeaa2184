"""Groups of nodes: as few as trying all finds, able to run in some order, and equal to the whole program."""

from __future__ import annotations

import numpy as np
import pytest
import tosaic
from partitions.checking import check_claims, check_least, check_split
from tosaic import _core

_DAGS, _PROGRAMS = 500, 60


def test_groups_of_small_dags_are_as_few_as_trying_all_finds() -> None:
    assert [fault for seed in range(_DAGS) if (fault := check_least(seed))] == []


def test_random_claims_can_run_one_after_another_and_have_reasons() -> None:
    assert [fault for seed in range(4 * _DAGS) if (fault := check_claims(seed))] == []


@pytest.mark.usefixtures("one_thread_without_traces")
@pytest.mark.filterwarnings("ignore")
def test_random_programs_that_are_split_compute_the_same() -> None:
    assert [fault for seed in range(_PROGRAMS) if (fault := check_split(seed))] == []


def test_the_claims_of_a_circle_are_not_one_group_each() -> None:
    a1, b2, b1, a2 = range(4)
    dag = _core.Dag(4, np.array([(a1, b1), (b2, a2)]))
    claims = [(np.isin(range(4), own), False, None, 0, None) for own in ((a1, a2), (b1, b2))]
    groups, claimants, at_least, _ = dag.claim(claims)
    assert groups.tolist() == [0, 1, 2, 0]
    assert (claimants, at_least) == ([0, 1, 1], [1, 2])
    assert dag.path_back(np.array([0, 1, 1, 0])) is not None


def test_a_node_that_comes_early_may_join_a_later_group() -> None:
    dag = _core.Dag(4, np.array([(0, 1), (1, 3), (2, 3)]))
    groups, at_least = dag.connected_groups([True, False, True, True])
    assert groups.tolist() == [0, -1, 1, 1]
    assert at_least == 2


def test_edges_against_the_order_are_refused() -> None:
    with pytest.raises(tosaic.InvalidGraph, match="from < to < 3"):
        _core.Dag(3, np.array([(2, 1)]))


def test_flags_of_another_number_of_nodes_are_refused() -> None:
    with pytest.raises(tosaic.InvalidGraph, match="expected 3, got 2"):
        _core.Dag(3, np.array([(0, 1)])).level_groups([True, False])
