"""The ten networks at full size fulfil the contract of `models.measure`. Minutes each; results are stored."""

from __future__ import annotations

import pytest
from full.networks import PAGE, measured, write_page
from models.measure import violations
from models.zoo import NETWORKS

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_becomes_one_tosa_graph_with_the_same_results(name: str) -> None:
    assert violations(measured(name)) == []


def test_the_table_is_in_the_docs() -> None:
    write_page()
    assert all(f"| {name} |" in PAGE.read_text() for name in NETWORKS)
