"""Rows for mathematical functions, activations, gates and shifts."""

from __future__ import annotations

import math
from typing import Any

from tosaic.torch_operators.arguments import OP, axis_of, fit, ids, per_overload
from tosaic.torch_operators.call import Call, Emit, Rows, first_of
from tosaic.torch_operators.dtypes import CATEGORY, CODE, NARROW_FLOATS
from tosaic.torch_operators.elementwise import binary, unary, with_attributes
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on
_F32 = CODE["f32"]


# ---- functions of one tensor ----

_FUNCTIONS = {
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atanh": "arctanh",
    "cosh": "",
    "erfc": "special_erfc",
    "erfinv": "special_erfinv",
    "expm1": "special_expm1",
    "log10": "",
    "log1p": "special_log1p",
    "log2": "",
    "sinh": "",
    "tan": "",
    "isinf": "",
    "mish": "",
    "log_sigmoid": "",
}
for _op, _aliases in _FUNCTIONS.items():
    for _name in [_op, *_aliases.split()]:
        ROWS[_name] = unary(_op)


ROWS["gcd"] = binary("gcd")


@on("lcm")
def lcm(c: Call, x: Ref, other: Ref) -> Ref:
    """Divides by the greatest common divisor first; the multiple of 0 and 0 is 0."""
    divisor = c.emit_inferred(OP["gcd"], None, (x.id, other.id))
    divisor = c.emit_inferred(OP["maximum"], None, (divisor.id, c.constant(1, divisor.dtype).id))
    part = c.emit_inferred(OP["div"], {"rounding": "trunc"}, (x.id, divisor.id))
    return c.emit(OP["abs"], None, (c.emit_inferred(OP["mul"], None, (part.id, other.id)).id,))


@on("isfinite")
def isfinite(c: Call, x: Ref) -> Ref:
    """Becomes |x| < inf or, for integers, a comparison that is always true."""
    if CATEGORY[x.dtype] != 2:
        return c.emit(OP["eq"], None, (x.id, x.id))
    size = c.emit_inferred(OP["abs"], None, (x.id,))
    return c.emit(OP["lt"], None, (size.id, c.constant(math.inf, x.dtype).id))


ROWS["log_sigmoid_forward"] = first_of(unary("log_sigmoid"))
ROWS["logit"] = ROWS["special_logit"] = with_attributes("logit", eps="float | None")


@on("nan_to_num")
def nan_to_num(c: Call, x: Ref, nan: float | None, posinf: float | None, neginf: float | None) -> Ref:
    attrs = {"nan": 0.0 if nan is None else nan, "posinf": posinf, "neginf": neginf}
    return c.emit(OP["nan_to_num"], attrs, (x.id,))


# ---- activations ----


_elu = ROWS["elu"] = with_attributes("elu", alpha="float", scale="float", input_scale="float")


@on("celu")
def celu(c: Call, x: Ref, alpha: float) -> Any:
    return _elu(c, x, alpha, 1.0, 1.0 / alpha)


@on("selu")
def selu(c: Call, x: Ref) -> Any:
    """The constants come from self-normalizing networks (Klambauer et al., 2017)."""
    return _elu(c, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)


ROWS["softplus"] = with_attributes("softplus", beta="float", threshold="float")
ROWS["softshrink"] = with_attributes("softshrink", alpha="float")
ROWS["hardshrink"] = with_attributes("hardshrink", alpha="float")


@on("threshold")
def threshold(c: Call, x: Ref, bound: Any, value: Any) -> Ref:
    """Replaces elements of x that are not above the bound by the value; NaN passes through."""
    limit, other = (c.constant(fit(number, x.dtype), x.dtype) for number in (bound, value))
    below = c.emit_inferred(OP["le"], None, (x.id, limit.id))
    return c.emit(OP["where"], None, (below.id, other.id, x.id))


@on("rrelu")
def rrelu(c: Call, x: Ref, lower: float, upper: float, training: bool, _generator: Any) -> Ref | None:
    return None if training else c.emit(OP["leaky_relu"], {"alpha": (lower + upper) / 2}, (x.id,))


@on("prelu")
def prelu(c: Call, x: Ref, weight: Ref) -> Ref:
    return c.emit(OP["prelu"], None, (x.id, weight.id))


@on("_prelu_kernel")
def prelu_kernel(c: Call, x: Ref, weight: Ref) -> Ref | None:
    """The slopes already have the rank of x: extent 1 on every axis but axis 1."""
    if any(extent != 1 for axis, extent in enumerate(weight.shape) if axis != 1):
        return None
    flat = c.emit_inferred(OP["reshape"], {"shape": [math.prod(weight.shape)]}, (weight.id,))
    return prelu(c, x, flat)


@on("glu")
def glu(c: Call, x: Ref, dim: int) -> Ref:
    return c.emit(OP["glu"], {"axis": axis_of(dim, len(x.shape))}, (x.id,))


# ---- functions of several tensors ----

for _op, _keys in {
    "remainder": per_overload("remainder", "Tensor Scalar Scalar_Tensor"),
    "fmod": per_overload("fmod", "Tensor Scalar"),
    "atan2": ["atan2", "arctan2"],
    "hypot": ["hypot"],
}.items():
    for _name in _keys:
        ROWS[_name] = binary(_op)


def _shift(op: str) -> Emit:
    emit_integers = binary(op)

    def emit(c: Call, a: Any, b: Any) -> Ref | None:
        """Shifts integers; float shifts, which multiply by powers of two in torch, are not read."""
        floats = any(CATEGORY[v.dtype] == 2 if type(v) is Ref else isinstance(v, float) for v in (a, b))
        return None if floats else emit_integers(c, a, b)

    return emit


for _op, _dunder in {"left_shift": "__lshift__", "right_shift": "__rshift__"}.items():
    for _name in [
        *per_overload(f"bitwise_{_op}", "Tensor Tensor_Scalar Scalar_Tensor"),
        *per_overload(_dunder, "Tensor Scalar"),
    ]:
        ROWS[_name] = _shift(_op)


@on("lerp.Scalar", "lerp.Tensor")
def lerp(c: Call, x: Ref, end: Ref, weight: Any) -> Ref | None:
    """For narrow floats, a Python weight is an f32 constant. Integer tensors are cast to floats first."""
    if CATEGORY[c.dtype] != 2:
        return None
    x, end, weight = (
        c.emit_inferred(OP["cast"], {"dtype": c.dtype}, (t.id,))
        if type(t) is Ref and CATEGORY[t.dtype] != 2
        else t
        for t in (x, end, weight)
    )
    if type(weight) is Ref:
        x, end, weight = c.alike(x, end, weight)
    else:
        weight = c.constant(float(weight), _F32 if x.dtype in NARROW_FLOATS else x.dtype)
    return c.emit(OP["lerp"], None, (x.id, end.id, weight.id))


def _addc(op: str) -> Emit:
    def emit(c: Call, x: Ref, a: Ref, b: Ref, value: Any) -> Ref:
        return c.emit(OP[op], {"value": value}, ids(*c.alike(x, a, b)))

    return emit


ROWS["addcmul"] = _addc("addcmul")
ROWS["addcdiv"] = _addc("addcdiv")


@on("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(c: Call, x: Any, tests: Any, _assume_unique: bool, invert: bool) -> Ref:
    """Compares each element with each test, both flattened, so that the new axis exceeds no maximal rank."""
    x, tests = (t if type(t) is Ref else c.number(t, other) for t, other in ((x, tests), (tests, x)))
    x, tests = c.alike(x, tests)
    shapes = [math.prod(x.shape), 1], [1, math.prod(tests.shape)]
    column, row = (
        c.emit_inferred(OP["reshape"], {"shape": shape}, (t.id,))
        for t, shape in zip((x, tests), shapes, strict=True)
    )
    equal = c.emit_inferred(OP["eq"], None, (column.id, row.id))
    found = c.emit_inferred(OP["any"], {"axes": [1], "keepdim": False}, (equal.id,))
    if invert:
        found = c.emit_inferred(OP["logical_not"], None, (found.id,))
    return c.emit(OP["reshape"], {"shape": c.shape}, (found.id,))
