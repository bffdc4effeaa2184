"""Random graphs: no choice of dim orders costs less than the layout plan, and results are unchanged."""

from __future__ import annotations

import pytest
from layouts.checking import check_layout

GRAPHS = 200


@pytest.mark.parametrize("start", range(0, GRAPHS, 50))
def test_no_choice_of_dim_orders_costs_less_than_the_plan_and_results_are_unchanged(start: int) -> None:
    found = {seed: check_layout(seed) for seed in range(start, start + 50)}
    assert {seed: each.failures for seed, each in found.items() if each.failures} == {}
    assert sum(each.choices > 1 for each in found.values()) > 20
    assert sum(each.transposes for each in found.values()) > 20
    assert sum(each.objectives > 1 for each in found.values()) > 3
