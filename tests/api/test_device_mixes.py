"""Mixes of precisions by the cycles of a device: `tosaic.sensitivity(costs=DEVICE)`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import tosaic
from torch import nn

DEVICE = "ethos-u85-256"
TARGET = "TOSA-1.0+INT+int16+int4"


class Attention(nn.Module):
    """A convolution, and attention with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.LayerNorm(16)
        self.mix, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x).flatten(2).transpose(1, 2)
        q, k, v = self.mix(self.norm(y)).chunk(3, -1)
        y = y + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        result: torch.Tensor = self.head(nn.functional.gelu(y))
        return result


def exported_attention() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    return torch.export.export(Attention().eval(), (torch.zeros(1, 3, 8, 8),))


def attention_samples() -> list[tuple[torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(1, 3, 8, 8),) for _ in range(4)]


@pytest.fixture(scope="module")
def exported() -> Any:
    return exported_attention()


@pytest.fixture(scope="module")
def samples() -> list[Any]:
    return list(attention_samples())


@pytest.fixture(scope="module")
def found(exported: Any, samples: list[Any]) -> tosaic.quantize.Sensitivity:
    return tosaic.sensitivity(exported, samples, costs=DEVICE, least_db=42.0, points=4, progress=False)


def test_more_cycles_are_more_accurate(found: Any) -> None:
    first, last = found.curve[0], found.curve[-1]
    assert found.device == DEVICE
    assert first.cost == 1.0
    assert first.cycles < last.cycles
    assert first.db + 10 < last.db
    assert [mix.cycles for mix in found.curve] == sorted(mix.cycles for mix in found.curve)


def test_a_mix_takes_the_cycles_that_it_states(found: Any, exported: Any, samples: list[Any]) -> None:
    for mix in (found.curve[0], found.mix(), found.curve[-1]):
        quantized = tosaic.quantize(exported, samples, config=mix.config, progress=False)
        lowered = tosaic.lower(quantized, target=TARGET)
        cost = tosaic.device_cost(lowered, DEVICE, method="analytic", memory_mode=None)
        assert cost.cycles == pytest.approx(mix.cycles, rel=0.01)


def test_the_mix_of_a_budget_is_the_best_one_within_it(found: Any) -> None:
    budget = (found.curve[0].cycles + found.curve[-1].cycles) // 2
    best = found.mix(most_cycles=budget)
    assert best.cycles <= budget
    assert best.db == max(mix.db for mix in found.curve if mix.cycles <= budget)
    with pytest.raises(tosaic.QuantMismatch, match="no mix of int8, int16x8 of 10 cycles"):
        found.mix(most_cycles=10)
    with pytest.raises(tosaic.InvalidGraph, match="one of 'least_db', 'most_cost' and 'most_cycles'"):
        found.mix(most_cycles=budget, most_cost=2.0)


def test_reports_have_the_cycles(found: Any) -> None:
    text = found.report().text
    assert f"cycles of {DEVICE}" in text
    assert f"{found.curve[0].cycles:,}" in text
    assert json.loads(found.report().json)["curve"][0]["cycles"] == found.curve[0].cycles


def test_what_a_device_does_not_have_is_refused(exported: Any, samples: list[Any], found: Any) -> None:
    with pytest.raises(tosaic.InvalidGraph, match="cortex-m55"):
        tosaic.sensitivity(exported, samples, costs="cortex-m55", progress=False)
    with pytest.raises(tosaic.InvalidGraph, match="two levels of integers or more"):
        tosaic.sensitivity(exported, samples, costs=DEVICE, levels=("int8", "float"), progress=False)
    plain = tosaic.sensitivity(exported, samples, points=1, progress=False)
    with pytest.raises(tosaic.InvalidGraph, match="no cycles are known"):
        plain.mix(most_cycles=100)
