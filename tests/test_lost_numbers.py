"""Numbers next to far larger ones: they keep their bits, or are left to floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from function_module import FunctionModule
from tosaic.lowering.reference_model import run_reference_model

INT8, INT16 = ("int8", "TOSA-1.0+INT"), ("int16x8", "TOSA-1.0+INT+int16")
Draw = Callable[[], tuple[torch.Tensor, ...]]


def quantized(
    function: Callable[..., Any], draw: Draw, bits: str
) -> tuple[Any, list[tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    calls = [draw() for _ in range(4)]
    exported = torch.export.export(FunctionModule(function), calls[0])
    return tosaic.quantize(exported, calls, config=getattr(tosaic.QConfig, bits)(), progress=False), calls


def require_same(program: Any, target: str, calls: list[tuple[torch.Tensor, ...]], fine: float) -> Any:
    """The lowered program has the numbers of the quantized one within `fine` of the largest."""
    lowered = tosaic.lower(program, target=target)
    assert tosaic.compare(program, lowered, calls[:2]).ok
    for call in calls:
        leaves = torch.utils._pytree.tree_leaves
        for found, wanted in zip(leaves(lowered.run(*call)), leaves(program.run(*call)), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=np.abs(wanted).max() * fine)
    if "FP" not in target:
        reference = run_reference_model(lowered, *calls[0])
        assert reference.ok, reference.log
    return lowered


WEIGHT = torch.tensor([-0.00625, 0.538, 0.713, 0.591])


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm", "group_norm"])
def test_small_weights_of_a_norm_keep_their_bits_beside_large_ones(norm: str) -> None:
    """With 15 bits for the largest weight, the first channel would be off by 1/800."""

    def function(x: torch.Tensor) -> torch.Tensor:
        if norm == "rms_norm":
            return F.rms_norm(x, (4,), WEIGHT, 1e-3)[..., :1]
        if norm == "layer_norm":
            return F.layer_norm(x, (4,), WEIGHT, None, 1e-3)[..., :1]
        return F.group_norm(x, 1, WEIGHT, None, 1e-3)[:, :1]

    program, calls = quantized(function, lambda: (torch.rand(6, 4) - 0.5,), INT16[0])
    require_same(program, INT16[1], calls, 2**-13)


def test_a_bias_keeps_its_bits_beside_sums_of_counts() -> None:
    """In a unit for counts up to 32,767, the bias would be rounded to multiples of 5 units of the result."""
    weight, bias = torch.rand(6, 3) - 0.5, torch.rand(6) - 0.5
    program, calls = quantized(
        lambda x, n: (x + 1, F.linear(n.float() * (n > 100), weight, bias)),
        lambda: (torch.rand(2, 4), torch.randint(0, 2, (1, 3))),
        INT16[0],
    )
    require_same(program, INT16[1], calls, 2**-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [INT8, INT16])
def test_a_mask_of_large_numbers_hides_scores_that_were_cast(
    bits: tuple[str, str], dtype: torch.dtype
) -> None:
    """Before, a mask next to a cast was not bounded: all scores had a unit of 2.8."""
    keys, values = torch.rand(4, 4, 3, 8) - 0.5, torch.rand(4, 4, 3, 4)
    mask = torch.tensor([[0.0, -1e9, 0.0]])

    def function(x: torch.Tensor) -> torch.Tensor:
        rows = (x * 4).round().clamp(-100, 100).to(dtype).float().reshape(4, 4, 1, 8)
        return F.scaled_dot_product_attention(rows, keys, values, mask)

    program, calls = quantized(function, lambda: (torch.randn(16, 8),), bits[0])
    require_same(program, bits[1], calls, 2**-6 if bits is INT8 else 2**-12)


def test_the_order_of_numbers_beside_a_huge_one_is_kept() -> None:
    """Before, a table had one integer for all numbers but the huge one, and argmin returned the first."""
    program, calls = quantized(
        lambda x: (x.abs(), torch.where(x > 0.2, x, 1e30).argmin(1)), lambda: (torch.randn(6, 5),), INT8[0]
    )
    for target in (INT8[1], "TOSA-1.0+INT+FP"):
        lowered = tosaic.lower(program, target=target)
        for call in calls:
            np.testing.assert_array_equal(lowered.run(*call)[1], program.run(*call)[1])


@pytest.mark.parametrize("bits", [INT8, INT16])
def test_constants_beside_a_huge_number_are_not_all_zero(bits: tuple[str, str]) -> None:
    numbers = torch.tensor([[0.7, 1.9, 0.2, 1.1]]).rsqrt()
    program, calls = quantized(
        lambda x, m: (x + 1, torch.where(m, numbers, 1e12).argmax(1), torch.where(m, numbers, 1e12).mean()),
        lambda: (torch.rand(2, 4), torch.rand(3, 1) < 0.9),
        bits[0],
    )
    lowered = tosaic.lower(program, target=f"{bits[1]}+FP")
    for call in calls:
        np.testing.assert_array_equal(lowered.run(*call)[1], program.run(*call)[1])


@pytest.mark.parametrize("bits", [INT8, INT16])
def test_a_product_of_a_counter_and_a_small_number_is_a_float_where_there_are_floats(
    bits: tuple[str, str],
) -> None:
    """In a unit for a count of 32 bits, 0.491 would be 0."""
    number = torch.full((1, 1), 0.491)
    program, calls = quantized(
        lambda x, n: (x + 1, (number * n).abs().reshape(()).expand(4, 2)),
        lambda: (torch.rand(2, 4), torch.randint(1, 9, ())),
        bits[0],
    )
    lowered = tosaic.lower(program, target=f"{bits[1]}+FP")
    for call in calls:
        np.testing.assert_allclose(lowered.run(*call)[1], program.run(*call)[1], rtol=1e-3)


def test_a_function_that_is_nan_at_minus_infinity_is_refused() -> None:
    """Before, the integer for minus infinity was taken for a number: x - x was 0, and not NaN."""
    program, calls = quantized(
        lambda x, m: torch.lerp(*[x.masked_fill(m, -torch.inf).amin(0)] * 2, 0.25),
        lambda: (torch.randn(5, 3), torch.rand(5, 3) < 0.3),
        INT8[0],
    )
    with pytest.raises(tosaic.UnsupportedOp, match="may be minus infinity"):
        tosaic.lower(program, target=INT8[1])
    mixed = tosaic.lower(program, target="TOSA-1.0+INT+FP")
    np.testing.assert_array_equal(np.isnan(mixed.run(*calls[0])), np.isnan(program.run(*calls[0])))
