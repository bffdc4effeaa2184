"""Cost functions of the caller: which costs are allowed, their effect on the plan, and one call per value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from fx.exporting import exported
from torch import nn
from tosaic.lowering.layout import Candidate, layout_of

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def program() -> Any:
    """Pools two small slices of the input: objectives "bytes" and "count" have different plans for it.

    Transposes of both slices move fewer bytes; one transpose of the whole input is fewer transposes.
    """
    pool = nn.MaxPool2d(2)

    def call(x: torch.Tensor) -> torch.Tensor:
        return pool(x[:, :2]).sum((1, 2, 3)) + pool(x[:, 2:4]).amax((1, 2, 3))

    return exported(call, torch.randn(1, 8, 6, 4))


def moved(low: tosaic.Lowered) -> list[str]:
    return [t.value for t in low.layout.transposes]


def test_cost_functions_of_bytes_and_of_1_equal_the_objectives_bytes_and_count(program) -> None:
    for objective, cost in (("bytes", lambda value: value.bytes), ("count", lambda value: 1)):
        named, own = (tosaic.lower(program, objective=each) for each in (objective, cost))
        assert len(moved(named)) == (2 if objective == "bytes" else 1)
        assert named.to_bytes() == own.to_bytes()


def test_a_cost_function_decides_which_values_are_transposed_and_the_plan_is_proven_minimal(program) -> None:
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


def test_a_cost_function_is_called_once_for_each_value(program) -> None:
    asked: list[Candidate] = []

    def cost(value: Candidate) -> int:
        asked.append(value)
        return len(asked)  # another cost at each call

    low = tosaic.lower(program, objective=cost)
    assert len(asked) == len(set(asked)) >= 5  # the sums are not asked for: their one axis has only one order
    assert all(len(value.shape) == 4 for value in asked)
    assert asked[0] == Candidate("args_0", (1, 8, 6, 4), "f32", 8 * 6 * 4 * 4)
    before = len(asked)
    assert len(moved(low)) == sum(node.op == "tosa.transpose" for node in low.graph.nodes)
    assert len(asked) == before


@pytest.mark.parametrize("answer", [-1, 2.0, "3", None, 2**63])
def test_an_invalid_cost_is_refused_and_the_error_shows_it(program, answer) -> None:
    def cost(value: Candidate) -> Any:
        return answer

    with pytest.raises(tosaic.InvalidGraph) as error:
        tosaic.lower(program, objective=cost)
    assert str(error.value) == (
        "[layout] cost() gives no cost of transposing 'args_0': expected an integer from 0 to 2**63 - 1, "
        f"got {answer!r} (node 'args_0')"
    )


def test_costs_whose_sum_may_overflow_are_refused_and_the_error_names_the_largest(program) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"expected a sum below 2\^60.*\(node 'args_0'\)"):
        tosaic.lower(program, objective=lambda value: value.bytes << 50)


def test_an_exception_of_a_cost_function_reaches_the_caller(program) -> None:
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
