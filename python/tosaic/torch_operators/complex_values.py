"""Complex values during import: each is a pair of real values. No value of a graph is complex.

    fft_rfft2(x), then abs   ->   re, im = rfft2(x), then sqrt(re * re + im * im)

A call with a complex operand is looked up in `COMPLEX`. An operator that moves elements, adds or scales uses
the row of the real operator, once for each part. A complex result that leaves the program is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.call import Call, Rows
from tosaic.torch_operators.compound_movement import Movements
from tosaic.torch_operators.dtypes import CODE
from tosaic.torch_operators.value import Complex, NoValue, Ref

__all__ = ["HINT", "PARTWISE", "ROWS", "as_complex", "emit_complex", "has_complex", "is_known"]

_Row = Callable[..., Any]
ROWS = Rows()  # for calls that make complex values from real ones, or extract parts
on = ROWS.on
COMPLEX: dict[str, _Row] = {}  # for calls with a complex operand
HINT = "Take the values apart with torch.view_as_real, .real and .imag, or .abs()"

# Operators that act on each part as they act on a real tensor: they move elements or are linear.
_MOVING = (
    "view reshape permute transpose.int t squeeze squeeze.dim squeeze.dims unsqueeze slice.Tensor select.int "
    "expand clone contiguous cat stack flip roll narrow flatten.using_ints split.Tensor split_with_sizes "
    "chunk unbind.int movedim.int movedim.intlist moveaxis.int moveaxis.intlist swapaxes repeat alias detach "
    "_unsafe_view unflatten.int lift_fresh constant_pad_nd pad index_select gather view_as reshape_as "
    "expand_as unfold _reshape_alias"
)
_LINEAR = "neg sum sum.dim_IntList mean mean.dim"
PARTWISE = frozenset(f"{_MOVING} {_LINEAR}".split())
# Operators of two operands that are linear in each; `linear` adds a bias.
_BILINEAR = frozenset(["matmul", "mm", "bmm", "mv", "dot", "linalg_matmul", "linear", "einsum"])


@dataclass(frozen=True)
class _Pair:
    real: Ref
    imag: Ref | None

    def each(self, function: Callable[[Ref], Ref]) -> _Pair:
        return _Pair(function(self.real), None if self.imag is None else function(self.imag))


def has_complex(values: Sequence[Any]) -> bool:
    """True if an argument is a complex tensor or number, or a list with a complex tensor in it."""
    kinds = set(map(type, values))
    if Complex in kinds or complex in kinds:
        return True
    return list in kinds and any(Complex in map(type, value) for value in values if type(value) is list)


def _complex_row(*names: str) -> Callable[[_Row], _Row]:
    def register(row: _Row) -> _Row:
        for name in names:
            COMPLEX[name] = row
        return row

    return register


def is_known(name: str, emit: _Row | None) -> bool:
    """True if a call of this operator can take complex operands; `emit` is the row of the real operator."""
    return name in COMPLEX or (emit is not None and (_is_partwise(name) or name in _BILINEAR))


def _is_partwise(name: str) -> bool:
    return name in PARTWISE or name.replace("_copy", "") in PARTWISE


def as_complex(c: Call, name: str, result: Any) -> Any:
    """Makes a real row's result complex if torch's result is complex: a cast has a zero imaginary part."""
    if type(result) is not Ref:
        return result
    if name.partition(".")[0] in ("to", "_to_copy", "type"):
        return Complex(result, _zero_like(c, result))
    raise c.error(_core.UnsupportedOp, f"{name} with a complex result is not supported", hint=HINT)


def emit_complex(c: Call, name: str, emit: _Row | None, values: Sequence[Any]) -> Any:
    """Returns the results of a call with complex operands; `emit` is the row of the real operator."""
    if name in COMPLEX:
        return COMPLEX[name](c, *values)
    if emit is not None and _is_partwise(name):
        parts = [emit(c, *(_part(value, i) for value in values)) for i in range(2)]
        if parts[0] is not None and parts[1] is not None:
            return _joined(*parts)
    if emit is not None and name in _BILINEAR:
        product = _contraction(c, name, emit, values)
        if product is not None:
            return product
    raise c.error(_core.UnsupportedOp, f"{name} of complex values is not supported", hint=HINT)


def _contraction(c: Call, name: str, emit: _Row, values: Sequence[Any]) -> Complex | None:
    """Returns a product of matrices: four products of parts, or two if an operand is real."""
    is_einsum = name == "einsum"
    operands = list(values[1] if is_einsum else values[:2])
    if len(operands) == 1:
        parts = [emit(c, values[0], [part], *values[2:]) for part in _parts(operands[0])]
        return None if None in parts else Complex(*parts)
    if len(operands) != 2:
        return None

    def product(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return None
        if is_einsum:
            return emit(c, values[0], [a, b], *values[2:])
        return emit(c, a, b, None) if name == "linear" else emit(c, a, b, *values[2:])

    (ar, ai), (br, bi) = map(_parts, operands)
    found = [product(*each) for each in ((ar, br), (ai, bi), (ar, bi), (ai, br))]
    real, imag = _sum(c, "sub", *found[:2]), _sum(c, "add", *found[2:])
    if real is None or imag is None:
        return None
    if name == "linear" and values[2] is not None:
        bias_real, bias_imag = _parts(values[2])
        real, imag = _sum(c, "add", real, bias_real), _sum(c, "add", imag, bias_imag)
    return _pair(c, real, imag)


def _part(value: Any, i: int) -> Any:
    if type(value) is Complex:
        return (value.real, value.imag)[i]
    return [_part(item, i) for item in value] if isinstance(value, list) else value


def _joined(real: Any, imag: Any) -> Any:
    if isinstance(real, list | tuple):
        return [_joined(r, i) for r, i in zip(real, imag, strict=True)]
    return Complex(real, imag) if type(real) is Ref else NoValue("complex")


# ---- arithmetic on refs ----


def _binary(c: Call, op: str, a: Ref, b: Ref | float) -> Ref:
    other = b if type(b) is Ref else c.number(b, a)
    return c.emit_inferred(OP[op], None, (a.id, other.id))


def _unary(c: Call, op: str, a: Ref) -> Ref:
    return c.emit_inferred(OP[op], None, (a.id,))


def _zero_like(c: Call, a: Ref) -> Ref:
    return c.emit_inferred(OP["full"], {"shape": list(a.shape), "value": 0.0, "dtype": a.dtype}, ())


def _parts(value: Any) -> tuple[Any, Any]:
    """Returns the real and the imaginary part of an operand; None for a part that it lacks."""
    if type(value) is Complex:
        return value.real, value.imag
    if isinstance(value, complex):
        return value.real, value.imag
    return value, None


def _sum(c: Call, op: str, a: Any, b: Any) -> Any:
    """Returns the sum or difference of two parts, either of which may be missing (None)."""
    if b is None:
        return a
    if a is None:
        return (_unary(c, "neg", b) if type(b) is Ref else -b) if op == "sub" else b
    if type(a) is not Ref:
        if type(b) is not Ref:
            return a + b if op == "add" else a - b
        return _binary(c, "add", b if op == "add" else _unary(c, "neg", b), a)
    return _binary(c, op, a, b)


def _product(c: Call, a: Any, b: Any) -> Any:
    if a is None or b is None:
        return None
    if type(a) is not Ref:
        a, b = b, a
    return _binary(c, "mul", a, b) if type(a) is Ref else a * b


@_complex_row("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")
def add(c: Call, a: Any, b: Any, alpha: Any = 1) -> Complex:
    op = "sub" if c.target_name().startswith("sub") else "add"
    ar, ai = _parts(a)
    br, bi = _parts(b)
    if alpha != 1:
        br, bi = _product(c, br, float(alpha)), _product(c, bi, float(alpha))
    return _pair(c, _sum(c, op, ar, br), _sum(c, op, ai, bi))


def _pair(c: Call, real: Any, imag: Any) -> Complex:
    """Broadcasts both parts to one shape: a real operand may be larger than the complex one."""
    real = real if type(real) is Ref else c.number(real, imag)
    imag = imag if type(imag) is Ref else c.number(imag, real)
    if tuple(real.shape) != tuple(imag.shape):
        shape = list(np.broadcast_shapes(tuple(real.shape), tuple(imag.shape)))
        real, imag = (
            r if list(r.shape) == shape else c.emit_inferred(OP["expand"], {"shape": shape}, (r.id,))
            for r in (real, imag)
        )
    return Complex(real, imag)


def _product_of(c: Call, a: Any, b: Any) -> tuple[Ref, Ref]:
    ar, ai = _parts(a)
    br, bi = _parts(b)
    real = _sum(c, "sub", _product(c, ar, br), _product(c, ai, bi))
    return real, _sum(c, "add", _product(c, ar, bi), _product(c, ai, br))


@_complex_row("mul.Tensor", "mul.Scalar")
def mul(c: Call, a: Any, b: Any) -> Complex:
    return _pair(c, *_product_of(c, a, b))


@_complex_row("div.Tensor", "div.Scalar")
def div(c: Call, a: Any, b: Any) -> Complex:
    """Multiplies by the conjugate of b over its squared magnitude. A real divisor divides each part."""
    ar, ai = _parts(a)
    br, bi = _parts(b)
    if bi is None:
        return _pair(c, _binary(c, "div", ar, br), _binary(c, "div", ai, br))
    if type(br) is not Ref:
        scale = br * br + bi * bi
        return _pair(c, *_product_of(c, a, complex(br / scale, -bi / scale)))
    squared = _sum(c, "add", _product(c, br, br), _product(c, bi, bi))
    re, im = _product_of(c, a, Complex(br, _unary(c, "neg", bi)))
    return _pair(c, _binary(c, "div", re, squared), _binary(c, "div", im, squared))


@_complex_row("real")
def real(_: Call, x: Complex) -> Ref:
    return x.real


@_complex_row("imag")
def imag(_: Call, x: Complex) -> Ref:
    return x.imag


@_complex_row("abs")
def magnitude(c: Call, x: Complex) -> Ref:
    """Scales by the larger part, so that no square overflows."""
    a, b = _unary(c, "abs", x.real), _unary(c, "abs", x.imag)
    large, small = _binary(c, "maximum", a, b), _binary(c, "minimum", a, b)
    empty = c.emit_inferred(OP["eq"], None, (large.id, c.number(0.0, large).id))
    divisor = c.emit_inferred(OP["where"], None, (empty.id, c.number(1.0, large).id, large.id))
    ratio = _binary(c, "div", small, divisor)
    length = _unary(c, "sqrt", _binary(c, "add", _binary(c, "mul", ratio, ratio), 1.0))
    return c.emit(OP["mul"], None, (large.id, length.id))


@_complex_row("angle")
def angle(c: Call, x: Complex) -> Ref:
    return c.emit(OP["atan2"], None, (x.imag.id, x.real.id))


@_complex_row("conj", "_conj", "resolve_conj", "_conj_physical", "conj_physical")
def conj(c: Call, x: Complex) -> Complex:
    return x if c.target_name() == "resolve_conj" else Complex(x.real, _unary(c, "neg", x.imag))


@_complex_row("view_as_real", "view_as_real_copy")
def view_as_real(c: Call, x: Complex) -> Ref:
    return c.emit(OP["stack"], {"axis": len(x.real.shape)}, (x.real.id, x.imag.id))


@on("view_as_complex")
def view_as_complex(c: Call, x: Ref) -> Complex:
    last = len(x.shape) - 1
    return Complex(*(c.emit_inferred(OP["select"], {"axis": last, "index": i}, (x.id,)) for i in range(2)))


@on("complex")
def from_parts(c: Call, re: Ref, im: Ref) -> Complex:
    return _pair(c, re, im)


# ---- Fourier transforms ----


def _moved(c: Call, x: _Pair, perm: Sequence[int]) -> _Pair:
    return x.each(lambda part: Movements(c).permute(part, perm))


def _shaped(c: Call, x: _Pair, shape: Sequence[int]) -> _Pair:
    return x.each(lambda part: c.emit_inferred(OP["reshape"], {"shape": list(shape)}, (part.id,)))


def _over_last_two(c: Call, x: _Pair, inverse: bool, halved: bool) -> _Pair:
    shape = list(x.real.shape)
    if halved and x.imag is None:
        shape[-1] = shape[-1] // 2 + 1
        operands, op, attrs = [x.real.id], "rfft2", None
    else:
        im = _zero_like(c, x.real) if x.imag is None else x.imag
        operands, op, attrs = [x.real.id, im.id], "fft2", {"inverse": inverse}
    types: list[tuple[int, Sequence[int]]] = [(x.real.dtype, tuple(shape))] * 2
    return _Pair(*c.emit_many(OP[op], attrs, operands, types))


def _transform(c: Call, x: _Pair, axes: Sequence[int], inverse: bool, halved: bool = False) -> _Pair:
    """Transforms the axes in pairs from the last; only the last axis is halved."""
    rank = len(x.real.shape)
    left = list(axes)
    while left:
        pair = left[-2:]
        del left[-2:]
        perm = [axis for axis in range(rank) if axis not in pair] + pair
        back = [perm.index(axis) for axis in range(rank)]
        x = _moved(c, x, perm)
        if len(pair) == 1:  # one axis: images with one row
            shape = list(x.real.shape)
            y = _over_last_two(c, _shaped(c, x, [*shape[:-1], 1, shape[-1]]), inverse, halved)
            x = _shaped(c, y, [*shape[:-1], y.real.shape[-1]])
        else:
            x = _over_last_two(c, x, inverse, halved)
        x, halved = _moved(c, x, back), False
    return x


def _normalised(c: Call, x: _Pair, normalization: int, count: int) -> _Pair:
    """Scales by torch's code: 0 does not scale, 1 divides by the root of the count, 2 by the count."""
    if normalization == 0:
        return x
    factor = 1 / (math.sqrt(count) if normalization == 1 else count)
    return x.each(lambda part: _binary(c, "mul", part, factor))


def _complex_result(x: _Pair) -> Complex:
    assert x.imag is not None
    return Complex(x.real, x.imag)


def _axes(dims: Sequence[int], rank: int) -> list[int]:
    return [axis % rank for axis in dims]


def _require_dtype(c: Call, x: Ref) -> None:
    if x.dtype not in (CODE["f32"], CODE["f64"]):
        raise c.error(
            _core.UnsupportedOp, "a Fourier transform of this dtype is not supported", hint="Cast to float32"
        )


@on("_fft_r2c")
def fft_of_real(c: Call, x: Ref, dims: Sequence[int], normalization: int, onesided: bool) -> Complex:
    _require_dtype(c, x)
    axes = _axes(dims, len(x.shape))
    count = math.prod(x.shape[axis] for axis in axes)
    spectrum = _transform(c, _Pair(x, None), axes, inverse=False, halved=onesided)
    return _complex_result(_normalised(c, spectrum, normalization, count))


@_complex_row("_fft_c2c")
def fft_of_complex(c: Call, x: Complex, dims: Sequence[int], normalization: int, forward: bool) -> Complex:
    axes = _axes(dims, len(x.real.shape))
    count = math.prod(x.real.shape[axis] for axis in axes)
    spectrum = _transform(c, _Pair(x.real, x.imag), axes, inverse=not forward)
    return _complex_result(_normalised(c, spectrum, normalization, count))


@_complex_row("_fft_c2r")
def fft_to_real(c: Call, x: Complex, dims: Sequence[int], normalization: int, size: int) -> Ref:
    """Transforms the other axes first, then the last, whose missing half is the conjugated mirror image."""
    axes = _axes(dims, len(x.real.shape))
    half = _transform(c, _Pair(x.real, x.imag), axes[:-1], inverse=True)
    whole = _transform(c, _mirrored(c, half, axes[-1], size), axes[-1:], inverse=True)
    count = math.prod(x.real.shape[axis] for axis in axes[:-1]) * size
    return _normalised(c, _Pair(whole.real, None), normalization, count).real


def _mirrored(c: Call, x: _Pair, axis: int, size: int) -> _Pair:
    """Returns all `size` entries of a spectrum along an axis, from its first size // 2 + 1 entries."""
    missing = size - (size // 2 + 1)
    parts = []
    for part, sign in ((x.real, 1), (x.imag, -1)):
        assert part is not None
        kept = Movements(c).slice(part, axis, 0, size // 2 + 1)
        if missing == 0:
            parts.append(kept)
            continue
        tail = Movements(c).slice(part, axis, 1, 1 + missing)
        tail = c.emit_inferred(OP["flip"], {"axes": [axis]}, (tail.id,))
        tail = _unary(c, "neg", tail) if sign < 0 else tail
        parts.append(c.emit_inferred(OP["cat"], {"axis": axis}, (kept.id, tail.id)))
    return _Pair(*parts)
