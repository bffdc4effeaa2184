"""Values of 16 bits on TOSA-1.0+INT, where POOL2D, RESIZE, ARGMAX and contractions take 8 bits only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from function_module import FunctionModule
from torch import Tensor
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
torch.manual_seed(0)
FILTERS, DEPTHWISE, MATRIX = torch.randn(4, 3, 3, 3), torch.randn(3, 1, 3, 3), torch.randn(8, 5)

OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool2d with padding": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max_pool2d with dilation": lambda x: F.max_pool2d(x, 2, dilation=2),
    "max_pool1d": lambda x: F.max_pool1d(x[:, 0], 2),
    "max_pool3d": lambda x: F.max_pool3d(x, 2),
    "max_pool2d with indices": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "avg_pool2d of the image": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
    "a mean over the image": lambda x: x.mean((2, 3)),
    "a sum over the image": lambda x: x.sum((2, 3)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest of one axis": lambda x: F.interpolate(x[:, 0], size=5),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear with aligned corners": lambda x: F.interpolate(
        x, size=(11, 15), mode="bilinear", align_corners=True
    ),
    "linear": lambda x: F.interpolate(x[:, 0], scale_factor=2, mode="linear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "argmax": lambda x: x.argmax(1),
    "max": lambda x: x.max(1),
    "conv2d": lambda x: F.conv2d(x, FILTERS),
    "depthwise conv2d": lambda x: F.conv2d(x, DEPTHWISE, groups=3),
    "matmul": lambda x: x @ MATRIX,
    "matmul of two values": lambda x: x @ x.transpose(2, 3),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "clamp": lambda x: x.clamp(-0.3, 0.7),
    "gather": lambda x: x.gather(2, (x[:, :, :2] > 0).long()),
    "sigmoid": lambda x: x.sigmoid(),
}


def in_list(outputs: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(each) for each in (outputs if isinstance(outputs, list | tuple) else [outputs])]


def quantized(
    function: Callable[..., Any], calls: list[tuple[Tensor, ...]], config: tosaic.QConfig
) -> tosaic.Program:
    exported = torch.export.export(FunctionModule(function).eval(), calls[0])
    return tosaic.quantize(exported, calls, config=config, progress=False)


def require_exact(program: tosaic.Program, lowered: tosaic.Lowered, call: tuple[Tensor, ...]) -> None:
    """The reference model computes what tosaic does, and the comparison finds no wrong node."""
    assert all(row.ok for row in tosaic.compare(program, lowered, call))
    model = run_reference_model(lowered, *call)
    assert model.ok, model.log
    for found, wanted in zip(in_list(model.outputs), in_list(lowered.run(*call)), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_has_a_form_without_the_extension_for_16_bits(name: str) -> None:
    torch.manual_seed(1)
    calls: list[tuple[Tensor, ...]] = [(torch.randn(2, 3, 6, 8),) for _ in range(3)]
    program = quantized(OPERATORS[name], calls, tosaic.QConfig.int16x8())
    narrow = tosaic.lower(program, target="TOSA-1.0+INT")
    wide = tosaic.lower(program, target="TOSA-1.0+INT+int16")
    require_exact(program, narrow, calls[-1])
    outputs = (narrow.run(*calls[-1]), wide.run(*calls[-1]))
    for found, same, wanted in zip(*map(in_list, (*outputs, program.run(*calls[-1]))), strict=True):
        step = np.abs(wanted).max() / 32767
        error, allowed = (np.abs(each - wanted).max() for each in (found, same))
        assert error <= allowed + step


COUNTS: dict[str, Callable[[Tensor], Any]] = {
    "max_pool2d": lambda n: (F.max_pool2d(n, 2), n),
    "nearest": lambda n: F.interpolate(n, scale_factor=2),
    "bilinear": lambda n: F.interpolate(n, size=(7, 11), mode="bilinear", align_corners=True),
    "adaptive_avg_pool2d": lambda n: F.adaptive_avg_pool2d(n, 1),
    "a mean over the image": lambda n: n.mean((2, 3)),
}


@pytest.mark.parametrize("largest", [3, 100, 20000])
@pytest.mark.parametrize("name", COUNTS)
def test_whole_numbers_of_a_program_of_8_bits_need_no_extension(name: str, largest: int) -> None:
    def function(x: Tensor) -> Any:
        return COUNTS[name]((x * largest / 2).round().clamp(-largest, largest).int().float())

    draw = torch.Generator().manual_seed(2)
    calls: list[tuple[Tensor, ...]] = [(torch.randn(2, 3, 4, 6, generator=draw),) for _ in range(3)]
    program = quantized(function, calls, tosaic.QConfig.int8())
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    require_exact(program, lowered, calls[-1])
    for found, wanted in zip(*map(in_list, (lowered.run(*calls[-1]), program.run(*calls[-1]))), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=np.abs(wanted).max() / 100)
