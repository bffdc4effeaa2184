"""Compat partitions are torch's on 2,000 random graphs and on all networks. Results are stored."""

from __future__ import annotations

import pytest
from full.partitions_compat import NAMES, PAGE, measured, write_page

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", NAMES)
def test_partitions_are_those_of_torch(name: str) -> None:
    assert measured(name).differences == ()


def test_the_table_is_in_the_docs() -> None:
    write_page()
    assert "| seeds 0 to 199 |" in PAGE.read_text()
