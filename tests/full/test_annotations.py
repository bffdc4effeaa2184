"""Annotations of six quantizers on five networks, made anew from a plan, give the same converted graph.

Minutes each. The full test for one quantizer: ``pytest tests/full/test_annotations.py -k vgf``.
"""

from __future__ import annotations

import pytest
from fx.quantizer.quantizers import QUANTIZERS
from fx.quantizer.test_round_trip import differences_of_rebuilt

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread_without_traces"),
]

NETWORKS = ("mobilenet_v2", "resnet18", "deit_tiny", "unet", "ds_cnn")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_annotations_made_anew_from_a_plan_convert_to_the_same_graph(quantizer: str, name: str) -> None:
    assert differences_of_rebuilt(quantizer, name) == []
