"""Quantize calls of constants: which ones are computed before the program runs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import nn
from tosaic.executorch.cortex_m.folded_constants import fold_quantized_constants

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


class Quantized(nn.Module):
    """Adds a quantized tensor to an input."""

    def __init__(self, tensor: Callable[[Quantized, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.tensor = tensor
        self.register_buffer("state", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        operators, qparams = torch.ops.quantized_decomposed, (0.1, 3, -128, 127, torch.int8)
        integers = operators.quantize_per_tensor(self.tensor(self, x), *qparams)
        return x + operators.dequantize_per_tensor(integers, *qparams)


def _written_view(module: Quantized, x: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(4)
    table[1:3].add_(2)
    return table


def _written_by_an_input(module: Quantized, x: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(4)
    row = table[1:3]
    row.add_(x[:2])
    return table * 2


def _counted(module: Quantized, x: torch.Tensor) -> torch.Tensor:
    module.state.add_(1)
    return module.state * 0.5


def _written_later(module: Quantized, x: torch.Tensor) -> torch.Tensor:
    before = module.state * 0.5
    module.state.copy_(x)
    return before


def _quantized_twice(module: Quantized, x: torch.Tensor) -> torch.Tensor:
    operators, qparams = torch.ops.quantized_decomposed, (0.2, 0, -128, 127, torch.int8)
    return operators.dequantize_per_tensor(operators.quantize_per_tensor(module.state, *qparams), *qparams)


_CASES = {
    "a buffer": (lambda m, _: m.state, 1),
    "a function of a buffer": (lambda m, _: m.state.exp().flip(0), 1),
    "numbers alone": (lambda *_: torch.linspace(-1, 1, 4), 1),
    "a part of several results": (lambda m, _: m.state.topk(4)[0], 1),
    "a tensor that is written": (_written_view, 1),
    "integers": (lambda *_: torch.arange(4).float() / 3, 1),
    "quantized integers": (_quantized_twice, 1),
    "a tensor that an input is written to": (_written_by_an_input, 0),
    "a state": (_counted, 0),
    "a state before it is written": (_written_later, 0),
    "random numbers": (lambda *_: torch.rand(4), 0),
    "an input": (lambda _, x: x * 2, 0),
    "the size of an input": (lambda _, x: x.new_ones(4) * 3, 0),
}


@pytest.mark.parametrize("case", _CASES)
def test_quantize_calls_of_constants_become_buffers(case: str) -> None:
    tensor, count = _CASES[case]
    x, module = torch.tensor([0.5, 1.25, -3.0, 2.0]), Quantized(tensor).eval()
    exported = torch.export.export(copy.deepcopy(module), (x,)).module(check_guards=False)
    before = {name: each.clone() for name, each in exported.named_buffers()}
    fold_quantized_constants(exported)
    folded = {name: each for name, each in exported.named_buffers() if name not in before}
    assert [each.dtype for each in folded.values()] == [torch.int8] * count
    assert all(torch.equal(each, before[name]) for name, each in exported.named_buffers() if name in before)
    for _call in range(3):
        torch.manual_seed(0)
        found = exported(x)
        torch.manual_seed(0)
        assert torch.equal(found, module(x))
