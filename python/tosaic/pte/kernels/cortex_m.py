"""Kernels of the library ``cortex_m`` of ExecuTorch: CMSIS-NN's, for nodes of a quantized graph.

::

    conv, relu -> cortex_m::quantized_conv2d        the ReLU is a bound of the kernel's result
    linear     -> cortex_m::quantized_linear        one scale for all weights
               -> cortex_m::quantized_conv2d        a scale for each channel: a kernel of 1x1
    gelu       -> cortex_m::quantized_activation    a table of 256 results
    reshape    -> a view; slice, cat -> portable kernels, which move the integers

A kernel multiplies by a fraction of 31 bits and a power of two, which `multiplier_of` derives from the
scales as CMSIS-NN's own tools do. Images are channels last, as the kernels demand; other tensors are
row-major. Only int8 has kernels, except that int16 is quantized and dequantized.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tosaic.base.quantization import QParams
from tosaic.pte.host import Held, Host
from tosaic.pte.kernels.library import KernelCall, Library
from tosaic.pte.method_writer import code_of

_CONTRACTIONS = (
    "quantized_conv2d",
    "quantized_depthwise_conv2d",
    "quantized_transpose_conv2d",
    "quantized_linear",
)
LIBRARY = Library(
    "cortex_m",
    scratch={
        "quantized_conv2d": 1,
        "quantized_depthwise_conv2d": 1,
        "quantized_transpose_conv2d": 2,
        "quantized_avg_pool2d": 1,
        "quantized_batch_matmul": 1,
    },
    kernels={
        **dict.fromkeys(("conv", "linear"), _CONTRACTIONS),
        **dict.fromkeys(("avg_pool", "adaptive_avg_pool", "mean"), ("quantized_avg_pool2d",)),
        "matmul": ("quantized_batch_matmul",),
        "max_pool": ("quantized_max_pool2d",),
        "softmax": ("softmax",),
        "minimum": ("minimum",),
        "maximum": ("maximum",),
        "quantize": ("quantize_per_tensor",),
        "dequantize": ("dequantize_per_tensor",),
    },
)
"""The rows of the library."""

_IMAGE = (0, 2, 3, 1)
_SUM_SHIFT = 20  # sums are computed with 20 more bits
_SOFTMAX_BITS = 5  # integer bits of the exponents of a softmax
_FEW_CHANNELS = 16  # a transposed convolution of more channels convolves the upsampled image
_MOST_AXES = 4
_Image: TypeAlias = "tuple[Held, tuple[int, ...]]"
_Pair: TypeAlias = "tuple[int, int]"


def multiplier_of(factor: float) -> _Pair:
    """Returns a factor as an integer of 32 bits and the exponent of a power of two.

    Examples
    --------
    >>> multiplier_of(0.75)
    (1610612736, 0)
    """
    if factor == 0:
        return 0, 0
    fraction, shift = math.frexp(factor)
    multiplier = round(fraction * 2**31)
    if multiplier == 2**31:
        multiplier, shift = multiplier // 2, shift + 1
    return multiplier, shift


def _named(name: str) -> str:
    return f"{LIBRARY.name}::{name}.out"


# ---- quantize and dequantize ----


@LIBRARY.row("quantize", "dequantize")
def _conversion(call: KernelCall) -> Held | None:
    a, host, x = call.node.attrs, call.host, call.operands[0]
    value = call.node.results[0]
    floats = x.dtype if call.node.op == "quantize" else value.dtype
    integers = value.dtype if call.node.op == "quantize" else x.dtype
    is_known = floats == "f32" and integers in ("i8", "i16") and a["axis"] is None and not a.get("groups")
    if not is_known:
        return None
    scale, zero = float(a["scales"][0]), int(a["zero_points"][0])
    settings = [scale, zero, int(a["qmin"]), int(a["qmax"]), code_of(integers)]
    return host.call(_named(f"{call.node.op}_per_tensor"), [x, *settings], value.dtype, x.shape, x.order)


# ---- weights ----


@LIBRARY.row("conv", bounded=True)
def _conv(call: KernelCall) -> Held | None:
    a, host = call.node.attrs, call.host
    x, spatial = call.operands[0], len(a["stride"])
    weight = call.constant(1)
    if not call.is_of_bytes or weight is None or spatial > 2 or x.rank != spatial + 2:
        return None
    before, after = list(a["pad_before"]), list(a["pad_after"])
    if before != after:
        if a["transposed"]:
            return None
        padded = _padded(host, x, [0, 0, *before], [0, 0, *after], call.qparams(0).zero_points[0])
        if padded is None:
            return None
        x = padded
        before = [0] * spatial
    image, shape = _as_image(host, x, call.node.results[0].shape, spatial)
    weight = weight.reshape((*weight.shape[:2], *(1,) * (2 - spatial), *weight.shape[2:]))
    stride, dilation, padding = _both(a["stride"], 1), _both(a["dilation"], 1), _both(before, 0)
    channels, groups = image.shape[1], int(a["groups"])
    settings: list[Any] = [stride, padding]
    scratch = [call.scratch]
    if a["transposed"]:
        name, laid_out = "quantized_transpose_conv2d", weight.transpose(1, 2, 3, 0)
        settings += [_both(a["output_padding"], 0), dilation]
        reversed_bytes = weight.size if max(stride) <= 2 and channels > _FEW_CHANNELS else 0
        scratch = [call.scratch - reversed_bytes, reversed_bytes]
    elif groups == channels and image.shape[0] == 1 and shape[1] % channels == 0:
        name, laid_out = "quantized_depthwise_conv2d", weight.transpose(1, 2, 3, 0)
        settings += [dilation, shape[1] // channels]
    else:
        name, laid_out = "quantized_conv2d", weight.transpose(0, 2, 3, 1)
        settings += [dilation]
    made = _contracted(call, name, image, laid_out, settings, scratch, shape, has_bias=groups > 1)
    return host.reshape(made, call.node.results[0].shape) if spatial < 2 else made


@LIBRARY.row("linear", bounded=True)
def _linear(call: KernelCall) -> Held | None:
    host, x = call.host, call.operands[0]
    weight = call.constant(1)
    if not call.is_of_bytes or weight is None or weight.ndim != 2 or x.rank < 2:
        return None
    shape = call.node.results[0].shape
    rows, (outputs, inputs) = math.prod(shape[:-1]), weight.shape
    by_channel = call.qparams(1)
    if len(set(by_channel.scales)) > 1 or any(by_channel.zero_points):
        wide = host.logical(host.reshape(x, (1, 1, rows, inputs)), _IMAGE)
        scratch = [call.scratch_of_image(wide.shape, (outputs, inputs, 1, 1), (1, outputs, 1, rows))]
        settings: list[Any] = [[1, 1], [0, 0], [1, 1]]
        laid_out = weight.reshape(outputs, 1, 1, inputs)
        made = _contracted(call, "quantized_conv2d", wide, laid_out, settings, scratch, (1, outputs, 1, rows))
        return host.reshape(host.physical(made), shape)
    x = host.in_order(x, tuple(range(x.rank)))
    zero = int(call.qparams(0).zero_points[0])
    bias = _bias(call, outputs, has_bias=False)
    sums = None
    if call.form == "mve":  # kernels for vectors read the sums of the weights in place of the bias
        total = -zero * weight.astype(np.int64).sum(1) + (0 if bias is None else bias)
        sums, bias = host.constant(total.astype(np.int32).reshape(1, outputs), "i32"), None
    multiplier, shift = multiplier_of(_factors(call, outputs)[0])
    settings = [-zero, 0, call.zero_of_result, [multiplier], [shift], call.bounds[1], call.bounds[0]]
    arguments = [x, host.constant(np.ascontiguousarray(weight), "i8"), _constant(host, bias), sums]
    return host.call(_named("quantized_linear"), [*arguments, *settings], "i8", shape)


def _contracted(
    call: KernelCall,
    name: str,
    image: Held,
    weight: np.ndarray[Any, Any],
    settings: Sequence[Any],
    scratch: Sequence[int],
    shape: Sequence[int],
    *,
    has_bias: bool = False,
) -> Held:
    """Writes a convolution. `has_bias`: the kernel reads a bias even if the node has none."""
    host = call.host
    pairs = [multiplier_of(each) for each in _factors(call, shape[1])]
    multipliers, shifts = (
        host.constant(np.array([pair[side] for pair in pairs], np.int32), "i32") for side in (0, 1)
    )
    arguments = [
        host.in_order(image, _IMAGE),
        host.constant(np.ascontiguousarray(weight), "i8"),
        _constant(host, _bias(call, shape[1], has_bias=has_bias)),
        *settings,
        -int(call.qparams(0).zero_points[0]),
        call.zero_of_result,
        multipliers,
        shifts,
        *call.bounds,
        *(host.new("u8", (size,)) for size in scratch),
    ]
    return host.call(_named(name), arguments, "i8", shape, _IMAGE)


def _factors(call: KernelCall, channels: int) -> list[float]:
    """Returns the factor from sums of products to integers of the result, by channel."""
    scale, scales = call.qparams(0).scales[0], list(call.qparams(1).scales)
    scales = scales * channels if len(scales) == 1 else scales
    result = call.result.scales[0]
    return [scale * each / result for each in scales]


def _bias(call: KernelCall, channels: int, *, has_bias: bool) -> np.ndarray[Any, Any] | None:
    bias = call.constant(2) if len(call.operands) > 2 else None
    if bias is None:
        return np.zeros(channels, np.int32) if has_bias else None
    return np.asarray(bias, np.int32)


def _constant(host: Host, array: np.ndarray[Any, Any] | None) -> Held | None:
    return None if array is None else host.constant(array, "i32")


# ---- products, sums and extrema ----


@LIBRARY.row("matmul")
def _matmul(call: KernelCall) -> Held | None:
    host, (a, b) = call.host, call.operands
    if not call.is_of_bytes or min(a.rank, b.rank) < 2:
        return None
    batch = math.prod(a.shape[:-2])
    if a.shape[:-2] != b.shape[:-2]:
        return None
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    left = host.reshape(a, (batch, rows, inner))
    right = host.reshape(b, (batch, inner, columns))
    if right.elements is not None:
        right = host.permute(right, (0, 2, 1))
    else:
        right = host.call(_named("transpose"), [right, [0, 2, 1]], "i8", (batch, columns, inner))
    first, second, result = call.qparams(0), call.qparams(1), call.result
    settings = [
        *multiplier_of(first.scales[0] * second.scales[0] / result.scales[0]),
        host.new("u8", (call.scratch,)),
    ]
    arguments = [left, -first.zero_points[0], right, -second.zero_points[0], call.zero_of_result, *settings]
    made = host.call(_named("quantized_batch_matmul"), arguments, "i8", (batch, rows, columns))
    return host.reshape(_clamped(call, made), call.node.results[0].shape)


@LIBRARY.row("add", "sub", bounded=True)
def _add(call: KernelCall) -> Held | None:
    """The operands are multiplied by at most one half, so that their sum has 32 bits."""
    if not call.is_of_bytes or None in (pair := _alike(call)):
        return None
    a, b = pair
    first, second, result = call.qparams(0), call.qparams(1), call.result
    alpha = float(call.node.attrs.get("alpha", 1)) * (-1 if call.node.op == "sub" else 1)
    if alpha != int(alpha):
        return None
    scales = first.scales[0], abs(alpha) * second.scales[0]
    most = 2 * max(scales)
    (m0, s0), (m1, s1) = (multiplier_of(each / most) for each in scales)
    out, shift = multiplier_of(most / (result.scales[0] * 2**_SUM_SHIFT))
    if shift > 0 and _widest_sum(first, second, alpha, most) * 2**shift >= 2**31:
        return None
    arguments = [a, first.zero_points[0], m0, s0]
    arguments += [b, second.zero_points[0], -m1 if alpha < 0 else m1, s1]
    arguments += [call.zero_of_result, out, shift, *call.bounds]
    return _like(call, "quantized_add", arguments, a)


def _widest_sum(first: QParams, second: QParams, alpha: float, most: float) -> float:
    """Returns the greatest magnitude of the sum before the factor of the result."""
    spans = [[bound - each.zero_points[0] for bound in (each.qmin, each.qmax)] for each in (first, second)]
    sums = [i * first.scales[0] + j * alpha * second.scales[0] for i in spans[0] for j in spans[1]]
    widest: float = max(map(abs, sums)) * 2**_SUM_SHIFT / most
    return widest


@LIBRARY.row("mul")
def _mul(call: KernelCall) -> Held | None:
    if not call.is_of_bytes or None in (pair := _alike(call)):
        return None
    a, b = pair
    first, second, result = call.qparams(0), call.qparams(1), call.result
    factor = multiplier_of(first.scales[0] * second.scales[0] / result.scales[0])
    arguments = [a, first.zero_points[0], b, second.zero_points[0], call.zero_of_result, *factor]
    return _clamped(call, _like(call, "quantized_mul", arguments, a))


@LIBRARY.row("div")
def _div(call: KernelCall) -> Held | None:
    """The kernel divides floats."""
    if not call.is_of_bytes or None in (pair := _alike(call)) or pair[0].shape != pair[1].shape:
        return None
    a, b = pair
    first, second, result = call.qparams(0), call.qparams(1), call.result
    factor = float(first.scales[0] / (second.scales[0] * result.scales[0]))
    arguments = [a, first.zero_points[0], b, second.zero_points[0], call.zero_of_result, factor]
    return _clamped(call, _like(call, "quantized_div", arguments, a))


@LIBRARY.row("minimum", "maximum")
def _extremum(call: KernelCall) -> Held | None:
    host, (a, b) = call.host, call.operands
    value = call.node.results[0]
    if not call.is_of_bytes or max(a.rank, b.rank) > _MOST_AXES:
        return None
    if a.shape != b.shape:
        a, b = (host.in_order(each, tuple(range(each.rank))) for each in (a, b))
    b = host.in_order(b, a.order)
    return host.call(_named(call.node.op), [a, b], "i8", value.shape, a.order)


def _alike(call: KernelCall) -> tuple[Any, Any]:
    """Returns two operands in one dim order; (None, None) if the kernels do not broadcast them.

    One operand may have one pixel: the other is then channels last.
    """
    host, (a, b) = call.host, call.operands
    if a is None or b is None:
        return None, None
    if a.shape == b.shape:
        return a, host.in_order(b, a.order)
    if a.rank != 4 or b.rank != 4 or a.shape[1] != b.shape[1]:
        return None, None
    if all(math.prod(each.shape) != each.shape[1] for each in (a, b)):
        return None, None
    return host.in_order(a, _IMAGE), host.in_order(b, _IMAGE)


def _like(call: KernelCall, name: str, arguments: Sequence[Any], operand: Held) -> Held:
    """Writes a call whose result has the dim order of an operand."""
    return call.host.call(_named(name), arguments, "i8", call.node.results[0].shape, operand.order)


def _clamped(call: KernelCall, made: Held) -> Held:
    """Clamps a result whose kernel has no bounds, if it uses a part of the integers only."""
    if call.bounds == (-128, 127):
        return made
    table = call.host.constant(np.arange(-128, 128).clip(*call.bounds).astype(np.int8), "i8")
    return call.host.call(_named("quantized_activation"), [made, table], "i8", made.shape, made.order)


# ---- pools ----


@LIBRARY.row("max_pool")
def _max_pool(call: KernelCall) -> Held | None:
    a, x = call.node.attrs, call.operands[0]
    if not call.is_of_bytes or x.rank != 4 or len(a["kernel"]) != 2:
        return None
    if a["ceil_mode"] or any(n != 1 for n in a["dilation"]):
        return None
    settings = [list(a[name]) for name in ("kernel", "stride", "padding", "dilation")]
    zero = call.zero_of_result
    arguments = [call.host.in_order(x, _IMAGE), *settings, False, zero, zero, *call.bounds]
    shape = call.node.results[0].shape
    return call.host.call(_named("quantized_max_pool2d"), arguments, "i8", shape, _IMAGE)


@LIBRARY.row("avg_pool")
def _avg_pool(call: KernelCall) -> Held | None:
    a, x = call.node.attrs, call.operands[0]
    if len(a["kernel"]) != 2 or a["divisor_override"] is not None or any(n != 1 for n in a["dilation"]):
        return None
    if any(a["padding"]) and a["count_include_pad"]:
        return None
    return _average(call, x, list(a["kernel"]), list(a["stride"]), list(a["padding"]), bool(a["ceil_mode"]))


@LIBRARY.row("adaptive_avg_pool")
def _adaptive_avg_pool(call: KernelCall) -> Held | None:
    x, size = call.operands[0], list(call.node.attrs["shape"])
    if x.rank != 4 or len(size) != 2 or any(n % m for n, m in zip(x.shape[2:], size, strict=True)):
        return None
    kernel = [n // m for n, m in zip(x.shape[2:], size, strict=True)]
    return _average(call, x, kernel, kernel, [0, 0], False)


@LIBRARY.row("mean")
def _mean(call: KernelCall) -> Held | None:
    x = call.operands[0]
    if x.rank > _MOST_AXES:
        return None
    missing = _MOST_AXES - x.rank
    axes = {int(axis) % x.rank + missing for axis in call.node.attrs["axes"]}
    if not axes <= {2, 3}:
        return None
    image = call.host.reshape(x, (*(1,) * missing, *x.shape)) if missing else x
    kernel = [image.shape[axis] if axis in axes else 1 for axis in (2, 3)]
    made = _average(call, image, kernel, kernel, [0, 0], False)
    return None if made is None else call.host.reshape(made, call.node.results[0].shape)


def _average(
    call: KernelCall,
    x: Held,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
) -> Held | None:
    if not call.is_of_bytes or x.rank != 4 or call.qparams(0) != call.result:
        return None
    sizes = (
        _size(n, k, s, p, ceil_mode) for n, k, s, p in zip(x.shape[2:], kernel, stride, padding, strict=True)
    )
    source = call.qparams(0)
    settings = [list(kernel), list(stride), list(padding), ceil_mode, source.zero_points[0]]
    factor = multiplier_of(source.scales[0])
    arguments = [call.host.in_order(x, _IMAGE), *settings, *factor, call.host.new("u8", (call.scratch,))]
    shape = (*x.shape[:2], *sizes)
    return call.host.call(_named("quantized_avg_pool2d"), arguments, "i8", shape, _IMAGE)


def _size(extent: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    room = extent + 2 * padding - kernel
    found = -(-room // stride) + 1 if ceil_mode else room // stride + 1
    return found - 1 if ceil_mode and (found - 1) * stride >= extent + padding else found


# ---- softmax ----


@LIBRARY.row("softmax")
def _softmax(call: KernelCall) -> Held | None:
    host, x = call.host, call.operands[0]
    result = call.result
    axis = int(call.node.attrs["axis"]) % x.rank
    if not call.is_of_bytes or result.scales[0] != 1 / 256 or call.zero_of_result != -128:
        return None
    most = 2 ** (31 - _SOFTMAX_BITS)
    multiplier, shift = multiplier_of(min(call.qparams(0).scales[0] * most, float(2**31 - 1)))
    least = -math.floor((2**_SOFTMAX_BITS - 1) * most / 2**shift)
    last = [each for each in range(x.rank) if each != axis] + [axis]
    rows = host.permute(x, last)
    settings = [x.rank - 1, call.qparams(0).zero_points[0], -128, multiplier, shift, least]
    made = host.call(_named("softmax"), [rows, *settings], "i8", rows.shape)
    return host.permute(made, [last.index(each) for each in range(x.rank)])


# ---- moves ----


@LIBRARY.row("permute")
def _permute(call: KernelCall) -> Held | None:
    host, x, order = call.host, call.operands[0], list(call.node.attrs["perm"])
    if not call.is_of_bytes or x.rank > _MOST_AXES or x.elements is not None:
        return None
    rows = host.in_order(x, tuple(range(x.rank)))
    return host.call(_named("transpose"), [rows, order], "i8", [x.shape[axis] for axis in order])


@LIBRARY.row("pad")
def _pad(call: KernelCall) -> Held | None:
    a, x = call.node.attrs, call.operands[0]
    if not call.is_of_bytes or x.rank > _MOST_AXES or a.get("mode", "constant") != "constant":
        return None
    qparams = call.qparams(0)
    number = round(float(a["value"]) / qparams.scales[0]) + qparams.zero_points[0]
    number = min(max(number, qparams.qmin), qparams.qmax)
    return _padded(call.host, x, list(a["before"]), list(a["after"]), number)


def _padded(host: Host, x: Held, before: Sequence[int], after: Sequence[int], number: int) -> Held | None:
    """Writes a pad of the axes as they are in memory; None if it crops."""
    if min(*before, *after) < 0:
        return None
    rows = host.physical(x)
    missing = [0] * (_MOST_AXES - x.rank)
    pads = [missing + [int(side[axis]) for axis in x.order] for side in (before, after)]
    extents = [int(n + before[axis] + after[axis]) for n, axis in zip(rows.shape, x.order, strict=True)]
    return host.logical(host.call(_named("pad"), [rows, *pads, int(number)], "i8", extents), x.order)


# ---- tables ----


@LIBRARY.table
def _table(call: KernelCall, results: Callable[[], np.ndarray[Any, Any]]) -> Held | None:
    """The kernel of operators of one operand: a table with the result of each integer."""
    x: Held = call.operands[0]
    if not call.is_of_bytes:
        return None
    table = results()
    if np.array_equal(table, np.arange(-128, 128)):
        return x
    return call.host.call(
        _named("quantized_activation"), [x, call.host.constant(table, "i8")], "i8", x.shape, x.order
    )


def _as_image(host: Host, x: Held, shape: Sequence[int], spatial: int) -> _Image:
    """Returns a signal as an image of height 1, with the shape of its result; an image as it is."""
    if spatial == 2:
        return x, tuple(shape)
    return host.reshape(x, (*x.shape[:2], 1, x.shape[2])), (*shape[:2], 1, shape[2])


def _both(numbers: Sequence[int], height: int) -> list[int]:
    return [height] * (2 - len(numbers)) + [int(each) for each in numbers]
