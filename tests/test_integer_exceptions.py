"""Integer arithmetic where floats are infinite, NaN, or exactly at a step of a function such as floor: the
stored integers equal the integers that torch's Q/DQ graph stores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.exporting import exported
from quantize_calls import dq, q
from refusals import refusal
from test_integer_programs import agrees, qdq
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
INT16 = torch.int16


def stored(y: torch.Tensor, scale: float = 0.1, zero: int = 3) -> torch.Tensor:
    return qdq(y, scale, zero)


def a_(x: torch.Tensor) -> torch.Tensor:
    return qdq(x, 0.05, 0)


def b_(x: torch.Tensor) -> torch.Tensor:
    return qdq(x, 0.03, 0)


Two = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

NOT_FINITE: dict[str, Two] = {
    "quotient, negated": lambda a, b: stored(-a_(a) / b_(b)),
    "quotient, unsigned": lambda a, b: qdq(-a_(a) / b_(b), 0.1, 100, torch.uint8),
    "quotient of a relu": lambda a, b: stored(torch.relu(a_(a)) * 1.5 / b_(b)),
    "quotient of 16 bits by 8": lambda a, b: stored(qdq(a, 2e-4, 0, INT16) / b_(b)),
    "quotient of 8 bits by 16": lambda a, b: stored(a_(a) / qdq(b, 2e-4, 0, INT16)),
    "quotient by a difference": lambda a, b: stored(a_(a) / (a_(a) - qdq(b, 0.05, 0))),
    "quotient by truth values": lambda a, b: stored(a_(a) / (b_(b) > 0).float()),
    "quotient by a count": lambda a, b: stored(a_(a) / (b_(b) > 1).float().sum(-1, keepdim=True)),
    "quotient of shares": lambda a, b: stored(torch.softmax(a_(a), -1) / (b_(b) > 0).float()),
    "quotient, then moved": lambda a, b: stored((-a_(a) / b_(b)).transpose(0, 1).reshape(-1)),
    "logarithm of a sum": lambda a, b: stored((a_(a) + b_(b)).log()),
    "square root of a difference": lambda a, b: stored((a_(a) - qdq(b, 0.05, 0)).sqrt()),
    "its reciprocal": lambda a, b: stored((a_(a) - qdq(b, 0.05, 0)).rsqrt()),
    "root, and more": lambda a, b: stored((a_(a) - b_(b)).sqrt() * 0.7 + b_(b)),
    "root, moved": lambda a, b: stored((a_(a) - b_(b)).sqrt().transpose(0, 1).reshape(-1)),
    "root, where there is one": lambda a, b: stored(
        torch.where(a_(a) >= b_(b), (a_(a) - b_(b)).sqrt(), b_(b))
    ),
    "root, where there is none": lambda a, b: stored(
        torch.where(b_(b) > 0.5, b_(b), (a_(a) - b_(b)).sqrt() + 1)
    ),
    "root, compared": lambda a, b: stored(((a_(a) - b_(b)).sqrt() > 1).float(), 1.0, 0),
    "root, compared to differ": lambda a, b: stored(((a_(a) - b_(b)).sqrt() != b_(b)).float(), 1.0, 0),
    "root, else nothing": lambda a, b: stored(torch.nan_to_num((a_(a) - b_(b)).sqrt(), 1.0)),
    "half power of a sum": lambda a, b: stored((a_(a) + b_(b)) ** 0.5),
    "arc cosine of a sum": lambda a, b: stored(torch.acos(a_(a) + b_(b)), 0.025, -120),
    "arc sine of a sum": lambda a, b: stored(torch.asin(a_(a) + b_(b)), 0.025, 0),
    "arc hyperbolic cosine": lambda a, b: stored(torch.acosh(a_(a) + b_(b)), 0.025, 0),
    "hidden rows of softmax": lambda a, b: qdq(
        a_(a).masked_fill(b_(b) > -1, float("-inf")).softmax(-1), 1 / 256, -128
    ),
}


INF = float("inf")
PLUS_INFINITY: dict[str, Two] = {
    "less than data of a larger scale": lambda a, b: qdq(
        (a_(a).masked_fill(b_(b) > 0, INF) < qdq(b, 0.5, 0)).float(), 1.0, 0
    ),
    "less than data in a pad": lambda a, b: qdq((F.pad(a_(a), (1, 0), value=INF) < 90).float(), 1.0, 0),
    "the least, clamped": lambda a, b: stored(
        a_(a).masked_fill(b_(b) > -1, INF).amin(-1).clamp(max=20) - 12 * b_(b)[:, 0]
    ),
    "a sum": lambda a, b: stored(torch.where(b_(b) > 0, INF, 0.0) + a_(a)),
    "what exp hides": lambda a, b: stored(torch.exp(-a_(a).masked_fill(b_(b) > 0, INF))),
    "shares of distances": lambda a, b: qdq((-a_(a).masked_fill(b_(b) > 0, INF)).softmax(-1), 1 / 256, -128),
    "shares of distances, reversed": lambda a, b: qdq(
        (-torch.where(b_(b) > 0, a_(a), INF)).softmax(-1), 1 / 256, -128
    ),
    "places": lambda a, b: qdq(a_(a).masked_fill(b_(b) > 0, INF).argmin(-1).float(), 1.0, 0),
}


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(24, 3, generator=generator) * 2, torch.randn(24, 3, generator=generator) * 1.5
    b[::3], a[1::4] = 0, 0
    b[5], b[6], b[7] = a[5], -a[6], a[7]
    return a, b


@pytest.mark.parametrize("name", NOT_FINITE)
def test_infinity_saturates_and_nan_is_stored_as_torch_stores_it(name: str) -> None:
    a, b = operands()
    call = NOT_FINITE[name]
    scale = 1 / 256 if "softmax" in name else 1.0 if "compared" in name else 0.025 if "arc" in name else 0.1
    agrees(call, a, b, units=1, scale=scale, target="TOSA-1.0+INT+int16")


@pytest.mark.parametrize("name", PLUS_INFINITY)
def test_plus_infinity_is_beyond_all_that_its_readers_distinguish(name: str) -> None:
    """It is above the numbers of other operands, too. Rows that are hidden as a whole have shares of NaN."""
    scale = 1 / 256 if "shares" in name else 0.1 if name in ("a sum", "the least, clamped") else 1.0
    a, b = operands()
    agrees(PLUS_INFINITY[name], a, 20 * b, units=1 if scale < 1 else 0, scale=scale)


SEEN: dict[str, Two] = {
    "isinf": lambda a, b: qdq(torch.isinf(a_(a).masked_fill(b_(b) > 0, INF).amin(-1)).float(), 1.0, 0),
    "an output": lambda a, b: a_(a).masked_fill(b_(b) > 0, INF).amin(-1),
    "shares": lambda a, b: qdq(a_(a).masked_fill(b_(b) > 1, INF).softmax(-1), 1 / 256, -128),
}


@pytest.mark.parametrize("name", SEEN)
def test_plus_infinity_that_a_reader_may_see_has_no_integer_form(name: str) -> None:
    ep = exported(SEEN[name], *operands())
    assert "moves plus infinity" in refusal(tosaic.UnsupportedOp, tosaic.lower, ep, target="TOSA-1.0+INT")
    expected = SEEN[name](*operands()).numpy()
    lowered = tosaic.lower(ep, target="TOSA-1.0+INT+FP")
    np.testing.assert_allclose(lowered.run(*operands()), expected, atol=1 / 256)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduction", ["amin", "amax"])
def test_a_place_that_no_index_names_keeps_a_number_beyond_those_written(
    reduction: str, include_self: bool
) -> None:
    at = torch.tensor([[2, 0, 2], [2, 3, 2]])

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        into = qdq(b, 0.5, 0)
        return qdq(into.scatter_reduce(0, at, a_(a), reduction, include_self=include_self), 0.5, 0)

    a, b = operands()
    agrees(call, a, 20 * b, units=1, scale=0.5)


One = Callable[[torch.Tensor], torch.Tensor]
DIVISORS: dict[str, One] = {
    "their sum": lambda a: stored(a_(a) / a_(a).sum(-1, keepdim=True)),
    "their sum and a little": lambda a: stored(
        torch.relu(a_(a)) / (torch.relu(a_(a)).sum(-1, keepdim=True) + 1e-9)
    ),
    "their largest": lambda a: stored(a_(a) / a_(a).abs().amax(-1, keepdim=True)),
    "their norm": lambda a: stored(a_(a) / a_(a).norm(dim=-1, keepdim=True)),
    "their norm or a little": lambda a: stored(F.normalize(a_(a))),
    "their bounded size": lambda a: stored(a_(a) / a_(a).abs().clamp(min=1e-9)),
}


@pytest.mark.parametrize("name", DIVISORS)
def test_zero_over_zero_is_nan_and_zero_over_an_epsilon_is_zero(name: str) -> None:
    a, _ = operands()
    agrees(DIVISORS[name], a, units=1, scale=0.1)


def test_a_float_output_is_nan_where_torchs_is_nan() -> None:
    a, b = operands()

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a_(a) - b_(b)).sqrt()

    lowered = tosaic.lower(exported(call, a, b), target="TOSA-1.0+FP+INT")
    np.testing.assert_allclose(lowered.run(a, b), call(a, b).numpy(), rtol=1e-5)


# ---- operands exactly at a step of floor, trunc, a comparison ... ----


def x_(x: torch.Tensor) -> torch.Tensor:
    return qdq(x, 0.2666666805744171, 8, torch.uint8)


def sum_(x: torch.Tensor) -> torch.Tensor:
    return x_(x) + x_(x.flip(0)) * 0.37


def bounded(x: torch.Tensor) -> torch.Tensor:
    return (x_(x) * 7).clamp(-90, 90)


STEPS: dict[str, One] = {
    "floor": lambda x: bounded(x).floor(),
    "trunc": lambda x: bounded(x).trunc(),
    "to int": lambda x: bounded(x).to(torch.int32).float(),
    "to int, and one more": lambda x: (bounded(x).to(torch.int32) + 1).float(),
    "to int, halved": lambda x: (bounded(x).to(torch.int32) // 2).float(),
    "to int, its rest": lambda x: (bounded(x).to(torch.int32) % 4).float(),
    "to int, shifted": lambda x: (bounded(x).to(torch.int32) >> 1).float(),
    "to int, its bits": lambda x: torch.bitwise_and(bounded(x).to(torch.int32), 3).float(),
    "to int, compared": lambda x: (bounded(x).to(torch.int32) == 90).float(),
    "floor of a sum": lambda x: sum_(x).clamp(0, 9).floor(),
    "ceil of a sum": lambda x: sum_(x).clamp(-7, 9).ceil(),
    "round of a sum": lambda x: sum_(x).clamp(-7.5, 8.5).round(),
    "round of odd halves": lambda x: sum_(x).clamp(-6.5, 7.5).round(),
    "floor of a minimum": lambda x: torch.minimum(sum_(x), torch.tensor(9.0)).floor(),
    "floor of relu6": lambda x: F.relu6(sum_(x)).floor(),
    "one hot": lambda x: F.one_hot(sum_(x).clamp(0, 4).long(), 5).float(),
    "not less": lambda x: (sum_(x).clamp(-3, 9) >= 9).float(),
    "not more": lambda x: (sum_(x).clamp(-3, 9) <= -3).float(),
    "more": lambda x: (sum_(x).clamp(-3, 9) > -3).float(),
    "equal": lambda x: (sum_(x).clamp(-3, 9) == 9).float(),
    "remainder": lambda x: sum_(x).clamp(-3, 9) % 3,
    "floor of saturated shares": lambda x: ((x_(x) + x_(x.flip(0))).sigmoid() * 10).floor(),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_a_clamped_value_are_exact_also_at_the_bounds_of_the_clamp(name: str) -> None:
    generator = np.random.default_rng(0)
    x = torch.from_numpy(
        (generator.integers(0, 256, (40, 5)).astype(np.float32) - 8) * np.float32(0.2666666805744171)
    )
    # The sigmoid of f32 and that of our integers saturate at different operands: test beyond both only.
    if name == "floor of saturated shares":
        x = x[(x + x.flip(0)).abs().min(-1).values > 20]
    agrees(lambda x: qdq(STEPS[name](x), 1.0, 0), x, units=0, scale=1.0)


# ---- a float bias, and operands of very different scales ----


class Linear(torch.nn.Module):
    def __init__(self, scale: float, out: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor([[1, -1]], dtype=torch.int8))
        self.bias = torch.nn.Parameter(torch.tensor([0.01234]))
        self.scale, self.out, self.dtype = scale, out, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.ops.quantized_decomposed.dequantize_per_tensor(
            self.weight, 0.1, 0, -128, 127, torch.int8
        )
        return qdq(F.linear(qdq(x, self.scale, 0), weight, self.bias), self.out, 0, self.dtype)


@pytest.mark.parametrize(
    ("scale", "out", "dtype"), [(0.01, 2e-5, INT16), (1.0, 2e-3, torch.int8), (1.0, 0.05, torch.int8)]
)
def test_a_float_bias_is_within_one_unit_of_the_result(scale: float, out: float, dtype: torch.dtype) -> None:
    x = torch.tensor([[0.1, 0.1], [0.3, -0.1], [1.0, 1.0], [2.0, 2.0]])
    ep = torch.export.export(Linear(scale, out, dtype), (x,))
    agrees(ep, x, units=1, scale=out, target="TOSA-1.0+INT+int16")


@pytest.mark.parametrize("ratio", [1e3, 1e5, 1e7])
@pytest.mark.parametrize("name", ["maximum", "minimum", "less", "not less"])
def test_operands_of_very_different_scales_are_compared_exactly(name: str, ratio: float) -> None:
    scale = 1 / ratio / 128
    x = torch.arange(-128, 128) * scale
    y = torch.where(torch.arange(256) % 3 == 0, torch.tensor(1.0), torch.tensor(-1.0))
    y[5::7] = 0

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        small, large = qdq(x, scale, 0), qdq(y, 1 / 64, 1)
        if name in ("maximum", "minimum"):
            return qdq(getattr(torch, name)(small, large), scale, 0)
        return qdq((small < large if name == "less" else small >= large).float(), 1.0, 0)

    agrees(call, x, y, units=0, scale=scale if name in ("maximum", "minimum") else 1.0)


@pytest.mark.parametrize("size", range(1, 9))
def test_a_power_whose_constant_exponent_is_0_is_ones_in_the_shape_of_the_base(size: int) -> None:
    """Constant folding finds that the exponent is 0, so the result is ones in the shape of the base.

    The shape has to be read before nodes are added to the graph that owns it.
    """
    a, b = torch.randn(1, size), torch.tensor(-324)
    for target in ("TOSA-1.0+FP", "TOSA-1.0+INT+FP"):

        def call(a: torch.Tensor) -> torch.Tensor:
            return torch.pow(a, b.clone().clamp(0, 3))

        lowered = tosaic.lower(exported(call, a), target=target)
        np.testing.assert_array_equal(lowered.run(a), np.ones((1, size), np.float32))
        assert run_reference_model(lowered, a).ok


@pytest.mark.parametrize(("low", "high"), [(5, 7), (-127, -127)])
def test_nan_is_quantized_to_an_integer_of_the_range(low: int, high: int) -> None:
    # Torch makes 0 of NaN. The integers after a quantize node rely on its range.
    class Quantized(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = dq(q(x, 1000.0, low, low, high), 1000.0, low, low, high)
            return dq(q(torch.minimum(y, torch.tensor(1.5)), 6e-9, 0, 0, 7), 6e-9, 0, 0, 7)

    x = torch.tensor([float("nan"), 0.0, float("inf")])
    lowered = tosaic.lower(exported(Quantized(), x), target="TOSA-1.0+INT+FP")
    found = lowered.run(x)
    assert found[0] in (0.0, np.float32(7 * 6e-9))
    reference = run_reference_model(lowered, x)
    assert reference.ok
    np.testing.assert_array_equal(reference.outputs, found)
