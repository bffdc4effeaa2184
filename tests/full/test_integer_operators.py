"""Every integer operator, dtype and target on generated values: see tests/integer_operators/sweep.py."""

from __future__ import annotations

import pytest
from integer_operators.sweep import CASES, cells, check

pytestmark = pytest.mark.full
SEEDS = (1, 2, 3)


@pytest.mark.parametrize("name", sorted({case.name for case in CASES}))
def test_an_integer_operator_agrees_with_torch_and_the_reference_model(name: str) -> None:
    rows = [(case, dtype, target) for case, dtype, target in cells() if case.name == name]
    tried = [(row, check(*row, seed=seed)) for row in rows for seed in SEEDS]
    failures = [f"{row[1]} {row[2]}: {found.failure}" for row, found in tried if found.failure]
    print(f"{name}: {len(tried)} programs, {sum(found.elements for _, found in tried)} elements")
    assert failures == []
