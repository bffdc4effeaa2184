"""Splits 20,000 random programs between claimants. Results are stored: another run goes on from there."""

from __future__ import annotations

import pytest
from full.split_programs import STARTS, measured

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("start", STARTS)
def test_split_programs_have_right_borders_and_compute_the_same(start: str) -> None:
    assert measured(start)["failures"] == []
