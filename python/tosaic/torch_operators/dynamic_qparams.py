"""Rows for quantization parameters that every run computes, and for quantizers with such parameters.

They are read as the operations that eager computes, one by one and in the same dtypes::

    choose_qparams(x)          scale = max((amax - amin) / 255, eps)
                               zero = clamp(qmin - round(amin / scale), qmin, qmax)
    quantize(x, scale, zero)   clamp(round(x * (1 / scale)) + zero, qmin, qmax)
    dequantize(q, scale, zero) (q - zero) * scale
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.call import Call, Rows
from tosaic.torch_operators.compound_movement import Movements
from tosaic.torch_operators.dtypes import CODE, INTEGER_LIMITS
from tosaic.torch_operators.value import Ref

__all__ = [
    "ROWS",
    "Arithmetic",
    "block_axes",
    "dequantized",
    "quantized",
    "require_blocks",
    "spread_over_blocks",
]

ROWS = Rows()
on = ROWS.on

_F32 = CODE["f32"]
_EPS = 2.0**-23  # of f32
_SHORT_NAMES = {"uint8": "u8", "int8": "i8", "int16": "i16", "uint16": "u16", "int32": "i32", "int64": "i64"}
_SMALLEST = {"f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}


class Arithmetic(Movements):
    """Emits nodes in front of a call's own node, with numbers as torch promotes them."""

    def emit(self, op: str, attrs: dict[str, Any] | None, *operands: Ref | float | int) -> Ref:
        """Emits a node. Numbers become constants."""
        like = next(each for each in operands if isinstance(each, Ref))
        number = self._c.factor if op in ("mul", "div") else self._c.number
        ids = [each.id if isinstance(each, Ref) else number(each, like).id for each in operands]
        return self._c.emit_inferred(OP[op], attrs, ids)

    def extrema(self, x: Ref, axes: Sequence[int] | None, keepdim: bool) -> tuple[Ref, Ref]:
        """Returns the least and the greatest number over axes (None: all), where 0 counts as a number."""
        attrs = {"axes": list(axes or range(len(x.shape))), "keepdim": keepdim}
        low, high = (self.emit(op, attrs | {"dtype": None}, x) for op in ("amin", "amax"))
        return self.emit("minimum", None, low, 0.0), self.emit("maximum", None, high, 0.0)

    def sub(self, a: Ref | float, b: Ref | float) -> Ref:
        """Emits a - b."""
        return self.emit("sub", {"alpha": 1}, a, b)

    def add(self, a: Ref | float, b: Ref | float) -> Ref:
        """Emits a + b."""
        return self.emit("add", {"alpha": 1}, a, b)

    def mul(self, a: Ref, b: Ref | float) -> Ref:
        """Emits a * b."""
        return self.emit("mul", None, a, b)

    def div(self, a: Ref, b: Ref | float) -> Ref:
        """Emits a / b."""
        return self.emit("div", None, a, b)

    def round(self, x: Ref) -> Ref:
        """Emits the nearest whole numbers, halves to even."""
        return self.emit("round", None, x)

    def clamp(self, x: Ref, low: float | None, high: float | None = None) -> Ref:
        """Emits a clamp; None is not a bound."""
        return self.emit("clamp", {"min": low, "max": high}, x)

    def affine_zero(self, low: Ref, scale: Ref, qmin: int, qmax: int) -> Ref:
        """Returns the zero point at which `low` becomes `qmin`, as a whole float."""
        return self.clamp(self.sub(float(qmin), self.round(self.div(low, scale))), float(qmin), float(qmax))


def _results(c: Call, scale: Ref, zero: Ref | int) -> list[Ref]:
    """Returns both results of a call with the dtypes and shapes that torch recorded."""
    emit = Arithmetic(c)
    (scale_type, scale_shape), (zero_type, zero_shape) = c.types
    if not isinstance(zero, Ref):
        zero = c.lifted(np.full(zero_shape, zero, np.int64))
    scale, zero = emit.reshape(scale, scale_shape), emit.reshape(zero, zero_shape)
    return [
        c.emit_result(0, OP["cast"], {"dtype": scale_type}, (scale.id,)),
        c.emit_result(1, OP["cast"], {"dtype": zero_type}, (zero.id,)),
    ]


# ---- parameters ----


@on("quantized_decomposed::choose_qparams.tensor")
def choose_qparams(c: Call, x: Ref, qmin: int, qmax: int, eps: float, _dtype: Any) -> list[Ref]:
    emit = Arithmetic(c)
    low, high = emit.extrema(x, None, False)
    scale = emit.cast(emit.div(emit.sub(high, low), float(qmax - qmin)), _F32)
    scale = emit.clamp(scale, float(np.float32(eps)))
    return _results(c, scale, emit.affine_zero(emit.cast(low, _F32), scale, qmin, qmax))


@on("quantized_decomposed::choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(c: Call, x: Ref, qmin: int, qmax: int, eps: float, dtype: Any) -> list[Ref]:
    emit = Arithmetic(c)
    low, high = emit.extrema(x, None, False)
    greatest = emit.emit("maximum", None, emit.emit("neg", None, low), high)
    scale = emit.cast(emit.div(greatest, float(qmax - qmin) / 2), _F32)
    return _results(c, emit.clamp(scale, float(np.float32(eps))), 128 if dtype == CODE["u8"] else 0)


@on("quantized_decomposed::choose_qparams_per_token_asymmetric")
def choose_qparams_per_token_asymmetric(c: Call, x: Ref, _dtype: Any) -> list[Ref]:
    emit = Arithmetic(c)
    low, high = emit.extrema(x, [len(x.shape) - 1], True)
    scale = emit.clamp(emit.div(emit.sub(high, low), 255.0), _EPS)
    least, greatest = emit.div(low, scale), emit.div(high, scale)
    errors = emit.add(emit.add(least, -128), emit.add(greatest, 127))
    zero = emit.emit(
        "where",
        None,
        emit.emit("gt", None, errors, 0),
        emit.sub(-128, least),
        emit.sub(127, greatest),
    )
    return _results(c, scale, emit.round(emit.clamp(zero, -128, 127)))


@on("torchao::choose_qparams_affine")
def choose_qparams_affine(
    c: Call,
    x: Ref,
    mapping: Any,
    blocks: Sequence[int],
    target: Any,
    low: Any,
    high: Any,
    eps: Any,
    _scale_dtype: Any,
    _zero_dtype: Any,
    _keepdim: Any,
) -> list[Ref]:
    emit = Arithmetic(c)
    name = _core.DTYPES[x.dtype]
    least, greatest = (low, high) if None not in (low, high) else _limits(c, target)
    qmin, qmax = (least if low is None else int(low)), (greatest if high is None else int(high))
    require_blocks(c, x.shape, blocks)
    shape, axes = block_axes(x.shape, blocks)
    lowest, highest = emit.extrema(emit.reshape(x, shape), axes, False)
    if mapping == "ASYMMETRIC":
        scale = emit.div(emit.sub(highest, lowest), float(qmax - qmin))
    elif mapping == "SYMMETRIC":
        both = emit.emit("maximum", None, emit.emit("neg", None, lowest), highest)
        scale = emit.div(both, float(qmax - qmin) / 2)
    else:  # SYMMETRIC_NO_CLIPPING_ERR
        below, above = emit.div(lowest, float(qmin)), emit.div(highest, float(qmax))
        scale = emit.emit("where", None, emit.emit("gt", None, below, above), below, above)
    scale = emit.clamp(scale, _SMALLEST[name] if eps is None else eps)
    if mapping == "ASYMMETRIC":
        return _results(c, scale, emit.affine_zero(lowest, scale, qmin, qmax))
    return _results(c, scale, int((qmax + qmin + 1) / 2))


def _limits(c: Call, target: Any) -> tuple[int, int]:
    """Returns the range of integers that the call quantizes to."""
    name = str(target).rpartition(".")[2]
    code = CODE.get(_SHORT_NAMES.get(name, name))
    if code not in INTEGER_LIMITS:
        raise c.error(
            _core.UnsupportedOp,
            f"the range of dtype {name} is not known",
            hint="Pass quant_min and quant_max",
        )
    return INTEGER_LIMITS[code]


# ---- blocks of torchao ----


def require_blocks(c: Call, shape: Sequence[int], blocks: Sequence[int]) -> None:
    """Raises UnsupportedOp unless there is a block for each axis, and the blocks divide the tensor."""
    if len(blocks) != len(shape) or any(b < 1 or extent % b for extent, b in zip(shape, blocks, strict=True)):
        raise c.error(
            _core.UnsupportedOp,
            "the blocks do not divide the tensor",
            expected=f"extents that divide {tuple(shape)}",
            got=str(tuple(blocks)),
        )


def block_axes(shape: Sequence[int], blocks: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns the shape in which blocks are whole axes, and these axes.

    >>> block_axes([8, 64], [1, 16])
    ([8, 4, 16], [2])
    """
    parts: list[int] = []
    axes: list[int] = []
    for extent, block in zip(shape, blocks, strict=True):
        if block not in (extent, 1):
            parts.append(extent // block)
        if block != 1:
            axes.append(len(parts))
        parts.append(extent if block in (extent, 1) else block)
    return parts, axes


def spread_over_blocks(
    c: Call, x: Ref, blocks: Sequence[int], scale: Ref, zero: Ref | None
) -> tuple[Ref, Ref, Ref | None]:
    """Returns `x` with its blocks as axes, and scales and zero points that broadcast with it."""
    emit = Arithmetic(c)
    shape, axes = block_axes(x.shape, blocks)
    own = [1 if axis in axes else extent for axis, extent in enumerate(shape)]
    return emit.reshape(x, shape), emit.reshape(scale, own), zero and emit.reshape(zero, own)


# ---- quantizers ----


def quantized(c: Call, x: Ref, inverse: Ref, zero: Ref | None, low: float, high: float) -> Ref:
    """Emits clamp(round(x * inverse) + zero, low, high), in the shape that torch recorded."""
    emit = Arithmetic(c)
    y = emit.round(emit.mul(x, inverse))
    if zero is not None:
        y = emit.add(y, zero)
    y = emit.reshape(emit.clamp(y, low, high), c.shape)
    return c.emit(OP["cast"], {"dtype": c.dtype}, (y.id,))


def dequantized(c: Call, x: Ref, scale: Ref, zero: Ref | None) -> Ref:
    """Emits (x - zero) * scale for floats `x`, in the shape that torch recorded."""
    emit = Arithmetic(c)
    if zero is not None and zero.dtype == _F32:
        x = emit.cast(x, _F32)
    y = emit.mul(x if zero is None else emit.sub(x, zero), scale)
    return c.emit(OP["cast"], {"dtype": c.dtype}, (emit.reshape(y, c.shape).id,))


_TOKENS = "quantized_decomposed::"


@on(f"{_TOKENS}quantize_per_token")
def quantize_per_token(c: Call, x: Ref, scale: Ref, zero: Ref, low: int, high: int, _dtype: Any) -> Ref:
    emit = Arithmetic(c)
    y = emit.add(emit.mul(x, emit.emit("reciprocal", None, scale)), zero)
    y = emit.clamp(emit.round(y), float(low), float(high))
    return c.emit(OP["cast"], {"dtype": c.dtype}, (y.id,))


@on(f"{_TOKENS}dequantize_per_token")
def dequantize_per_token(
    c: Call, x: Ref, scale: Ref, zero: Ref, _low: int, _high: int, _dtype: Any, _out: Any
) -> Ref:
    emit = Arithmetic(c)
    y = emit.mul(emit.sub(x, zero), scale)
    return c.emit(OP["cast"], {"dtype": c.dtype}, (y.id,))
