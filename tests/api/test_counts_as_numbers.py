"""Floats that a program computes from its integers: products, quotients, functions and comparisons of them.

The integers of a run may be any of 32 bits, whatever the samples had. Each program is lowered for a target
without floats. It computes what the quantized program computes, also for the largest integers. The reference
model computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

TARGETS = {"int8": "TOSA-1.0+INT", "int16": "TOSA-1.0+INT+int16"}
CONFIGS = {"int8": tosaic.QConfig.int8, "int16": tosaic.QConfig.int16x8}
ENDS = [2**31 - 1, -(2**31), 2**24 + 1, -70000, 40000, 129, -1, 1, 2, -3]
Calls = list[tuple[torch.Tensor, ...]]
Function = Callable[..., Any]


class Of(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: torch.Tensor) -> Any:
        return self.function(*arguments)


class Steps(nn.Module):
    """A model that counts its calls."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> Any:
        self.n += 1
        return self.function(x, self.n)


def drawn(low: int, high: int, dtype: torch.dtype = torch.int64) -> Calls:
    generator = torch.Generator().manual_seed(4)
    return [
        (
            torch.randn(5, 10, generator=generator),
            torch.randint(low, high, (5, 10), generator=generator).to(dtype),
        )
        for _ in range(6)
    ]


def lowered(model: nn.Module, calls: Calls, bits: str) -> tuple[Any, Any]:
    program = torch.export.export(model.eval(), calls[0], strict=False)
    samples = [tuple(each.clone() for each in call) for call in calls]
    quantized = tosaic.quantize(program, samples, config=CONFIGS[bits](), progress=False)
    return quantized, tosaic.lower(quantized, target=TARGETS[bits])


def require_equal(quantized: Any, made: Any, calls: Calls) -> None:
    comparison = tosaic.compare(quantized, made, calls)
    assert comparison.ok, comparison
    for call in calls:
        made.reset_state()
        reference = run_reference_model(made, *[each.clone() for each in call])
        assert reference.ok, reference.log
        made.reset_state()
        found = made.run(*[each.clone() for each in call])
        for a, b in zip(torch.utils._pytree.tree_leaves(reference.outputs), leaves(found), strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)


def leaves(results: Any) -> list[Any]:
    return [np.asarray(each) for each in torch.utils._pytree.tree_leaves(results)]


WEIGHTS = torch.tensor([0.1, -3.7, 100.0, 0.001, 5.0, 1.0, -1.0, 0.25, 33.0, 2.0])
FUNCTIONS: dict[str, Function] = {
    "a product": lambda x, n: x * n,
    "a product of bounded numbers": lambda x, n: x.clamp(0.5, 0.8) * n,
    "a quotient": lambda x, n: x / n,
    "a product with tenths": lambda x, n: x * (n * 0.1),
    "tenths": lambda x, n: n * 0.1,
    "a product with several constants": lambda x, n: n * WEIGHTS,
    "a quotient by several constants": lambda x, n: n / torch.tensor([1, -3, 100, 300, 7, 9, 1, 5, 2, 80]),
    "a sum with constants": lambda x, n: n + WEIGHTS,
    "an inverse": lambda x, n: x * torch.reciprocal(n),
    "a number over an integer": lambda x, n: 10 / n,
    "a quotient of integers": lambda x, n: n / (n + 100),
    "a sigmoid": lambda x, n: x * torch.sigmoid(n),
    "what is above halves": lambda x, n: x * (n * 0.5 > 3.2),
    "what is above a float": lambda x, n: x * (n > 2.5) + x * (n <= -0.5),
    "a choice": lambda x, n: torch.where(x > 0, x * 30, n),
    "a maximum": lambda x, n: torch.maximum(x * 30, n),
    "a concatenation": lambda x, n: torch.cat([x * 30, n], 0),
    "a rounded quotient of a number": lambda x, n: torch.div(x * 200, n, rounding_mode="trunc"),
    "a quotient rounded down": lambda x, n: torch.div(x * 200, n, rounding_mode="floor"),
    "a rounded quotient as a number": lambda x, n: torch.div(n, 7, rounding_mode="floor") * 0.5,
    "fifths below one": lambda x, n: x * torch.clamp(n / 5, max=1.0),
    "fifths between bounds": lambda x, n: x + torch.clamp(n / 5, -1.5, 1.25),
    "a remainder": lambda x, n: torch.remainder(x * 30, n),
    "the remainder of a truncated quotient": lambda x, n: torch.fmod(x * 30, n),
}
POSITIVE: dict[str, Function] = {
    "a root": lambda x, n: x / torch.sqrt(n),
    "an inverse root": lambda x, n: x * torch.rsqrt(n),
    "a logarithm": lambda x, n: x + torch.log(n),
    "a decay": lambda x, n: x * (1 - 0.9 ** n.clamp(0, 1000)),
    "an exponential": lambda x, n: x * torch.exp(-n.clamp(min=0)),
}


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("case", FUNCTIONS)
def test_floats_of_integers_are_exact_for_all_integers_of_32_bits(case: str, bits: str) -> None:
    calls = [(x, torch.where(n == 0, 1, n)) for x, n in drawn(-30, 30)]
    quantized, made = lowered(Of(FUNCTIONS[case]), calls, bits)
    require_equal(quantized, made, calls[:2])
    if case != "a quotient of integers":  # n + 100 may not overflow
        require_equal(quantized, made, [(calls[0][0], torch.tensor(ENDS).repeat(5, 1))])


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("case", POSITIVE)
def test_functions_of_positive_integers_are_exact_for_all_of_32_bits(case: str, bits: str) -> None:
    calls = drawn(1, 30)
    quantized, made = lowered(Of(POSITIVE[case]), calls, bits)
    ends = torch.tensor(ENDS).abs().clamp(max=2**31 - 1).repeat(5, 1)
    require_equal(quantized, made, [*calls[:2], (calls[0][0], ends)])


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_of_each_dtype_are_factors_and_divisors(dtype: torch.dtype, bits: str) -> None:
    calls = drawn(1, 100, dtype)
    function = lambda x, n: (x * n, x / n, n / (x.abs() + 0.5), n * 0.1, n / n.flip(1))  # noqa: E731
    quantized, made = lowered(Of(function), calls, bits)
    require_equal(quantized, made, calls[:2])


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize(
    "function",
    [lambda x, n: x * n, lambda x, n: x / n, lambda x, n: x * (n * 0.1), lambda x, n: x * (1 / n) + n / 3],
    ids=["product", "quotient", "tenths", "mixed"],
)
def test_a_model_may_compute_with_the_number_of_its_calls(function: Function, bits: str) -> None:
    calls = [(x,) for x, _ in drawn(0, 1)]
    quantized, made = lowered(Steps(function), calls, bits)
    assert tosaic.compare(quantized, made, calls).ok
    require_equal(quantized, made, calls[:1])


class Blend(nn.Module):
    """A layer that is blended in over its first calls, and a cycle of four factors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 10)
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> Any:
        phase = self.n % 4
        self.n += 1
        y = self.layer(x)
        share = torch.clamp(self.n / 5, max=1.0)
        return torch.lerp(x, y, share), x * (phase * 0.5 + 1), x / (phase + 1), x * (self.n // 2)


@pytest.mark.parametrize("bits", TARGETS)
def test_the_number_of_a_call_may_blend_and_cycle(bits: str) -> None:
    torch.manual_seed(2)
    calls = [(x,) for x, _ in drawn(0, 1)]
    quantized, made = lowered(Blend(), calls, bits)
    assert tosaic.compare(quantized, made, calls).ok
    require_equal(quantized, made, calls[:1])


@pytest.mark.parametrize("bits", TARGETS)
def test_a_mean_over_a_number_of_rows_that_the_run_counts_is_exact(bits: str) -> None:
    generator = torch.Generator().manual_seed(4)

    def mean(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        visible = torch.arange(6) < lengths
        return (x * visible[..., None]).sum(1) / visible.sum(1, keepdim=True)

    calls: Calls = [
        (torch.randn(2, 6, 4, generator=generator), torch.randint(1, 7, (2, 1), generator=generator))
        for _ in range(6)
    ]
    quantized, made = lowered(Of(mean), calls, bits)
    require_equal(quantized, made, calls)


@pytest.mark.parametrize("bits", TARGETS)
def test_a_function_with_a_pole_saturates_at_the_integer_zero(bits: str) -> None:
    calls = drawn(1, 30)
    for function in (
        lambda x, n: torch.log(n),
        lambda x, n: torch.rsqrt(n),
        lambda x, n: torch.reciprocal(n),
    ):
        quantized, made = lowered(Of(function), calls, bits)
        x, n = calls[0]
        n = n.clone()
        n[0] = 0
        np.testing.assert_allclose(leaves(made.run(x, n))[0][0], leaves(quantized.run(x, n))[0][0])


def test_a_product_without_a_unit_names_the_integers_and_a_bound_helps() -> None:
    calls = drawn(1, 30)
    hidden = lambda x, n: x.masked_fill(x < 0, -10000.0) * n  # noqa: E731
    quantized, made = lowered(Of(hidden), calls, "int8")  # returned: it has the range of the samples
    require_equal(quantized, made, calls[:2])
    with pytest.raises(tosaic.UnsupportedOp, match=r"no unit of 32 bits.*clamp"):
        lowered(Of(lambda x, n: hidden(x, n).amin(1) * (n.sum() > 3)), calls, "int8")
    quantized, made = lowered(Of(lambda x, n: hidden(x, n.clamp(0, 100))), calls, "int8")
    require_equal(quantized, made, calls[:2])
