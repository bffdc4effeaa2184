"""The conversion to channels last of networks in ExecuTorch's edge dialect; these take too long for ci."""

from __future__ import annotations

import pytest
from fx.test_layouts_in_executorch import require_conversion_of_network

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torch.export and ExecuTorch warn of their own code
    pytest.mark.usefixtures("one_thread_without_traces"),
]


@pytest.mark.parametrize("name", ["mobilenet_v2_small", "resnet50_small"])
def test_a_network_of_the_edge_dialect_is_converted_to_channels_last(name: str) -> None:
    require_conversion_of_network(name)
