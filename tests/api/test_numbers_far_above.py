"""Numbers far above the data, whose distance no reader notices, such as the largest score of a softmax.

One unit for such a number and for data leaves no bits to the data, so the number is clamped if that changes
no result. If a reader notices the distance, lowering refuses or is exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from by_torchao import quantized_by_torchao
from refusals import refusal
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

TARGETS = {"int8": "TOSA-1.0+INT", "int16x8": "TOSA-1.0+INT+int16"}
Function = Callable[["WithMask", torch.Tensor, torch.Tensor], Any]


class WithMask(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 6), function
        self.register_buffer("exponents", torch.linspace(-1.4, 1.4, 24).reshape(4, 6))

    def forward(self, x: torch.Tensor, m: torch.Tensor) -> Any:
        return self.function(self, self.layer(x), m)


def halves(x: torch.Tensor) -> torch.Tensor:
    return torch.split(x, 1, 0)[1]


CASES: dict[str, Function] = {
    "shares next to one that wins": lambda s, x, m: F.pad(x, (1, 0), value=1e9).softmax(-1),
    "shares where a mask wins": lambda s, x, m: x.masked_fill(m, 1e30).softmax(-1),
    "shares of winners, halved": lambda s, x, m: (x.masked_fill(m, 1e30) * 0.5).softmax(-1),
    "shares of winners, moved": lambda s, x, m: (x.masked_fill(m, 1e9) + 0.3).softmax(-1),
    "shares of losers, negated": lambda s, x, m: (-x.masked_fill(m, -1e9)).softmax(-1),
    "logarithms of shares where a mask wins": lambda s, x, m: x.masked_fill(m, 1e9).log_softmax(-1),
    "logarithms of shares under a mask": lambda s, x, m: (x + (1 - m.float()) * -1e9).log_softmax(-1).exp(),
    "the place of one that wins": lambda s, x, m: x.masked_fill(m, 1e9).argmax(-1),
    "the place of the least under a mask": lambda s, x, m: x.masked_fill(m, 1e9).argmin(-1),
    "the place of the largest of a pad": lambda s, x, m: F.pad(x.relu(), (1, 0), value=-1e9).argmax(-1),
    "an order with winners and losers": lambda s, x, m: torch.argsort(
        F.pad(x.masked_fill(m, 1e9), (1, 0), value=-1e9), dim=-1, stable=True
    ),
    "a threshold below all": lambda s, x, m: x.masked_fill(m, 1e9) > -100,
    "a threshold within": lambda s, x, m: x.masked_fill(m, -1e9) > 0.1,
    "shares over one element": lambda s, x, m: x[:, :1].masked_fill(m[:, :1], 1e30).softmax(1),
    "shares over one, moved": lambda s, x, m: (x[:, :1].masked_fill(m[:, :1], 1e30) + 0.4).softmax(1),
    "a variance of one element": lambda s, x, m: (
        x[:, :1].masked_fill(m[:, :1], 1e9).var(1, correction=0) + x[:, 0]
    ),
    "shares of one half": lambda s, x, m: torch.cat(
        [halves(x), torch.full_like(halves(x), -1e30)], 0
    ).softmax(0),
    "a sign": lambda s, x, m: x.masked_fill(m, 1e9).sign(),
    "a condition that is constant": lambda s, x, m: torch.where(
        torch.zeros(6, dtype=torch.bool), 1e30, x
    ).relu(),
    "a sum that saturates": lambda s, x, m: (x + torch.full((6,), -1e9)).sigmoid() + x,
}


def samples(count: int = 4, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(seed)
    return [(torch.randn(4, 6), torch.rand(4, 6) < 0.4) for _ in range(count)]


def made(function: Function) -> WithMask:
    torch.manual_seed(1)
    return WithMask(function).eval()


def config(bits: str) -> tosaic.QConfig:
    made: tosaic.QConfig = getattr(tosaic.QConfig, bits)()
    return made


def quantized(door: str, module: nn.Module, bits: str) -> tosaic.Program:
    if door == "torchao":
        return tosaic.from_exported(quantized_by_torchao(module, samples(), config(bits)))
    return tosaic.quantize(
        torch.export.export(module, samples()[0]), samples(), config=config(bits), progress=False
    )


# A quantizer that observes the numbers between the round and the clamp gives them one unit, which loses data.
BOUNDED_LAST: Function = lambda s, x, m: x.masked_fill(m, -1e9).round().clamp(-3, 3)  # noqa: E731


@pytest.mark.parametrize("bits", TARGETS)
def test_whole_numbers_that_are_bounded_last_have_the_bits_of_the_data(bits: str) -> None:
    program = quantized("quantize", made(BOUNDED_LAST), bits)
    lowered = tosaic.lower(program, target=TARGETS[bits])
    for x, m in samples(6, seed=7):
        np.testing.assert_array_equal(np.asarray(lowered.run(x, m)), np.asarray(program.run(x, m)))


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("door", ["quantize", "torchao"])
@pytest.mark.parametrize("case", CASES)
def test_a_number_that_no_reader_measures_leaves_the_data_its_bits(case: str, door: str, bits: str) -> None:
    module = made(CASES[case])
    program = quantized(door, module, bits)
    lowered = tosaic.lower(program, target=TARGETS[bits])
    unit = max(
        (q.scales[0] for q in [o.qparams for o in lowered.graph.outputs] if q is not None), default=0.0
    )
    steps = 1.01 if bits == "int8" else 2.01  # the bounds of `ops.def`
    for x, m in samples(6, seed=7):
        expected, got = np.asarray(program.run(x, m)), np.asarray(lowered.run(x, m))
        if expected.dtype.kind == "f":
            assert np.abs(got - expected).max() <= max(steps * unit, 1e-6 * np.abs(expected).max())
        else:
            np.testing.assert_array_equal(got, expected)
        run = run_reference_model(lowered, x, m)
        assert run.ok, run.log
        assert run.outputs is not None
        np.testing.assert_array_equal(np.asarray(run.outputs), got)
    assert tosaic.compare(program, lowered, samples()).ok


TOLD_APART: dict[str, Function] = {
    "two different winners": lambda s, x, m: F.pad(x.masked_fill(m, 1e9), (1, 0), value=2e9).softmax(-1),
    "the place of the larger winner": lambda s, x, m: F.pad(x.masked_fill(m, 1e9), (1, 0), value=2e9).argmax(
        -1
    ),
    "a winner that is returned": lambda s, x, m: x.masked_fill(m, 1e9).amax(-1),
    "a threshold between data and winners": lambda s, x, m: x.masked_fill(m, 1e9) > 1e6,
    "a mean of winners": lambda s, x, m: x.masked_fill(m, 1e9).mean(-1),
}


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("case", TOLD_APART)
def test_numbers_that_a_reader_tells_apart_are_refused_or_right(case: str, bits: str) -> None:
    module = made(TOLD_APART[case])
    program = quantized("quantize", module, bits)
    lowered = None
    with contextlib.suppress(tosaic.UnsupportedOp):
        lowered = tosaic.lower(program, target=TARGETS[bits])
    if lowered is None:
        refused = refusal(tosaic.UnsupportedOp, tosaic.lower, program, target=TARGETS[bits])
        assert "one unit" in refused or "so large" in refused
        return
    for x, m in samples(6, seed=7):
        expected, got = np.asarray(program.run(x, m)), np.asarray(lowered.run(x, m))
        scale = np.abs(expected).max() if expected.dtype.kind == "f" else 0
        np.testing.assert_allclose(got, expected, atol=0.01 * scale)


MASKED_ORDERS: dict[str, Function] = {
    "the largest": lambda s, x, m: (x + (1 - m.float()) * -1e9).argmax(-1),
    "the least": lambda s, x, m: (x + m.float() * -1e9).argmin(-1),
    "an order": lambda s, x, m: torch.argsort(x + m.float() * -1e9, dim=-1, stable=True),
    "an order of few": lambda s, x, m: torch.argsort(
        x + m.float() * -1e4, dim=-1, stable=True, descending=True
    ),
    "the best": lambda s, x, m: torch.topk(x + m.float() * -1e9, 2, -1)[1],
}


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("case", MASKED_ORDERS)
def test_a_computed_mask_that_is_added_keeps_the_order_of_the_others(case: str, bits: str) -> None:
    """Before, a table of the sum had one integer for all numbers that the mask does not hide."""
    module = made(MASKED_ORDERS[case])
    program = quantized("quantize", module, bits)
    lowered = tosaic.lower(program, target=TARGETS[bits])
    hidden = torch.ones(4, 6, dtype=torch.bool)
    for x, m in [*samples(8, seed=7), (torch.randn(4, 6), hidden), (torch.randn(4, 6), ~hidden)]:
        np.testing.assert_array_equal(np.asarray(lowered.run(x, m)), np.asarray(program.run(x, m)))


@pytest.mark.parametrize("compare", [torch.ne, torch.eq, torch.gt, torch.le])
def test_a_far_number_differs_from_the_largest_integer_of_the_other_operand(compare: Any) -> None:
    """Before, the far number was clamped to a fine step above x, which the common unit rounded away."""
    module = made(lambda s, x, m: compare(x.masked_fill(m, 1e9), x))
    program = quantized("quantize", module, "int8")
    lowered = tosaic.lower(program, target=TARGETS["int8"])
    for x, m in samples(16, seed=7):
        np.testing.assert_array_equal(np.asarray(lowered.run(5 * x, m)), np.asarray(program.run(5 * x, m)))


def test_a_sum_of_counts_is_exact_however_large_they_may_be() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
            counts = n.float()
            return self.layer(x), counts.cumsum(0).sigmoid(), counts.var(1, correction=0).clamp(max=4)

    torch.manual_seed(0)
    calls = [(torch.randn(2, 4), torch.randint(-3, 3, (2, 4))) for _ in range(6)]
    program = tosaic.quantize(
        torch.export.export(Counts().eval(), calls[0]), calls, config=config("int16x8"), progress=False
    )
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+int16")
    for call in [*calls, (torch.randn(2, 4), torch.randint(-900, 900, (2, 4)))]:
        for expected, got in zip(program.run(*call), lowered.run(*call), strict=True):
            np.testing.assert_allclose(got, expected, atol=3e-4)


@pytest.mark.parametrize("base", [0.1, 0.9])
def test_powers_with_more_exponents_than_tables_are_on_lines(base: float) -> None:
    module = made(lambda s, x, m: torch.pow(x.abs() + base, s.exponents))
    program = quantized("quantize", module, "int16x8")
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+int16")
    (output,) = lowered.graph.outputs
    assert output.qparams is not None
    table = max(int(np.prod(v.shape)) for v in lowered.graph.values if v.constant is not None)
    assert table <= 1 << 20
    for x, m in samples(40, seed=7):
        difference = np.abs(np.asarray(lowered.run(x, m)) - np.asarray(program.run(x, m)))
        assert difference.max() <= 2.01 * output.qparams.scales[0]
