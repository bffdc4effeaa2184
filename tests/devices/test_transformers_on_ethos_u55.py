"""Networks with attention, norms and softmax that Ethos-U55 computes whole: one group, which Vela compiles.

Ethos-U55 has no GATHER, no AND, no comparison and no shift that rounds down: Vela refuses a file with one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

pytest.importorskip("ethosu.vela", reason="Vela is not installed: pip install ethos-u-vela")

DEVICE = "ethos-u55-128"
_WIDTH, _TOKENS, _HEADS = 32, 12, 2


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.view(1, _TOKENS, _HEADS, -1).transpose(1, 2) for x in (q, k, v))
    shares = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)
    return (shares @ v).transpose(1, 2).reshape(1, _TOKENS, _WIDTH)


class Encoder(nn.Module):
    """A block of a vision transformer or of BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)])
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.out(attention(*self.qkv(self.norms[0](x)).chunk(3, -1)))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Decoder(nn.Module):
    """A block with RMS norms and a gate, such as Llama has."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(_WIDTH, 1e-5), nn.RMSNorm(_WIDTH, 1e-5)])
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(_WIDTH, 48, bias=False), nn.Linear(_WIDTH, 48, bias=False)
        self.down = nn.Linear(48, _WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.out(attention(self.q(y), self.k(y), self.v(y)))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class KeywordSpotter(nn.Module):
    """A small network over a spectrogram that ends in a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 16, (10, 4), 2, (5, 1)), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.ReLU()
        )
        self.head = nn.Linear(16, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.convs(x).mean((2, 3))).softmax(-1)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(Encoder(), Encoder()), (1, _TOKENS, _WIDTH)),
        (Decoder(), (1, _TOKENS, _WIDTH)),
        (KeywordSpotter(), (1, 1, 49, 10)),
    ],
    ids=["encoder", "decoder", "keyword spotter"],
)
def test_the_recipe_puts_the_whole_network_on_the_device(module: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(shape),) for _ in range(4)]
    config = tosaic.recipes.named("ethos-u55").config
    exported = torch.export.export(module.eval(), samples[0])
    quantized = tosaic.quantize(exported, samples, config=config)
    plan = tosaic.partition(quantized, [DEVICE])
    assert len(plan.groups) == 1
    host = [node.op for node, group in zip(plan.graph.nodes, plan.group_of, strict=True) if group is None]
    assert sorted(host) == ["dequantize", "quantize"]
    lowered = tosaic.lower(quantized, target=tosaic.Claimant.named(DEVICE).target)
    assert tosaic.device_cost(lowered, DEVICE).cycles > 0  # Vela compiles the file
    ours = np.asarray(lowered.run(*samples[0]))
    assert np.array_equal(ours, np.asarray(run_reference_model(lowered, *samples[0]).outputs))
    unit = lowered.graph.outputs[0].qparams.scales[0]
    assert np.abs(ours - np.asarray(quantized.run(*samples[0]))).max() <= 3 * unit
