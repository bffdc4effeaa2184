"""Accuracy of the expansions of functions that TOSA lacks, over the whole range of f32.

The true result is torch's in float64 for the same f32 operands. Errors are in ulp of the true result; for a
true result below the smallest normal number, one ulp is the spacing of denormals. The bounds hold for our
executor, whose primitives are nearly always correctly rounded. The primitives of the reference model may have
larger errors, so its bounds are twice as large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.exporting import exported
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

COUNT = 1 << 16
Array = np.ndarray[Any, Any]
Function = Callable[..., torch.Tensor]
EXTREMES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 2.0**-126, 3.4028235e38, -3.4028235e38]
EDGES = [1.0, -1.0, 0.5, -0.5, 20.0, 88.7, 88.8, 89.3, -103.9, -104.0, 2.0**15, 2.0**24, 2.0**25]


def samples(seed: int = 1) -> Array:
    """Operands of all exponents, from the unit interval, and close to 0, 1/2 and 1, where branches meet."""
    random = np.random.default_rng(seed)
    signs = random.choice([-1.0, 1.0], COUNT)

    def near(point: float, count: int) -> Array:
        return point + random.normal(size=count) * 10.0 ** random.uniform(-8, -1, count)

    eighth = COUNT // 8
    any_bits = random.integers(0, 2**32, 2 * eighth, dtype=np.uint64).astype(np.uint32).view(np.float32)
    parts = [
        any_bits[np.isfinite(any_bits)],
        random.uniform(-1, 1, 2 * eighth),
        random.normal(size=eighth) * 8,
        np.exp(random.uniform(-20, 20, eighth)) * signs[:eighth],
        near(1.0, eighth) * signs[:eighth],
        near(0.5, eighth),
        EXTREMES,
        EDGES,
    ]
    return np.resize(np.concatenate([np.asarray(part, np.float32) for part in parts]), COUNT)


@dataclass(frozen=True)
class Bound:
    """A function of one operand and its largest allowed error in ulp."""

    function: Function
    ulp: float


FUNCTIONS = {
    "acos": Bound(torch.acos, 2.5),
    "acosh": Bound(torch.acosh, 3),
    "asin": Bound(torch.asin, 3.5),
    "asinh": Bound(torch.asinh, 3),
    "atan": Bound(torch.atan, 2.5),
    "atanh": Bound(torch.atanh, 3.5),
    "cosh": Bound(torch.cosh, 2.5),
    "erfc": Bound(torch.erfc, 5),
    "erfinv": Bound(torch.erfinv, 3.5),
    "expm1": Bound(torch.expm1, 3),
    "log10": Bound(torch.log10, 2),
    "log1p": Bound(torch.log1p, 2),
    "log2": Bound(torch.log2, 2),
    "sinh": Bound(torch.sinh, 3.5),
    "tan": Bound(torch.tan, 2.5),
    "log_sigmoid": Bound(F.logsigmoid, 2.5),
    "softplus": Bound(F.softplus, 2.5),
    "softplus with beta": Bound(lambda x: F.softplus(x, 2.0, 15.0), 2.5),
    "elu": Bound(F.elu, 3),
    "selu": Bound(F.selu, 4),
    "celu": Bound(lambda x: F.celu(x, 0.7), 4),
    "softshrink": Bound(F.softshrink, 0.5),
    "hardshrink": Bound(F.hardshrink, 0),
    "nan_to_num": Bound(torch.nan_to_num, 0),
    "sqrt": Bound(torch.sqrt, 1.5),
    "cube": Bound(lambda x: x**3, 1.5),
    "seventeenth power": Bound(lambda x: x**17, 1),
    "division": Bound(lambda x: torch.tensor(3.7) / x, 2),
}


def spacing(values: Array) -> Array:
    exponent = np.floor(np.log2(np.fmax(np.abs(values), 2.0**-126)))
    return np.asarray(2.0 ** (np.fmin(exponent, 127) - 23))


def error(found: Array, truth: Array) -> Array:
    """Returns the error of each element in ulp.

    If one of the two is not finite in f32, the error is 0 if both are equal, both are NaN, or both are beyond
    3.4028e38 with the same sign. If none of this holds, it is infinite.
    """
    wide = found.astype(np.float64)
    rounded = truth.astype(np.float32)
    both = np.isfinite(wide) & np.isfinite(rounded)
    with np.errstate(invalid="ignore"):
        ulp = np.abs(wide - truth) / spacing(np.where(both, truth, 1.0))
    same = (np.isnan(wide) & np.isnan(rounded)) | (wide == rounded)
    near_overflow = (np.abs(truth) > 3.4028e38) & (np.abs(wide) > 3.4028e38) & (wide * truth > 0)
    return np.where(both, ulp, np.where(same | near_overflow, 0.0, np.inf))


def true_values(function: Function, x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(function(torch.from_numpy(x).double()).numpy())


def lowered(function: Function, *operands: Array, target: str = "TOSA-1.0+FP") -> Any:
    return tosaic.lower(exported(function, *map(torch.from_numpy, operands)), target=target)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_expanded_function_is_accurate_over_the_whole_range(name: str) -> None:
    bound, x = FUNCTIONS[name], samples()
    errors = error(np.asarray(lowered(bound.function, x).run(x)), true_values(bound.function, x))
    worst = int(errors.argmax())
    print(f"{name}: {errors[worst]:.2f} ulp at {x[worst]!r}")
    assert errors[worst] <= bound.ulp, f"at {x[worst]!r}"


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize(
    "name", ["acos", "asinh", "atanh", "erfinv", "log1p", "sinh", "expm1", "selu", "division"]
)
def test_the_reference_model_is_within_twice_the_bound(name: str) -> None:
    bound, x = FUNCTIONS[name], samples(2)[:: COUNT // 4096]
    run = run_reference_model(lowered(bound.function, x), x)
    assert run.ok, run.log
    errors = error(np.asarray(run.outputs), true_values(bound.function, x))
    # Intermediate results are normal numbers too: the specification allows flushing denormals to zero.
    normal = np.abs(x) >= 2.0**-120
    assert np.where(normal, errors, 0).max() <= 2 * bound.ulp


def magnitudes(seed: int) -> Array:
    random = np.random.default_rng(seed)
    return (np.exp2(random.uniform(-148, 127, COUNT)) * random.choice([-1, 1], COUNT)).astype(np.float32)


def test_any_finite_quotient_is_within_two_ulp() -> None:
    a, b = magnitudes(1), magnitudes(2)
    truth = a.astype(np.float64) / b
    with np.errstate(over="ignore"):
        errors = error(np.asarray(lowered(torch.div, a, b).run(a, b)), truth)
    assert errors.max() <= 2


def test_a_division_by_a_bounded_divisor_has_no_select() -> None:
    x = np.ones(4, np.float32)
    plain = lowered(lambda x: x / (torch.sigmoid(x) + 1), x).graph
    assert [node.op for node in plain.nodes].count("tosa.select") == 0
    guarded = lowered(lambda x, y: x / y, x, x).graph
    assert [node.op for node in guarded.nodes].count("tosa.select") == 2


@pytest.mark.parametrize("function", [torch.fmod, torch.remainder])
def test_remainders_are_exact_up_to_a_quotient_of_two_to_the_21(function: Function) -> None:
    random = np.random.default_rng(3)
    b = magnitudes(4)
    with np.errstate(over="ignore"):
        a = (b * np.exp2(random.uniform(-3, 20.9, COUNT)) * random.choice([-1, 1], COUNT)).astype(np.float32)
    finite = np.isfinite(a) & (np.abs(b) >= 2.0**-126)
    a, b = a[finite], b[finite]
    want = function(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_array_equal(np.asarray(lowered(function, a, b).run(a, b)), want)


def test_remainders_of_any_quotient_are_exact_for_powers_of_two() -> None:
    x = samples(5)
    with np.errstate(invalid="ignore"):
        want = np.remainder(x.astype(np.float64), 0.25).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(lowered(lambda x: x % 0.25, x).run(x)), want)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_rounded_quotients_equal_torchs(mode: str) -> None:
    random = np.random.default_rng(6)
    b = (random.normal(size=COUNT) * 10).astype(np.float32)
    whole = random.integers(-(2**20), 2**20, COUNT)
    a = (b * whole * random.choice([1.0, 1 + 2.0**-23, 1 - 2.0**-23], COUNT)).astype(np.float32)

    def divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.div(a, b, rounding_mode=mode)

    want = divide(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_array_equal(np.asarray(lowered(divide, a, b).run(a, b)), want)


def test_atan2_is_accurate_in_every_quadrant_and_on_the_axes() -> None:
    edges = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -2.5], np.float32)
    y, x = (axis.reshape(-1).copy() for axis in np.meshgrid(edges, edges))
    y, x = np.concatenate([y, samples(7)]), np.concatenate([x, samples(8)])
    truth = np.arctan2(y.astype(np.float64), x.astype(np.float64))
    assert error(np.asarray(lowered(torch.atan2, y, x).run(y, x)), truth).max() <= 4


def test_hypot_does_not_overflow_and_is_infinite_beside_infinity() -> None:
    edges = np.array([0.0, -0.0, 1.0, -3.0, np.inf, -np.inf, np.nan, 1e-30, 2e38, -2.5], np.float32)
    y, x = (axis.reshape(-1).copy() for axis in np.meshgrid(edges, edges))
    y, x = np.concatenate([y, samples(7)]), np.concatenate([x, samples(8)])
    truth = np.hypot(y.astype(np.float64), x.astype(np.float64))
    assert error(np.asarray(lowered(torch.hypot, y, x).run(y, x)), truth).max() <= 4
