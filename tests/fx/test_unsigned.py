"""Arithmetic on uint8 tensors wraps as in torch: operators compute in i32, and a cast keeps 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import tosaic
from function_module import FunctionModule
from fx.agreement import assert_agrees
from fx.exporting import exported
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

BYTES = torch.arange(256, dtype=torch.uint8).reshape(4, 8, 8)
OTHER = ((torch.arange(256) * 37 + 11) % 256).to(torch.uint8).reshape(4, 8, 8)
SMALL = (OTHER % 7).to(torch.uint8)
TARGETS = ("TOSA-1.0+FP", "TOSA-1.0+INT", "TOSA-1.0+FP+INT")

OF_ONE: dict[str, Callable[[torch.Tensor], Any]] = {
    "add a number": lambda x: x + 1,
    "subtract a number": lambda x: x - 5,
    "multiply": lambda x: x * 3,
    "negate": lambda x: -x,
    "floor divide": lambda x: x // 2,
    "divide toward zero": lambda x: torch.div(x, 7, rounding_mode="trunc"),
    "remainder": lambda x: x % 7,
    "square": lambda x: x * x,
    "sums of products": lambda x: x * 3 + x * x - 7,
    "bits": lambda x: ((x & 15) | 128) ^ 3,
    "bitwise not": lambda x: ~x,
    "shift right": lambda x: x >> 2,
    "shift left": lambda x: x << 3,
    "clamp": lambda x: x.clamp(5, 200),
    "compare": lambda x: x > 100,
    "where": lambda x: torch.where(x > 3, x, x * 0),
    "pad": lambda x: F.pad(x, (1, 2), value=200),
    "reflect": lambda x: F.pad(x, (1, 2), mode="reflect") + 1,
    "sum": lambda x: x.sum(1),
    "sum to bytes": lambda x: x.sum(1, dtype=torch.uint8),
    "amax": lambda x: x.amax((0, 2)),
    "amin": lambda x: x.amin(1, keepdim=True) - 1,
    "argmax": lambda x: x.argmax(1),
    "any": lambda x: x.any(2),
    "a constant": lambda x: x + torch.arange(8, dtype=torch.uint8) * 40,
    "a tensor of i8": lambda x: x + torch.full((8,), -3, dtype=torch.int8),
    "a tensor of i32": lambda x: x + torch.full((8,), -300, dtype=torch.int32),
    "a bool": lambda x: x + (x > 9),
    "behind a permute": lambda x: (x.permute(2, 0, 1) + 250).flatten(),
    "behind a cat": lambda x: torch.cat([x, x + 1], 1) * 2,
    "to a float": lambda x: (x + 9).float() * 0.5,
}
OF_TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "equal": lambda x, y: x == y,
    "floor divide": lambda x, y: x // (y % 7 + 1),
    "shift": lambda x, y: x << (y % 7),
}


@pytest.mark.parametrize("name", OF_ONE)
def test_operators_on_bytes_agree(name: str) -> None:
    targets = TARGETS if "float" not in name else TARGETS[::2]
    assert_agrees(OF_ONE[name], BYTES, targets=targets, decomposed=False)


@pytest.mark.parametrize("name", OF_TWO)
def test_operators_on_two_tensors_of_bytes_agree(name: str) -> None:
    assert_agrees(OF_TWO[name], BYTES, OTHER, targets=TARGETS, decomposed=False)


def test_bytes_in_branches_agree() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 9, lambda x: x + 200, lambda x: x * 2, (x,))

    targets = ("TOSA-1.0+FP+INT+cf",)
    assert_agrees(function, BYTES, targets=targets, reference_model=False, decomposed=False)


def test_a_state_of_bytes_counts_modulo_256() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.full((4,), 250, dtype=torch.uint8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += x
            return self.count * 2

    x = torch.tensor([1, 2, 3, 100], dtype=torch.uint8)
    for target in TARGETS:
        low, module = tosaic.lower(exported(Counter(), x), target=target), Counter()
        for _ in range(4):
            assert low.run(x).tolist() == module(x).tolist(), target


def test_the_lowered_program_is_right() -> None:
    ep = torch.export.export(FunctionModule(lambda x: (x + 9) // 2), (BYTES,))
    comparison = tosaic.compare(ep, tosaic.lower(ep, target="TOSA-1.0+INT"), (BYTES,))
    assert comparison.ok, comparison
