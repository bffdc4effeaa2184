"""Tensors of rank 0: type promotion as in torch, and movements and reductions of rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from fx.agreement import assert_agrees
from fx.exporting import exported

pytestmark = [
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.usefixtures("one_thread_without_traces"),
]

Binary = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
WIDER = ((torch.int8, torch.int64), (torch.int16, torch.int32), (torch.int32, torch.int64))
VALUES = (3, -324, 300, 40000, 70000, 2**24 + 3, 2**31 - 1, -(2**31))
FP, INT = "TOSA-1.0+FP", "TOSA-1.0+INT"

ARITHMETIC: dict[str, Binary] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "add, alpha": lambda x, n: torch.add(x, n, alpha=3),
    "rsub": torch.rsub,
    "addcmul": lambda x, n: torch.addcmul(x, n, x, value=2),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "minimum, reversed": lambda x, n: torch.minimum(n, x),
    "clamp, least": lambda x, n: torch.clamp(x, min=n),
    "clamp, most": lambda x, n: torch.clamp(x, max=n),
    "clamp_min": torch.clamp_min,
    "where": lambda x, n: torch.where(x > 0, x, n),
}
DIVISIONS: dict[str, Binary] = {
    "floor_divide": lambda x, n: torch.floor_divide(n, x | 1),
    "truncated": lambda x, n: torch.div(n, x | 1, rounding_mode="trunc"),
    "remainder": lambda x, n: torch.remainder(n, x | 1),
    "fmod": lambda x, n: torch.fmod(n, x | 1),
}
COMPARISONS: dict[str, Binary] = {
    "lt": torch.lt,
    "lt, reversed": lambda x, n: n < x,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "isin": torch.isin,
    "isin, reversed": lambda x, n: torch.isin(n, x),
}
BITS: dict[str, Binary] = {
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "right_shift, reversed": lambda x, n: n >> (x & 3),
}


def _disagreements(
    operators: dict[str, Binary], dtypes: Sequence[tuple[torch.dtype, torch.dtype]]
) -> list[str]:
    """Returns results that differ from torch's, for operators on a tensor and a wider integer of rank 0."""
    found = []
    for name, function in operators.items():
        for narrow, wide in dtypes:
            limits = torch.iinfo(narrow)
            x = torch.tensor([0, 1, 5, -5, limits.max, limits.min], dtype=narrow)
            ep = exported(function, x, torch.tensor(3, dtype=wide))
            programs: dict[str, Any] = {"exported": tosaic.from_exported(ep)}
            programs |= {target: tosaic.lower(ep, target=target) for target in (FP, INT)}
            for value in (v for v in VALUES if torch.iinfo(wide).min <= v <= torch.iinfo(wide).max):
                number = torch.tensor(value, dtype=wide)
                expected = function(x, number).numpy()
                for stage, program in programs.items():
                    got = np.asarray(program.run(x, number))
                    if got.dtype != expected.dtype or not np.array_equal(got, expected):
                        found.append(f"{name} {narrow} {wide} {value} {stage}: {got} instead of {expected}")
    return found


def test_a_wider_integer_of_rank_0_wraps_to_the_dtype_of_the_tensor_before_arithmetic() -> None:
    assert _disagreements(ARITHMETIC, WIDER[:2]) == []


def test_a_wider_integer_of_rank_0_wraps_before_it_is_divided() -> None:
    assert _disagreements(DIVISIONS, WIDER[:2]) == []


def test_a_wider_integer_of_rank_0_wraps_before_it_is_compared() -> None:
    assert _disagreements(COMPARISONS, WIDER) == []


def test_a_wider_integer_of_rank_0_wraps_before_its_bits_are_combined() -> None:
    assert _disagreements(BITS, WIDER) == []


def test_a_wider_integer_of_rank_0_does_not_wrap_if_the_result_is_a_float() -> None:
    x, number = torch.tensor([1, 5, -5, 127], dtype=torch.int8), torch.tensor(70000)
    for function in (torch.div, torch.atan2, lambda x, n: torch.div(n, x)):
        assert_agrees(function, x, number, tolerance=1e-6, reference_model=False)


def test_an_integer_of_rank_0_is_infinite_beside_f16_unless_it_is_a_factor() -> None:
    x, number = torch.tensor([0.0, 1.0, -5.5, 0.25], dtype=torch.float16), torch.tensor(70000)
    for function in (torch.add, torch.mul, torch.div, lambda x, n: n * x, lambda x, n: n / x, torch.lt):
        assert_agrees(function, x, number, tolerance=1e-3, reference_model=False, targets=(FP,))


def test_lerp_makes_floats_of_integers_as_torch_does() -> None:
    x, weight = torch.tensor([1.0, -2.0, 3.5]), torch.tensor(0.25)
    integers = torch.tensor([1, -5, 100], dtype=torch.int8)
    assert_agrees(lambda x, w: torch.lerp(x, x * 2, w), x, weight, tolerance=1e-6)
    assert_agrees(lambda i, w: torch.lerp(i, i + 2, w), integers, weight, tolerance=1e-6)


MOVEMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flip": lambda x: x.flip(0),
    "flip, last": lambda x: x.flip(-1),
    "flip, no axes": lambda x: x.flip([]),
    "gather": lambda x: torch.gather(x, 0, torch.tensor(0)),
    "gather, a list": lambda x: torch.gather(x, -1, torch.tensor([0])),
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
    "scatter": lambda x: x.scatter(0, torch.tensor(0), x + 1),
    "roll": lambda x: x.roll(1),
    "squeeze": lambda x: x.squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "cumsum": lambda x: x.cumsum(0),
    "softmax": lambda x: x.float().softmax(0),
    "unfold": lambda x: x.unfold(0, 1, 1),
    "amax": lambda x: x.amax(0),
    "argmax": lambda x: x.argmax(0),
    "isin": lambda x: torch.isin(x, torch.tensor([1, 3])),
}


@pytest.mark.parametrize("name", MOVEMENTS)
def test_movements_and_reductions_accept_rank_0_along_axis_0(name: str) -> None:
    assert_agrees(MOVEMENTS[name], torch.tensor(3.25), tolerance=1e-6)
    assert_agrees(MOVEMENTS[name], torch.tensor(3, dtype=torch.int32), tolerance=1e-6)


def test_isin_adds_no_axis_for_its_second_operand() -> None:
    x = torch.arange(64, dtype=torch.int32).reshape(2, 2, 2, 2, 2, 2)
    tests = torch.tensor([[3, 64], [7, 0]], dtype=torch.int32)
    assert_agrees(torch.isin, x, tests, targets=(FP, INT), decomposed=False)
    assert_agrees(lambda x, t: torch.isin(x, t, invert=True), x, tests, targets=(FP, INT), decomposed=False)
    assert_agrees(lambda x: torch.isin(x, 5), x, targets=(FP, INT), decomposed=False)
    assert_agrees(lambda x: torch.isin(5, x), x, targets=(FP, INT), decomposed=False)


def test_isin_compares_in_the_common_dtype_and_finds_no_nan() -> None:
    x = torch.tensor([[1.0, 2.5], [torch.nan, 4.0]])
    assert_agrees(torch.isin, x, torch.tensor([1, 4], dtype=torch.int8))
    assert_agrees(torch.isin, x, torch.tensor([torch.nan, 2.5]))
