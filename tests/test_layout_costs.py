"""Costs of the caller's own: what they may be, that they decide, and that they are asked once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from fx.exporting import exported
from torch import nn
from tosaic.layout import Candidate, layout_of

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def program() -> Any:
    """Two small slices are pooled beside one another, so bytes and number want different plans."""
    pool = nn.MaxPool2d(2)

    def call(x: torch.Tensor) -> torch.Tensor:
        return pool(x[:, :2]).sum((1, 2, 3)) + pool(x[:, 2:4]).amax((1, 2, 3))

    return exported(call, torch.randn(1, 8, 6, 4))


def moved(low: tosaic.Lowered) -> list[str]:
    return [t.value for t in low.layout.transposes]


def test_own_costs_of_bytes_and_of_one_are_the_objectives_of_the_same_name(program) -> None:
    for objective, cost in (("bytes", lambda value: value.bytes), ("count", lambda value: 1)):
        named, own = (tosaic.lower(program, objective=each) for each in (objective, cost))
        assert len(moved(named)) == (2 if objective == "bytes" else 1)
        assert named.to_bytes() == own.to_bytes()


def test_an_own_cost_decides_where_transposes_stand_and_is_proven(program) -> None:
    def cycles(value: Candidate) -> np.int64:
        return np.int64(100 if value.shape[1] == 2 else 150)

    low = tosaic.lower(program, objective=cycles)
    assert moved(low) == ["args_0"]
    assert low.layout.is_minimal
    assert low.layout.objective == "cycles()"
    assert [t.cost for t in low.layout.transposes] == [150]
    assert "cycles()    150\n" in low.layout.report().text
    dear = tosaic.lower(program, objective=lambda value: 100 if value.shape[1] == 2 else 201)
    assert len(moved(dear)) == 2
    assert sum(node.op == "tosa.transpose" for node in dear.graph.nodes) == 2


def test_a_cost_is_asked_once_for_each_value_and_remembered(program) -> None:
    asked: list[Candidate] = []

    def cost(value: Candidate) -> int:
        asked.append(value)
        return len(asked)  # another answer each time

    low = tosaic.lower(program, objective=cost)
    assert len(asked) == len(set(asked)) >= 5  # not the sums: one axis has one order
    assert all(len(value.shape) == 4 for value in asked)
    assert asked[0] == Candidate("args_0", (1, 8, 6, 4), "f32", 8 * 6 * 4 * 4)
    before = len(asked)
    assert len(moved(low)) == sum(node.op == "tosa.transpose" for node in low.graph.nodes)
    assert len(asked) == before


@pytest.mark.parametrize("answer", [-1, 2.0, "3", None, 2**63])
def test_a_cost_that_is_none_is_refused_by_value(program, answer) -> None:
    def cost(value: Candidate) -> Any:
        return answer

    with pytest.raises(tosaic.InvalidGraph) as error:
        tosaic.lower(program, objective=cost)
    assert str(error.value) == (
        "[layout] cost() gives no cost of transposing 'args_0': expected an integer from 0 to 2**63 - 1, "
        f"got {answer!r} (node 'args_0')"
    )


def test_costs_that_do_not_add_up_in_64_bits_are_refused_by_the_largest(program) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"expected a sum below 2\^60.*\(node 'args_0'\)"):
        tosaic.lower(program, objective=lambda value: value.bytes << 50)


def test_what_a_cost_function_raises_comes_through(program) -> None:
    def cost(value: Candidate) -> int:
        raise LookupError(value.value)

    with pytest.raises(LookupError, match="args_0"):
        tosaic.lower(program, objective=cost)


@pytest.mark.parametrize("objective", ["cycles", 3, None])
def test_an_unknown_objective_is_refused(program, objective) -> None:
    graph = tosaic.from_exported(program).graph
    for call in (tosaic.lower, layout_of):
        with pytest.raises(tosaic.InvalidGraph, match="expected 'bytes', 'count' or a function") as error:
            call(program if call is tosaic.lower else graph, objective=objective)
        assert f"got {objective!r}" in str(error.value)
