"""`topk` and `kthvalue` of many elements, whose pairs are too many to compare: one argmax for each position.

The peer is a stable sort of torch: where torch's own topk leaves the order of equal elements open, tosaic
takes the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from function_module import FunctionModule
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
INF, NAN = float("inf"), float("nan")
SHAPES = [((3, 400), 1), ((400, 2), 0), ((2, 300, 3), 1)]


def numbers(kind: str, shape: tuple[int, ...], largest: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(kind))
    x = torch.randn(shape, generator=generator)
    if kind == "ties":
        return (x * 2).round()
    if kind == "infinite":
        return torch.tensor([INF, -INF, NAN, 1.0])[torch.randint(0, 4, shape, generator=generator)]
    if kind == "nearly all last":
        few = torch.rand(shape, generator=generator) < 0.01
        return torch.where(
            few, torch.tensor([NAN, 1.0])[(x > 0).long()], torch.tensor(-INF if largest else INF)
        )
    if kind == "bool":
        return x > 1.5
    if kind in ("int8", "int32", "int64", "uint8"):
        return (x.abs() * 50).clamp(max=120).to(getattr(torch, kind)) * (1 if kind == "uint8" else -1)
    return x


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    "kind", ["normal", "ties", "infinite", "nearly all last", "bool", "int8", "int32", "int64", "uint8"]
)
def test_the_first_positions_of_many_elements_equal_a_stable_sort(kind: str, largest: bool) -> None:
    for shape, dim in SHAPES:
        x = numbers(kind, shape, largest)
        order = torch.sort(x, dim=dim, descending=largest, stable=True)[1].narrow(dim, 0, 5)
        values = x.gather(dim, order).numpy()
        exported = torch.export.export(FunctionModule(lambda t, d=dim: torch.topk(t, 5, d, largest)), (x,))
        targets = ["TOSA-1.0+FP", "TOSA-1.0+FP+INT"] + ["TOSA-1.0+INT"] * (not x.is_floating_point())
        for target in targets:
            lowered = tosaic.lower(exported, target=target)
            found, at = lowered.run(x)
            assert np.array_equal(at, order.numpy()), (shape, target)
            assert np.array_equal(np.nan_to_num(found), np.nan_to_num(values)), (shape, target)
        if shape == SHAPES[0][0]:
            model = run_reference_model(lowered, x.numpy())
            assert model.ok
            assert np.array_equal(model.outputs[1], order.numpy())


def test_the_scores_of_a_quantized_head_with_many_classes_are_sorted_on_the_device() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 3000)

        def forward(self, x: torch.Tensor) -> Any:
            values, at = torch.topk(self.linear(x), 5)
            return values.softmax(-1), at

    torch.manual_seed(0)
    samples = [(torch.randn(2, 16),) for _ in range(4)]
    exported = torch.export.export(Head().eval(), samples[0])
    program = tosaic.quantize(exported, samples, progress=False)
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    comparison = tosaic.compare(program, lowered, samples)
    assert comparison, str(comparison)
    for sample in samples:
        for one, two in zip(program.run(*sample), lowered.run(*sample), strict=True):
            assert np.allclose(one, two, atol=0.005)


def test_more_positions_than_steps_are_refused_with_the_number_that_lowers() -> None:
    x = torch.randn(1, 8400)
    exported = torch.export.export(FunctionModule(lambda t: torch.topk(t, 100)), (x,))
    with pytest.raises(tosaic.UnsupportedOp, match="take at most 32 of them with topk, or leave the call"):
        tosaic.lower(exported, target="TOSA-1.0+FP")
    tosaic.lower(torch.export.export(FunctionModule(lambda t: torch.topk(t, 32)), (x,)), target="TOSA-1.0+FP")


def test_the_kth_value_of_many_elements_is_found_by_k_steps() -> None:
    x = numbers("ties", (3, 400), False)
    exported = torch.export.export(FunctionModule(lambda t: torch.kthvalue(t, 7)), (x,))
    lowered = tosaic.lower(exported, target="TOSA-1.0+FP")
    assert np.array_equal(lowered.run(x)[0], torch.kthvalue(x, 7)[0].numpy())
