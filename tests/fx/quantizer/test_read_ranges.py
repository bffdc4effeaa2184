"""Ranges of `compatible_with="arm"` that end where no reader notices a difference, and what is warned of."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from torch.nn import functional as F
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic.fx.quantizer.read_ranges import ReadRange, ReadRangeObserver

pytest.importorskip("executorch", reason="the flow is ExecuTorch's")
pytestmark = pytest.mark.filterwarnings("ignore")

INF = float("inf")
HIDDEN = torch.rand(2, 6, 8, generator=torch.Generator().manual_seed(5)) < 0.35
HIDDEN[..., 0] = False
HIDDEN[:, 0] = False
LEAST = torch.finfo(torch.float32).min
ROW = torch.linspace(-1, 1, 8)
AT = torch.tensor([1, 4])[None, :, None].expand(2, 2, 8)


class Network(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.function = nn.Linear(8, 8), function

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x), hidden)


def cat(y: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return torch.cat([y.masked_fill(hidden, 0.0), torch.full((2, 2, 8), -INF)], 1)


def lowered(function: Callable[..., torch.Tensor], hidden: torch.Tensor = HIDDEN) -> tuple[float, float]:
    """Returns the decibels of the converted and of the lowered program."""
    network = Network(function).eval()
    random = torch.Generator().manual_seed(1)
    samples = [(torch.randn(2, 6, 8, generator=random), hidden) for _ in range(3)]
    with torch.no_grad():
        graph = torch.export.export(network, samples[0]).module()
        prepared = prepare_pt2e(graph, tosaic.Quantizer(compatible_with="arm"))
        for sample in samples:
            prepared(*sample)
        program = torch.export.export(convert_pt2e(prepared), samples[0])
        exact, converted = network(*samples[0]).numpy(), program.module()(*samples[0]).numpy()
    result = tosaic.lower(program, target="TOSA-1.0+INT").run(*samples[0])
    seen = np.abs(exact) < 100
    return decibels(converted[seen], exact[seen]), decibels(
        np.reshape(result, exact.shape)[seen], exact[seen]
    )


def decibels(found: Any, exact: Any) -> float:
    noise = max(float(np.square(np.float64(found) - exact).sum()), 1e-30)
    return float(10 * np.log10(np.square(np.float64(exact)).sum() / noise))


UNNOTICED: dict[str, Callable[..., torch.Tensor]] = {
    "softmax of masked_fill": lambda y, m: y.masked_fill(m, -INF).softmax(-1),
    "softmax along another axis": lambda y, m: y.masked_fill(m, -INF).softmax(1),
    "softmax of a large number": lambda y, m: torch.where(m, torch.tensor(-1e9), y).softmax(-1),
    "softmax of scatter": lambda y, m: y.scatter(1, AT, -1e9).softmax(-1),
    "amax of masked_fill": lambda y, m: y.masked_fill(m, -INF).amax(1),
    "amax of cat": lambda y, m: cat(y, m).amax(1),
    "amax of scatter": lambda y, m: y.scatter(1, AT, -INF).amax(1),
    "sigmoid of scatter": lambda y, m: y.scatter(1, AT, -INF).sigmoid(),
    "tanh of where": lambda y, m: torch.where(m, -300.0, y).tanh(),
    "hardtanh of where": lambda y, m: F.hardtanh(torch.where(m, -1e9, y), -2, 2),
    "mean of relu": lambda y, m: y.masked_fill(m, -INF).relu().mean(1),
    "softmax of minimum": lambda y, m: torch.minimum(y, torch.where(m, LEAST, 50.0)).softmax(-1),
    "gelu of cat": lambda y, m: F.gelu(torch.cat([y, torch.full((2, 2, 8), -400.0)], 1)),
}


@pytest.mark.parametrize("name", UNNOTICED)
def test_numbers_that_no_reader_notices_leave_the_integers_to_others(name: str, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="tosaic"):
        assert min(lowered(UNNOTICED[name])) > 25
    assert "of the 256 integers" not in caplog.text


DECAYING: dict[str, Callable[..., torch.Tensor]] = {
    "gelu": lambda y, m: F.gelu(y - 6),
    "silu": lambda y, m: F.silu(y - 14),
    "sigmoid": lambda y, m: (y - 12).sigmoid().log(),
}


@pytest.mark.parametrize("name", DECAYING)
def test_numbers_whose_results_are_all_tiny_have_a_range(name: str) -> None:
    assert min(lowered(DECAYING[name])) > 15


def test_a_range_of_decaying_results_is_relative_to_negative_numbers() -> None:
    read = ReadRange(-6, INF, decays=True)
    for samples, least in (
        ([[-14.0, -11.0], [-300.0, -300.0]], -17.0),
        ([[-300.0, -300.0], [-40.0, -2.0]], -8.0),
        ([[-40.0, 3.0], [-300.0, -12.0]], -6.0),
    ):
        observer = ReadRangeObserver(read=read, dtype=torch.int8, qscheme=torch.per_tensor_affine)
        for each in samples:
            observer(torch.tensor(each))
        observer.calculate_qparams()
        assert float(observer.min_val) == pytest.approx(least)


def test_rows_that_a_mask_hides_as_a_whole_leave_the_integers_to_others() -> None:
    hidden = HIDDEN.clone()
    hidden[0, 2] = True
    assert min(lowered(lambda y, m: y.masked_fill(m, -1e9).softmax(-1), hidden)) > 25


def test_rows_of_equal_numbers_only_have_a_range() -> None:
    assert min(lowered(lambda y, m: (y[..., :1] * 0.5).softmax(-1))) > 40


NOTICED: dict[str, Callable[..., torch.Tensor]] = {
    "returned": lambda y, m: torch.where(m, -300.0, y),
    "read by a product": lambda y, m: torch.where(m, -300.0, torch.cat([y[:, :3], y[:, 3:] * 2], 1)).tanh(),
    "a mask that is scaled": lambda y, m: (y.masked_fill(m, -1e9) * 0.3 + ROW).amax(1),
    "a mask that is added": lambda y, m: torch.sin(y + torch.where(m, -300.0, 0.0)),
}


@pytest.mark.parametrize("name", NOTICED)
def test_numbers_that_leave_few_integers_to_others_are_named(name: str, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="tosaic"):
        assert min(lowered(NOTICED[name])) < 20
    assert "of the 256 integers, since others are about" in caplog.text
