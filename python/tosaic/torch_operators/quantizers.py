"""Rows for quantizers: of torch, of its PT2E flow and of torchao.

Constant scales and zero points become attributes of a quantize or dequantize. Computed ones, and zero
points that are not integers, become operands of arithmetic: `dynamic_qparams`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tosaic import _core
from tosaic.torch_operators.arguments import OP, axis_of
from tosaic.torch_operators.call import Call, Rows, first_of
from tosaic.torch_operators.dtypes import CODE, INTEGER_LIMITS
from tosaic.torch_operators.dynamic_qparams import (
    Arithmetic,
    dequantized,
    quantized,
    require_blocks,
    spread_over_blocks,
)
from tosaic.torch_operators.value import Ref, Wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on

_STORAGE = [CODE[name] for name in ("i8", "i16", "i32")]


_Numbers: TypeAlias = list[Any] | NDArray[Any]


def _numbers(c: Call, value: Any, what: str) -> _Numbers:
    """Returns the elements of a constant tensor as 64-bit numbers, or the number itself in a list."""
    if type(value) is not Ref:
        return [value]
    elements = c.known_elements(value)
    if elements is not None:
        return elements.reshape(-1)
    constant = c.builder.constant(value.id)
    if constant is None:
        raise c.error(
            _core.UnsupportedOp,
            f"{what} depends on data",
            expected="a constant",
            hint="Calibrate and convert the module with fixed quantization parameters",
        )
    listed: list[Any] = constant.array.reshape(-1).tolist()
    return listed


def _whole(c: Call, numbers: _Numbers) -> _Numbers:
    """Returns zero points as integers; torchao also stores them as floats."""
    if isinstance(numbers, list):
        integers: _Numbers = [int(value) for value in numbers]
        exact = integers == numbers
    elif numbers.dtype == np.int64:
        return numbers
    else:
        with np.errstate(invalid="ignore"):
            integers = numbers.astype(np.int64)
        exact = np.array_equal(integers, numbers)
    if not exact:
        raise c.error(
            _core.UnsupportedOp, "a zero point is no integer", expected="integers", got=str(list(numbers[:4]))
        )
    return integers


def _is_fixed(c: Call, scale: Any, zero: Any) -> bool:
    """True if a call's scales and zero points can be attributes: constants, with integer zero points."""
    for value in (scale, zero):
        if type(value) is Ref and c.known_elements(value) is None and c.builder.constant(value.id) is None:
            return False
    if type(zero) is not Ref:
        return True
    numbers = np.asarray(_numbers(c, zero, "the zero point"))
    with np.errstate(invalid="ignore"):
        return bool(np.array_equal(numbers.astype(np.int64), numbers))


def _bound(c: Call, bound: Any, least: int) -> int:
    return least if bound is None else int(_numbers(c, bound, "a bound")[0])


def _attributes(
    c: Call, axis: int | None, low: Any, high: Any, scale: Any, zero_point: Any, storage: int
) -> dict[str, Any]:
    """Returns the attributes of a quantize or dequantize, with the dtype of the call's result.

    By default, zero points are 0, and the bounds are those of the storage dtype.
    """
    least, greatest = INTEGER_LIMITS[storage]
    scales = [scale] if type(scale) is float else _numbers(c, scale, "the scale")
    if type(zero_point) is int:
        zeros: _Numbers = [zero_point]
    else:
        zeros = [] if zero_point is None else _whole(c, _numbers(c, zero_point, "the zero point"))
    return {
        "dtype": c.dtype,
        "axis": axis,
        "qmin": low if type(low) is int else _bound(c, low, least),
        "qmax": high if type(high) is int else _bound(c, high, greatest),
        "scales": scales,
        "zero_points": zeros if len(zeros) else [0] * len(scales),
    }


def _quantized(c: Call, x: Ref, attrs: dict[str, Any]) -> Ref:
    return c.emit(OP["quantize"], attrs, (x.id,))


def _dequantized(c: Call, x: Ref, attrs: dict[str, Any]) -> Ref:
    return c.emit(OP["dequantize"], attrs, (x.id,))


def _along(x: Ref, attrs: dict[str, Any]) -> dict[str, Any]:
    """Makes attributes with a single scale for several channels per-tensor, as torch broadcasts it."""
    one = len(attrs["scales"]) == len(attrs["zero_points"]) == 1
    return attrs | {"axis": None} if one and x.shape[attrs["axis"]] != 1 else attrs


# ---- PT2E ----

_PT2E = "quantized_decomposed::"
_OF_TENSORS = ("", ".tensor", ".tensor2")


def _of_one_element(c: Call, value: Any) -> Ref:
    """Returns a tensor of one element, or a number, as f32 of rank 0, as torch reads it next to f32."""
    if type(value) is not Ref:
        return c.constant(float(value), CODE["f32"])
    emit = Arithmetic(c)
    return emit.cast(emit.reshape(value, []), CODE["f32"])


def _quantized_by_tensors(c: Call, x: Ref, scale: Any, zero: Any, low: Any, high: Any) -> Ref:
    """Reads a quantize whose scale or zero point is a tensor of one element, computed in the run."""
    emit = Arithmetic(c)
    if type(scale) is Ref:  # torch inverts a Python number: in f64
        wide = emit.cast(emit.reshape(scale, []), CODE["f64"])
        inverse = emit.cast(emit.emit("reciprocal", None, wide), CODE["f32"])
    else:
        inverse = c.constant(1.0 / scale, CODE["f32"])
    bounds = (float(_numbers(c, bound, "a bound")[0]) for bound in (low, high))
    return quantized(c, emit.cast(x, CODE["f32"]), inverse, _of_one_element(c, zero), *bounds)


@on(*(f"{_PT2E}quantize_per_tensor{overload}" for overload in _OF_TENSORS))
def quantize_per_tensor(
    c: Call, x: Ref, scale: Any, zero_point: Any, low: Any, high: Any, _dtype: Any
) -> Ref:
    if not _is_fixed(c, scale, zero_point):
        return _quantized_by_tensors(c, x, scale, zero_point, low, high)
    return _quantized(c, x, _attributes(c, None, low, high, scale, zero_point, c.dtype))


@on(*(f"{_PT2E}dequantize_per_tensor{overload}" for overload in _OF_TENSORS))
def dequantize_per_tensor(
    c: Call, x: Ref, scale: Any, zero_point: Any, low: Any, high: Any, _dtype: Any, _out: Any
) -> Ref:
    if not _is_fixed(c, scale, zero_point):
        emit = Arithmetic(c)
        number, zero = _of_one_element(c, scale), _of_one_element(c, zero_point)
        return dequantized(c, emit.cast(x, c.dtype), number, zero)
    return _dequantized(c, x, _attributes(c, None, low, high, scale, zero_point, x.dtype))


def _along_axis(c: Call, x: Ref, numbers: Ref, axis: int) -> Ref:
    """Returns a tensor of one element for each index of an axis, so that it broadcasts with `x`."""
    shape = [1] * len(x.shape)
    shape[axis_of(axis, len(shape))] = int(math.prod(numbers.shape))
    return Arithmetic(c).reshape(numbers, shape)


def _quantized_along(c: Call, x: Ref, scales: Ref, zeros: Any, axis: int, low: Any, high: Any) -> Ref:
    scale, zero = (each and _along_axis(c, x, each, axis) for each in (scales, zeros))
    inverse = Arithmetic(c).emit("reciprocal", None, scale)
    return quantized(c, Arithmetic(c).cast(x, CODE["f32"]), inverse, zero, float(low), float(high))


@on(f"{_PT2E}quantize_per_channel")
def quantize_per_channel(
    c: Call, x: Ref, scales: Ref, zeros: Any, axis: int, low: Any, high: Any, _dtype: Any
) -> Ref:
    if not _is_fixed(c, scales, zeros):
        return _quantized_along(c, x, scales, zeros, axis, low, high)
    attrs = _attributes(c, axis_of(axis, len(x.shape)), low, high, scales, zeros, c.dtype)
    return _quantized(c, x, _along(x, attrs))


@on(f"{_PT2E}dequantize_per_channel")
def dequantize_per_channel(
    c: Call, x: Ref, scales: Ref, zeros: Any, axis: int, low: Any, high: Any, _dtype: Any, _out: Any
) -> Ref:
    if not _is_fixed(c, scales, zeros):
        scale, zero = (each and _along_axis(c, x, each, axis) for each in (scales, zeros))
        return dequantized(c, x, scale, zero)
    attrs = _attributes(c, axis_of(axis, len(x.shape)), low, high, scales, zeros, x.dtype)
    return _dequantized(c, x, _along(x, attrs))


def _rows_of_groups(c: Call, x: Ref, attrs: dict[str, Any], size: int) -> dict[str, Any]:
    """Returns attributes for groups of `size` columns of a matrix.

    As in torch, a group may be longer than a row if each row has one scale.
    """
    whole = size > x.shape[-1] and len(attrs["scales"]) == x.shape[0]
    return _by_block(c, x.shape, (1, x.shape[-1] if whole else size), attrs)


@on(f"{_PT2E}quantize_per_channel_group")
def quantize_per_channel_group(
    c: Call, x: Ref, scales: Ref, zeros: Ref, low: int, high: int, _dtype: Any, size: int
) -> Ref:
    attrs = _rows_of_groups(c, x, _attributes(c, None, low, high, scales, zeros, c.dtype), size)
    if not any(attrs["zero_points"]):
        return _quantized(c, x, attrs)
    # torch adds the zero point before it rounds, so ties may round differently than in a quantize
    columns = x.shape[1]
    inverse, zero = (
        np.repeat(np.asarray(numbers, np.float32).reshape(x.shape[0], -1), min(size, columns), axis=1)
        for numbers in (1.0 / np.asarray(attrs["scales"]), attrs["zero_points"])
    )
    y = c.emit_inferred(OP["cast"], {"dtype": CODE["f32"]}, (x.id,))
    y = c.emit_inferred(OP["mul"], None, (y.id, c.lifted(inverse[:, :columns]).id))
    y = c.emit_inferred(OP["add"], {"alpha": 1}, (y.id, c.lifted(zero[:, :columns]).id))
    y = c.emit_inferred(OP["round"], None, (y.id,))
    y = c.emit_inferred(OP["clamp"], {"min": float(low), "max": float(high)}, (y.id,))
    return c.emit(OP["cast"], {"dtype": c.dtype}, (y.id,))


@on(f"{_PT2E}dequantize_per_channel_group")
def dequantize_per_channel_group(
    c: Call, x: Ref, scales: Ref, zeros: Any, low: int, high: int, _dtype: Any, size: int, _out: Any
) -> Ref:
    attrs = _attributes(c, None, low, high, scales, zeros, x.dtype)
    return _dequantized(c, x, _rows_of_groups(c, x, attrs, size))


# ---- torchao ----


def _by_block(c: Call, shape: Sequence[int], blocks: Sequence[int], attrs: dict[str, Any]) -> dict[str, Any]:
    """Returns attributes with an axis and groups for scales in the row-major order of blocks.

    An axis that is divided into blocks becomes the axis of the scales, and a second one the axis of groups.
    Of two, the axis with blocks of extent 1 gets the scales, or else the first; longer blocks repeat theirs.
    """
    require_blocks(c, shape, blocks)
    split = [axis for axis, (extent, block) in enumerate(zip(shape, blocks, strict=True)) if block != extent]
    if len(split) > 2:
        raise c.error(
            _core.UnsupportedOp,
            "the blocks divide more than two axes",
            expected=f"{tuple(shape)}, or the same with at most two other extents",
            got=str(tuple(blocks)),
        )
    if not split:
        return attrs
    if len(split) == 2 and blocks[split[0]] != 1 == blocks[split[1]]:
        split.reverse()
    axis = split[0]
    grid = [shape[each] // blocks[each] for each in sorted(split)]
    arranged = dict(attrs, axis=axis)
    for name in ("scales", "zero_points"):
        numbers = np.asarray(attrs[name])
        if numbers.size != math.prod(grid):
            raise c.error(
                _core.UnsupportedOp,
                f"another number of {name.replace('_', ' ')} than of blocks",
                expected=str(math.prod(grid)),
                got=str(numbers.size),
            )
        by_axis = numbers.reshape(grid) if split == sorted(split) else numbers.reshape(grid).T
        arranged[name] = np.repeat(by_axis, blocks[axis], axis=0).reshape(-1).tolist()
    if len(split) == 2:
        arranged["groups"] = (split[1], blocks[split[1]])
    return arranged


@on("torchao::quantize_affine")
def quantize_affine(
    c: Call, x: Ref, blocks: Sequence[int], scale: Ref, zero: Any, _dtype: Any, low: Any, high: Any
) -> Ref:
    if not _is_fixed(c, scale, zero):
        least, greatest = INTEGER_LIMITS[c.dtype]
        y, number, zero = spread_over_blocks(c, x, blocks, scale, zero)
        inverse = Arithmetic(c).emit("reciprocal", None, number)
        bounds = (float(b if a is None else a) for a, b in ((low, least), (high, greatest)))
        return quantized(c, y, inverse, zero, *bounds)
    attrs = _attributes(c, None, low, high, scale, zero, c.dtype)
    return _quantized(c, x, _by_block(c, x.shape, blocks, attrs))


@on("torchao::dequantize_affine")
def dequantize_affine(
    c: Call,
    x: Ref,
    blocks: Sequence[int],
    scale: Ref,
    zero: Any,
    _dtype: Any,
    low: Any,
    high: Any,
    _out: Any,
) -> Ref:
    if not _is_fixed(c, scale, zero):
        y, number, zero = spread_over_blocks(c, x, blocks, scale, zero)
        emit = Arithmetic(c)
        return dequantized(c, emit.cast(y, c.dtype), number, zero and emit.cast(zero, c.dtype))
    attrs = _attributes(c, None, low, high, scale, zero, x.dtype)
    return _dequantized(c, x, _by_block(c, x.shape, blocks, attrs))


@on("export::access_subclass_inner_tensor")
def inner_tensor(_c: Call, wrapper: Wrapper, name: str) -> Any:
    return wrapper.inner(name)


# ---- fake quantization: to integers and back ----


def _faked(c: Call, x: Ref, axis: int | None, scale: Any, zero: Any, low: int, high: int) -> Ref:
    storage = next(
        code for code in _STORAGE if INTEGER_LIMITS[code][0] <= low and high <= INTEGER_LIMITS[code][1]
    )
    attrs = _attributes(c, axis, low, high, scale, zero, storage)
    whole = c.emit_inferred(OP["quantize"], attrs | {"dtype": storage}, (x.id,))
    return _dequantized(c, whole, attrs)


@on("fake_quantize_per_tensor_affine", "fake_quantize_per_tensor_affine.tensor_qparams")
def fake_quantize(c: Call, x: Ref, scale: Any, zero_point: Any, low: int, high: int) -> Ref:
    return _faked(c, x, None, scale, zero_point, low, high)


@on("fake_quantize_per_channel_affine", f"{_PT2E}fake_quant_per_channel")
def fake_quantize_channels(
    c: Call, x: Ref, scale: Ref, zero_point: Ref, axis: int, low: int, high: int
) -> Ref:
    return _faked(c, x, axis_of(axis, len(x.shape)), scale, zero_point, low, high)


ROWS["fake_quantize_per_tensor_affine_cachemask"] = first_of(fake_quantize)
ROWS["fake_quantize_per_channel_affine_cachemask"] = first_of(fake_quantize_channels)


@on("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
@first_of
def fake_quantize_enabled(
    c: Call, x: Ref, scale: Any, zero_point: Any, enabled: Any, low: int, high: int
) -> Ref:
    if not _numbers(c, enabled, "whether to quantize")[0]:
        return c.emit(OP["clone"], None, (x.id,))
    return fake_quantize(c, x, scale, zero_point, low, high)
