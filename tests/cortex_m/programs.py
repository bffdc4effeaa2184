"""Random quantized programs of one operator that the Cortex-M backend has a kernel for.

A program reads int8 tensors, dequantizes them, calls the operator, and quantizes the result. `PROGRAMS` has
a function for each operator, which draws the program of a seed. An odd seed has qparams as observers choose
them. An even seed has extreme ones: scales that differ by orders of magnitude, zero points at the ends of the
range, results that saturate, and results that round to few integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fx.exporting import exported
from quantize_calls import dq, q

__all__ = ["PROGRAMS", "Drawn", "Program"]

_Q = torch.ops.quantized_decomposed
Tensor = torch.Tensor


@dataclass(frozen=True)
class Program:
    """A quantized program, and int8 arrays to run it on."""

    exported: torch.export.ExportedProgram
    arrays: tuple[Tensor, ...]
    exact: Tensor | None = None
    """Of average pools: the averages of the integers, in f64."""


class Drawn:
    """Random choices of a seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.is_extreme = seed % 2 == 0

    def whole(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def real(self, low: float, high: float) -> float:
        """Returns a number between two positive ones, evenly distributed on a logarithmic scale."""
        at = float(torch.rand((), generator=self.generator, dtype=torch.float64))
        return math.exp(math.log(low) + at * (math.log(high) - math.log(low)))

    def pick(self, *choices: Any) -> Any:
        return choices[self.whole(0, len(choices) - 1)]

    def integers(self, *shape: int, low: int = -128) -> Tensor:
        """Returns int8 integers: evenly distributed, or few different ones, or with many at the ends."""
        out = torch.randint(low, 128, shape, generator=self.generator)
        kind = self.whole(0, 3)
        if kind == 1:
            out = (out // 16).clamp(min=low)
        if kind == 2:
            out = (out * 3).clamp(low, 127)
        return out.to(torch.int8)

    def scale(self) -> float:
        return self.real(1e-5, 1e3) if self.is_extreme else self.real(1e-3, 0.3)

    def zero(self) -> int:
        return self.pick(-128, 127, 0, self.whole(-128, 127)) if self.is_extreme else self.whole(-60, 60)

    def qparams(self) -> tuple[float, int]:
        return self.scale(), self.zero()

    def result(self, size: float) -> tuple[float, int]:
        """Returns qparams for results whose magnitude is about `size`."""
        if self.is_extreme:
            return size / 127 * self.real(2**-8, 2**10), self.zero()
        return size / 127 * self.real(0.5, 2), self.whole(-60, 60)

    def weight(self, *shape: int, axis: int | None = 0) -> tuple[Callable[[], Tensor], Tensor]:
        """Returns a function that dequantizes a constant weight, and its scales: one, or one per channel."""
        stored = torch.randint(-127, 128, shape, generator=self.generator).to(torch.int8)
        if axis is None:
            scale = self.real(1e-3, 1e-2)
            return lambda: dq(stored, scale, 0, -127, 127), torch.tensor([scale], dtype=torch.float64)
        span = 1e4 if self.is_extreme else 10
        scales = torch.tensor([self.real(1e-2 / span, 1e-2) for _ in range(shape[axis])])
        zeros = torch.zeros(shape[axis], dtype=torch.int64)
        return (
            lambda: _Q.dequantize_per_channel(stored, scales, zeros, axis, -127, 127, torch.int8)
        ), scales.double()

    def bias(self, x_scale: float, scales: Tensor) -> Callable[[], Tensor | None]:
        if self.whole(0, 3) == 0:
            return lambda: None
        stored = torch.randint(-5000, 5000, (len(scales),), generator=self.generator).to(torch.int32)
        low, high = -(2**31), 2**31 - 1
        unit = scales * x_scale
        if len(scales) == 1:
            return lambda: _Q.dequantize_per_tensor(stored, float(unit[0]), 0, low, high, torch.int32)
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        return lambda: _Q.dequantize_per_channel(stored, unit, zeros, 0, low, high, torch.int32)


def _program(call: Callable[..., Tensor], *arrays: Tensor, exact: Tensor | None = None) -> Program:
    with torch.no_grad():
        return Program(exported(call, *arrays), arrays, exact)


def _channels_last(image: Tensor) -> Tensor:
    return image.to(memory_format=torch.channels_last)


def _constant(draw: Drawn, zero: int) -> Tensor:
    """Returns a constant second operand: of the whole shape or of channels, of both signs or of one."""
    shape = draw.pick((1, 8, 32, 32), (1, 8, 1, 1))
    if draw.whole(0, 1) or zero >= 100:
        return draw.integers(*shape)
    return torch.randint(zero + 1, 128, shape, generator=draw.generator).to(torch.int8)


def _sums_size(x: float, scales: Tensor, terms: int) -> float:
    return float(x * 70 * 70 * scales.max() * math.sqrt(terms))


# ---- elementwise ----


def _sum(draw: Drawn, subtracts: bool) -> Program:
    (a, az), (b, bz) = draw.qparams(), draw.qparams()
    alpha = draw.pick(1, 1, 1, 2, 3)
    y, z = draw.result(100 * max(a, alpha * b))
    y = max(y, 1e-4 * max(a, alpha * b))  # a smaller scale overflows the 32 bits of the kernel
    low = draw.pick(-128, z, -127)

    def call(s: Tensor, t: Tensor) -> Tensor:
        first, second = dq(s, a, az), dq(t, b, bz)
        made = torch.sub(first, second, alpha=alpha) if subtracts else torch.add(first, second, alpha=alpha)
        return q(made, y, z, low)

    return _program(call, draw.integers(1, 8, 32, 32), draw.integers(1, 8, 32, 32))


def add(draw: Drawn) -> Program:
    return _sum(draw, subtracts=False)


def sub(draw: Drawn) -> Program:
    return _sum(draw, subtracts=True)


def mul(draw: Drawn) -> Program:
    (a, az), (b, bz) = draw.qparams(), draw.qparams()
    y, z = draw.result(60 * a * 60 * b)
    return _program(
        lambda s, t: q(dq(s, a, az) * dq(t, b, bz), y, z),
        draw.integers(1, 8, 32, 32),
        draw.integers(1, 8, 32, 32),
    )


def mul_by_constant(draw: Drawn) -> Program:
    (a, az), (b, bz) = draw.qparams(), draw.qparams()
    y, z = draw.result(60 * a * 60 * b)
    factor = _channels_last(_constant(draw, bz))
    return _program(
        lambda s: q(dq(s, a, az) * dq(factor, b, bz), y, z), _channels_last(draw.integers(1, 8, 32, 32))
    )


def add_constant(draw: Drawn) -> Program:
    (a, az), (b, bz) = draw.qparams(), draw.qparams()
    y, z = draw.result(100 * max(a, b))
    y = max(y, 1e-4 * max(a, b))
    addend = _channels_last(_constant(draw, bz))
    return _program(
        lambda s: q(dq(s, a, az) + dq(addend, b, bz), y, z), _channels_last(draw.integers(1, 8, 32, 32))
    )


def div(draw: Drawn) -> Program:
    (a, az), (b, bz) = draw.qparams(), draw.qparams()
    y, z = draw.result(a / b * 20)
    return _program(
        lambda s, t: q(dq(s, a, az) / dq(t, b, bz), y, z),
        draw.integers(1, 8, 64, 64),
        draw.integers(1, 8, 64, 64),
    )


def _extremum(draw: Drawn, f: Callable[[Tensor, Tensor], Tensor]) -> Program:
    s, z = draw.qparams()
    return _program(
        lambda x, y: q(f(dq(x, s, z), dq(y, s, z)), s, z),
        draw.integers(1, 8, 32, 32),
        draw.integers(1, 8, 32, 32),
    )


def maximum(draw: Drawn) -> Program:
    return _extremum(draw, torch.maximum)


def minimum(draw: Drawn) -> Program:
    return _extremum(draw, torch.minimum)


def _clamped(draw: Drawn, f: Callable[[Tensor], Tensor]) -> Program:
    s, z = draw.qparams()
    return _program(lambda x: q(f(dq(x, s, z)), s, z), draw.integers(1, 8, 32, 32))


def relu(draw: Drawn) -> Program:
    return _clamped(draw, F.relu)


def clamp(draw: Drawn) -> Program:
    s, z = draw.qparams()
    halves = draw.whole(-128 - z, 127 - z) + 0.5  # halfway between two integers, up to rounding
    low, high = sorted([halves * s, draw.whole(-128 - z, 127 - z) * s * draw.real(0.9, 1)])
    return _program(lambda x: q(torch.clamp(dq(x, s, z), low, high), s, z), draw.integers(1, 8, 32, 32))


# ---- functions ----


def _function(f: Callable[[Tensor], Tensor], size: float) -> Callable[[Drawn], Program]:
    def drawn(draw: Drawn) -> Program:
        s, z = draw.real(1e-3, 0.5), draw.zero()
        y, w = draw.pick((1 / 256, -128), draw.result(size), (2.0 ** -draw.whole(3, 9), draw.zero()))
        if draw.whole(0, 1):
            s = 2.0 ** -draw.whole(2, 9)
        return _program(
            lambda x: q(f(dq(x, s, z)), y, w), torch.arange(-128, 128, dtype=torch.int8).reshape(1, 1, 16, 16)
        )

    return drawn


def hardsigmoid(draw: Drawn) -> Program:
    return _contraction(draw, F.hardsigmoid, (1 / 255, -128, -128))


def hardswish(draw: Drawn) -> Program:
    s = draw.pick(6 / 255, 8 / 255, draw.real(6 / 255, 0.2))
    z = max(-128, min(127, round(-128 + 3 / s)))
    y = s * draw.real(0.5, 1.5)
    w = -128 + round(0.375 / y)
    weight, scales = draw.weight(4, 3, 1, 1)
    x = s / 70 / float(scales.max()) * draw.real(0.3, 3)

    def call(image: Tensor) -> Tensor:
        sums = torch.clamp(F.conv2d(dq(image, x, 3), weight()), -3)
        return q(F.hardswish(dq(q(sums, s, z), s, z)), y, w)

    return _program(call, draw.integers(1, 3, 16, 16))


# ---- contractions ----


def _contraction(
    draw: Drawn,
    after: Callable[[Tensor], Tensor] = lambda x: x,
    qparams: tuple[float, int, int] | None = None,
) -> Program:
    x, z = draw.qparams()
    channels, filters, kernel = draw.whole(1, 6), draw.whole(2, 6), draw.whole(1, 3)
    weight, scales = draw.weight(filters, channels, kernel, kernel)
    if qparams is not None:
        x = 3 / _sums_size(1, scales, channels * kernel * kernel) * draw.real(0.3, 3)
    bias = draw.bias(x, scales)
    y, w = draw.result(_sums_size(x, scales, channels * kernel * kernel))
    low = draw.pick(-128, w)  # w: with the qparams of a relu
    if qparams is not None:
        y, w, low = qparams
    stride, padding = draw.whole(1, 2), draw.whole(0, 1)

    def call(image: Tensor) -> Tensor:
        sums = F.conv2d(dq(image, x, z), weight(), bias(), stride, padding)
        return q(after(sums), y, w, low)

    return _program(call, draw.integers(2, channels, 12, 11))


def conv(draw: Drawn) -> Program:
    return _contraction(draw)


def conv_relu(draw: Drawn) -> Program:
    y = 3 * draw.real(0.01, 1) / 255
    return _contraction(draw, F.relu, (y, -128, -128))


def depthwise_conv(draw: Drawn) -> Program:
    x, z = draw.qparams()
    channels, multiplier = draw.whole(2, 6), draw.whole(1, 2)
    weight, scales = draw.weight(channels * multiplier, 1, 3, 3)
    bias = draw.bias(x, scales)
    y, w = draw.result(_sums_size(x, scales, 9))
    stride, padding = draw.whole(1, 2), draw.whole(0, 1)

    def call(image: Tensor) -> Tensor:
        sums = F.conv2d(dq(image, x, z), weight(), bias(), stride, padding, 1, channels)
        return q(sums, y, w)

    return _program(call, draw.integers(1, channels, 12, 11))


def transposed_conv(draw: Drawn) -> Program:
    x, z = draw.qparams()
    channels, filters = draw.whole(1, 5), draw.whole(2, 5)
    weight, scales = draw.weight(channels, filters, 3, 3, axis=1)
    bias = draw.bias(x, scales)
    y, w = draw.result(_sums_size(x, scales, channels * 4))
    stride, padding = draw.whole(1, 2), draw.whole(0, 1)

    def call(image: Tensor) -> Tensor:
        return q(F.conv_transpose2d(dq(image, x, z), weight(), bias(), stride, padding), y, w)

    return _program(call, draw.integers(1, channels, 7, 6))


def linear(draw: Drawn) -> Program:
    x, z = draw.qparams()
    depth, width = draw.whole(1, 80), draw.whole(1, 20)
    weight, scales = draw.weight(width, depth, axis=None)
    stored = torch.randint(-5000, 5000, (width,), generator=draw.generator).to(torch.int32)
    unit, low, high = float(scales[0]) * x, -(2**31), 2**31 - 1
    y, w = draw.result(_sums_size(x, scales, depth))

    def call(rows: Tensor) -> Tensor:
        bias = _Q.dequantize_per_tensor(stored, unit, 0, low, high, torch.int32)
        return q(F.linear(dq(rows, x, z), weight(), bias), y, w)

    return _program(call, draw.integers(40, depth))


def bmm(draw: Drawn) -> Program:
    (a, az), (b, bz) = draw.qparams(), draw.qparams()
    depth = draw.whole(1, 60)
    y, w = draw.result(70 * a * 70 * b * math.sqrt(depth))
    return _program(
        lambda s, t: q(torch.bmm(dq(s, a, az), dq(t, b, bz)), y, w),
        draw.integers(3, 12, depth),
        draw.integers(3, depth, 11),
    )


# ---- pools, softmax, movement ----


def avg_pool(draw: Drawn) -> Program:
    s, z = draw.qparams()
    kernel = (draw.whole(1, 4), draw.whole(1, 4))
    stride = (draw.whole(1, 3), draw.whole(1, 3))
    padding = (draw.whole(0, kernel[0] // 2), draw.whole(0, kernel[1] // 2))
    ceil = bool(draw.whole(0, 1))
    # ExecuTorch pads first if padding counts. Then ceil_mode may add a row that torch does not have.
    counts = bool(draw.whole(0, 1)) and not (ceil and any(padding))
    x = draw.integers(1, 5, 14, 13)
    return _program(
        lambda x: q(F.avg_pool2d(dq(x, s, z), kernel, stride, padding, ceil, counts), s, z),
        x,
        exact=F.avg_pool2d(x.double() - z, kernel, stride, padding, ceil, counts) + z,
    )


def mean(draw: Drawn) -> Program:
    s, z = draw.qparams()
    x = draw.integers(2, 40, draw.whole(1, 8), draw.whole(1, 8))
    exact = x.double().mean((2, 3), True)
    return _program(lambda x: q(dq(x, s, z).mean((2, 3), True), s, z), x, exact=exact)


def adaptive_avg_pool(draw: Drawn) -> Program:
    s, z = draw.qparams()
    x = draw.integers(2, 40, draw.whole(2, 8), draw.whole(2, 8))
    exact = x.double().mean((2, 3), True)
    return _program(lambda x: q(F.adaptive_avg_pool2d(dq(x, s, z), 1), s, z), x, exact=exact)


def max_pool(draw: Drawn) -> Program:
    s, z = draw.qparams()
    kernel, stride, padding = draw.whole(2, 3), draw.whole(1, 3), draw.whole(0, 1)
    return _program(
        lambda x: q(F.max_pool2d(dq(x, s, z), kernel, stride, padding), s, z),
        draw.integers(1, 5, 14, 13),
    )


def softmax(draw: Drawn) -> Program:
    s = draw.real(1e-4, 30) if draw.is_extreme else draw.real(0.01, 0.3)
    z = draw.zero()
    shape = draw.pick((64, 10), (8, 100), (4, 600), (300, 2), (20, 3, 7), (2, 4000))
    return _program(lambda x: q(F.softmax(dq(x, s, z), -1), 1 / 256, -128), draw.integers(*shape))


def transpose(draw: Drawn) -> Program:
    s, z = draw.qparams()
    order = [int(axis) for axis in torch.randperm(4, generator=draw.generator)]
    return _program(lambda x: q(dq(x, s, z).permute(order), s, z), draw.integers(2, 3, 4, 5))


def pad(draw: Drawn) -> Program:
    s, z = draw.qparams()
    amounts = [draw.whole(0, 2) for _ in range(4)]
    value = draw.pick(0.0, (draw.whole(-128 - z, 127 - z) + 0.5) * s, draw.real(1e-3, 1e3))
    return _program(lambda x: q(F.pad(dq(x, s, z), amounts, value=value), s, z), draw.integers(2, 3, 4, 5))


PROGRAMS: dict[str, Callable[[Drawn], Program]] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "mul by constant": mul_by_constant,
    "add constant": add_constant,
    "div": div,
    "maximum": maximum,
    "minimum": minimum,
    "relu": relu,
    "clamp": clamp,
    "sigmoid": _function(torch.sigmoid, 1),
    "tanh": _function(torch.tanh, 1),
    "silu": _function(F.silu, 8),
    "gelu": _function(F.gelu, 8),
    "gelu tanh": _function(lambda x: F.gelu(x, approximate="tanh"), 8),
    "log": _function(torch.log, 3),
    "log2": _function(torch.log2, 4),
    "log10": _function(torch.log10, 2),
    "log1p": _function(torch.log1p, 3),
    "sqrt": _function(torch.sqrt, 4),
    "rsqrt": _function(torch.rsqrt, 8),
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "conv": conv,
    "conv, relu": conv_relu,
    "depthwise conv": depthwise_conv,
    "transposed conv": transposed_conv,
    "linear": linear,
    "bmm": bmm,
    "avg_pool": avg_pool,
    "mean": mean,
    "adaptive avg_pool": adaptive_avg_pool,
    "max_pool": max_pool,
    "softmax": softmax,
    "transpose": transpose,
    "pad": pad,
}
"""Functions that draw a program, by the name of the operator."""
