"""Sums of two tensors are one operation of Ethos-U55 and Ethos-U65, whatever the scales are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

pytest.importorskip("ethosu.vela", reason="Vela is not installed: pip install ethos-u-vela")


class Branches(nn.Module):
    """Two layers, whose results are added or subtracted; the second one is `ratio` times as large."""

    def __init__(self, ratio: float, subtracts: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 1)
        self.subtracts = subtracts
        with torch.no_grad():
            for large, small in zip(self.second.parameters(), self.first.parameters(), strict=True):
                large.copy_(small.roll(1, 0) * ratio)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.first(x), self.second(x)
        return a - b if self.subtracts else a + b


CONFIGS = {
    "int8": tosaic.QConfig.int8(every_operator=True),
    "int16x8": tosaic.QConfig.int16x8(every_operator=True),
}


@pytest.mark.parametrize("device", ["ethos-u55-128", "ethos-u65-256"])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("subtracts", [False, True], ids=["sum", "difference"])
@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0, 1.001, 3.0, 70.0])
def test_a_sum_is_one_operation(device: str, config: str, subtracts: bool, ratio: float) -> None:
    samples = [(torch.randn(1, 4, 6, 6),) for _ in range(4)]
    exported = torch.export.export(Branches(ratio, subtracts).eval(), samples[0])
    quantized = tosaic.quantize(exported, samples, config=CONFIGS[config])
    lowered = tosaic.lower(quantized, target=tosaic.Claimant.named(device).target)
    paid = [row.op for row in tosaic.device_cost(lowered, device).rows if row.cycles]
    elementwise = [op for op in paid if op not in ("tosa.conv2d", "tosa.transpose")]
    assert len(elementwise) == 1, elementwise
    ours = np.asarray(lowered.run(*samples[0]))
    assert np.array_equal(ours, np.asarray(run_reference_model(lowered, *samples[0]).outputs))
    unit = lowered.graph.outputs[0].qparams.scales[0]
    most = 1.01 if config == "int8" else 2.01  # with 16 bits, floats round the layers in other ways, too
    assert np.abs(ours - np.asarray(quantized.run(*samples[0]))).max() <= most * unit
