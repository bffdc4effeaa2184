"""Models of TOSA operators over integers, in numpy, written from the TOSA specification.

Each function takes a `tosaic.NodeCall` and returns the result. They are peers of the kernels: none of them
calls tosaic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tosaic

__all__ = ["INTEGER_MODELS", "convolved", "model_of_integers"]

_Array = np.ndarray[Any, Any]
_DTYPES = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "bool": np.bool_}


def _windows(x: _Array, kernel: tuple[int, int], attrs: Any, fill: int) -> _Array:
    """Returns all windows of NHWC data: [N, H, W, kernel height, kernel width, C]."""
    top, bottom, left, right = attrs["pad"]
    dy, dx = attrs.get("dilation", (1, 1))
    sy, sx = attrs["stride"]
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
    size = tuple((k - 1) * d + 1 for k, d in zip(kernel, (dy, dx), strict=True))
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis=(1, 2))
    return windows[:, ::sy, ::sx, :, ::dy, ::dx].transpose(0, 1, 2, 4, 5, 3)


def convolved(x: _Array, weight: _Array, bias: _Array, attrs: Mapping[str, Any]) -> _Array:
    """CONV2D on int8 data."""
    windows = _windows(x.astype(np.int64) - attrs["input_zp"], weight.shape[1:3], attrs, 0)
    made = np.einsum("nhwyxc,oyxc->nhwo", windows, weight.astype(np.int64) - attrs["weight_zp"])
    return (made + bias).astype(np.int32)


def conv2d(call: tosaic.NodeCall) -> _Array:
    x, weight, bias = (np.asarray(each) for each in call.operands)
    return convolved(x, weight, bias, call.attrs)


def depthwise_conv2d(call: tosaic.NodeCall) -> _Array:
    x, weight, bias = (np.asarray(each).astype(np.int64) for each in call.operands)
    windows = _windows(x - call.attrs["input_zp"], weight.shape[:2], call.attrs, 0)
    made = np.einsum("nhwyxc,yxcm->nhwcm", windows, weight - call.attrs["weight_zp"])
    return (made.reshape(*made.shape[:3], -1) + bias).astype(np.int32)


def max_pool2d(call: tosaic.NodeCall) -> _Array:
    x = call.operand("input")
    return _windows(x, call.attrs["kernel"], call.attrs, np.iinfo(x.dtype).min).max((3, 4))


def matmul(call: tosaic.NodeCall) -> _Array:
    a, b = (np.asarray(each).astype(np.int64) for each in call.operands)
    return ((a - call.attrs["first_zp"]) @ (b - call.attrs["second_zp"])).astype(np.int32)


def rescale(call: tosaic.NodeCall) -> _Array:
    """RESCALE with apply_scale_32 of the specification; the shift is rounded once."""
    attrs = call.attrs
    assert attrs["scale32"]
    assert attrs["rounding_mode"] == "single_round"
    assert not attrs["input_unsigned"]
    assert not attrs["output_unsigned"]
    value = call.operand("input").astype(np.int64) - attrs["input_zp"]
    multiplier, shift = (np.array(attrs[name], np.int64) for name in ("multiplier", "shift"))
    made = (value * multiplier + (np.int64(1) << (shift - 1))) >> shift
    (result,) = call.result_types
    bounds = np.iinfo(_DTYPES[result.dtype])
    return np.clip(made + attrs["output_zp"], bounds.min, bounds.max).astype(_DTYPES[result.dtype])


def table(call: tosaic.NodeCall) -> _Array:
    x, entries = call.operands
    assert x.dtype == np.int8
    return entries[x.astype(np.int64) + 128]


def mul(call: tosaic.NodeCall) -> _Array:
    a, b = (each.astype(np.int64) for each in call.operands)
    shift = call.attrs["shift"]
    made = a * b if shift == 0 else (a * b + (1 << (shift - 1))) >> shift
    return made.astype(np.int32)


def clz(call: tosaic.NodeCall) -> _Array:
    x = call.operand("input").view(np.uint32)
    bits = (x[..., None] >> np.arange(32, dtype=np.uint32)) & 1
    positions = np.where(bits == 1, np.arange(32), -1).max(-1)
    return (31 - positions).astype(np.int32)


def arithmetic_right_shift(call: tosaic.NodeCall) -> _Array:
    x, shift = call.operands
    made = x >> shift
    if call.attrs["round"]:
        made += (shift > 0) & ((x >> np.maximum(shift - 1, 0)) & 1 == 1)
    return made


def gather(call: tosaic.NodeCall) -> _Array:
    values, indices = call.operands
    return np.take_along_axis(values, indices[..., None].astype(np.int64), 1)


def slice_(call: tosaic.NodeCall) -> _Array:
    starts = zip(call.attrs["start"], call.attrs["size"], strict=True)
    return call.operand("input")[tuple(slice(start, start + size) for start, size in starts)]


def reduced(function: Callable[..., _Array]) -> Callable[[tosaic.NodeCall], _Array]:
    def model(call: tosaic.NodeCall) -> _Array:
        x = call.operand("input")
        return function(x, axis=call.attrs["axis"], keepdims=True, dtype=x.dtype)

    return model


def of_arrays(function: Callable[..., _Array]) -> Callable[[tosaic.NodeCall], _Array]:
    return lambda call: function(*call.operands)


def cast(call: tosaic.NodeCall) -> _Array:
    return call.operand("input").astype(_DTYPES[call.attrs["dtype"]])


def clamp(call: tosaic.NodeCall) -> _Array:
    x = call.operand("input")
    return np.clip(x, int(call.attrs["min_val"]), int(call.attrs["max_val"])).astype(x.dtype)


INTEGER_MODELS: dict[str, Callable[[tosaic.NodeCall], _Array]] = {
    "tosa.conv2d": conv2d,
    "tosa.depthwise_conv2d": depthwise_conv2d,
    "tosa.max_pool2d": max_pool2d,
    "tosa.matmul": matmul,
    "tosa.rescale": rescale,
    "tosa.table": table,
    "tosa.mul": mul,
    "tosa.add": of_arrays(np.add),
    "tosa.sub": of_arrays(np.subtract),
    "tosa.abs": of_arrays(np.abs),
    "tosa.maximum": of_arrays(np.maximum),
    "tosa.minimum": of_arrays(np.minimum),
    "tosa.bitwise_and": of_arrays(np.bitwise_and),
    "tosa.logical_left_shift": of_arrays(np.left_shift),
    "tosa.arithmetic_right_shift": arithmetic_right_shift,
    "tosa.clz": clz,
    "tosa.gather": gather,
    "tosa.slice": slice_,
    "tosa.cast": cast,
    "tosa.clamp": clamp,
    "tosa.reduce_sum": reduced(np.sum),
    "tosa.reduce_max": lambda call: call.operand("input").max(axis=call.attrs["axis"], keepdims=True),
    "tosa.reduce_min": lambda call: call.operand("input").min(axis=call.attrs["axis"], keepdims=True),
    "tosa.reshape": lambda call: call.operand("input").reshape(call.attrs["shape"]),
    "tosa.transpose": lambda call: call.operand("input").transpose(call.attrs["perm"]),
}
"""The models by operator."""


def model_of_integers(call: tosaic.NodeCall) -> _Array:
    """Computes any of the operators that `INTEGER_MODELS` lists."""
    return INTEGER_MODELS[call.op](call)
