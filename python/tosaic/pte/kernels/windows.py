"""Kernels of contractions, pools and resizing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tosaic import _core
from tosaic.pte.host import Held, Host
from tosaic.pte.kernels.table import Operands, Results, add_kernel, result, row

add_kernel("addmm", "aten::addmm.out", "beta", "alpha")

_IMAGE_RANK = 4
_Write: TypeAlias = Callable[[Held, tuple[int, ...]], Held]


# ---- contractions ----


@row("conv")
def _conv(host: Host, node: _core.Node, operands: Operands) -> Results:
    """Pads that differ on both sides become a pad before, or a slice after a transposed convolution."""
    a, (x, weight, bias) = node.attrs, operands
    before, after = list(a["pad_before"]), list(a["pad_after"])
    value = node.results[0]
    if len(before) > _IMAGE_RANK - 2:
        return None
    result_shape = list(value.shape)
    if x.rank == len(before) + 1:  # without a batch
        x, result_shape = host.reshape(x, (1, *x.shape)), [1, *result_shape]
    shape, padding = list(result_shape), before
    if before != after and a["transposed"]:
        padding = [0] * len(before)
        shape[2:] = [n + p + q for n, p, q in zip(shape[2:], before, after, strict=True)]
    elif before != after:
        flat = [n for pad in reversed(list(zip(before, after, strict=True))) for n in pad]
        padded = [n + p + q for n, p, q in zip(x.shape[2:], before, after, strict=True)]
        x = host.call("aten::constant_pad_nd.out", [x, flat, 0], x.dtype, [*x.shape[:2], *padded])
        padding = [0] * len(before)
    settings = [list(a["stride"]), padding, list(a["dilation"]), a["transposed"], list(a["output_padding"])]
    made = host.call("aten::convolution.out", [x, weight, bias, *settings, a["groups"]], value.dtype, shape)
    for axis, (first, extent) in enumerate(zip(before, result_shape[2:], strict=True), 2):
        if shape[axis] != extent:
            shape[axis] = extent
            made = host.call(
                "aten::slice_copy.Tensor_out", [made, axis, first, first + extent, 1], value.dtype, shape
            )
    return host.reshape(made, value.shape)


@row("linear")
def _linear(host: Host, node: _core.Node, operands: Operands) -> Results:
    x, weight, bias = operands
    value = node.results[0]
    if weight.rank != 2:
        return None
    rows = host.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    across = host.permute(weight, (1, 0))
    shape = (rows.shape[0], weight.shape[0])
    if bias is None:
        made = host.call("aten::mm.out", [rows, across], value.dtype, shape)
    else:
        made = host.call("aten::addmm.out", [bias, rows, across, 1, 1], value.dtype, shape)
    return host.reshape(made, value.shape)


@row("matmul")
def _matmul(host: Host, node: _core.Node, operands: Operands) -> Results:
    """Broadcasts and flattens batches. A vector is read as a matrix of one row, or of one column."""
    a, b = operands
    value = node.results[0]
    if a.rank == 1:
        a = host.reshape(a, (1, *a.shape))
    if b.rank == 1:
        b = host.reshape(b, (*b.shape, 1))
    rows, columns = a.shape[-2], b.shape[-1]
    if a.rank == b.rank == 2:
        return host.reshape(host.call("aten::mm.out", [a, b], value.dtype, (rows, columns)), value.shape)
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    flat = [
        host.reshape(_expanded(host, each, (*batch, *each.shape[-2:])), (math.prod(batch), *each.shape[-2:]))
        for each in (a, b)
    ]
    made = host.call("aten::bmm.out", [*flat], value.dtype, (math.prod(batch), rows, columns))
    return host.reshape(made, value.shape)


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    wide = [(*(1,) * (rank - len(each)), *each) for each in (a, b)]
    return tuple(q if p == 1 else p for p, q in zip(*wide, strict=True))


def _expanded(host: Host, held: Held, shape: Sequence[int]) -> Held:
    if held.shape == tuple(shape):
        return held
    return host.call("aten::expand_copy.out", [held, list(shape), False], held.dtype, shape)


# ---- pools and resizing ----


def _on_images(host: Host, node: _core.Node, x: Held, spatial: int, write: _Write) -> Held | None:
    """Writes a kernel of images: batch, channels, height and width. A signal is an image of height 1."""
    if spatial > 2:
        return None
    shape = tuple(node.results[0].shape)
    if x.rank == _IMAGE_RANK and spatial == 2:
        return write(x, shape)
    image = host.reshape(x, _image_shape(x.shape, spatial))
    return host.reshape(write(image, _image_shape(shape, spatial)), shape)


def _image_shape(shape: Sequence[int], spatial: int) -> tuple[int, ...]:
    outer, inner = list(shape[: len(shape) - spatial]), list(shape[len(shape) - spatial :])
    return tuple([1] * (2 - len(outer)) + outer + [1] * (2 - len(inner)) + inner)


@row("avg_pool")
def _avg_pool(host: Host, node: _core.Node, operands: Operands) -> Results:
    a, (x,) = node.attrs, operands
    spatial = len(a["kernel"])
    if any(each != 1 for each in a["dilation"]):
        return None
    kernel, stride, padding = (_both(a[n], one) for n, one in (("kernel", 1), ("stride", 1), ("padding", 0)))

    def write(image: Held, shape: tuple[int, ...]) -> Held:
        rest = [a["ceil_mode"], a["count_include_pad"], a["divisor_override"]]
        return host.call("aten::avg_pool2d.out", [image, kernel, stride, padding, *rest], x.dtype, shape)

    return _on_images(host, node, x, spatial, write)


@row("max_pool")
def _max_pool(host: Host, node: _core.Node, operands: Operands) -> Results:
    a, (x,) = node.attrs, operands
    settings = [
        _both(a[n], one) for n, one in (("kernel", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
    ]

    def write(image: Held, shape: tuple[int, ...]) -> Held:
        types = [(x.dtype, shape), ("i64", shape)]
        arguments = [image, *settings, a["ceil_mode"]]
        return host.calls("aten::max_pool2d_with_indices.out", arguments, types)[0]

    return _on_images(host, node, x, len(a["kernel"]), write)


def _both(numbers: Sequence[int], height: int) -> list[int]:
    """Returns the two settings (height, width) of an image; a signal's only setting is its width."""
    return [height] * (2 - len(numbers)) + list(numbers)


@row("adaptive_avg_pool")
def _adaptive_avg_pool(host: Host, node: _core.Node, operands: Operands) -> Results:
    size, (x,) = node.attrs["shape"], operands

    def write(image: Held, shape: tuple[int, ...]) -> Held:
        return host.call("aten::_adaptive_avg_pool2d.out", [image, list(shape[2:])], x.dtype, shape)

    return _on_images(host, node, x, len(size), write)


@row("resize")
def _resize(host: Host, node: _core.Node, operands: Operands) -> Results:
    """Passes the scales to the kernel if the node has any, which then decide positions; else the size."""
    a, (x,) = node.attrs, operands
    spatial = len(a["size"])
    kernel = {"nearest": "aten::upsample_nearest2d", "bilinear": "aten::upsample_bilinear2d"}.get(a["mode"])
    scales = list(a["scales"])
    by_scale = [int(n * scale) for n, scale in zip(x.shape[2:], scales, strict=False)]
    if kernel is None or x.rank != spatial + 2 or (scales and by_scale != list(a["size"])):
        return None
    factors = [1.0] * (2 - spatial) + [float(each) for each in scales] if scales else None

    def write(image: Held, shape: tuple[int, ...]) -> Held:
        corners = [a["align_corners"]] if a["mode"] == "bilinear" else []
        size = None if factors else list(shape[2:])
        return host.call(f"{kernel}.vec_out", [image, size, *corners, factors], x.dtype, shape)

    return _on_images(host, node, x, spatial, write)


@row("grid_sample")
def _grid_sample(host: Host, node: _core.Node, operands: Operands) -> Results:
    a = node.attrs
    if operands[0].rank != _IMAGE_RANK:
        return None
    mode = ("bilinear", "nearest", "bicubic").index(a["mode"])
    padding = ("zeros", "border", "reflection").index(a["padding"])
    return result(host, node, "aten::grid_sampler_2d.out", [*operands, mode, padding, a["align_corners"]])
