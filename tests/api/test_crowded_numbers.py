"""Results whose largest numbers leave few integers to the others are named by `tosaic.quantize`, by
`tosaic.Quantizer` and by `export_model`, with a remedy that helps."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import Tensor, nn
from torch.nn import functional as F
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic import _core
from tosaic.annotation.crowded import crowded_numbers

pytestmark = pytest.mark.filterwarnings("ignore")
HIDDEN = (torch.arange(48).reshape(6, 8) * 5) % 7 < 2
HIDDEN[0] = False
AT = torch.tensor([1, 4])
PLACES: dict[str, tuple[str, Callable[[Tensor, Tensor, float], Tensor]]] = {
    "where": ("where", lambda y, m, c: torch.where(m, c, y)),
    "masked_fill": ("masked_fill", lambda y, m, c: y.masked_fill(m, c)),
    "minimum": ("minimum", lambda y, m, c: torch.minimum(y, torch.where(HIDDEN, c, 4.0))),
    "maximum": ("maximum", lambda y, m, c: -torch.maximum(y, torch.where(HIDDEN, -c, -4.0))),
    "pad": ("pad", lambda y, m, c: F.pad(y, (0, 2), value=c)),
    "scatter": ("scatter", lambda y, m, c: y.scatter(1, AT[None, :, None].expand(2, 2, 8), c)),
    "index_put": ("index_put", lambda y, m, c: y.index_put((torch.arange(2)[:, None], AT), torch.tensor(c))),
    "slice_scatter": ("slice_scatter", lambda y, m, c: y.slice_scatter(torch.full((2, 2, 8), c), 1, 2, 4)),
    "sum": ("add", lambda y, m, c: y + m.float() * c),
}
JOINED = ("cat", lambda y, m, c: torch.cat([y, torch.full((2, 2, 8), c)], 1))


class Net(nn.Module):
    """A sum of the visible numbers. The comparison with a threshold needs integers next to the threshold."""

    def __init__(self, place: Callable[[Tensor, Tensor, float], Tensor], number: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.place, self.number = nn.Linear(8, 8), place, number

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        y = self.place(self.linear(x), hidden, self.number)
        return torch.where(y < self.number / 3, torch.zeros(()), y).sum(1)


def sample(seed: int) -> tuple[Tensor, Tensor]:
    return torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(seed)), HIDDEN.roll(seed % 2, 1)[None]


SAMPLES = [sample(seed) for seed in range(6)]


def quantized(net: nn.Module, **options: Any) -> Any:
    exported = torch.export.export(net.eval(), SAMPLES[0])
    return tosaic.quantize(exported, SAMPLES, progress=False, **options)


def by_torchao(net: nn.Module, quantizer: Any) -> Any:
    prepared = prepare_pt2e(torch.export.export(net.eval(), SAMPLES[0]).module(), quantizer)
    for each in SAMPLES:
        prepared(*each)
    return torch.export.export(convert_pt2e(prepared), SAMPLES[0])


def decibels(program: Any, net: nn.Module) -> float:
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    exact = np.array([net(*each).detach().double().numpy() for each in SAMPLES])
    found = np.array([np.float64(lowered.run(*each)) for each in SAMPLES])
    return float(10 * np.log10((exact**2).sum() / ((found - exact) ** 2).sum()))


@pytest.mark.parametrize("place", PLACES)
def test_the_report_names_them_with_a_remedy_that_helps(place: str) -> None:
    node, function = PLACES[place]
    far, near = Net(function, -300.0), Net(function, -24.0)
    program = quantized(far)
    rows = [row for row in program.quantization.narrow if row.beside is not None]
    assert [row.node.removesuffix("_1") for row in rows] == [node]
    assert all(row.integers < 16 and row.of == 256 for row in rows)
    assert all(-4 < row.least < row.greatest < 4 and abs(row.beside or 0) > 90 for row in rows)
    assert "test_crowded_numbers.py:" in rows[0].text
    assert "make them about ten times the largest of the first" in rows[0].text
    assert "numbers with few integers" in str(program)
    assert program.report().data["narrow"][0]["beside"] == rows[0].beside
    better = quantized(near)
    assert decibels(better, near) > max(25, decibels(program, far) + 8)
    assert better.quantization.narrow == ()


@pytest.mark.parametrize("place", [*PLACES, "cat"])
def test_the_quantizer_names_them(place: str, caplog: Any) -> None:
    node, function = {**PLACES, "cat": JOINED}[place]
    with caplog.at_level(logging.WARNING, logger="tosaic"):
        by_torchao(Net(function, -300.0), tosaic.Quantizer())
    assert "of the 256 integers, since others are about" in caplog.text
    assert f"the numbers of '{node}' from" in caplog.text
    assert "make them about ten times" in caplog.text


@pytest.mark.parametrize("place", ["where", "scatter", "sum"])
def test_export_model_names_them_for_both_quantizers(place: str) -> None:
    node, function = PLACES[place]
    net = Net(function, -300.0)
    arrays = [tuple(each.numpy() for each in sample) for sample in SAMPLES]

    def torchao(program: Any, context: Any) -> Any:
        return by_torchao(net, tosaic.Quantizer())

    stage = tosaic.recipes.Stage("torchao", "quantize", torchao)
    by_stage = tosaic.Recipe(name="torchao", claimants=["TOSA-1.0+INT"], stages=[stage])
    for recipe in ("tosa-int8", by_stage):
        done = tosaic.export_model(net, SAMPLES[0], samples=arrays, recipe=recipe, verbose=0)
        assert any(f"'{node}" in each and "make them about ten times" in each for each in done.notes)


ORDINARY: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "no mask": lambda y, m, c: y * 1.0,
    "a leaky selection": lambda y, m, c: torch.where(y > 0, y, 0.01 * y),
    "a small addend": lambda y, m, c: y + 0.01 * torch.sin(y),
    "a few large numbers": lambda y, m, c: y + y**5,
    "truth values": lambda y, m, c: torch.where(m, 1.0, torch.where(y > 0, 300.0, 0.0)),
    "a mask that no reader notices": lambda y, m, c: y.masked_fill(m, -1e9).softmax(-1),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_results_are_not_named(name: str, caplog: Any) -> None:
    net = Net(ORDINARY[name], -3.0)
    with caplog.at_level(logging.WARNING, logger="tosaic"):
        assert quantized(net).quantization.narrow == ()
        by_torchao(net, tosaic.Quantizer())
    assert "integers, since" not in caplog.text


def test_numbers_beside_a_number_that_makes_zeros_of_them_are_known(caplog: Any) -> None:
    """In a histogram, numbers up to 238 count as zero if the largest magnitude is 1e9."""

    def scaled(y: Tensor, m: Tensor, c: float) -> Tensor:
        return y.masked_fill(m, c) * 0.3 + torch.linspace(-1, 1, 8)

    for quantizer in (
        tosaic.Quantizer(compatible_with="arm"),
        tosaic.Quantizer(tosaic.QConfig.int8(every_operator=True)),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="tosaic"):
            by_torchao(Net(scaled, -1e9), copy.deepcopy(quantizer))
        assert "have 1 of the 256 integers, since others are about -3" in caplog.text


def test_what_a_histogram_counts_as_zero() -> None:
    histogram, near = _core.Histogram(), _core.Histogram()
    numbers = np.linspace(-2, 2, 50, dtype=np.float32)
    near.observe(numbers)
    histogram.observe(np.append(numbers, np.float32(-1e9)))
    scale = 1e9 / 255
    assert crowded_numbers(histogram, scale, 127, -128, 127) is None
    found = crowded_numbers(histogram, scale, 127, -128, 127, near=near)
    assert found is not None
    assert (found.least, found.greatest, found.integers) == (-2, 2, 1)


@pytest.mark.parametrize("door", ["arm", "every_operator"])
def test_a_coarse_addend_before_a_scaled_gelu_is_named(door: str, caplog: Any) -> None:
    for far in (-30.0, 30.0, -3.0):
        addend = torch.linspace(-0.05, 0.05, 8)
        addend[3] = far

        def place(y: Tensor, m: Tensor, c: float, addend: Tensor = addend) -> Tensor:
            return F.gelu(10 * (0.05 * torch.tanh(y) + addend))

        arm = tosaic.Quantizer(compatible_with="arm")
        quantizer = arm if door == "arm" else tosaic.Quantizer(tosaic.QConfig.int8(every_operator=True))
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="tosaic"):
            by_torchao(Net(place, -1e3), quantizer)
        assert "the addend of 'add'" in caplog.text
