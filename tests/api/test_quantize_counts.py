"""`tosaic.quantize` and `tosaic.Quantizer` with integers and truth values as factors, divisors and means."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from by_torchao import quantized_by_torchao
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

TARGET = "TOSA-1.0+INT"
LEAST_DB = 25.0
Calls = list[tuple[torch.Tensor, ...]]


class Rows(nn.Module):
    """A linear layer, and a function of its rows and of integers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 6), function

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> Any:
        return self.function(self.layer(x), counts)


class Bags(nn.Module):
    def __init__(self, mode: str, *, padding: int | None = None, weighted: bool = False) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(30, 8, mode=mode, padding_idx=padding)
        self.out, self.weighted = nn.Linear(8, 3), weighted

    def forward(self, i: torch.Tensor, by: torch.Tensor | None = None) -> torch.Tensor:
        return self.out(self.bags(i, per_sample_weights=by) if self.weighted else self.bags(i))


class Loads(nn.Module):
    """How many rows each expert gets."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.gate(x)
        return scores, F.one_hot(scores.topk(2, -1)[1], 4).sum(-2).float().mean(1)


def segment_means(y: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    sums = torch.zeros(4, 6).index_add(0, segments[0], y[0])
    counts = torch.zeros(4).index_add(0, segments[0], torch.ones(5)).clamp(min=1)
    return sums / counts[:, None]


def drawn(highest: int, shape: tuple[int, ...] = (2, 5), dtype: torch.dtype = torch.int64) -> Calls:
    torch.manual_seed(0)
    return [(torch.randn(2, 5, 6), torch.randint(0, highest, shape).to(dtype)) for _ in range(4)]


def lengths() -> Calls:
    torch.manual_seed(0)
    return [(torch.randn(2, 5, 6), torch.randint(1, 6, (2,))) for _ in range(4)]


def bags(*, weighted: bool = False) -> Calls:
    torch.manual_seed(0)
    calls: Calls = [(torch.randint(1, 30, (2, 5)),) for _ in range(4)]
    return [(*call, torch.rand(2, 5)) for call in calls] if weighted else calls


CASES: dict[str, tuple[Callable[[], nn.Module], Calls]] = {
    "a mask of int64 as a factor": (
        lambda: Rows(lambda y, m: (y * m.unsqueeze(2).to(y.dtype)).relu()),
        drawn(2),
    ),
    "a mask of int64 as a factor without a cast": (lambda: Rows(lambda y, m: y * m.unsqueeze(2)), drawn(2)),
    "a mask of int32 as a factor": (
        lambda: Rows(lambda y, m: y * m.unsqueeze(2).float()),
        drawn(2, dtype=torch.int32),
    ),
    "what is not masked": (lambda: Rows(lambda y, m: y * (1 - m.unsqueeze(2).float())), drawn(2)),
    "a count as an addend": (lambda: Rows(lambda y, n: y + n.unsqueeze(2)), drawn(9)),
    "a count as a cast addend": (lambda: Rows(lambda y, n: y - n.unsqueeze(2).float()), drawn(9)),
    "lengths as divisors": (lambda: Rows(lambda y, n: y.sum(1) / n[:, None]), lengths()),
    "cast lengths as divisors": (lambda: Rows(lambda y, n: y.sum(1) / n[:, None].float()), lengths()),
    "bounded lengths as divisors": (
        lambda: Rows(lambda y, n: y.sum(1) / n[:, None].clamp(1, 5).float()),
        lengths(),
    ),
    "a mean under a mask of int64": (
        lambda: Rows(lambda y, m: (y * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1)),
        drawn(2),
    ),
    "a mean under a mask of bool": (
        lambda: Rows(lambda y, m: (y * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1)),
        drawn(2, dtype=torch.bool),
    ),
    "a product with scaled positions": (lambda: Rows(lambda y, n: y * (n[..., None].float() / 10)), drawn(9)),
    "tenths of a count as a factor": (lambda: Rows(lambda y, n: y * (n[..., None] * 0.1)), drawn(9)),
    "a share of a count as a factor": (
        lambda: Rows(lambda y, n: y * (n / (n.sum(1, keepdim=True) + 1))[..., None]),
        drawn(9),
    ),
    "the root of a count as a divisor": (lambda: Rows(lambda y, n: y / (n[..., None] + 1).sqrt()), drawn(9)),
    "a quotient by a count, rounded down": (
        lambda: Rows(lambda y, n: torch.div(y * 20, n[..., None] + 1, rounding_mode="floor") + y),
        drawn(9),
    ),
    "what is above half a count": (lambda: Rows(lambda y, n: y * (n[..., None] > 3.5)), drawn(9)),
    "a product with cosines": (lambda: Rows(lambda y, n: y * (n[..., None].float() * 0.3).cos()), drawn(9)),
    "a product with logarithms": (lambda: Rows(lambda y, n: y * (n[..., None].float() + 1).log()), drawn(9)),
    "roots of lengths as divisors": (
        lambda: Rows(lambda y, n: y.sum(1) / n[:, None].float().sqrt()),
        lengths(),
    ),
    "deviations as divisors": (
        lambda: Rows(lambda y, n: y / (n[..., None].float().std(1, keepdim=True) + 1)),
        drawn(9),
    ),
    "a mean under a mask, above a bound": (
        lambda: Rows(lambda y, m: y.sum(1) / m[..., None].float().sum(1).clamp(min=1e-9)),
        [(x, n.clamp(min=1)) for x, n in drawn(3)],
    ),
    "a mask of int64 as a factor and as a divisor": (
        lambda: Rows(
            lambda y, m: (y * m[..., None].float()).sum(1) / m[..., None].float().sum(1).clamp(min=1e-9)
        ),
        [(x, (m + torch.eye(2, 5)).clamp(max=1).long()) for x, m in drawn(2)],
    ),
    "what is above a count": (lambda: Rows(lambda y, n: torch.where(y > n[..., None] - 1, y, 0.0)), drawn(3)),
    "a count as the dividend": (lambda: Rows(lambda y, n: n[..., None] / (y.abs() + 1)), drawn(9)),
    "a mask as a matrix": (lambda: Rows(lambda y, m: m.float()[:, None] @ y), drawn(2)),
    "a count in a concatenation": (
        lambda: Rows(lambda y, n: torch.cat([y, n[..., None].float()], -1)),
        drawn(9),
    ),
    "a returned count": (lambda: Rows(lambda y, n: (y, n.float())), drawn(9)),
    "added halves": (
        lambda: Rows(
            lambda y, n: y[:, :4] * torch.zeros(4).index_add(0, n[0], torch.full((5,), 0.5))[:, None]
        ),
        drawn(4),
    ),
    "means of segments": (lambda: Rows(segment_means), drawn(4)),
    "the mean of bags": (lambda: Bags("mean"), bags()),
    "the sum of bags": (lambda: Bags("sum"), bags()),
    "the largest of bags": (lambda: Bags("max"), bags()),
    "the mean of bags with padding": (lambda: Bags("mean", padding=3), bags()),
    "the weighted sum of bags": (lambda: Bags("sum", weighted=True), bags(weighted=True)),
}


def leaves(results: Any) -> list[Any]:
    return [np.asarray(each) for each in torch.utils._pytree.tree_leaves(results)]


def require_near(lowered: Any, rounded: Any, model: nn.Module, calls: Calls) -> None:
    """The lowered program computes what the quantized one does, and nearly what torch does."""
    for call in calls:
        arrays = [each.numpy() for each in call]
        in_torch = leaves(torch.utils._pytree.tree_map(lambda each: each.detach(), model(*call)))
        found = leaves(lowered.run(*arrays))
        for got, same, wanted in zip(found, leaves(rounded.run(*arrays)), in_torch, strict=True):
            noise = np.square(wanted - got).sum()
            assert noise <= np.square(wanted).sum() * 10 ** (-LEAST_DB / 10)
            step = np.abs(same).max() / 100
            np.testing.assert_allclose(got, same, rtol=0, atol=max(step, 1e-6))


@pytest.mark.parametrize("every", [False, True], ids=["by unit", "by operator"])
@pytest.mark.parametrize("case", CASES)
def test_integers_are_numbers_beside_quantized_ones(case: str, every: bool) -> None:
    make, calls = CASES[case]
    torch.manual_seed(1)
    model = make().eval()
    exported = torch.export.export(model, calls[0])
    samples = [tuple(each.numpy() for each in call) for call in calls]
    quantized = tosaic.quantize(exported, samples, config=tosaic.QConfig.int8(every_operator=every))
    lowered = tosaic.lower(quantized, target=TARGET)
    require_near(lowered, quantized, model, calls)
    arrays = [each.numpy() for each in calls[0]]
    for found, wanted in zip(
        leaves(run_reference_model(lowered, *arrays).outputs), leaves(lowered.run(*arrays)), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("case", [case for case in CASES if "bags" not in case])
def test_integers_are_numbers_beside_those_that_torchao_quantizes(case: str) -> None:
    make, calls = CASES[case]
    torch.manual_seed(1)
    model = make().eval()
    converted = quantized_by_torchao(model, calls)
    lowered = tosaic.lower(converted, target=TARGET)
    require_near(lowered, tosaic.from_exported(converted), model, calls)


def test_the_load_of_experts_is_a_mean_of_counts() -> None:
    torch.manual_seed(1)
    model = Loads().eval()
    calls = [(torch.randn(1, 5, 6),) for _ in range(4)]
    quantized = tosaic.quantize(torch.export.export(model, calls[0]), [(x.numpy(),) for (x,) in calls])
    lowered = tosaic.lower(quantized, target=TARGET)
    for (x,) in calls:
        scores, load = leaves(lowered.run(x.numpy()))
        order = np.argsort(-scores, axis=-1, kind="stable")[..., :2]
        exact = np.stack([(order == expert).any(-1).mean(-1) for expert in range(4)], -1)
        np.testing.assert_allclose(load, exact, atol=1 / 255)


def test_a_call_may_have_larger_counts_than_all_samples() -> None:
    torch.manual_seed(1)
    for cast, every in itertools.product((True, False), repeat=2):
        model = Rows(lambda y, n, cast=cast: y.sum(1) / (n[:, None].float() if cast else n[:, None])).eval()
        calls = lengths()
        samples = [tuple(each.numpy() for each in call) for call in calls]
        config = tosaic.QConfig.int8(every_operator=every)
        quantized = tosaic.quantize(torch.export.export(model, calls[0]), samples, config=config)
        lowered = tosaic.lower(quantized, target=TARGET)
        x, n = calls[0][0], torch.tensor([40, 3000])
        np.testing.assert_allclose(
            lowered.run(x.numpy(), n.numpy()), quantized.run(x.numpy(), n.numpy()), atol=1e-6
        )
        assert np.abs(np.asarray(lowered.run(x.numpy(), n.numpy()))[1]).max() < 0.02


def test_a_large_integer_saturates_what_it_multiplies() -> None:
    torch.manual_seed(1)
    model, calls = Rows(lambda y, m: y * m.unsqueeze(2)).eval(), drawn(2)
    quantized = tosaic.quantize(
        torch.export.export(model, calls[0]), [tuple(each.numpy() for each in call) for call in calls]
    )
    lowered = tosaic.lower(quantized, target=TARGET)
    x, m = calls[0][0].numpy(), np.array([[0, 1, 3, 500, 2**31 - 1], [-1, -7, -(2**31), 100000, 2]])
    np.testing.assert_array_equal(lowered.run(x, m), quantized.run(x, m))


@pytest.mark.parametrize("function", [torch.abs, torch.relu, lambda v: v.clamp(-5, 70)])
@pytest.mark.parametrize("target", [TARGET, "TOSA-1.0+INT+FP", "TOSA-1.0+INT+int16"])
def test_functions_of_counts_need_no_table_of_16_bits(function: Any, target: str) -> None:
    class Counts(nn.Module):
        def forward(self, n: torch.Tensor, x: torch.Tensor) -> Any:
            v = n.float()
            return function(v), v - x

    generator = torch.Generator().manual_seed(3)
    calls = [
        (torch.randint(-3000, 3000, (5, 2), generator=generator), torch.randn(5, 2, generator=generator))
        for _ in range(4)
    ]
    quantized = tosaic.quantize(torch.export.export(Counts().eval(), calls[0]), calls, progress=False)
    lowered = tosaic.lower(quantized, target=target)
    for call in calls:
        for found, wanted in zip(lowered.run(*call), quantized.run(*call), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1.01)
