"""Quantized programs whose operators are judged alone and lowered among others.

Each operator of `partitions.device_cases`, and of this module, is a program alone, behind a convolution or
linear layer, in front of one, and between two. There, other values have other dim orders, and the operator
may get another form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import torch
import torch.nn.functional as F
import tosaic
from partitions.device_cases import CASES as OPERATORS
from partitions.device_cases import DeviceCase, exported
from quantize_calls import qdq

__all__ = ["CASES", "PLACES", "Case"]

PLACES = ("alone", "behind", "before", "between")
_SCALE = {torch.int8: 0.05, torch.int16: 0.0005}


@dataclass(frozen=True)
class Case:
    """An operator."""

    operator: DeviceCase

    @property
    def name(self) -> str:
        """The name of the operator."""
        return self.operator.name

    def programs(self) -> Iterator[tuple[str, tosaic.Program]]:
        """Yields each place with the quantized program of the operator in this place."""
        for place in PLACES:
            found = _placed(self.operator, place)
            if found is not None:
                yield place, tosaic.from_exported(exported(found))


def _product(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the result of a convolution by 1 x 1 or, for ranks other than 4, of a linear layer."""
    channels = x.shape[1] if x.dim() == 4 else x.shape[-1]
    weight = torch.eye(channels) + 0.1
    made = F.conv2d(x, qdq(weight[..., None, None], 0.01)) if x.dim() == 4 else F.linear(x, qdq(weight, 0.01))
    return qdq(made, 0.9 * _SCALE[dtype], 0, dtype)


def _placed(case: DeviceCase, place: str) -> DeviceCase | None:
    """Returns a case between other operators; None if it cannot be there."""
    call = case.call
    scale = case.result_scale or _SCALE[case.dtype]

    def fits(shape: tuple[int, ...]) -> bool:
        return 2 <= len(shape) <= 4 and shape[1 if len(shape) == 4 else -1] <= 64

    def changed(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        y = call(_product(x, case.dtype) if place in ("behind", "between") else x, *rest)
        if place == "behind":
            return y
        return _product(qdq(y, scale, 0, case.dtype), case.dtype)

    if place == "alone":
        return case
    if place in ("behind", "between") and not fits(case.shapes[0]):
        return None
    if place in ("before", "between"):
        inputs = [torch.zeros(shape) for shape in case.shapes]
        weights = [torch.zeros(case.weight)] if case.weight else []
        made = call(*inputs, *weights)
        if not (made.is_floating_point() and fits(tuple(made.shape))):
            return None
    return replace(case, name=f"{case.name}, {place}", call=changed)


def _wide(name: str, call: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Iterator[DeviceCase]:
    """Yields cases of 8 and 16 bits, with one scale and with another scale of the result."""
    for dtype, scale in _SCALE.items():
        case = DeviceCase(f"{name} {str(dtype)[6:]}", call, shapes, dtype)
        yield case
        yield replace(case, name=f"{case.name} rescaled", result_scale=0.6 * scale)


_EXTENTS = ((7, 7), (9, 8), (64, 64), (65, 64), (1, 100), (100, 100), (257, 3), (300, 300))


def _images() -> Iterator[DeviceCase]:
    for extents in _EXTENTS:
        for batch, channels in ((1, 1), (1, 3), (2, 3)):
            shape = (batch, channels, *extents)
            text = "x".join(map(str, shape))
            yield from _wide(f"mean of {text}", lambda x: x.mean((2, 3), keepdim=True), shape)
            yield from _wide(f"sum of {text}", lambda x: x.sum((2, 3), keepdim=True), shape)
            yield from _wide(f"pool of {text}", lambda x: F.adaptive_avg_pool2d(x, 1), shape)
            yield from _wide(f"max_pool of {text}", lambda x: F.adaptive_max_pool2d(x, 1), shape)
        text = "x".join(map(str, extents))
        yield from _wide(f"mean of height of {text}", lambda x: x.mean(2), (1, 3, *extents))
        yield from _wide(f"mean of width of {text}", lambda x: x.mean(3), (1, 3, *extents))
        yield from _wide(f"mean of channels of {text}", lambda x: x.mean(1), (1, 3, *extents))
        yield from _wide(
            f"maximum of channels of {text}", lambda x: x.amax(1, keepdim=True), (1, 3, *extents)
        )


def _pools() -> Iterator[DeviceCase]:
    kernels = ((8, 8), (9, 9), (65, 1), (1, 65), (66, 66))
    for kernel in kernels:
        shape = (1, 2, kernel[0] * 2, kernel[1] * 2)
        for stride in (1, 4, kernel):
            name = f"pool {kernel} by {stride}"
            yield from _wide(f"avg_{name}", lambda x, k=kernel, s=stride: F.avg_pool2d(x, k, s), shape)
            yield from _wide(f"max_{name}", lambda x, k=kernel, s=stride: F.max_pool2d(x, k, s), shape)
        padding = (kernel[0] // 2, kernel[1] // 2)
        yield from _wide(f"avg_pool {kernel}, padded", lambda x, k=kernel, p=padding: F.avg_pool2d(
            x, k, 1, p), shape)  # fmt: skip
        yield from _wide(f"max_pool {kernel}, padded", lambda x, k=kernel, p=padding: F.max_pool2d(
            x, k, 1, p), shape)  # fmt: skip
    for batch in (1, 2):
        yield from _wide(f"avg_pool of batch {batch}", lambda x: F.avg_pool2d(x, 3, 2, 1), (batch, 3, 12, 12))
    for size in (2, 3, 5):
        yield from _wide(
            f"adaptive pool to {size}", lambda x, n=size: F.adaptive_avg_pool2d(x, n), (1, 3, 17, 17)
        )


def _rows() -> Iterator[DeviceCase]:
    for shape in ((1, 4), (4, 32), (3, 197, 197), (2, 3, 4, 300), (1, 3, 5, 5), (1, 1, 70, 70)):
        text = "x".join(map(str, shape))
        for axis in {1, len(shape) - 1}:
            yield from _wide(f"softmax {axis} of {text}", lambda x, a=axis: torch.softmax(x, a), shape)
            yield from _wide(f"amax {axis} of {text}", lambda x, a=axis: x.amax(a, keepdim=True), shape)
            yield from _wide(f"mean {axis} of {text}", lambda x, a=axis: x.mean(a, keepdim=True), shape)
            yield from _wide(f"cumsum {axis} of {text}", lambda x, a=axis: x.cumsum(a), shape)
            yield from _wide(f"argmax {axis} of {text}", lambda x, a=axis: x.argmax(a), shape)
            yield from _wide(f"flip {axis} of {text}", lambda x, a=axis: x.flip(a), shape)
        yield from _wide(f"layer_norm of {text}", lambda x, n=shape[-1]: F.layer_norm(x, (n,)), shape)
        yield from _wide(f"transpose of {text}", lambda x: x.transpose(-1, -2), shape)
        yield from _wide(f"var of {text}", lambda x: x.var(-1), shape)
    for shape in ((4, 1, 1, 6), (2, 3, 4, 6), (2, 2, 3, 4, 6)):
        text = "x".join(map(str, shape))
        yield from _wide(f"argmax of images of {text}", lambda x: x.argmax(-1), shape)
        yield from _wide(f"flip of images of {text}", lambda x: x.flip(0), shape)
    for shape, axis in (((2, 2, 3, 6, 1), 4), ((3, 1), 1), ((2, 1, 4, 4), 1)):
        text = "x".join(map(str, shape))
        yield from _wide(f"amin of one of {text}", lambda x, a=axis: x.amin(a), shape)
    yield from _wide("instance_norm", F.instance_norm, (1, 3, 70, 70))
    yield from _wide("group_norm of 6", lambda x: F.group_norm(x, 2), (1, 6, 9, 9))
    yield from _wide("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), (1, 3, 8, 8))
    yield from _wide("pixel_shuffle 4", lambda x: F.pixel_shuffle(x, 4), (1, 16, 8, 8))
    yield from _wide("channel_shuffle", lambda x: F.channel_shuffle(x, 2), (1, 6, 8, 8))
    yield from _wide("matmul with itself", lambda x: x @ x.transpose(-1, -2), (2, 3, 9, 16))
    yield from _wide("attention", lambda x: F.scaled_dot_product_attention(x, x, x), (1, 2, 9, 16))
    yield from _wide("unfold", lambda x: F.unfold(x, 3), (1, 3, 8, 8))
    yield from _wide("scale by 4", lambda x: F.interpolate(x, scale_factor=4.0), (1, 3, 6, 6))
    for batch, channels in ((1, 1), (1, 3), (2, 3)):
        shape = (batch, channels, 9, 9)
        text = "x".join(map(str, shape))
        for name in ("add", "sub", "mul", "maximum"):
            yield from _wide(f"{name} of {text}", getattr(torch, name), shape, shape)
            yield from _wide(f"{name} of {text} and channels", getattr(torch, name), shape, (channels, 1, 1))
            yield from _wide(f"{name} of {text} and width", getattr(torch, name), shape, (9,))
        yield from _wide(f"cat of {text}", lambda a, b: torch.cat((a, b), 1), shape, shape)


def _different(cases: Iterator[DeviceCase]) -> Iterator[Case]:
    known: set[str] = set()
    for case in cases:
        if case.name not in known:
            known.add(case.name)
            yield Case(case)


CASES: tuple[Case, ...] = tuple(_different(chain(OPERATORS, _images(), _pools(), _rows())))
"""All cases."""
