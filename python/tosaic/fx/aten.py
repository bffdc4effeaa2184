"""The table of torch operators: how each call becomes one canonical node.

A row is a function of the importer and of the call's arguments: in the order of the schema, with defaults
filled in and tensors as `Ref`. It returns the result (`Ref`, or a list with one entry per result). It returns
None if it cannot read the call; the call then becomes an opaque node. Shapes and dtypes come from what torch
recorded (``c.shape``, ``c.dtype``, ``c.types``); the builder checks them against the core's own inference.

Keys of the table are schema names: ``conv2d``, ``add.Tensor``. ``X_copy`` and the in-place ``X_`` use the row
of ``X``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tosaic import _core
from tosaic.fx.call import Call, Emit, Rows
from tosaic.fx.lying import order_of_format
from tosaic.fx.value import Ref
from tosaic.fx.weights import CATEGORY, CODE_OF, TORCH_OF

__all__ = ["DROPPED", "EVALUATED", "ROWS", "WHOLE", "is_identity_in_place"]

ROWS = Rows()
on = ROWS.on

OP = {row.name: row.id for row in _core.ops()}
_BOOL = CODE_OF[torch.bool]
_I64 = CODE_OF[torch.int64]
_F32 = CODE_OF[torch.float32]
_NARROW = (CODE_OF[torch.float16], CODE_OF[torch.bfloat16])
_DEFAULT_OF_CATEGORY = (_BOOL, _I64, _F32)

# Calls without a value. torch.export checked their conditions, which hold for the bound sizes.
DROPPED = frozenset(
    [
        "_assert_tensor_metadata",
        "_assert_scalar",
        "_assert_async",
        "_assert_async.msg",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
        "_functional_assert_scalar",
        "_functional_assert_async.msg",
        "_functional_sym_constrain_range",
        "_functional_sym_constrain_range_for_size",
        "_print",
    ]
)
# Calls whose value is a number that follows from shapes.
EVALUATED = frozenset(
    {"sym_size.int", "sym_numel", "sym_stride.int", "sym_storage_offset", "sym_size", "sym_stride"}
)


def per_overload(names: str, overloads: str) -> list[str]:
    """Every name with every overload; the overload ``default`` is the name alone."""
    return [name if o == "default" else f"{name}.{o}" for name in names.split() for o in overloads.split()]


def axis_of(axis: int, rank: int) -> int:
    """The axis in [0, rank). As in torch, a tensor of rank 0 is treated as rank 1."""
    return axis % max(rank, 1)


def axes_of(dim: Any, rank: int) -> list[int]:
    """The sorted axes of a reduction; None or an empty list means all axes."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(rank))
    listed = [dim] if isinstance(dim, int) else dim
    return sorted(axis_of(axis, rank) for axis in listed) if rank else []


def spread(values: Any, count: int) -> list[int]:
    """One number per spatial axis; a single number is repeated."""
    listed = [values] if isinstance(values, int) else list(values)
    return listed * count if len(listed) == 1 else listed


# ---- contraction ----


def _conv(
    c: Call, x: Ref, w: Ref, bias: Ref | None, before: list[int], after: list[int], **attrs: Any
) -> Ref:
    attrs |= {"pad_before": before, "pad_after": after}
    return c.emit(OP["conv"], attrs, (x.id, w.id, -1 if bias is None else bias.id))


@on("conv1d", "conv2d", "conv3d")
def conv(
    c: Call, x: Ref, w: Ref, bias: Ref | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Ref:
    n = len(w.shape) - 2
    pad = spread(padding, n)
    return _conv(
        c,
        x,
        w,
        bias,
        pad,
        pad,
        stride=spread(stride, n),
        dilation=spread(dilation, n),
        output_padding=[0] * n,
        groups=groups,
    )


@on("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_named_padding(
    c: Call, x: Ref, w: Ref, bias: Ref | None, stride: Any, padding: str, dilation: Any, groups: int
) -> Ref:
    n = len(w.shape) - 2
    dilations = spread(dilation, n)
    same = padding == "same"
    total = [d * (k - 1) if same else 0 for d, k in zip(dilations, w.shape[2:], strict=True)]
    before = [t // 2 for t in total]
    after = [t - b for t, b in zip(total, before, strict=True)]
    return _conv(
        c,
        x,
        w,
        bias,
        before,
        after,
        stride=spread(stride, n),
        dilation=dilations,
        output_padding=[0] * n,
        groups=groups,
    )


@on("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    c: Call,
    x: Ref,
    w: Ref,
    bias: Ref | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Ref:
    return convolution(c, x, w, bias, stride, padding, dilation, True, output_padding, groups)


@on("convolution", "_convolution")
def convolution(
    c: Call,
    x: Ref,
    w: Ref,
    bias: Ref | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Ref:
    n = len(w.shape) - 2
    pad = spread(padding, n)
    return _conv(
        c,
        x,
        w,
        bias,
        pad,
        pad,
        stride=spread(stride, n),
        dilation=spread(dilation, n),
        output_padding=spread(output_padding, n) if transposed else [0] * n,
        groups=groups,
        transposed=transposed,
    )


@on("linear")
def linear(c: Call, x: Ref, w: Ref, bias: Ref | None) -> Ref | None:
    """A weight of rank 1 makes the call a product with a vector."""
    if len(w.shape) == 1:
        return matmul(c, x, w) if bias is None else None
    return c.emit(OP["linear"], None, (x.id, w.id, -1 if bias is None else bias.id))


@on("matmul", "mm", "bmm", "mv", "dot", "linalg_matmul")
def matmul(c: Call, a: Ref, b: Ref) -> Ref:
    return c.emit(OP["matmul"], None, (a.id, b.id))


def _addmm(op: str) -> Emit:
    def emit(c: Call, x: Ref, a: Ref, b: Ref, beta: Any, alpha: Any) -> Ref:
        if op == "addmm" and alpha == 0:  # then torch does not read the matrices
            scaled = x if beta == 1 else c.emit_inferred(OP["mul"], None, (x.id, c.number(beta, x).id))
            return c.emit(OP["expand"], {"shape": [a.shape[0], b.shape[1]]}, (scaled.id,))
        return c.emit(OP[op], {"beta": beta, "alpha": alpha}, (x.id, a.id, b.id))

    return emit


ROWS["addmm"] = _addmm("addmm")
ROWS["baddbmm"] = _addmm("baddbmm")


def _attention(
    c: Call,
    q: Ref,
    k: Ref,
    v: Ref,
    mask: Ref | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> Ref | None:
    if dropout:
        return None
    attrs = {"scale": scale, "is_causal": causal, "enable_gqa": gqa}
    return c.emit(OP["sdpa"], attrs, (q.id, k.id, v.id, -1 if mask is None else mask.id))


@on("scaled_dot_product_attention")
def sdpa(
    c: Call,
    q: Ref,
    k: Ref,
    v: Ref,
    mask: Ref | None,
    p: float,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> Ref | None:
    return _attention(c, q, k, v, mask, p, causal, scale, gqa)


@on("_scaled_dot_product_flash_attention_for_cpu")
def sdpa_cpu(
    c: Call, q: Ref, k: Ref, v: Ref, p: float, causal: bool, mask: Ref | None, scale: float | None
) -> list[Ref] | None:
    return c.first(_attention(c, q, k, v, mask, p, causal, scale, False)) if c.only_first() else None


@on("_scaled_dot_product_flash_attention")
def sdpa_flash(
    c: Call, q: Ref, k: Ref, v: Ref, p: float, causal: bool, _debug: bool, scale: float | None
) -> list[Ref] | None:
    return c.first(_attention(c, q, k, v, None, p, causal, scale, False)) if c.only_first() else None


@on("_scaled_dot_product_efficient_attention")
def sdpa_efficient(
    c: Call,
    q: Ref,
    k: Ref,
    v: Ref,
    mask: Ref | None,
    _lse: bool,
    p: float,
    causal: bool,
    scale: float | None,
) -> list[Ref] | None:
    return c.first(_attention(c, q, k, v, mask, p, causal, scale, False)) if c.only_first() else None


@on("_scaled_dot_product_attention_math")
def sdpa_math(
    c: Call,
    q: Ref,
    k: Ref,
    v: Ref,
    mask: Ref | None,
    p: float,
    causal: bool,
    dropout_mask: Ref | None,
    scale: float | None,
    gqa: bool,
) -> list[Ref] | None:
    if not c.only_first() or dropout_mask is not None:
        return None
    return c.first(_attention(c, q, k, v, mask, p, causal, scale, gqa))


# ---- elementwise, unary ----


def _unary(op: str) -> Emit:
    op_id = OP[op]

    def emit(c: Call, x: Ref) -> Ref:
        return c.emit(op_id, None, (x.id,))

    return emit


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
    ROWS[_op] = _unary(_op)
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
    return clamp(c, x, _fit(low, x.dtype), _fit(high, x.dtype))


def _wrapped(value: Any, x: Ref, result: int) -> Any:
    """A bound as torch converts it: a negative bound of an unsigned dtype wraps around."""
    dtype = TORCH_OF[x.dtype]
    unsigned = CATEGORY[x.dtype] == 1 and x.dtype == result and not dtype.is_signed
    return int(value) % (1 << 8 * dtype.itemsize) if unsigned and value is not None else value


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
    """Two nodes if both bounds are given: no canonical operator has three tensors."""

    def read(ref: Ref) -> Ref:  # all operands are converted to their common dtype
        return ref if ref.dtype == c.dtype else c.emit_inferred(OP["cast"], {"dtype": c.dtype}, (ref.id,))

    if high is None:
        assert low is not None
        return c.emit(OP["maximum"], None, (read(x).id, read(low).id))
    bounded = read(x) if low is None else c.emit_inferred(OP["maximum"], None, (read(x).id, read(low).id))
    return c.emit(OP["minimum"], None, (bounded.id, read(high).id))


@on("clamp_min.Tensor")
def clamp_min_tensor(c: Call, x: Ref, low: Ref) -> Ref:
    return c.emit(OP["maximum"], None, ids(*c.alike(x, low)))


@on("clamp_max.Tensor")
def clamp_max_tensor(c: Call, x: Ref, high: Ref) -> Ref:
    return c.emit(OP["minimum"], None, ids(*c.alike(x, high)))


@on("leaky_relu")
def leaky_relu(c: Call, x: Ref, slope: float) -> Ref:
    return c.emit(OP["leaky_relu"], {"alpha": slope}, (x.id,))


@on("gelu")
def gelu(c: Call, x: Ref, approximate: str) -> Ref:
    return c.emit(OP["gelu"], {"tanh": approximate == "tanh"}, (x.id,))


# ---- identity and casts ----


def identity_or_cast(c: Call, x: Ref, order: Sequence[int] | None) -> Ref:
    """A cast if torch recorded another dtype; a clone if it did not, or if an order is requested."""
    if c.dtype == x.dtype:
        return c.emit(OP["clone"], None if order is None else {"order": order}, (x.id,))
    cast = {"dtype": c.dtype}
    if order is None or order == tuple(range(len(x.shape))):
        return c.emit(OP["cast"], cast, (x.id,))
    return c.emit(OP["clone"], {"order": order}, (c.emit_inferred(OP["cast"], cast, (x.id,)).id,))


@on(
    *[
        "alias",
        "detach",
        "lift",
        "lift_fresh",
        "lift_fresh_copy",
        "positive",
        "resolve_conj",
        "resolve_neg",
        "conj",
        "real",
        "data",
        "pin_memory",
    ]
)
def identity(c: Call, x: Ref, *_: Any) -> Ref:
    return c.same(x, c.emit(OP["clone"], None, (x.id,)))


@on("contiguous")
def contiguous(c: Call, x: Ref, memory_format: Any) -> Ref:
    plain = memory_format is torch.contiguous_format
    return identity_or_cast(c, x, None if plain else order_of_format(memory_format, len(x.shape)))


@on("clone")
def clone(c: Call, x: Ref, memory_format: Any) -> Ref:
    return identity_or_cast(c, x, order_of_format(memory_format, len(x.shape)))


@on(
    *per_overload("to", "dtype dtype_layout device other prim_Device prim_dtype prim_other"),
    "_to_copy",
    "_autocast_to_reduced_precision",
    "_autocast_to_full_precision",
)
def to(c: Call, x: Ref, *options: Any) -> Ref:
    memory_format = next((option for option in options if isinstance(option, torch.memory_format)), None)
    return identity_or_cast(c, x, order_of_format(memory_format, len(x.shape)))


@on("type_as")
def type_as(c: Call, x: Ref, _other: Ref) -> Ref:
    return identity_or_cast(c, x, None)


@on("dim_order_ops::_to_dim_order_copy", "dim_order_ops::_clone_dim_order")
def to_dim_order(c: Call, x: Ref, *options: Any) -> Ref:
    """ExecuTorch's edge dialect: the last argument is the dim order, a list or None."""
    order = options[-1]
    return identity_or_cast(c, x, None if order is None else tuple(order))


@on("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(c: Call, x: Ref, p: float, train: bool) -> Ref | None:
    return c.emit(OP["clone"], None, (x.id,)) if not train or p == 0 else None


@on("native_dropout")
def native_dropout(c: Call, x: Ref, p: float, train: bool | None) -> list[Ref] | None:
    if not c.only_first() or (train is not False and p != 0):
        return None
    return c.first(c.emit(OP["clone"], None, (x.id,)))


def is_identity_in_place(name: str, args: Sequence[Any]) -> bool:
    """True for in-place calls that write nothing: ``detach_``, and ``dropout_`` in eval mode."""
    if name in ("detach_", "requires_grad_"):
        return True
    return ROWS.get(name.removesuffix("_")) is dropout and len(args) > 2 and (not args[2] or args[1] == 0)


# ---- elementwise, binary and ternary ----


def _binary(op: str) -> Emit:
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

    return emit


def _with_alpha(op: str) -> Emit:
    op_id = OP[op]

    def emit(c: Call, a: Any, b: Any, alpha: Any) -> Ref:
        if type(b) is not Ref:
            b = c.number(b, a)
        elif type(a) is not Ref:
            a = c.number(a, b)
        return c.emit(op_id, None if alpha == 1 else {"alpha": alpha}, ids(*c.alike(a, b)))

    return emit


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
            ROWS[_key] = _binary(_op)
for _key in per_overload("add", "Tensor Scalar"):
    ROWS[_key] = _with_alpha("add")
for _key in per_overload("sub subtract", "Tensor Scalar"):
    ROWS[_key] = _with_alpha("sub")
for _key in per_overload("pow", "Tensor_Tensor Scalar"):
    ROWS[_key] = _binary("pow")


@on("pow.Tensor_Scalar")
def pow_of_number(c: Call, x: Ref, exponent: Any) -> Any:
    """Torch computes roots for exponents of +-0.5; it raises float32 to a fractional exponent in float64."""
    root = {0.5: "sqrt", -0.5: "rsqrt"}.get(exponent) if CATEGORY[x.dtype] == 2 else None
    if root is not None:
        return c.emit(OP[root], None, (x.id,))
    if x.dtype == _F32 and x.shape and isinstance(exponent, float):
        return c.emit(OP["pow"], None, (x.id, c.constant(exponent, CODE_OF[torch.float64]).id))
    return _binary("pow")(c, x, exponent)


@on("rsub.Tensor", "rsub.Scalar")
def rsub(c: Call, x: Ref, other: Any, alpha: Any) -> Ref:
    if type(other) is not Ref:
        other = c.number(other, x)
    return c.emit(OP["sub"], {"alpha": alpha}, ids(*c.alike(other, x)))


@on(
    *per_overload("div divide", "Tensor Scalar Tensor_mode Scalar_mode"),
    *per_overload("true_divide", "Tensor Scalar"),
)
def div(c: Call, a: Any, b: Any, rounding: str | None = None) -> Ref:
    if type(b) is not Ref:  # with integers, a number has the quotient's dtype: u8 has no -1
        b = c.constant(float(b), c.dtype) if CATEGORY[a.dtype] < CATEGORY[c.dtype] else c.factor(b, a)
    elif type(a) is not Ref:
        a = c.number(a, b)
    attrs = None if rounding is None else {"rounding": rounding}
    return _rounded_to(c, OP["div"], attrs, c.promoted(a, b), c.promoted_factor(b, a))


def _rounded_to(c: Call, op: int, attrs: dict[str, Any] | None, a: Ref, b: Ref) -> Ref:
    """Casts the result if both operands have rank 0 and promote to a wider dtype than torch's result has."""
    if a.shape or b.shape or b.dtype != _F32 or c.dtype not in _NARROW:
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
def masked_fill(c: Call, x: Ref, mask: Ref, value: Any) -> Ref:
    """The value is converted to the dtype of `x`."""
    if type(value) is not Ref:
        value = c.constant(_fit(value, x.dtype), x.dtype)
    elif value.dtype != x.dtype:
        value = c.emit_inferred(OP["cast"], {"dtype": x.dtype}, (value.id,))
    return c.emit(OP["where"], None, (mask.id, value.id, x.id))


def _fit(value: Any, dtype: int) -> Any:
    """A Python number as torch converts it to a dtype of a lower category."""
    category = CATEGORY[dtype]
    return bool(value) if category == 0 else int(value) if category == 1 else float(value)


# ---- reduction ----


def _reduction(op: str, c: Call, x: Ref, dim: Any, keepdim: bool, dtype: Any = None) -> Ref:
    attrs = {"axes": axes_of(dim, len(x.shape)), "keepdim": keepdim}
    if dtype is not None:
        attrs["dtype"] = c.dtype
    return c.emit(OP[op], attrs, (x.id,))


def _typed_reduction(op: str) -> tuple[Emit, Emit]:
    def over_all(c: Call, x: Ref, dtype: Any) -> Ref:
        return _reduction(op, c, x, None, False, dtype)

    def over_axes(c: Call, x: Ref, dim: Any, keepdim: bool, dtype: Any) -> Ref:
        return _reduction(op, c, x, dim, keepdim, dtype)

    return over_all, over_axes


def _plain_reduction(op: str) -> tuple[Emit, Emit]:
    def over_all(c: Call, x: Ref) -> Ref:
        return _reduction(op, c, x, None, False)

    def over_axes(c: Call, x: Ref, dim: Any, keepdim: bool) -> Ref:
        return _reduction(op, c, x, dim, keepdim)

    return over_all, over_axes


ROWS["sum"], ROWS["sum.dim_IntList"] = _typed_reduction("sum")
ROWS["mean"], ROWS["mean.dim"] = _typed_reduction("mean")
ROWS["prod"], ROWS["prod.dim_int"] = _typed_reduction("prod")
ROWS["any"], ROWS["any.dim"] = _plain_reduction("any")
ROWS["all"], ROWS["all.dim"] = _plain_reduction("all")
ROWS["max"], ROWS["amax"] = _plain_reduction("amax")
ROWS["min"], ROWS["amin"] = _plain_reduction("amin")


def _logical_over_axes(op: str) -> Emit:
    def emit(c: Call, x: Ref, dim: Any, keepdim: bool) -> Ref:
        """An empty `dim` means no axis here (elsewhere: all): the result is the truth of each element."""
        if dim is None or dim:
            return _reduction(op, c, x, dim, keepdim)
        zero = c.constant(_fit(0, x.dtype), x.dtype)
        truth = c.emit_inferred(OP["ne"], None, (x.id, zero.id))
        return c.emit(OP["cast"], {"dtype": c.dtype}, (truth.id,))

    return emit


ROWS["any.dims"], ROWS["all.dims"] = _logical_over_axes("any"), _logical_over_axes("all")


def _extremum(value_op: str, index_op: str) -> Emit:
    def emit(c: Call, x: Ref, dim: int, keepdim: bool) -> list[Ref | None]:
        """max.dim and min.dim: one node for each result that is used."""
        used = c.used_results()
        values = indices = None
        if 0 in used or not used:
            attrs: dict[str, Any] = {"axes": axes_of(dim, len(x.shape)), "keepdim": keepdim}
            values = c.emit_result(0, OP[value_op], attrs, (x.id,))
        if 1 in used:
            attrs = {"axis": axis_of(dim, len(x.shape)), "keepdim": keepdim}
            indices = c.emit_result(1, OP[index_op], attrs, (x.id,))
        return [values, indices]

    return emit


ROWS["max.dim"] = _extremum("amax", "argmax")
ROWS["min.dim"] = _extremum("amin", "argmin")


def _spread_attrs(x: Ref, dim: Any, correction: Any, keepdim: bool) -> dict[str, Any]:
    number = 1 if correction is None else correction
    return {"axes": axes_of(dim, len(x.shape)), "keepdim": keepdim, "correction": number}


def _spread_rows(op: str) -> None:
    """Registers the overloads of ``var`` or ``std``, without and with the mean."""
    op_id = OP[op]

    @on(f"{op}.correction")
    def spread(c: Call, x: Ref, dim: Any, correction: Any, keepdim: bool) -> Ref:
        return c.emit(op_id, _spread_attrs(x, dim, correction, keepdim), (x.id,))

    @on(op)
    def of_all(c: Call, x: Ref, unbiased: bool) -> Ref:
        return spread(c, x, None, int(unbiased), False)

    @on(f"{op}.dim")
    def of_axes(c: Call, x: Ref, dim: Any, unbiased: bool, keepdim: bool) -> Ref:
        return spread(c, x, dim, int(unbiased), keepdim)

    @on(f"{op}_mean.correction")
    def with_mean(c: Call, x: Ref, dim: Any, correction: Any, keepdim: bool) -> list[Ref | None]:
        used = c.used_results()
        first = mean = None
        if 0 in used or not used:
            first = c.emit_result(0, op_id, _spread_attrs(x, dim, correction, keepdim), (x.id,))
        if 1 in used:
            attrs = {"axes": axes_of(dim, len(x.shape)), "keepdim": keepdim}
            mean = c.emit_result(1, OP["mean"], attrs, (x.id,))
        return [first, mean]

    @on(f"{op}_mean")
    def of_all_with_mean(c: Call, x: Ref, unbiased: bool) -> list[Ref | None]:
        return with_mean(c, x, None, int(unbiased), False)

    @on(f"{op}_mean.dim")
    def of_axes_with_mean(c: Call, x: Ref, dim: Any, unbiased: bool, keepdim: bool) -> list[Ref | None]:
        return with_mean(c, x, dim, int(unbiased), keepdim)


_spread_rows("var")
_spread_rows("std")


def _arg_extremum(op: str) -> Emit:
    def emit(c: Call, x: Ref, dim: int | None, keepdim: bool) -> Ref:
        axis = None if dim is None else axis_of(dim, len(x.shape))
        return c.emit(OP[op], {"axis": axis, "keepdim": keepdim}, (x.id,))

    return emit


ROWS["argmax"] = _arg_extremum("argmax")
ROWS["argmin"] = _arg_extremum("argmin")


@on("diff")
def diff(c: Call, x: Ref, n: int, dim: int, prepend: Ref | None, append: Ref | None) -> Ref:
    attrs = {"n": n, "axis": axis_of(dim, len(x.shape))}
    return c.emit(
        OP["diff"], attrs, (x.id, -1 if prepend is None else prepend.id, -1 if append is None else append.id)
    )


# ---- normalisation and softmax ----


def _over_axis(c: Call, op: str, x: Ref, dim: int, dtype: int | None) -> Ref:
    """A tensor of rank 0 is treated as rank 1."""
    attrs = {"axis": axis_of(dim, len(x.shape)), "dtype": dtype}
    if x.shape:
        return c.emit(OP[op], attrs, (x.id,))
    vector = c.emit_inferred(OP["reshape"], {"shape": [1]}, (x.id,))
    result = c.emit_inferred(OP[op], attrs, (vector.id,))
    return c.emit(OP["reshape"], {"shape": []}, (result.id,))


def _along_axis(op: str) -> Emit:
    def emit(c: Call, x: Ref, dim: int, dtype: Any) -> Ref:
        return _over_axis(c, op, x, dim, None if dtype is None else c.dtype)

    return emit


def _half_to_float(op: str) -> Emit:
    def emit(c: Call, x: Ref, dim: int, half_to_float: bool) -> Ref:
        return _over_axis(c, op, x, dim, c.dtype if half_to_float else None)

    return emit


ROWS["cumsum"] = _along_axis("cumsum")
ROWS["softmax.int"] = ROWS["special_softmax"] = _along_axis("softmax")
ROWS["log_softmax.int"] = ROWS["special_log_softmax"] = _along_axis("log_softmax")
ROWS["_safe_softmax"] = _along_axis("safe_softmax")
ROWS["_softmax"] = _half_to_float("softmax")
ROWS["_log_softmax"] = _half_to_float("log_softmax")


def ids(*operands: Ref | None) -> tuple[int, ...]:
    """Operand ids for the core; -1 for an absent operand."""
    return tuple(-1 if operand is None else operand.id for operand in operands)


@on("batch_norm")
def batch_norm(
    c: Call,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mean: Ref | None,
    variance: Ref | None,
    training: bool,
    _momentum: float,
    eps: float,
    *_: Any,
) -> Ref | None:
    if training or mean is None or variance is None:
        if training and mean is not None:
            c.note(
                "unseen-update",
                "batch_norm in training mode updates its running statistics, which is not represented",
            )
        return None
    return c.emit(OP["batch_norm"], {"eps": eps}, ids(x, weight, bias, mean, variance))


@on("_native_batch_norm_legit_no_training", "_batch_norm_no_update")
def batch_norm_no_training(
    c: Call,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mean: Ref,
    variance: Ref,
    _momentum: float,
    eps: float,
) -> list[Ref] | None:
    if not c.only_first():
        return None
    return c.first(c.emit(OP["batch_norm"], {"eps": eps}, ids(x, weight, bias, mean, variance)))


@on("native_batch_norm")
def native_batch_norm(
    c: Call,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mean: Ref | None,
    variance: Ref | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Ref] | None:
    if not c.only_first():
        return None
    return c.first(batch_norm(c, x, weight, bias, mean, variance, training, momentum, eps))


def _norm(c: Call, op: str, x: Ref, shape: Sequence[int], eps: float | None, *params: Ref | None) -> Ref:
    return c.emit(OP[op], {"normalized_rank": len(shape), "eps": eps}, ids(x, *params))


@on("layer_norm")
def layer_norm(
    c: Call, x: Ref, shape: Sequence[int], w: Ref | None, b: Ref | None, eps: float, _: bool
) -> Ref:
    return _norm(c, "layer_norm", x, shape, eps, w, b)


@on("native_layer_norm")
def native_layer_norm(
    c: Call, x: Ref, shape: Sequence[int], w: Ref | None, b: Ref | None, eps: float
) -> list[Ref] | None:
    return c.first(_norm(c, "layer_norm", x, shape, eps, w, b)) if c.only_first() else None


@on("rms_norm")
def rms_norm(c: Call, x: Ref, shape: Sequence[int], w: Ref | None, eps: float | None) -> Ref:
    return _norm(c, "rms_norm", x, shape, eps, w)


@on("_fused_rms_norm")
def fused_rms_norm(
    c: Call, x: Ref, shape: Sequence[int], w: Ref | None, eps: float | None
) -> list[Ref] | None:
    return c.first(_norm(c, "rms_norm", x, shape, eps, w)) if c.only_first() else None


@on("group_norm")
def group_norm(c: Call, x: Ref, groups: int, w: Ref | None, b: Ref | None, eps: float, *_: Any) -> Ref:
    return c.emit(OP["group_norm"], {"groups": groups, "eps": eps}, ids(x, w, b))


@on("native_group_norm")
def native_group_norm(
    c: Call, x: Ref, w: Ref | None, b: Ref | None, _n: int, _c: int, _hw: int, groups: int, eps: float
) -> list[Ref] | None:
    return c.first(group_norm(c, x, groups, w, b, eps)) if c.only_first() else None


# ---- pooling and resampling ----


def _avg_pool(n: int) -> Emit:
    def emit(
        c: Call,
        x: Ref,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil: bool,
        count_pad: bool,
        divisor: Any = None,
    ) -> Ref:
        kernels = spread(kernel, n)
        attrs = {
            "kernel": kernels,
            "stride": spread(stride, n) if stride else kernels,
            "padding": spread(padding, n),
            "dilation": [1] * n,
            "ceil_mode": ceil,
            "count_include_pad": count_pad,
            "divisor_override": divisor,
        }
        return c.emit(OP["avg_pool"], attrs, (x.id,))

    return emit


def _max_pool(n: int, with_indices: bool) -> Emit:
    def emit(c: Call, x: Ref, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
        if with_indices and not c.only_first():
            return None
        kernels = spread(kernel, n)
        attrs = {
            "kernel": kernels,
            "stride": spread(stride, n) if stride else kernels,
            "padding": spread(padding, n),
            "dilation": spread(dilation, n),
            "ceil_mode": ceil,
        }
        result = c.emit(OP["max_pool"], attrs, (x.id,))
        return c.first(result) if with_indices else result

    return emit


for _n in (1, 2, 3):
    ROWS[f"avg_pool{_n}d"] = _avg_pool(_n)
    ROWS[f"max_pool{_n}d"] = _max_pool(_n, False)


def _adaptive_avg_pool(n: int) -> Emit:
    def emit(c: Call, x: Ref, _size: Any) -> Ref:
        return c.emit(OP["adaptive_avg_pool"], {"shape": c.shape[-n:]}, (x.id,))

    return emit


for _n in (1, 2, 3):
    ROWS[f"adaptive_avg_pool{_n}d"] = ROWS[f"_adaptive_avg_pool{_n}d"] = _adaptive_avg_pool(_n)


def resize(c: Call, x: Ref, mode: str, corners: bool, scales: Sequence[Any]) -> Ref:
    """`scales` are used only if every spatial axis has one."""
    given = [scale for scale in scales if scale is not None]
    attrs = {
        "mode": mode,
        "size": c.shape[2:],
        "align_corners": corners,
        "scales": given if len(given) == len(c.shape) - 2 else [],
    }
    return c.emit(OP["resize"], attrs, (x.id,))


def nearest(c: Call, x: Ref, _size: Any, *scales: Any) -> Ref:
    return resize(c, x, "nearest", False, scales)


def nearest_vec(c: Call, x: Ref, _size: Any, factors: Any) -> Ref:
    return resize(c, x, "nearest", False, factors or ())


def linear_resize(c: Call, x: Ref, _size: Any, corners: bool, *scales: Any) -> Ref:
    return resize(c, x, "bilinear", corners, scales)


def linear_resize_vec(c: Call, x: Ref, _size: Any, corners: bool, factors: Any) -> Ref:
    return resize(c, x, "bilinear", corners, factors or ())


for _n in (1, 2, 3):
    ROWS[f"upsample_nearest{_n}d"] = nearest
    ROWS[f"upsample_nearest{_n}d.vec"] = nearest_vec
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    ROWS[_name] = linear_resize
    ROWS[f"{_name}.vec"] = linear_resize_vec


# ---- shape and data movement ----


@on(
    *[
        "view",
        "reshape",
        "_unsafe_view",
        "flatten.using_ints",
        "unflatten.int",
        "squeeze",
        "squeeze.dim",
        "squeeze.dims",
        "unsqueeze",
    ],
    *["view_as", "reshape_as", "_reshape_alias", "_reshape_copy", "ravel"],
)
def reshape(c: Call, x: Ref, *_: Any) -> Ref:
    return c.emit(OP["reshape"], {"shape": c.shape}, (x.id,))


@on("view.dtype")
def view_dtype(c: Call, x: Ref, _dtype: Any) -> Ref | None:
    return c.emit(OP["clone"], None, (x.id,)) if x.dtype == c.dtype else None


@on("expand", "expand_as", "broadcast_to")
def expand(c: Call, x: Ref, *_: Any) -> Ref:
    return c.emit(OP["expand"], {"shape": c.shape}, (x.id,))


def _permuted(c: Call, x: Ref, perm: Sequence[int]) -> Ref:
    return c.emit(OP["permute"], {"perm": perm}, (x.id,))


@on("permute")
def permute(c: Call, x: Ref, dims: Sequence[int]) -> Ref:
    rank = len(x.shape)
    return _permuted(c, x, [axis % rank for axis in dims])


@on("transpose.int", "swapaxes", "swapdims")
def transpose(c: Call, x: Ref, a: int, b: int) -> Ref:
    rank = len(x.shape)
    perm = list(range(rank))
    if rank:
        perm[a], perm[b] = perm[b], perm[a]
    return _permuted(c, x, perm)


@on("t", "numpy_T")
def reversed_axes(c: Call, x: Ref) -> Ref:
    return _permuted(c, x, list(reversed(range(len(x.shape)))))


@on("mT", "mH", "adjoint", "matrix_H")
def matrix_transpose(c: Call, x: Ref) -> Ref:
    return transpose(c, x, -1, -2)


@on(*per_overload("movedim moveaxis", "int intlist"))
def movedim(c: Call, x: Ref, source: Any, destination: Any) -> Ref:
    rank = len(x.shape)
    moved = [axis_of(a, rank) for a in ([source] if isinstance(source, int) else source)]
    places = [axis_of(a, rank) for a in ([destination] if isinstance(destination, int) else destination)]
    at = dict(zip(places, moved, strict=True))
    rest = iter(axis for axis in range(rank) if axis not in moved)
    return _permuted(c, x, [at[place] if place in at else next(rest) for place in range(rank)])


@on("repeat")
def repeat(c: Call, x: Ref, repeats: Sequence[int]) -> Ref:
    return c.emit(OP["repeat"], {"shape": repeats}, (x.id,))


@on("tile")
def tile(c: Call, x: Ref, dims: Sequence[int]) -> Ref:
    return repeat(c, x, [1] * (len(x.shape) - len(dims)) + list(dims))


@on(
    *per_overload("split unsafe_split", "Tensor sizes"),
    *per_overload("split_with_sizes unsafe_split_with_sizes chunk unsafe_chunk", "default"),
    *per_overload("tensor_split", "sections indices"),
)
def split(c: Call, x: Ref, _sizes: Any, dim: int) -> list[Ref]:
    axis = axis_of(dim, len(x.shape))
    return c.emit_all(OP["split"], {"axis": axis, "sizes": [shape[axis] for _, shape in c.types]}, (x.id,))


@on("unbind.int")
def unbind(c: Call, x: Ref, dim: int) -> list[Ref]:
    return c.emit_all(OP["unbind"], {"axis": axis_of(dim, len(x.shape))}, (x.id,))


@on("select.int")
def select(c: Call, x: Ref, dim: int, index: int) -> Ref:
    axis = axis_of(dim, len(x.shape))
    return c.emit(
        OP["select"], {"axis": axis, "index": index % x.shape[axis] if index < 0 else index}, (x.id,)
    )


@on("slice.Tensor")
def slice_(c: Call, x: Ref, dim: int, start: int | None, end: int | None, step: int) -> Ref:
    axis = axis_of(dim, len(x.shape))
    first, last, _ = slice(start, end).indices(x.shape[axis])
    return c.emit(OP["slice"], {"axis": axis, "start": first, "end": max(first, last), "step": step}, (x.id,))


@on("narrow")
def narrow(c: Call, x: Ref, dim: int, start: int, length: int) -> Ref:
    axis = axis_of(dim, len(x.shape))
    first = start + x.shape[axis] if start < 0 else start
    return c.emit(OP["slice"], {"axis": axis, "start": first, "end": first + length, "step": 1}, (x.id,))


@on("flip")
def flip(c: Call, x: Ref, dims: Sequence[int]) -> Ref:
    if not x.shape:
        return c.emit(OP["clone"], None, (x.id,))
    return c.emit(OP["flip"], {"axes": sorted(axis_of(axis, len(x.shape)) for axis in dims)}, (x.id,))


@on("fliplr")
def fliplr(c: Call, x: Ref) -> Ref:
    return flip(c, x, [1])


@on("flipud")
def flipud(c: Call, x: Ref) -> Ref:
    return flip(c, x, [0])


def _pad(c: Call, x: Ref, padding: Sequence[int], mode: str, value: Any = None) -> Ref:
    """Torch lists (before, after) from the last axis backwards. Other modes than constant crop first."""
    rank = len(x.shape)
    before, after = [0] * rank, [0] * rank
    for i in range(len(padding) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = padding[2 * i], padding[2 * i + 1]
    for axis in range(rank) if mode != "constant" else ():
        first, last = max(0, -before[axis]), x.shape[axis] - max(0, -after[axis])
        if (first, last) != (0, x.shape[axis]):
            cut = {"axis": axis, "start": first, "end": last, "step": 1}
            x = c.emit_inferred(OP["slice"], cut, (x.id,))
        before[axis], after[axis] = max(0, before[axis]), max(0, after[axis])
    attrs = {"before": before, "after": after, "mode": mode, "value": 0.0 if value is None else value}
    return c.emit(OP["pad"], attrs, (x.id,))


@on("pad")
def pad(c: Call, x: Ref, padding: Sequence[int], mode: str, value: float | None) -> Ref:
    return _pad(c, x, padding, mode, value)


@on("constant_pad_nd")
def constant_pad(c: Call, x: Ref, padding: Sequence[int], value: Any) -> Ref:
    return _pad(c, x, padding, "constant", value)


@on("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(c: Call, x: Ref, padding: Sequence[int]) -> Ref:
    return _pad(c, x, padding, "reflect")


@on("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(c: Call, x: Ref, padding: Sequence[int]) -> Ref:
    return _pad(c, x, padding, "replicate")


@on("_pad_circular")
def circular_pad(c: Call, x: Ref, padding: Sequence[int]) -> Ref:
    return _pad(c, x, padding, "circular")


def _triangle(op: str) -> Emit:
    def emit(c: Call, x: Ref, diagonal: int) -> Ref:
        return c.emit(OP[op], {"diagonal": diagonal}, (x.id,))

    return emit


ROWS["tril"] = _triangle("tril")
ROWS["triu"] = _triangle("triu")


@on("gather")
def gather(c: Call, x: Ref, dim: int, index: Ref, _sparse: bool) -> Ref:
    """Tensors of rank 0 are treated as rank 1."""
    if not x.shape or not index.shape:
        x, index = (
            t if t.shape else c.emit_inferred(OP["reshape"], {"shape": [1]}, (t.id,)) for t in (x, index)
        )
        picked = c.emit_inferred(OP["gather"], {"axis": 0}, (x.id, index.id))
        return c.emit(OP["reshape"], {"shape": c.shape}, (picked.id,))
    return c.emit(OP["gather"], {"axis": axis_of(dim, len(x.shape))}, (x.id, index.id))


@on("index_select")
def index_select(c: Call, x: Ref, dim: int, index: Ref) -> Ref:
    """A tensor of rank 0 is treated as rank 1."""
    if not x.shape:
        vector = c.emit_inferred(OP["reshape"], {"shape": [1]}, (x.id,))
        rows = c.emit_inferred(OP["index_select"], {"axis": 0}, (vector.id, index.id))
        return c.emit(OP["reshape"], {"shape": c.shape}, (rows.id,))
    return c.emit(OP["index_select"], {"axis": axis_of(dim, len(x.shape))}, (x.id, index.id))


@on("embedding")
def embedding(c: Call, weight: Ref, indices: Ref, *_: Any) -> Ref:
    return c.emit(OP["embedding"], None, (weight.id, indices.id))


# ---- creation ----


def _arange(c: Call, start: Any, end: Any, step: Any) -> Ref:
    return c.emit(OP["arange"], {"start": start, "end": end, "step": step, "dtype": c.dtype}, ())


@on("arange")
def arange(c: Call, end: Any, *_: Any) -> Ref:
    return _arange(c, 0, end, 1)


@on("arange.start")
def arange_start(c: Call, start: Any, end: Any, *_: Any) -> Ref:
    return _arange(c, start, end, 1)


@on("arange.start_step")
def arange_step(c: Call, start: Any, end: Any, step: Any, *_: Any) -> Ref:
    return _arange(c, start, end, step)


def _filled(c: Call, value: Any) -> Ref:
    return c.emit(OP["full"], {"shape": c.shape, "value": _fit(value, c.dtype), "dtype": c.dtype}, ())


@on("full", "full_like", "fill.Scalar")
def full(c: Call, _like: Any, value: Any, *_: Any) -> Ref:
    return _filled(c, value)


@on("new_full")
def new_full(c: Call, _like: Any, _size: Any, value: Any, *_: Any) -> Ref:
    return _filled(c, value)


@on("scalar_tensor")
def scalar_tensor(c: Call, value: Any, *_: Any) -> Ref:
    return _filled(c, value)


@on(
    *[
        "zeros",
        "zeros_like",
        "new_zeros",
        "zero",
        "empty.memory_format",
        "empty_like",
        "new_empty",
        "empty_permuted",
        "empty_strided",
    ]
)
def zeros(c: Call, *_: Any) -> Ref:
    """The elements of torch.empty are undefined; zeros are a valid choice."""
    return _filled(c, 0)


@on("ones", "ones_like", "new_ones")
def ones(c: Call, *_: Any) -> Ref:
    return _filled(c, 1)


@on("copy", "fill.Tensor")
def copy(c: Call, x: Ref, source: Ref, *_: Any) -> Ref:
    """The source with the dtype and shape of `x`: a cast, an expand, both, or a clone if both agree."""
    same_shape = tuple(source.shape) == tuple(x.shape)
    if source.dtype == x.dtype:
        if same_shape:
            return c.emit(OP["clone"], None, (source.id,))
        return c.emit(OP["expand"], {"shape": x.shape}, (source.id,))
    if same_shape:
        return c.emit(OP["cast"], {"dtype": x.dtype}, (source.id,))
    converted = c.emit_inferred(OP["cast"], {"dtype": x.dtype}, (source.id,))
    return c.emit(OP["expand"], {"shape": x.shape}, (converted.id,))


# Rows whose result is the whole operand with another shape or type description. If the shape is the operand's
# too, the result counts as the same whole tensor.
WHOLE: frozenset[Emit] = frozenset(
    {reshape, identity, contiguous, to, type_as, dropout, expand, slice_, narrow, view_dtype}
)
