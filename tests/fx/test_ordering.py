"""Calls that order, count and reduce at positions are imported, and agree with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.exporting import exported
from tosaic.lowering.reference_model import run_reference_model

NAN, INF = float("nan"), float("inf")
ROWS = torch.tensor([[0.5, -1.0, 3.0, 0.25, -2.5, 7.0], [NAN, 1.0, -INF, INF, 2.0, -0.0]])
TIES = torch.tensor([[2.0, 1.0, 2.0, 1.0, 2.0, 0.0], [0.0, -0.0, 5.0, 5.0, -0.0, 0.0]])
WHOLE = torch.tensor([[12, -18, 0, 7], [8, 12, 0, -17]], dtype=torch.int32)
OTHER = torch.tensor([[8, 12, 0, 3], [12, 8, 5, 6]], dtype=torch.int32)
TRUTH = torch.tensor([[True, False, True], [False, False, True]])
BOUNDS = torch.tensor([-1.0, 0.25, 2.0])
PLACES = torch.tensor([[0, 2, 0, 1, 2, 0], [1, 1, 1, 3, 0, 2]])

pytestmark = pytest.mark.filterwarnings("ignore")
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
ORDERED: dict[str, Case] = {
    "sort with NaN": (lambda x: torch.sort(x, 1), (ROWS,)),
    "descending sort with NaN": (lambda x: torch.sort(x, 1, descending=True), (ROWS,)),
    "stable sort of equal elements": (lambda x: torch.sort(x, stable=True, dim=-1), (TIES,)),
    "stable descending sort": (lambda x: torch.sort(x, stable=True, dim=-1, descending=True), (TIES,)),
    "sort along the first axis": (lambda x: torch.sort(x, 0), (ROWS,)),
    "sort of truth": (lambda x: torch.sort(x, stable=True, dim=-1), (TRUTH,)),
    "sort of integers": (lambda x: torch.sort(x, stable=True, dim=-1), (WHOLE,)),
    "sort of one number": (lambda x: torch.sort(x.sum(), stable=True, dim=0), (TIES,)),
    "positions alone": (lambda x: torch.sort(x, 1)[1], (ROWS,)),
    "topk": (lambda x: x.topk(3), (ROWS,)),
    "smallest": (lambda x: x.topk(2, dim=0, largest=False)[0], (ROWS,)),
    "kthvalue": (lambda x: x.kthvalue(2, keepdim=True), (ROWS,)),
    "median": (lambda x: (x.median(), x.median(1)), (ROWS,)),
    "nanmedian": (lambda x: (x.nanmedian(), x.nanmedian(1, keepdim=True)), (ROWS,)),
    "median of integers": (lambda x: (x.median(), x.median(1)[0]), (WHOLE,)),
    "mode": (lambda x: x.mode(1)[0], (TIES,)),
    "cummax": (lambda x: x.cummax(1), (ROWS,)),
    "cummax of equal elements": (lambda x: (x.cummax(1), x.cummin(1)), (TIES,)),
    "quantile": (lambda x: torch.quantile(x, torch.tensor([0.1, 0.5, 1.0]), 1), (ROWS,)),
    "quantile of all": (lambda x: torch.quantile(x, 0.37, interpolation="nearest"), (TIES,)),
    "nanquantile": (lambda x: torch.nanquantile(x, 0.37, 1, keepdim=True), (ROWS,)),
    "searchsorted": (lambda x: torch.searchsorted(BOUNDS, x, right=True), (ROWS,)),
    "bucketize": (lambda x: torch.bucketize(x, BOUNDS), (ROWS,)),
    "histc": (lambda x: torch.histc(x, 4, -1, 3), (TIES,)),
    "gcd": (torch.gcd, (WHOLE, OTHER)),
    "lcm": (torch.lcm, (OTHER, OTHER.flip(1))),
    "erfc": (torch.erfc, (ROWS * 1.5,)),
    "smooth resize": (
        lambda x: F.interpolate(x.reshape(1, 1, 3, 4), size=(2, 3), mode="bilinear", antialias=True),
        (TIES,),
    ),
}
REDUCED: dict[str, Case] = {
    f"{how}, {'with' if own else 'without'} the own element": (
        lambda x, i, y, how=how, own=own: x.scatter_reduce(1, i, y, how, include_self=own),
        (TIES, PLACES, ROWS.nan_to_num(0.5, 9.0, -9.0)),
    )
    for how in ("sum", "prod", "mean", "amax", "amin")
    for own in (True, False)
} | {
    "NaN stays": (lambda x, i, y: x.scatter_reduce(1, i, y, "amax"), (TIES, PLACES, ROWS)),
    "integers": (lambda x, i, y: x.scatter_reduce(1, i, y, "mean"), (WHOLE % 99, PLACES[:, :4], OTHER)),
    "index_reduce": (
        lambda x, i, y: x.index_reduce(0, i, y, "amin", include_self=False),
        (TIES, torch.tensor([1, 1]), ROWS.nan_to_num(0.5, 9.0, -9.0)),
    ),
    "scatter with a reduction": (lambda x, i: x.scatter(1, i, 2.0, reduce="multiply"), (TIES, PLACES)),
    "masked_scatter": (lambda x, y: x.masked_scatter(x > 0, y), (TIES, ROWS.nan_to_num())),
    "put": (lambda x, i, y: x.put(i, y), (TIES, torch.tensor([3, 11, -2]), torch.tensor([7.0, 8.0, 9.0]))),
}


def leaves(found: Any) -> list[Any]:
    if isinstance(found, tuple | list):
        return [leaf for each in found for leaf in leaves(each)]
    return [found]


@pytest.mark.parametrize("name", ORDERED | REDUCED)
def test_a_call_has_rows_and_agrees_with_torch_before_and_after_lowering(name: str) -> None:
    function, args = (ORDERED | REDUCED)[name]
    wanted = leaves(function(*args))
    program = tosaic.from_exported(exported(function, *args))
    assert "opaque" not in {node.op for node in program.graph.nodes}
    lowered = tosaic.lower(program)
    for run in (program.run, lowered.run):
        for found, torchs in zip(leaves(run(*args)), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(found), torchs.numpy(), rtol=2e-6, atol=1e-6)


MODELLED = ("sort with NaN", "topk", "cummax", "histc", "amax, without the own element")


@pytest.mark.parametrize("name", MODELLED)
def test_the_reference_model_computes_the_same(name: str) -> None:
    function, args = (ORDERED | REDUCED)[name]
    lowered = tosaic.lower(tosaic.from_exported(exported(function, *args)))
    result = run_reference_model(lowered, *args)
    for found, own in zip(leaves(result.outputs), leaves(lowered.run(*args)), strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(own))


def test_a_sort_of_many_elements_names_the_pairs_that_it_would_compare() -> None:
    program = tosaic.from_exported(exported(lambda x: x.sort()[0], torch.randn(2, 300)))
    with pytest.raises(tosaic.UnsupportedOp, match="2 times 300 elements have too many pairs to compare"):
        tosaic.lower(program)
    assert np.asarray(program.run(torch.randn(2, 300))).shape == (2, 300)


class Ranked(torch.nn.Module):
    """Scores of which the best are kept, and other calls that order them."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Linear(16, 12)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = self.scores(x)
        best, places = torch.log_softmax(scores, -1).reshape(-1).topk(4)
        pooled = torch.zeros(8, 5).scatter_reduce(
            1, (torch.arange(12) % 5).expand(8, 12), scores, "amax", include_self=False
        )
        return best, places // 12, scores.cummax(1)[0], scores.median(1)[0], scores.quantile(0.3, 1), pooled


@pytest.mark.parametrize(
    ("config", "target"),
    [(tosaic.QConfig.int8(), "TOSA-1.0+INT"), (tosaic.QConfig.int16x8(), "TOSA-1.0+INT+int16")],
)
def test_numbers_that_are_ordered_are_integers_and_nothing_compares_them_with_nan(
    config: tosaic.QConfig, target: str
) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(8, 16),) for _ in range(4)]
    program = torch.export.export(Ranked().eval(), samples[0])
    quantized = tosaic.quantize(program, samples, config=config, progress=False)
    lowered = tosaic.lower(quantized, target=target)
    comparison = tosaic.compare(quantized, lowered, samples[:2])
    assert comparison.ok, str(comparison)
    kinds = {value.dtype for value in lowered.graph.values}
    assert kinds <= {"bool", "i8", "i16", "i32", "i48"}
    result = run_reference_model(lowered, *samples[0])
    for found, own in zip(result.outputs, leaves(lowered.run(*samples[0])), strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(own))


class Kept(torch.nn.Module):
    """The best of many equal scores, and other positions that torch leaves open."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x - 1.2)
        best, places = y.topk(12)
        return (
            best,
            places // 4,
            y.sort(0, descending=True)[1],
            y.kthvalue(3)[1],
            y.median(1)[1],
            y.argsort(1),
        )


def test_equal_elements_that_torch_orders_otherwise_are_not_errors() -> None:
    torch.manual_seed(0)
    sample = (torch.randn(40, 40),)
    program = torch.export.export(Kept(), sample)
    comparison = tosaic.compare(program, tosaic.from_exported(program), [sample])
    assert comparison.ok, str(comparison)
    result = tosaic.export_model(Kept(), sample, recipe="tosa-fp16", samples=[sample], verbose=0)
    assert result.ok
