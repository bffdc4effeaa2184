"""Whole networks on Cortex-M and Neutron compute the integers of ExecuTorch's Cortex-M backend."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("executorch.backends.cortex_m.passes.cortex_m_pass_manager")

from cortex_m.networks import CLAIMANTS, average_of_the_kernel, checked

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("name", "claimants"),
    [
        *(("cifar_cnn", each) for each in CLAIMANTS),
        *((f"{n}_small", CLAIMANTS[1]) for n in ("ds_cnn", "mobilenet_v2")),
    ],
    ids=str,
)
def test_a_split_network_equals_the_backend_of_executorch(name: str, claimants: tuple[str, ...]) -> None:
    found = checked(name, claimants)
    assert found.is_right, found
    if name == "cifar_cnn":
        # The elements of an image of 3x3 pixels and 32 channels change their order before the linear layer.
        assert found.transposed_bytes == 3 * 3 * 32
        assert set(found.pads) == {claimants[0]}
        assert found.nodes["cortex-m55"] > 0
    else:
        assert found.transposed_bytes == 0


def test_averages_of_the_kernel_round_halves_away_from_zero() -> None:
    x = np.array([[[[1, 2], [-1, -2]], [[3, 4], [3, 4]]]], np.int8).transpose(1, 0, 2, 3)
    rows = average_of_the_kernel(x, (1, 2), (1, 1), (0, 0), (2, 1))
    assert rows.ravel().tolist() == [2, -2, 4, 4]
