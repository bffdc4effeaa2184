"""A sample of tests/full/joins.py, which measures all cases."""

from __future__ import annotations

import pytest
from full.joins import CASES, measure, violations


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ["beside-10-fixed", "skip-3-free"])
def test_a_join_of_operands_with_different_ranges_has_the_accuracy_of_the_page(case: str) -> None:
    assert case in CASES
    assert violations(measure(case)) == []
