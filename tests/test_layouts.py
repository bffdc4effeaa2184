"""The layout plan: never more bytes than any other choice, and the same results."""

from __future__ import annotations

import numpy as np
import pytest
from layouts.brute_force import cost_of, least_cost, number_of_choices
from layouts.graphs import random_graph
from tosaic import _core

GRAPHS = 500
MOST_CHOICES = 20_000


def ways_of(plan: dict[str, object]) -> tuple[object, ...]:
    return tuple(plan["ways"])  # type: ignore[arg-type]


@pytest.mark.parametrize("start", range(0, GRAPHS, 50))
def test_no_choice_of_ways_costs_less_than_the_plan(start: int) -> None:
    for seed in range(start, start + 50):
        graph = random_graph(seed)
        plan = _core.plan_layout(graph)
        assert plan["cost"] == plan["bound"], f"seed {seed}: the certificate leaves a gap"
        assert cost_of(graph, ways_of(plan)) == (plan["bytes"], len(plan["transposes"])), f"seed {seed}"  # type: ignore[arg-type]
        if number_of_choices(graph) <= MOST_CHOICES:
            assert (plan["bytes"], len(plan["transposes"])) == least_cost(graph), f"seed {seed}"


@pytest.mark.parametrize("start", range(0, GRAPHS, 50))
def test_the_lowered_graph_has_the_transposes_of_the_plan_and_the_same_results(start: int) -> None:
    for seed in range(start, start + 50):
        graph = random_graph(seed)
        rng = np.random.default_rng(seed)
        lowered = _core.lower(graph, target="TOSA-1.0+INT+FP")
        arrays = [rng.standard_normal(port.shape).astype(np.float32) for port in graph.inputs]
        expected = _core.Session(graph, reference=True).run(laid_out(graph, arrays))
        found = _core.Session(lowered.tosa).run(laid_out(graph, arrays))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=f"seed {seed}")
        moved = sum(
            4 * int(np.prod(node.results[0].shape))
            for node in lowered.tosa.nodes
            if node.op == "tosa.transpose"
        )
        assert moved == _core.plan_layout(lowered.decomposed)["bytes"], f"seed {seed}"


def laid_out(graph: _core.Graph, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """With the strides that the borders ask for."""
    placed = []
    for port, array in zip(graph.inputs, arrays, strict=True):
        order = port.dim_order
        placed.append(np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order)))
    return placed
