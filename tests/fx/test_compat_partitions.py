"""Our partitions are those of torch's CapabilityBasedPartitioner: their ids, nodes and order."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from fx.partition_graphs import (
    Case,
    difference,
    graph_of,
    has_cycle,
    named,
    ours,
    random_case,
    torchs,
    with_support,
)
from torch import fx
from tosaic import _core

GRAPHS = 200


def supporting(module: fx.GraphModule, *indices: int, **options: Any) -> Case:
    """Supports the nodes of these indices, not counting the placeholder."""
    names = {node.name for i, node in enumerate(module.graph.nodes) if i - 1 in indices}
    return with_support(module, lambda node: node.name in names, **options)


def test_partitions_are_those_of_torch_on_random_graphs() -> None:
    found = {seed: difference(random_case(seed)) for seed in range(GRAPHS)}
    assert {seed: text for seed, text in found.items() if text} == {}


def test_a_cycle_that_torch_misses_is_proposed_by_ours_too() -> None:
    module = graph_of([[], [0], [], [0], [2, 3], [2], [3], [1, 5]])
    case = supporting(
        module, 0, 1, 2, 4, 6, 7, allows_single_node_partition=True, skip_horizontal_fusion=True
    )
    assert difference(case) == ""
    assert has_cycle(module, ours(case))


def test_the_second_node_of_a_partition_names_it() -> None:
    case = supporting(graph_of([[], [0], [1]]), 0, 1, 2)
    assert named(ours(case)) == named(torchs(case)) == [(1, ["relu", "relu_1", "relu_2"])]


def test_a_graph_without_supported_nodes_has_no_partitions() -> None:
    assert ours(supporting(graph_of([[], [0]]))) == []
    assert ours(supporting(graph_of([]))) == []


def test_users_are_merged_in_the_order_of_torch() -> None:
    module = graph_of([[], [0], [0], [], [1, 3], [2, 3]])
    options: dict[str, Any] = {"skip_horizontal_fusion": True, "allows_single_node_partition": True}
    before = named(ours(supporting(module, 0, 1, 2, 4, 5, **options)))
    second = list(module.graph.nodes)[2]
    second.args = tuple(second.args)  # now it is the last of the users
    case = supporting(module, 0, 1, 2, 4, 5, **options)
    assert difference(case) == ""
    assert named(ours(case)) != before


def test_an_error_of_the_support_reaches_the_caller() -> None:
    def refuse(_node: fx.Node) -> bool:
        raise KeyError("no such table")

    class Support:
        def is_node_supported(self, _modules: Any, node: fx.Node) -> bool:
            return refuse(node)

    with pytest.raises(KeyError, match="no such table"):
        ours(Case(graph_of([[]]), Support()))  # type: ignore[arg-type]


def test_a_getitem_that_cannot_follow_two_tuples_is_an_error_where_torch_does_not_terminate() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.relu, (x,))
    sort = graph.call_function(torch.sort, (first,))
    second = graph.call_function(torch.relu, (sort,))
    value = graph.call_function(torch.abs, (second,))
    index = graph.call_function(torch.neg, (sort,))
    item = graph.call_function(operator.getitem, (value, index))
    graph.output(item)
    module = fx.GraphModule({}, graph)
    case = with_support(module, lambda node: node in (value, second))
    with pytest.raises(_core.InvalidGraph) as caught:
        ours(case)
    assert str(caught.value) == (
        "[partition] a getitem reads tuples that are not in the same partition, and can follow only one "
        "(node 'getitem')"
    )


def test_a_node_before_one_that_it_reads_is_an_error() -> None:
    module = graph_of([[], [0]])
    nodes = list(module.graph.nodes)
    nodes[2].append(nodes[1])
    with pytest.raises(_core.InvalidGraph, match="an edge is not in topological order"):
        ours(supporting(module, 0, 1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"users": [1, 3]}, "an edge is not in topological order"),
        ({"users": [-1, 2]}, "a user is out of range"),
        ({"users": [1]}, "numbers of users"),
        ({"users": [1, 2, 2]}, "numbers of users"),
        ({"user_counts": [2, 0, 0], "users": [1, 1]}, "users do not fit the graph"),
        ({"supported": [True]}, "flags of supported nodes do not fit the graph"),
        ({"getitem": [True]}, "flags of getitem calls do not fit the graph"),
        ({"compute": [1]}, "counts of compute nodes do not fit the graph"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "user_counts": [1, 1, 0],
        "users": [1, 2],
        "supported": [True, True, True],
        "getitem": [False, False, False],
        "compute": [1, 1, 1],
    }
    assert _core.compat_partitions(**arguments) == [(1, [0, 1, 2])]
    with pytest.raises(_core.InvalidGraph, match=message):
        _core.compat_partitions(**{**arguments, **changed})
