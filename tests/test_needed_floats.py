"""Programs that need no floats on profile INT, since the numbers that occur are few or bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from torch import Tensor, nn
from tosaic.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
TARGETS = {"int8": "TOSA-1.0+INT", "int16": "TOSA-1.0+INT+int16"}


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: Tensor) -> Any:
        return self.function(*operands)


def lowered(module: nn.Module, draw: Callable[[], tuple[Tensor, ...]], bits: str) -> tuple[Any, Any, Any]:
    """The quantized program, what it is lowered to, and the last of the samples."""
    config = tosaic.QConfig.int8() if bits == "int8" else tosaic.QConfig.int16x8()
    torch.manual_seed(0)
    samples = [draw() for _ in range(4)]
    exported = torch.export.export(module.eval(), samples[0])
    program = tosaic.quantize(exported, samples, config=config, progress=False)
    return program, tosaic.lower(program, target=TARGETS[bits]), samples[-1]


def in_list(outputs: Any) -> list[np.ndarray[Any, Any]]:
    return [
        each.detach().numpy() if isinstance(each, Tensor) else np.asarray(each)
        for each in (outputs if isinstance(outputs, list | tuple) else [outputs])
    ]


def check(
    module: nn.Module, draw: Callable[[], tuple[Tensor, ...]], bits: str, fine: int = 8000
) -> list[np.ndarray[Any, Any]]:
    """The outputs, which the quantized program and the reference model have, too."""
    program, made, call = lowered(module, draw, bits)
    assert tosaic.compare(program, made, call).ok
    outputs, reference = in_list(made.run(*call)), run_reference_model(made, *call)
    assert reference.ok, reference.log
    for found, by_model in zip(outputs, in_list(reference.outputs), strict=True):
        np.testing.assert_array_equal(found, by_model)
    eager = in_list(module(*call))
    for found, wanted in zip(outputs, eager, strict=True):
        np.testing.assert_allclose(
            found, wanted, atol=np.abs(wanted).max() / (60 if bits == "int8" else fine)
        )
    return outputs


# ---- batch norms ----


def normed(seed: int, channels: int = 8) -> nn.BatchNorm2d:
    draw = torch.Generator().manual_seed(seed)
    norm = nn.BatchNorm2d(channels).eval()
    norm.running_mean.uniform_(-1, 1, generator=draw)
    norm.running_var.uniform_(0.3, 2, generator=draw)
    return norm


class Pooled(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.norm = normed(seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.max_pool2d(x, 2))


class Twice(nn.Module):
    """A convolution that two norms read, so that neither is folded into its weights."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(8, 8, 1), normed(seed), normed(seed + 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.first(y) + self.second(y).relu()


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("network", [Pooled, Twice])
def test_a_batch_norm_of_any_zero_point_is_computed_with_integers(network: Any, bits: str) -> None:
    """A zero point of -1 makes 128 of the integer 127: one more bit than -128 has."""
    zero_points = set()
    for high in (0.496, 0.5, 0.504, 0.508, 0.512):

        def draw(high: float = high) -> tuple[Tensor]:
            x = (torch.rand(1, 8, 6, 6) - 0.5) * 8
            x[0, 0, :2, 0] = torch.tensor([-4.0, 8 * high])
            return (x,)

        torch.manual_seed(1)
        check(network(3), draw, bits, fine=200 if network is Twice else 8000)  # weights have 8 bits
        program, _, _ = lowered(network(3), draw, bits)
        zero_points |= {
            value.qparams.zero_points[0] for value in program.graph.values if value.qparams is not None
        }
    assert bits == "int16" or network is Twice or -1 in zero_points
