"""Networks of the edge dialect that take too long for CI: a layout plan converts them to channels last."""

from __future__ import annotations

import pytest
from fx.test_layouts_in_executorch import require_conversion_of_network

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export and ExecuTorch warn about their own code


@pytest.mark.parametrize("name", ["mobilenet_v2_small", "resnet50_small"])
def test_a_network_of_the_edge_dialect_is_converted_to_channels_last(name: str) -> None:
    require_conversion_of_network(name)
