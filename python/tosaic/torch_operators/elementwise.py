"""Rows for arithmetic, comparisons and logic, element by element; `functions` has the other functions."""

from __future__ import annotations

from typing import Any

from tosaic.torch_operators.arguments import OP, fit, ids, per_overload
from tosaic.torch_operators.call import Call, Emit, Rows, reads_data, with_parameters
from tosaic.torch_operators.dtypes import CATEGORY, CODE, INTEGER_LIMITS, NARROW_FLOATS
from tosaic.torch_operators.value import NoValue, Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on
_F32 = CODE["f32"]


# ---- one operand ----


def unary(op: str) -> Emit:
    op_id = OP[op]

    def emit(c: Call, x: Ref) -> Ref:
        return c.emit(op_id, None, (x.id,))

    return emit


def with_attributes(op: str, **types: str) -> Emit:
    """Returns a row for an operator of one tensor, whose attributes are the other arguments.

    Parameters
    ----------
    op : str
    **types
        The names of the attributes, in the order of the arguments, and the types of these.
    """
    op_id = OP[op]

    def emit(c: Call, x: Ref, *values: Any) -> Ref:
        return c.emit(op_id, dict(zip(types, values, strict=True)), (x.id,))

    return with_parameters(emit, {"x": "Ref", **types})


for _op in [
    "abs",
    "ceil",
    "cos",
    "erf",
    "exp",
    "floor",
    "log",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sqrt",
    "sigmoid",
    "sign",
    "sin",
    "tanh",
    "trunc",
    "relu",
    "silu",
    "hardsigmoid",
    "hardswish",
    "logical_not",
    "bitwise_not",
]:
    ROWS[_op] = unary(_op)
for _alias, _op in {
    "absolute": "abs",
    "negative": "neg",
    "fix": "trunc",
    "sgn": "sign",
    "special_erf": "erf",
    "special_expit": "sigmoid",
}.items():
    ROWS[_alias] = ROWS[_op]


@on("round.decimals")
def round_decimals(c: Call, x: Ref, decimals: int) -> Ref | None:
    return c.emit(OP["round"], None, (x.id,)) if decimals == 0 else None


@on("square")
def square(c: Call, x: Ref) -> Ref:
    """The square of a bool, like its power, is an i64."""
    if x.dtype != c.dtype:
        x = c.emit_inferred(OP["cast"], {"dtype": c.dtype}, (x.id,))
    return c.emit(OP["mul"], None, (x.id, x.id))


@on("isnan")
def isnan(c: Call, x: Ref) -> Ref:
    return c.emit(OP["ne"], None, (x.id, x.id))


@on("hardtanh")
def hardtanh(c: Call, x: Ref, low: Any, high: Any) -> Ref:
    """The bounds are converted to the dtype of `x`."""
    return clamp(c, x, fit(low, x.dtype), fit(high, x.dtype))


def _wrapped(value: Any, x: Ref, result: int) -> Any:
    """Returns a bound as torch converts it: a negative bound of an unsigned dtype wraps around."""
    low, high = INTEGER_LIMITS.get(x.dtype, (-1, 0))
    is_unsigned = low == 0 and x.dtype == result
    return int(value) % (high + 1) if is_unsigned and value is not None else value


@on("clamp", "clip")
def clamp(c: Call, x: Ref, low: Any, high: Any) -> Ref:
    low, high = (_wrapped(bound, x, c.dtype) for bound in (low, high))
    return c.emit(OP["clamp"], {"min": low, "max": high}, (x.id,))


@on("relu6")
def relu6(c: Call, x: Ref) -> Ref:
    return clamp(c, x, 0, 6)


@on("clamp_min")
def clamp_min(c: Call, x: Ref, low: Any) -> Ref:
    return clamp(c, x, low, None)


@on("clamp_max")
def clamp_max(c: Call, x: Ref, high: Any) -> Ref:
    return clamp(c, x, None, high)


@on("clamp.Tensor", "clip.Tensor")
def clamp_tensors(c: Call, x: Ref, low: Ref | None, high: Ref | None) -> Ref:
    """Becomes a maximum and a minimum, since the bounds of the canonical clamp are numbers."""

    def read(ref: Ref) -> Ref:  # all operands are converted to their common dtype
        return ref if ref.dtype == c.dtype else c.emit_inferred(OP["cast"], {"dtype": c.dtype}, (ref.id,))

    if high is None:
        assert low is not None
        return c.emit(OP["maximum"], None, (read(x).id, read(low).id))
    bounded = read(x) if low is None else c.emit_inferred(OP["maximum"], None, (read(x).id, read(low).id))
    return c.emit(OP["minimum"], None, (bounded.id, read(high).id))


def _extremum(op: str) -> Emit:
    def emit(c: Call, x: Ref, bound: Ref) -> Ref:
        return c.emit(OP[op], None, ids(*c.alike(x, bound)))

    return emit


ROWS["clamp_min.Tensor"], ROWS["clamp_max.Tensor"] = _extremum("maximum"), _extremum("minimum")
ROWS["leaky_relu"] = with_attributes("leaky_relu", alpha="float")


@on("gelu")
def gelu(c: Call, x: Ref, approximate: str) -> Ref:
    return c.emit(OP["gelu"], {"tanh": approximate == "tanh"}, (x.id,))


# ---- two and three operands ----


def binary(op: str) -> Emit:
    op_id = OP[op]
    is_product = op == "mul"

    def emit(c: Call, a: Any, b: Any) -> Ref:
        if type(b) is not Ref:
            b = c.factor(b, a) if is_product else c.number(b, a)
        elif type(a) is not Ref:
            a = c.number(a, b)
        if is_product:
            return _rounded_to(c, op_id, None, c.promoted(a, b), c.promoted_factor(b, a))
        return c.emit(op_id, None, ids(*c.alike(a, b)))

    return emit if op == "pow" else reads_data(emit)


def _with_alpha(op: str) -> Emit:
    op_id = OP[op]

    def emit(c: Call, a: Any, b: Any, alpha: Any) -> Ref:
        if type(b) is not Ref:
            b = c.number(b, a)
        elif type(a) is not Ref:
            a = c.number(a, b)
        return c.emit(op_id, None if alpha == 1 else {"alpha": alpha}, ids(*c.alike(a, b)))

    return reads_data(emit)


_TORCH_NAMES = {
    "mul": "mul multiply",
    "maximum": "maximum max.other",
    "minimum": "minimum min.other",
    "eq": "eq",
    "ne": "ne not_equal",
    "lt": "lt less",
    "le": "le less_equal",
    "gt": "gt greater",
    "ge": "ge greater_equal",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
    "bitwise_and": "bitwise_and __and__",
    "bitwise_or": "bitwise_or __or__",
    "bitwise_xor": "bitwise_xor __xor__",
}
for _op, _names in _TORCH_NAMES.items():
    for _name in _names.split():
        _overloads = "default" if "." in _name else "default Tensor Scalar Scalar_Tensor"
        for _key in per_overload(_name, _overloads):
            ROWS[_key] = binary(_op)
for _key in per_overload("add", "Tensor Scalar"):
    ROWS[_key] = _with_alpha("add")
for _key in per_overload("sub subtract", "Tensor Scalar"):
    ROWS[_key] = _with_alpha("sub")
for _key in per_overload("pow", "Tensor_Tensor Scalar"):
    ROWS[_key] = binary("pow")


@on("pow.Tensor_Scalar")
def pow_of_number(c: Call, x: Ref, exponent: Any) -> Any:
    """Torch computes roots for exponents of +-0.5; it raises float32 to a fractional exponent in float64."""
    root = {0.5: "sqrt", -0.5: "rsqrt"}.get(exponent) if CATEGORY[x.dtype] == 2 else None
    if root is not None:
        return c.emit(OP[root], None, (x.id,))
    if x.dtype == _F32 and x.shape and isinstance(exponent, float):
        return c.emit(OP["pow"], None, (x.id, c.constant(exponent, CODE["f64"]).id))
    return binary("pow")(c, x, exponent)


@on("rsub.Tensor", "rsub.Scalar")
@reads_data
def rsub(c: Call, x: Ref, other: Any, alpha: Any) -> Ref:
    if type(other) is not Ref:
        other = c.number(other, x)
    return c.emit(OP["sub"], {"alpha": alpha}, ids(*c.alike(other, x)))


@on(
    *per_overload("div divide", "Tensor Scalar Tensor_mode Scalar_mode"),
    *per_overload("true_divide", "Tensor Scalar"),
)
@reads_data
def div(c: Call, a: Any, b: Any, rounding: str | None = None) -> Ref:
    if type(b) is not Ref:  # a number as divisor of integers gets the quotient's dtype, since u8 has no -1
        b = _divisor(c, b) if CATEGORY[a.dtype] < CATEGORY[c.dtype] else c.factor(b, a)
    elif type(a) is not Ref:
        a = c.number(a, b)
    attrs = None if rounding is None else {"rounding": rounding}
    return _rounded_to(c, OP["div"], attrs, c.promoted(a, b), c.promoted_factor(b, a))


def _divisor(c: Call, number: Any) -> Ref:
    """Returns the divisor of integers with the dtype of the quotient."""
    if isinstance(number, NoValue) and number.tensor is not None:
        return c.emit_inferred(OP["cast"], {"dtype": c.dtype}, (number.tensor.id,))
    return c.constant(float(number), c.dtype)


def _rounded_to(c: Call, op: int, attrs: dict[str, Any] | None, a: Ref, b: Ref) -> Ref:
    """Casts the result if both operands have rank 0 and promote to a wider dtype than torch's result has."""
    if a.shape or b.shape or b.dtype != _F32 or c.dtype not in NARROW_FLOATS:
        return c.emit(op, attrs, (a.id, b.id))
    return c.emit(OP["cast"], {"dtype": c.dtype}, (c.emit_inferred(op, attrs, (a.id, b.id)).id,))


@on("floor_divide", "floor_divide.Scalar")
def floor_divide(c: Call, a: Ref, b: Any) -> Ref:
    return div(c, a, b, "floor")


@on("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(c: Call, condition: Ref, a: Any, b: Any) -> Ref:
    if type(a) is not Ref:
        a = c.number(a, b) if type(b) is Ref else c.constant(a, c.dtype)
    if type(b) is not Ref:
        b = c.number(b, a)
    return c.emit(OP["where"], None, ids(condition, *c.alike(a, b)))


@on("masked_fill.Scalar", "masked_fill.Tensor")
@reads_data
def masked_fill(c: Call, x: Ref, mask: Ref, value: Any) -> Ref:
    """The value is converted to the dtype of `x`."""
    if isinstance(value, NoValue) and value.tensor is not None:
        value = value.tensor
    if type(value) is not Ref:
        value = c.constant(fit(value, x.dtype), x.dtype)
    elif value.dtype != x.dtype:
        value = c.emit_inferred(OP["cast"], {"dtype": x.dtype}, (value.id,))
    return c.emit(OP["where"], None, (mask.id, value.id, x.id))
