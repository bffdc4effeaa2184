"""`tosaic.quantize` and its accuracy tools on large and trained networks. Results are stored."""

from __future__ import annotations

import pytest
from full import accuracy_tools, quantize, quantize_trained
from models.results import recorded
from models.trained import TASKS

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", quantize.CASES)
def test_a_network_is_as_exact_as_with_the_peers_and_equal_to_the_reference_model(name: str) -> None:
    found = recorded(quantize.RESULTS, name, lambda: quantize.measure(name, quantize.RESULTS))
    assert quantize.violations(quantize.of_record(found)) == []


@pytest.mark.parametrize("name", TASKS)
def test_a_trained_network_keeps_its_accuracy(name: str) -> None:
    found = recorded(quantize_trained.RESULTS, name, lambda: quantize_trained.measure(name))
    assert quantize_trained.faults(found) == []


@pytest.mark.parametrize("case", [*accuracy_tools.CASES, accuracy_tools.TRAINED, *accuracy_tools.MIXED])
def test_a_tool_or_a_mix_of_precisions_gains_enough(case: str) -> None:
    found = recorded(accuracy_tools.RESULTS, case, lambda: accuracy_tools.measure(case))
    assert accuracy_tools.faults(found) == []
