"""Functions, gates, shifts, norms, quantizers: no opaque nodes, equal to torch as imported and lowered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
import tosaic
from fx.exporting import exported, imported, ops

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

generator = torch.Generator().manual_seed(5)
X = torch.randn(3, 4, 6, generator=generator)
Y = torch.randn(3, 4, 6, generator=generator) * 3
I = torch.randint(-100, 100, (3, 4, 6), generator=generator)  # noqa: E741
J = torch.randint(1, 9, (3, 4, 6), generator=generator)
BYTES = torch.randint(-128, 128, (5, 7), generator=generator).to(torch.int8)
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 1e-45, 3e38, -2.5])
SCALAR = torch.tensor(-1.5)
SCALES = torch.tensor([0.1, 0.02, 0.3, 0.004])
ZEROS = torch.tensor([1, -3, 0, 5])
Q = torch.ops.quantized_decomposed

Calls = dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]

FLOATS: Calls = {
    "acos": (lambda x: torch.acos(x.tanh()), (X,)),
    "acosh": (lambda x: torch.acosh(x.abs() + 1), (X,)),
    "asin": (lambda x: torch.asin(x.tanh()), (X,)),
    "asinh": (torch.asinh, (X,)),
    "atan": (torch.atan, (X,)),
    "atanh": (lambda x: torch.atanh(x.tanh()), (X,)),
    "cosh": (torch.cosh, (X,)),
    "erfinv": (lambda x: torch.erfinv(x.tanh()), (X,)),
    "expm1": (torch.expm1, (X,)),
    "log10": (lambda x: torch.log10(x.abs()), (X,)),
    "log1p": (lambda x: torch.log1p(x.abs()), (X,)),
    "log2": (lambda x: torch.log2(x.abs()), (X,)),
    "sinh": (torch.sinh, (X,)),
    "tan": (torch.tan, (X,)),
    "logit": (lambda x: torch.logit(x.tanh().abs() * 0.4), (X,)),
    "logit, clamped": (lambda x: torch.logit(x.tanh().abs() * 0.4, 0.3), (X,)),
    "elu": (lambda x: F.elu(x, 0.7), (X,)),
    "celu": (lambda x: F.celu(x, 0.7), (X,)),
    "selu": (F.selu, (X,)),
    "mish": (F.mish, (X,)),
    "logsigmoid": (F.logsigmoid, (X,)),
    "softplus": (lambda x: F.softplus(x, 2, 3), (X,)),
    "softshrink": (F.softshrink, (X,)),
    "hardshrink": (F.hardshrink, (X,)),
    "tanhshrink": (lambda x: F.tanhshrink(x.abs() + 1), (X,)),
    "softsign": (F.softsign, (X,)),
    "threshold": (lambda x: F.threshold(x, 0.1, 20), (X,)),
    "rrelu": (F.rrelu, (X,)),
    "prelu by channel": (F.prelu, (X, torch.tensor([0.1, 0.2, 0.3, 0.4]))),
    "prelu with one slope": (F.prelu, (X, torch.tensor([0.1]))),
    "glu": (F.glu, (X,)),
    "lerp": (torch.lerp, (X, Y, X.sigmoid())),
    "lerp by a number": (lambda x, y: torch.lerp(x, y, 0.75), (X, Y)),
    "addcmul": (lambda x, y: torch.addcmul(x, y, x, value=0.5), (X, Y)),
    "addcdiv": (lambda x, y: torch.addcdiv(x, y, x + 9, value=2), (X, Y)),
    "atan2": (torch.atan2, (X, Y)),
    "hypot": (torch.hypot, (X, Y)),
    "hypot of extremes": (torch.hypot, (EDGES, EDGES.flip(0))),
    "hypot in place": (lambda x, y: (x * 2).hypot_(y) + 1, (X, Y)),
    "logsumexp": (lambda x: x.logsumexp((0, 2), keepdim=True), (X,)),
    "std": (lambda x: x.std((1, 2)), (X,)),
    "std and mean": (lambda x: torch.std_mean(x, 0, correction=2), (X,)),
    "norm": (lambda x: torch.norm(x, p=3, dim=1), (X,)),
    **{
        f"norm of order {order}": (
            lambda x, order=order: torch.linalg.vector_norm(x, order, (0, 2), keepdim=True),
            (X,),
        )
        for order in (2, 1, 0, torch.inf, -torch.inf, 3, 0.5, -2)
    },
}
EXACT: Calls = {
    "remainder": (torch.remainder, (X, Y)),
    "remainder of a number": (lambda x: torch.remainder(7.5, x), (Y,)),
    "fmod": (lambda x: torch.fmod(x, 0.3), (Y,)),
    "floor_divide": (lambda x, y: x // y, (Y, X)),
    "div, truncated": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (Y, X)),
    "isinf": (torch.isinf, (EDGES,)),
    "isnan": (torch.isnan, (EDGES,)),
    "isfinite": (torch.isfinite, (EDGES,)),
    "isfinite of integers": (torch.isfinite, (I,)),
    "isinf of integers": (torch.isinf, (I,)),
    "nan_to_num": (torch.nan_to_num, (EDGES,)),
    "nan_to_num with numbers": (lambda x: torch.nan_to_num(x, 1, posinf=7), (EDGES,)),
    "nan_to_num of integers": (torch.nan_to_num, (I,)),
    "norm that overflows": (torch.linalg.vector_norm, (torch.tensor([1e30, 1.0]),)),
    "logsumexp of infinities": (
        lambda x: x.logsumexp(0),
        (torch.tensor([[-torch.inf, 1.0], [-torch.inf, torch.inf]]),),
    ),
    "remainder of integers": (torch.remainder, (I, J)),
    "remainder by a number": (lambda x: x % -7, (I,)),
    "fmod of integers": (torch.fmod, (I, J)),
    "floor_divide of integers": (lambda x: x // -7, (I,)),
    "div of integers, truncated": (lambda x: torch.div(x, -7, rounding_mode="trunc"), (I,)),
    "shift left": (lambda x: x << 3, (I,)),
    "shift right": (lambda x: x >> 2, (I,)),
    "product of booleans": (lambda x: (x > 0).prod(), (X,)),
    "a bounded float counted": (lambda x: x.clamp(-20, 50).to(torch.int64) * 2 + 1, (X,)),
    "a sigmoid counted": (lambda x: (x.sigmoid() * 10).long() + 3, (X,)),
    **{
        f"{name} of rank 0": (call, (SCALAR,))
        for name, call in {
            "softmax": lambda x: x.softmax(0),
            "log_softmax": lambda x: x.log_softmax(-1),
            "cumsum": lambda x: x.cumsum(0),
            "argmax": lambda x: x.argmax(0),
            "argmin": lambda x: x.argmin(-1),
            "max": lambda x: x.max(0),
            "logsumexp": lambda x: x.logsumexp(0),
            "norm": torch.linalg.vector_norm,
        }.items()
    },
    "quantize": (lambda x: Q.quantize_per_tensor(x, 0.037, 3, -128, 127, torch.int8), (Y,)),
    "quantize and back": (
        lambda x: Q.dequantize_per_tensor(
            Q.quantize_per_tensor(x, 0.037, 3, -127, 127, torch.int8), 0.037, 3, -127, 127, torch.int8
        ),
        (Y,),
    ),
    "quantize to 16 bits and back to f16": (
        lambda x: Q.dequantize_per_tensor(
            Q.quantize_per_tensor(x, 0.001, 0, -32768, 32767, torch.int16),
            *(0.001, 0, -32768, 32767, torch.int16),
            out_dtype=torch.float16,
        ),
        (Y,),
    ),
    "quantize by channel and back": (
        lambda x: Q.dequantize_per_channel(
            Q.quantize_per_channel(x, SCALES, ZEROS, 1, -128, 127, torch.int8),
            *(SCALES, ZEROS, 1, -128, 127, torch.int8),
        ),
        (Y,),
    ),
    "fake quantization": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.037, 3, 0, 255), (Y,)),
}
# Operators over integers of 8, 32 and 64 bits.
INTEGERS: Calls = {
    "shift of bytes": (lambda x: x << 3, (BYTES,)),
    "shift of bytes by more than their bits": (lambda x: x >> 9, (BYTES,)),
    "shift by a tensor": (lambda x, y: x << y, (I.int(), J.int())),
    "shift right by a tensor": (torch.bitwise_right_shift, (I, J)),
    "product of bytes": (lambda x: x.prod(1, dtype=torch.int32), (BYTES[:, :3],)),
}


def results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def agree(got: Any, want: Any, ulp: float) -> None:
    for ours, theirs in zip(results(got), results(want), strict=True):
        found, expected = np.asarray(ours), theirs.numpy()
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if ulp and expected.dtype.kind == "f":
            relative = ulp * float(np.finfo(expected.dtype).eps)
            np.testing.assert_allclose(found, expected, rtol=relative, atol=relative * 1e-2)
        else:
            np.testing.assert_array_equal(found, expected)


def check(calls: Calls, name: str, ulp: float, targets: tuple[str, ...], dtype: Any = None) -> None:
    call, args = calls[name]
    if dtype is not None:
        args = tuple(arg.to(dtype) for arg in args)
    program = exported(call, *args)
    assert "opaque" not in ops(tosaic.from_exported(program))
    want = call(*args)
    agree(tosaic.from_exported(program).run(*args), want, ulp)
    for target in targets:
        agree(tosaic.lower(program, target=target).run(*args), want, 2 * ulp)


BOTH = ("TOSA-1.0+FP", "TOSA-1.0+INT+FP")


@pytest.mark.parametrize("name", FLOATS)
def test_a_function_and_its_lowering_equal_torch(name: str) -> None:
    check(FLOATS, name, 4, BOTH[:1])


@pytest.mark.parametrize("name", FLOATS)
def test_a_function_of_f16_is_rounded_once(name: str) -> None:
    check(FLOATS, name, 4, BOTH[:1], torch.float16)


@pytest.mark.parametrize("name", FLOATS)
def test_a_function_of_f64_equals_torch(name: str) -> None:
    check(FLOATS, name, 8, (), torch.float64)


@pytest.mark.parametrize("name", EXACT)
def test_an_exact_operator_equals_torch_on_every_target(name: str) -> None:
    check(EXACT, name, 0, BOTH)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_equal_torch_on_every_target(name: str) -> None:
    check(INTEGERS, name, 0, BOTH)


@pytest.mark.filterwarnings("ignore:std.*degrees of freedom:UserWarning")
def test_the_standard_deviation_of_one_element_is_nan() -> None:
    for x in (torch.tensor([2.0]), SCALAR):
        program = exported(lambda x: x.std(), x)
        agree(tosaic.from_exported(program).run(x), x.std(), 0)
        agree(tosaic.lower(program).run(x), x.std(), 0)


def test_integers_become_floats_in_functions() -> None:
    for function in (torch.asin, torch.expm1, torch.erfinv, torch.log1p):
        program = exported(function, I)
        agree(tosaic.from_exported(program).run(I), function(I), 4)


def test_numbers_are_quantized_to_u8_by_a_target_that_has_no_u8() -> None:
    program = exported(lambda x: Q.quantize_per_tensor(x, 0.037, 3, 0, 255, torch.uint8), Y)
    expected = Q.quantize_per_tensor(Y, 0.037, 3, 0, 255, torch.uint8)
    agree(tosaic.from_exported(program).run(Y), expected, ulp=0)
    agree(tosaic.lower(program).run(Y), expected, ulp=0)


def test_quantization_parameters_that_depend_on_data_are_computed_as_torch_does() -> None:
    def dynamic(x: torch.Tensor) -> Any:
        scale, zero = Q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
        return Q.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)

    program = tosaic.from_exported(exported(dynamic, Y))
    np.testing.assert_array_equal(np.asarray(program.run(Y)), dynamic(Y).numpy())


def test_quantizers_of_torchao_read_whole_tensors_and_single_axes() -> None:
    pytest.importorskip("torchao")
    quantize, dequantize = torch.ops.torchao.quantize_affine, torch.ops.torchao.dequantize_affine

    def there_and_back(x: torch.Tensor, block: list[int], scale: torch.Tensor, zero: torch.Tensor) -> Any:
        q = quantize(x, block, scale, zero, torch.int8)
        return q, dequantize(q, block, scale, zero, torch.int8)

    for block, scale, zero in (([3, 4, 6], SCALES[:1], ZEROS[:1]), ([3, 1, 6], SCALES, ZEROS)):
        want = there_and_back(Y, block, scale, zero)
        program = exported(lambda x, b=block, s=scale, z=zero: there_and_back(x, b, s, z), Y)
        agree(tosaic.from_exported(program).run(Y), want, 0)
        agree(tosaic.lower(program).run(Y), want, 0)
    scales, zeros = torch.ones(12), torch.zeros(12)
    with pytest.raises(tosaic.UnsupportedOp, match="block"):
        imported(lambda x: quantize(x, [1, 2, 3], scales, zeros, torch.int8), Y)


# ---- scalars next to narrow floats, and extreme values ----

BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "add, scaled": lambda x, y: torch.add(x, y, alpha=3),
    "subtract from": lambda x, y: y - x,
    "mul": torch.mul,
    "mul from the left": lambda x, y: y * x,
    "div": torch.div,
    "div from the left": lambda x, y: y / x,
    "div, floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "pow": lambda x, y: torch.pow(x.abs() + 0.1, y),
    "lt": torch.lt,
    "eq": torch.eq,
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "lerp": lambda x, y: torch.lerp(x, x * 2, y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
}


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BINARY)
def test_a_wider_scalar_tensor_is_rounded_where_torch_rounds_it(
    name: str, narrow: torch.dtype, wide: torch.dtype
) -> None:
    """torch rounds the scalar to the narrow dtype, except as second operand of a product or quotient.

    Results have to be equal to the last bit.
    """
    y = torch.tensor(1.2345678, dtype=wide)
    x = (torch.randn(200, generator=torch.Generator().manual_seed(3)) * 3).to(narrow)
    x[0] = y.to(narrow)
    wanted = BINARY[name](x, y)
    program = tosaic.from_exported(exported(BINARY[name], x, y))
    np.testing.assert_array_equal(np.asarray(program.run(x, y)).astype(np.float64), wanted.double().numpy())
    if wide == torch.float32:
        ours = tosaic.lower(program, target="TOSA-1.0+FP+bf16").run(x, y)
        np.testing.assert_array_equal(np.asarray(ours).astype(np.float64), wanted.double().numpy())


@pytest.mark.parametrize("function", [torch.fmod, torch.remainder])
@pytest.mark.parametrize("divisor", [0.3, -7.0, 6.2831853, 1e-20, 3e-39, 2.5e38, None])
def test_the_remainder_of_a_division_is_exact_for_every_quotient(
    function: Callable[..., torch.Tensor], divisor: float | None
) -> None:
    """Tests the lowered form, a long division, too. The divisor is a number or a tensor."""
    x = torch.tensor([3e38, -3.4e38, 1e7, -16777213.0, 123456.789, 0.1, -0.25, 1e-30, 5e-41, 0.0])
    divisors = torch.tensor([1e-38, 3.7, 3.0, -0.7, 1e30, 1e-45, 0.1, 3e-31, 7e-45, 2.0])
    call: Callable[..., Any] = (lambda x: function(x, divisor)) if divisor is not None else function
    args = (x,) if divisor is not None else (x, divisors)
    wanted = [
        function(a.double(), float(np.float32(divisor)) if divisor is not None else b.double()).float()
        for a, b in zip(x, divisors, strict=True)
    ]
    for target in (None, "TOSA-1.0+FP"):
        program = tosaic.from_exported(exported(call, *args))
        ours = (program if target is None else tosaic.lower(program, target=target)).run(*args)
        np.testing.assert_array_equal(np.asarray(ours), torch.stack(wanted).numpy())


def test_powers_of_extreme_values_equal_torchs() -> None:
    bases = torch.tensor([-torch.inf, torch.inf, 0.0, -2.0, 1.5, torch.nan])
    for exponent in (1.7, -1.7, 3.0, -3.0, 2.0, 0.0):
        exponents = torch.full_like(bases, exponent)
        lowered = tosaic.lower(exported(torch.pow, bases, exponents), target="TOSA-1.0+FP")
        np.testing.assert_allclose(lowered.run(bases, exponents), torch.pow(bases, exponents), rtol=1e-6)


def test_a_power_with_a_fraction_as_exponent_is_precise() -> None:
    x = torch.tensor([1e10, 3e-12, 2.0])
    program = tosaic.from_exported(exported(lambda x: x**1.7, x))
    np.testing.assert_allclose(program.run(x), (x.double() ** 1.7).float(), rtol=1.2e-7)


def test_operators_of_uint8_tensors_and_negative_numbers_equal_torch() -> None:
    x = torch.tensor([5, 200], dtype=torch.uint8)
    for call in (lambda x: x.clamp_max(-100), lambda x: x / -100, lambda x: x >> torch.full_like(x, 8)):
        np.testing.assert_array_equal(tosaic.from_exported(exported(call, x)).run(x), call(x))


def test_addmm_with_alpha_0_ignores_nan_in_its_product() -> None:
    a, b = torch.full((2, 3), torch.nan), torch.ones(3, 4)
    x = torch.arange(4.0)
    program = tosaic.from_exported(exported(lambda x, a, b: torch.addmm(x, a, b, alpha=0, beta=2), x, a, b))
    np.testing.assert_array_equal(program.run(x, a, b), torch.addmm(x, a, b, alpha=0, beta=2))
