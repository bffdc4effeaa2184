"""Elementwise operators: one, two and three operands, scalars on either side, promotion, broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st

from operators.checking import Row, add_rows
from operators.draw import (
    ANY,
    FLOAT,
    FUNCTION,
    INTEGER,
    NUMBER,
    elementwise,
    maybe,
    narrowed,
    number,
    shape,
    tensor,
    unary,
)

Draw = Callable[[Any], Any]
BITS = (*INTEGER, "bool")
QUOTIENTS = tuple(kind for kind in FUNCTION if kind != "tiny")
HALF_OF_FUNCTION = ("normal", "unit", "positive", "integers", "ties", "special")
ROWS: dict[str, Row] = {}


rows = partial(add_rows, ROWS)

# ---- one operand ----

rows(
    "acos acosh asin asinh atan atanh cos cosh erf erfc erfinv exp expm1 log log10 log1p log2 reciprocal "
    "rsqrt "
    "sigmoid sin sinh tan tanh logit isnan isinf logical_not square",
    unary(ANY),
)
ROWS["sqrt"] = Row(unary(ANY), expanded=True)
rows("abs ceil floor round trunc neg sign relu relu6 nan_to_num", unary(NUMBER))
rows("hardsigmoid hardswish silu mish gelu elu celu selu leaky_relu softplus hardtanh", unary(FLOAT))
rows("bitwise_not", unary(BITS))
ROWS["sign"] = Row(unary(ANY))
ROWS["round.decimals"] = Row(unary(FLOAT, kwargs={"decimals": st.integers(-2, 3)}))
ROWS["hardtanh"] = Row(unary(NUMBER, args=[st.sampled_from([-1, -0.5, 0]), st.sampled_from([1, 2.5, 6])]))
ROWS["leaky_relu"] = Row(unary(FLOAT, args=[number(0.01, 0.0)]))
ROWS["elu"] = Row(
    unary(FLOAT, args=[number(), st.sampled_from([1, 1, 1.05, 2]), st.sampled_from([1, 1, 0.5])])
)
ROWS["celu"] = Row(unary(FLOAT, args=[st.sampled_from([1.0, 0.5, 2.0, 1.3])]))
# torch's gelu loses digits if 1 + erf cancels, in float64 too
ROWS["gelu"] = Row(unary(FLOAT, kwargs={"approximate": st.sampled_from(["none", "tanh"])}), unit=1)
ROWS["softplus"] = Row(unary(FLOAT, args=[st.sampled_from([1, 0.5, 2.0]), st.sampled_from([20, 5, 1])]))
ROWS["logit"] = Row(unary(ANY, args=[maybe(st.sampled_from([1e-6, 0.1, 0.0]))]))
ROWS["nan_to_num"] = Row(unary(ANY, args=[maybe(number(0.0)), maybe(number(1e4)), maybe(number(-1e4))]))
ROWS["clamp"] = Row(unary(NUMBER, args=[maybe(number(-1.0)), st.sampled_from([1, 2.5, 6, 0])]))
rows("clamp_min clamp_max", unary(NUMBER, args=[number(0, 1)]))
ROWS["clamp.Tensor"] = Row(elementwise(3, NUMBER))
rows("clamp_min.Tensor clamp_max.Tensor", elementwise(2, NUMBER))

# ---- two operands ----


@st.composite
def with_alpha(draw: Draw, scalar: bool) -> Any:
    """Draws two tensors, or a tensor and a scalar, and alpha, which is a fraction only if all are floats."""
    args, _ = draw(elementwise(1 if scalar else 2, ANY))
    floats = all(a.dtype in FLOAT for a in args)
    alpha = draw(st.sampled_from([1, 2, -3, 0.5] if floats else [1, 2, -3]))
    if scalar:
        args = (*args, draw(number(0, 1)))
    if args[0].dtype == "bool":
        alpha = 1
    return args, {"alpha": alpha} if alpha != 1 else {}


for _name in ("add", "sub", "rsub"):
    ROWS[f"{_name}.Tensor"] = Row(with_alpha(False), fused=True)
    ROWS[f"{_name}.Scalar"] = Row(with_alpha(True), fused=True)
for _name in ("mul", "div"):
    ROWS[f"{_name}.Tensor"] = Row(elementwise(2, ANY), expanded=_name == "div")
    ROWS[f"{_name}.Scalar"] = Row(unary(ANY, args=[number(0, True)]), expanded=_name == "div")
MODE = {"rounding_mode": st.sampled_from([None, "trunc", "floor"])}


def moderate(shapes: Any) -> Any:
    """Draws float tensors. Tensors of float64 have moderate values only.

    For larger ones, torch's vectorised fmod returns NaN where its scalar fmod does not.
    """
    kinds = ("normal", "unit", "positive", "ties", "integers", "small", "medium")
    return tensor(shapes, FLOAT, QUOTIENTS).filter(lambda t: t.dtype != "f64" or t.kind in kinds)


@st.composite
def rounded_division(draw: Draw, scalar: bool) -> Any:
    """Draws the operands and the rounding mode of a division.

    Integer divisors are positive, since torch raises an error for a division by zero. Tiny operands are
    excluded, since a quotient that underflows may be rounded up or down.
    """
    dtypes = draw(st.sampled_from([FLOAT, INTEGER]))
    kinds = QUOTIENTS if dtypes is FLOAT else ("positive", "normal", "wide")
    left, _ = draw(elementwise(1, dtypes, kinds))
    if dtypes is FLOAT:
        left = (draw(moderate(shape())),)
    right = draw(number()) if scalar else draw(tensor(narrowed(left[0].shape), dtypes, ("positive",)))
    if dtypes is FLOAT and not scalar:
        right = draw(moderate(narrowed(left[0].shape)))
    return (*left, right), {"rounding_mode": draw(MODE["rounding_mode"])}


@st.composite
def quotient(draw: Draw, scalar: bool) -> Any:
    """Draws the operands of floor_divide, remainder and fmod."""
    args, _ = draw(rounded_division(scalar))
    return args, {}


ROWS["div.Tensor_mode"] = Row(rounded_division(False), expanded=True)
ROWS["div.Scalar_mode"] = Row(rounded_division(True), expanded=True)
rows("floor_divide remainder.Tensor fmod.Tensor", quotient(False), expanded=True)
rows("floor_divide.Scalar remainder.Scalar fmod.Scalar", quotient(True), expanded=True)


@st.composite
def scalar_first(draw: Draw, dtypes: Any, numbers: Any, kinds: Any = FUNCTION) -> Any:
    return (draw(numbers), draw(tensor(shape(), dtypes, kinds))), {}


ROWS["remainder.Scalar_Tensor"] = Row(
    st.one_of(
        st.tuples(number(), moderate(shape())).map(lambda args: (args, {})),
        scalar_first(INTEGER, st.sampled_from([7, -5, 3]), ("positive",)),
    ),
    expanded=True,
)


@st.composite
def powers(draw: Draw, tensors: bool) -> Any:
    """Draws a base and an exponent. Integer exponents are not negative, since torch refuses negative ones."""
    if draw(st.integers(0, 3)) == 3:
        base = draw(tensor(shape(), INTEGER, ("normal", "positive")))
        exponent = (
            draw(tensor(narrowed(base.shape), INTEGER, ("positive",))) if tensors else draw(st.integers(0, 4))
        )
        return (base, exponent), {}
    (base,), _ = draw(elementwise(1, FLOAT))
    exponents = st.sampled_from([2, 3, 0.5, -0.5, -1, -2, 0, 1, 1.7, 4, 2.0, -1.0])
    exponent = draw(tensor(narrowed(base.shape), FLOAT, FUNCTION)) if tensors else draw(exponents)
    return (base, exponent), {}


ROWS["pow.Tensor_Tensor"] = Row(powers(True))
ROWS["pow.Tensor_Scalar"] = Row(powers(False))
ROWS["pow.Scalar"] = Row(scalar_first(FLOAT, st.sampled_from([2, 0.5, 10, 1, 0, -2, 2.718])))
rows("maximum minimum", elementwise(2, ANY))
rows("atan2", elementwise(2, FLOAT))
rows("hypot", elementwise(2, FLOAT))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    ROWS[f"{_name}.Tensor"] = Row(elementwise(2, ANY))
    ROWS[f"{_name}.Scalar"] = Row(unary(ANY, args=[number(0, 1, True)]))
rows("logical_and logical_or logical_xor", elementwise(2, ANY))
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    ROWS[f"{_name}.Tensor"] = Row(elementwise(2, BITS))
    ROWS[f"{_name}.Scalar"] = Row(unary(BITS, args=[st.sampled_from([3, 0, 1, -1, True])]))
    ROWS[f"{_name}.Scalar_Tensor"] = Row(scalar_first(BITS, st.sampled_from([3, 0, 1, -1, True])))


@st.composite
def shifted(draw: Draw, which: str) -> Any:
    """Draws a value and a shift count from 0 to 8, each a tensor or a number."""
    counts = draw(st.integers(0, 7))
    if which == "left":
        return (draw(st.integers(0, 100)), draw(tensor(shape(), INTEGER, ("positive",)))), {}
    value = draw(tensor(shape(), INTEGER, ("normal", "positive", "wide")))
    if which == "scalar":
        return (value, counts), {}
    return (value, draw(tensor(narrowed(value.shape), (value.dtype,), ("positive",)))), {}


for _name in ("bitwise_left_shift", "bitwise_right_shift"):
    ROWS[f"{_name}.Tensor"] = Row(shifted("tensor"))
    ROWS[f"{_name}.Tensor_Scalar"] = Row(shifted("scalar"))
    ROWS[f"{_name}.Scalar_Tensor"] = Row(shifted("left"))
for _name in ("__lshift__", "__rshift__"):
    ROWS[f"{_name}.Tensor"] = Row(shifted("tensor"))
    ROWS[f"{_name}.Scalar"] = Row(shifted("scalar"))

# ---- three operands ----


@st.composite
def choices(draw: Draw, left: bool, right: bool) -> Any:
    """Draws a condition and two operands, tensors or numbers."""
    args, _ = draw(elementwise(1 + left + right, ANY, first=("bool",)))
    rest = iter(args[1:])
    a = next(rest) if left else draw(number())
    b = next(rest) if right else draw(number())
    return (args[0], a, b), {}


ROWS["where.self"] = Row(choices(True, True))
ROWS["where.ScalarOther"] = Row(choices(True, False))
ROWS["where.ScalarSelf"] = Row(choices(False, True))
ROWS["where.Scalar"] = Row(choices(False, False))
ROWS["where"] = Row(unary(("bool",)), refused="depends on data")


@st.composite
def masked(draw: Draw, scalar: bool) -> Any:
    (x,), _ = draw(elementwise(1, ANY))
    mask = draw(tensor(narrowed(x.shape), ("bool",)))
    whole = x.dtype in (*INTEGER, "bool")
    value = draw(st.sampled_from([0, 1, 3] if whole else [0, -1.5, 3, float("-inf")]))
    return (x, mask, value if scalar else draw(tensor((), (x.dtype,)))), {}


ROWS["masked_fill.Scalar"] = Row(masked(True))
ROWS["masked_fill.Tensor"] = Row(masked(False))
ROWS["lerp.Scalar"] = Row(
    elementwise(2, FLOAT, mixed=False, then=[st.sampled_from([0.5, 0, 1, 0.3, -0.5, 2])]), scale="terms"
)
ROWS["lerp.Tensor"] = Row(elementwise(3, FLOAT, mixed=False), scale="terms")


@st.composite
def products(draw: Draw) -> Any:
    args, _ = draw(elementwise(3, (*FLOAT, "i32", "i64"), mixed=False))
    value = draw(st.sampled_from([1, 2, -1]))
    return args, {"value": value} if value != 1 else {}


ROWS["addcmul"] = Row(products(), scale="terms")
ROWS["addcdiv"] = Row(elementwise(3, FLOAT, kwargs={"value": number()}, mixed=False), scale="terms")


@st.composite
def slopes(draw: Draw) -> Any:
    x = draw(tensor(shape(), FLOAT, FUNCTION))
    channels = x.shape[1] if len(x.shape) > 1 else 1
    count = channels if draw(st.booleans()) else 1
    return (x, draw(tensor((count,), (x.dtype,), ("unit",), const=None))), {}


ROWS["prelu"] = Row(slopes())


@st.composite
def halves(draw: Draw) -> Any:
    sides = list(draw(shape(1, 6)))
    at = draw(st.integers(0, len(sides) - 1))
    sides[at] *= 2
    dim = at - len(sides) if draw(st.booleans()) else at
    return (draw(tensor(tuple(sides), FLOAT, HALF_OF_FUNCTION)), dim), {}


ROWS["glu"] = Row(halves())


# ---- divisors ----

ROWS["gcd"] = ROWS["lcm"] = Row(elementwise(2, INTEGER, ("positive", "normal", "integers", "ties")))
