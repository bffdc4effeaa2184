"""Integer operators of every dtype under each profile, and the ranges that inputs are restricted to.

The tests here check a sample of the cells (operator x dtype x target); tests/full checks all cells.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from integer_operators.sweep import CASES, DTYPES, cells, check
from tosaic.lowering.reference_model import run_reference_model

FP = "TOSA-1.0+FP"
TARGETS = [FP, "TOSA-1.0+INT", "TOSA-1.0+INT+FP"]
I32 = (-(2**31), 2**31 - 1)
STEP = 29  # one cell in 29 is in the sample; coprime to the numbers of dtypes and of targets
SHARDS = 4


def _failures(name: str, target: str = FP) -> list[str]:
    rows = [(case, dtype) for case in CASES if re.fullmatch(name, case.name) for dtype in case.dtypes]
    assert rows
    tried = [(case, dtype, check(case, dtype, target)) for case, dtype in rows]
    return [f"{case.name} {dtype}: {found.failure}" for case, dtype, found in tried if found.failure]


def _lowered(function: Callable[..., Any], *args: torch.Tensor, target: str) -> tosaic.Lowered:
    class Module(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return function(*tensors)

    return tosaic.lower(torch.export.export(Module(), args), target=target)


def _ranges(lowered: tosaic.Lowered) -> list[tuple[int, int]]:
    found = re.findall(r"^  input .*?(?:range=(-?\d+)\.\.(-?\d+))?\)?$", lowered.graph.text(), re.M)
    return [(int(low), int(high)) if low else I32 for low, high in found]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_sample_of_operators_dtypes_and_targets_agrees_with_torch_and_the_reference_model(
    shard: int,
) -> None:
    sample = list(cells())[shard :: STEP * SHARDS]
    assert len(sample) > 10
    failures = [
        f"{case.name} {dtype} {target}: {found.failure}"
        for case, dtype, target in sample
        if (found := check(case, dtype, target, seed=shard)).failure
    ]
    assert failures == []


def test_shifts_of_every_integer_dtype_lower_to_profile_fp() -> None:
    assert _failures(r"x (<<|>>) (0|3|8|31|y|-1)") == []


def test_rounded_divisions_and_remainders_of_every_integer_dtype_lower_to_profile_fp() -> None:
    assert _failures(r"(div floor|div trunc|remainder|fmod) (tensor|7|-3)") == []


def test_casts_between_integer_dtypes_lower_to_profile_fp() -> None:
    assert _failures(r"to torch\.(u?int\d+|bool)") == []


def test_bitwise_operators_lower_to_profile_fp() -> None:
    assert _failures(r"bitwise (and|or|xor|not|and 90|or -16|xor 127)") == []


def test_comparisons_selections_and_movement_of_every_integer_dtype_lower_to_profile_fp() -> None:
    assert (
        _failures(r"(lt tensor|eq tensor|ge 2\*\*24 \+ 1|maximum|clamp 2.*|where|view|transpose|cat|pad)")
        == []
    )


def test_reductions_of_every_integer_dtype_lower_to_profile_fp() -> None:
    assert _failures("amax|amin|argmax|any|sum") == []


@pytest.mark.parametrize("target", TARGETS)
def test_operators_that_cannot_overflow_accept_every_int32(target: str) -> None:
    x = torch.tensor([I32[0], I32[1], 2**30 + 1, -(2**24) - 1, 0])
    for dtype in (torch.int32, torch.int64):
        for function in (
            lambda x: x >> 3,
            lambda x: x // 7,
            lambda x: x % 5,
            lambda x: x != 0,
            lambda x: torch.clamp(x, -9, 9),
            lambda x: x.flip(0),
        ):
            lowered = _lowered(function, x.to(dtype), target=target)
            assert _ranges(lowered) == [I32]
            np.testing.assert_array_equal(lowered.run(x.to(dtype)), function(x.to(dtype)).numpy())


@pytest.mark.parametrize("target", TARGETS)
def test_products_and_negations_wrap_as_in_torch_and_do_not_restrict_inputs(target: str) -> None:
    x = torch.tensor([I32[0], I32[1], -5, 2**20 + 3], dtype=torch.int32)
    for function in (torch.neg, torch.abs, torch.square, lambda x: x * -7):
        lowered = _lowered(function, x, target=target)
        assert _ranges(lowered) == [I32]
        expected = function(x).numpy()
        np.testing.assert_array_equal(lowered.run(x), expected)
        reference = run_reference_model(lowered, x)
        assert reference.status == "VALID"
        np.testing.assert_array_equal(reference.outputs, expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("function", "bounds"),
    [
        (lambda x: x + 1, (I32[0], I32[1] - 1)),
        (lambda x: 100 - x, (100 - I32[1], I32[1])),
        (lambda x: x - 3, (I32[0] + 3, I32[1])),
        (lambda x: torch.div(x, -1, rounding_mode="trunc"), (I32[0] + 1, I32[1])),
    ],
    ids=["x + 1", "100 - x", "x - 3", "x // -1"],
)
def test_an_input_is_restricted_to_exactly_the_range_without_overflow(
    function: Callable[..., Any], bounds: tuple[int, int], target: str
) -> None:
    x = torch.tensor([bounds[0], bounds[1], 0, -7], dtype=torch.int32)
    lowered = _lowered(function, x, target=target)
    assert _ranges(lowered) == [bounds]
    np.testing.assert_array_equal(lowered.run(x), function(x).numpy())
    beyond = I32[0] if bounds[0] > I32[0] else I32[1]
    with pytest.raises(tosaic.InvalidGraph, match=f"expected {bounds[0]} to {bounds[1]}, got {beyond}"):
        lowered.run(torch.full((4,), beyond, dtype=torch.int32))


@pytest.mark.parametrize("target", TARGETS)
def test_only_a_dividend_is_restricted_to_exclude_the_least_integer(target: str) -> None:
    x = torch.tensor([I32[0] + 1, I32[1], 7, -7], dtype=torch.int32)
    y = torch.tensor([I32[0], -1, -2, 2], dtype=torch.int32)
    for function in (torch.remainder, torch.fmod, lambda x, y: torch.div(x, y, rounding_mode="floor")):
        lowered = _lowered(function, x, y, target=target)
        assert _ranges(lowered) == [(I32[0] + 1, I32[1]), I32]
        np.testing.assert_array_equal(lowered.run(x, y), function(x, y).numpy())
        assert run_reference_model(lowered, x, y).status == "VALID"


def test_no_intermediate_result_of_a_rounded_division_overflows() -> None:
    x = torch.tensor([I32[1], I32[1], I32[0] + 1, I32[0] + 1, I32[1]], dtype=torch.int32)
    y = torch.tensor([-2, I32[0], 2, I32[1], -1], dtype=torch.int32)
    for function in (torch.remainder, lambda x, y: torch.div(x, y, rounding_mode="floor")):
        lowered = _lowered(function, x, y, target="TOSA-1.0+INT")
        reference = run_reference_model(lowered, x, y)
        assert reference.status == "VALID"
        np.testing.assert_array_equal(reference.outputs, function(x, y).numpy())


def test_integers_of_up_to_24_bits_are_computed_as_floats_and_larger_ones_as_int32() -> None:
    small, large = torch.ones(4, dtype=torch.int16), torch.ones(4, dtype=torch.int32)

    def operators(x: torch.Tensor) -> set[tuple[str, str]]:
        graph = _lowered(lambda x: (x * 3).view(2, 2), x, target=FP).graph
        return {(node.op, node.results[0].dtype) for node in graph.nodes if node.op != "tosa.cast"}

    assert ("tosa.mul", "f32") in operators(small)
    assert ("tosa.mul", "i32") in operators(large)


def test_the_sweep_has_every_dtype_and_more_than_1500_cells() -> None:
    assert {dtype for _, dtype, _ in cells()} == set(DTYPES)
    assert len(list(cells())) > 1500


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_an_integer_power_whose_exponent_is_a_tensor_is_refused_and_never_rounded(
    target: str, dtype: torch.dtype
) -> None:
    base, exponent = torch.tensor([3, 7, 100], dtype=dtype), torch.tensor([4], dtype=dtype)
    with pytest.raises(tosaic.UnsupportedOp, match="integer pow needs a constant exponent from 0 to 64"):
        _lowered(lambda x, y: x**y, base, exponent, target=target)


def _hash(step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def run(data: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(1, dtype=torch.int32)
        for i in range(data.shape[1]):
            state = step(state, data[:, i])
        return state

    return run


_HASHES = {
    "and": lambda h, b: (h * 31 + b) & 0x7FFF,
    "and with a value": lambda h, b: (h * 31 + 7) & b.int(),
    "and from the left": lambda h, b: torch.bitwise_and(0x7FFF, h * 31 + b),
    "or": lambda h, b: ((h & 0x3FF) * 1000 | b.int()) & 0x7FFF,
    "xor of a shift": lambda h, b: ((h << 5) ^ (h >> 2) ^ b.int()) & 0xFFFF,
}


@pytest.mark.parametrize("step", _HASHES)
def test_a_mask_bounds_its_result_whatever_it_masks(step: str) -> None:
    """Before, the range of `x & c` grew with the range of x, and the fifth step was refused for overflow."""
    data = torch.randint(0, 256, (1, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    function = _hash(_HASHES[step])
    lowered = _lowered(function, data, target="TOSA-1.0+INT")
    assert np.array_equal(lowered.run(data), function(data).numpy())
    assert np.array_equal(run_reference_model(lowered, data).outputs, function(data).numpy())


def test_a_mask_of_negative_numbers_has_the_bits_of_both() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x & -8) + (y & 0x70) * 2 + ((x | y) ^ -1)

    args = tuple(torch.randint(-128, 128, (64,), dtype=torch.int8) for _ in range(2))
    args = tuple(each.int() for each in args)
    lowered = _lowered(function, *args, target="TOSA-1.0+INT")
    assert np.array_equal(lowered.run(*args), function(*args).numpy())
