"""Random programs in integer arithmetic: our executor and the TOSA reference model agree in every element.

`random_graphs.quantized` says how they are quantized and what is compared.
"""

from __future__ import annotations

import pytest
from random_graphs.quantized import check_quantized

SEEDS = range(60)
HOSTILE_SEEDS = range(20)

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


@pytest.mark.parametrize("seed", SEEDS)
def test_integers_are_the_same_everywhere(seed: int) -> None:
    result = check_quantized(seed)
    assert not result.failures, f"seed {seed}: " + "\n".join(result.failures)


@pytest.mark.parametrize("seed", HOSTILE_SEEDS)
def test_unusual_quantization_parameters_lead_to_equal_integers_or_a_refusal(seed: int) -> None:
    result = check_quantized(seed, hostile=True)
    assert not result.failures, f"seed {seed}: " + "\n".join(result.failures)
    assert result.target or result.refused
