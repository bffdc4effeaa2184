"""Convolutions and pools after a pad whose strides are so large that some windows read only padding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.exporting import exported
from models.quantize import converted
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread_without_traces")]

# The module, the shape of its input, and the pad in front of it.
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "sequence": (lambda: nn.Conv1d(2, 3, 1, stride=2), (1, 2, 1), (1, 0)),
    "image": (lambda: nn.Conv2d(2, 3, 1, stride=2), (1, 2, 3, 1), (1, 0)),
    "image, both axes": (lambda: nn.Conv2d(2, 3, 2, stride=4), (1, 2, 1, 2), (2, 0, 3, 0)),
    "image, a wider kernel": (lambda: nn.Conv2d(2, 3, 2, stride=3), (1, 2, 3, 2), (2, 0)),
    "image, groups": (lambda: nn.Conv2d(4, 4, 1, stride=2, groups=2), (1, 4, 3, 1), (1, 0)),
    "image, depthwise": (lambda: nn.Conv2d(2, 4, 1, stride=2, groups=2), (1, 2, 3, 1), (1, 0)),
    "image, padding on both sides": (lambda: nn.Conv2d(2, 3, 1, stride=4), (1, 2, 3, 2), (1, 1)),
    "volume": (lambda: nn.Conv3d(2, 3, 1, stride=2), (1, 2, 3, 3, 1), (1, 0)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 1, padding=1), (1, 2, 3, 1), (1, 1)),
    "largest": (lambda: nn.MaxPool2d(1, 2), (1, 2, 3, 1), (1, 0)),
    "average": (lambda: nn.AvgPool2d(1, 2), (1, 2, 3, 1), (1, 0)),
}


class Padded(nn.Module):
    def __init__(self, operator: nn.Module, pad: tuple[int, ...]) -> None:
        super().__init__()
        self.operator = operator
        self.pad = pad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operator(F.pad(x, self.pad))


def padded(name: str) -> tuple[nn.Module, torch.Tensor]:
    make, shape, pad = CASES[name]
    torch.manual_seed(0)
    operator = make().eval().requires_grad_(False)
    return Padded(operator, pad), torch.randn(shape)


@pytest.mark.parametrize("name", CASES)
def test_windows_that_read_only_padding_agree_with_torch(name: str) -> None:
    module, x = padded(name)
    low = tosaic.lower(exported(module, x), target="TOSA-1.0+FP")
    np.testing.assert_allclose(low.run(x), module(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["image", "image, both axes", "image, a wider kernel", "image, depthwise"])
def test_windows_of_integers_that_read_only_padding_agree_with_torch(name: str) -> None:
    module, x = padded(name)
    program = converted(module, [(x + 2,), (x,)], "arm")  # the zero point of the input is not 0
    low = tosaic.lower(program, target="TOSA-1.0+INT")
    got = low.run(x)
    np.testing.assert_array_equal(got, run_reference_model(low, x).outputs)
    expected = program.module()(x).numpy()
    scale = low.outputs[0].qparams.scales[0] if low.outputs[0].qparams else 1.0
    np.testing.assert_allclose(got, expected, atol=1.01 * scale)
