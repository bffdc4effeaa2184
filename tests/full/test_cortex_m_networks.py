"""Networks split between Neutron and Cortex-M compute the integers of the backend. Results are stored."""

from __future__ import annotations

import pytest
from full.cortex_m_networks import CASES, PAGE, measured, write_page

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", CASES)
def test_a_split_network_equals_the_backend_of_executorch(name: str) -> None:
    found = measured(name)
    assert found.is_right, found


def test_the_table_is_in_the_docs() -> None:
    write_page()
    assert "| cifar_cnn" in PAGE.read_text()
