"""Programs of integers whose sums are proven to fit i32: the ranges of bitwise operators and remainders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tosaic
from torch import nn


class Stepped(nn.Module):
    """A hash or a checksum: each step takes a byte and reduces what it has so far."""

    def __init__(self, step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(1, dtype=torch.int32)
        for i in range(x.shape[1]):
            found = self.step(found, x[:, i])
        return found


def _crc(h: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    h = h ^ (b.int() << 8)
    for _ in range(8):
        h = ((h << 1) ^ ((h >> 15 & 1) * 0x1021)) & 0xFFFF
    return h


@pytest.mark.parametrize(
    "step",
    [
        lambda h, b: (h * 31 + b) & 0x7FFF,
        lambda h, b: 0x7FFF & (h * 31 - b),
        _crc,
        lambda h, b: ((h << 5) + (h >> 2) + (b | 3)) % 65521,
        lambda h, b: torch.fmod(h * 31 + b, 1000) | (b & 15),
        lambda h, b: ~((h * 17 + b) & 0xFFF),
    ],
)
def test_a_reduced_hash_of_many_steps_is_lowered_and_equal_to_torch(
    step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 256, (64, 12), dtype=torch.uint8)
    module = Stepped(step)
    lowered = tosaic.lower(torch.export.export(module, (x,)), target="TOSA-1.0+INT")
    np.testing.assert_array_equal(lowered.run(x.numpy()), module(x).numpy())
