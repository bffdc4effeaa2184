"""The ten networks with three quantizers fulfil the contract of `models.integers`.

Minutes each; results are stored.
"""

from __future__ import annotations

import pytest
from full.quantized_networks import CASES, PAGE, arm_of, measured, write_page
from models.integers import violations

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("case", CASES)
def test_a_quantized_network_computes_the_same_integers_on_every_engine(case: str) -> None:
    m = measured(case)
    assert violations(m, arm_of(m.network) if m.quantizer == "arm" else None) == []


def test_the_table_is_in_the_docs() -> None:
    write_page()
    assert all(f"| {case.replace('.', ' | ')} |" in PAGE.read_text() for case in CASES)
