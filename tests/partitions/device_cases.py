"""Quantized programs of one operator each, at and beyond the limits of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from quantize_calls import qdq
from torch import nn

__all__ = ["CASES", "DeviceCase", "exported"]

_SCALES = {torch.int8: 0.05, torch.int16: 0.0005}
_WIDTHS = (torch.int8, torch.int16)


@dataclass(frozen=True)
class DeviceCase:
    """A function of quantized tensors: its operands have these shapes."""

    name: str
    call: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.int8
    weight: tuple[int, ...] = ()  # the shape of a constant int8 weight, the last operand
    result_scale: float = 0.0  # 0: the scale of the operands


class _Program(nn.Module):
    def __init__(self, case: DeviceCase) -> None:
        super().__init__()
        self.case = case
        if case.weight:
            generator = torch.Generator().manual_seed(1)
            self.weight = nn.Parameter(torch.rand(case.weight, generator=generator) - 0.5)

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        case = self.case
        scale = _SCALES[case.dtype]
        tensors = [qdq(x, scale * (i + 1), 0, case.dtype) for i, x in enumerate(operands)]
        if case.weight:
            tensors.append(qdq(self.weight, 0.004))
        result = case.call(*tensors)
        if not result.is_floating_point():
            return result
        return qdq(result, case.result_scale or scale, 0, case.dtype)


def exported(case: DeviceCase) -> Any:
    """Returns the program of a case, as torch exports it."""
    inputs = tuple(torch.zeros(shape) for shape in case.shapes)
    return torch.export.export(_Program(case).eval(), inputs)


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _wide(
    name: str, call: Callable[..., torch.Tensor], *shapes: tuple[int, ...], **more: Any
) -> Iterator[DeviceCase]:
    """Yields a case of 8 and one of 16 bits."""
    for dtype in _WIDTHS:
        yield DeviceCase(f"{name} {str(dtype)[6:]}", call, shapes, dtype, **more)


def _conv(
    label: str,
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    call: Callable[..., torch.Tensor] = F.conv2d,
    **options: Any,
) -> Iterator[DeviceCase]:
    yield from _wide(label, lambda x, w: call(x, w, **options), shape, weight=weight)


def _convolutions() -> Iterator[DeviceCase]:
    for kernel in ((1, 1), (3, 3), (64, 1), (65, 1), (1, 65), (1, 4096), (1, 4097), (64, 64), (64, 65)):
        size = tuple(k + 1 for k in kernel)
        yield from _conv(f"conv2d kernel {_text(kernel)}", (1, 2, *size), (2, 2, *kernel))
    for stride in ((2, 2), (3, 3), (4, 4), (1, 4), (4, 1), (3, 1)):
        yield from _conv(f"conv2d stride {_text(stride)}", (1, 4, 16, 16), (4, 4, 3, 3), stride=stride)
    for dilation in (2, 3, 8):
        yield from _conv(f"conv2d dilation {dilation}", (1, 4, 20, 20), (4, 4, 3, 3), dilation=dilation)
    for padding in (1, 2):
        yield from _conv(f"conv2d padding {padding}", (1, 4, 9, 9), (4, 4, 3, 3), padding=padding)
    yield from _conv("conv2d batch 2", (2, 4, 9, 9), (4, 4, 3, 3))
    for channels in (65536, 65537):
        yield from _conv(f"conv2d input channels {channels}", (1, channels, 1, 1), (1, channels, 1, 1))
        yield from _conv(f"conv2d output channels {channels}", (1, 1, 1, 1), (channels, 1, 1, 1))
    for groups in (2, 4, 8):
        yield from _conv(f"conv2d groups {groups} of 8", (1, 8, 9, 9), (8, 8 // groups, 3, 3), groups=groups)
    yield from _conv("conv2d depthwise, multiplier 2", (1, 4, 9, 9), (8, 1, 3, 3), groups=4)
    yield from _conv("conv2d depthwise, one channel, multiplier 4", (1, 1, 9, 9), (4, 1, 3, 3))
    for stride in (2, 3, 4):
        yield from _conv(
            f"conv2d depthwise, stride {stride}", (1, 8, 13, 13), (8, 1, 3, 3), groups=8, stride=stride
        )
    for kernel in ((64, 1), (65, 1), (64, 64), (64, 65)):
        size = tuple(k + 1 for k in kernel)
        yield from _conv(
            f"conv2d depthwise, kernel {_text(kernel)}", (1, 2, *size), (2, 1, *kernel), groups=2
        )
    yield from _conv("conv1d", (1, 4, 16), (4, 4, 3), F.conv1d)
    yield from _conv("conv1d stride 4", (1, 4, 16), (4, 4, 3), F.conv1d, stride=4)
    for depth in (1, 2):
        yield from _conv(f"conv3d depth {depth}", (1, 2, 5, 6, 6), (2, 2, depth, 3, 3), F.conv3d)
    for stride in ((1, 1), (2, 2), (3, 3), (1, 2), (2, 1), (2, 3)):
        yield from _conv(
            f"conv_transpose2d stride {_text(stride)}",
            (1, 4, 5, 5),
            (4, 4, 3, 3),
            F.conv_transpose2d,
            stride=stride,
        )
    yield from _conv(
        "conv_transpose2d stride 1x2, one row", (1, 4, 1, 5), (4, 4, 1, 3), F.conv_transpose2d, stride=(1, 2)
    )
    yield from _conv(
        "conv_transpose2d stride 2x1, one column",
        (1, 4, 5, 1),
        (4, 4, 3, 1),
        F.conv_transpose2d,
        stride=(2, 1),
    )
    yield from _conv("conv_transpose2d groups 2", (1, 4, 5, 5), (4, 2, 3, 3), F.conv_transpose2d, groups=2)
    for kernel in (64, 65):
        yield from _conv(
            f"conv_transpose2d kernel {kernel}x1", (1, 2, 3, 3), (2, 2, kernel, 1), F.conv_transpose2d
        )


def _products() -> Iterator[DeviceCase]:
    yield from _wide("linear", F.linear, (4, 8), weight=(5, 8))
    yield from _wide("linear rank 3", F.linear, (2, 4, 8), weight=(5, 8))
    yield from _wide("linear of 65536", F.linear, (1, 65536), weight=(1, 65536))
    yield from _wide("linear of 65537", F.linear, (1, 65537), weight=(1, 65537))
    yield from _wide("linear, computed weight", F.linear, (4, 8), (5, 8))
    yield from _wide("matmul rank 2", torch.matmul, (4, 8), (8, 5))
    yield from _wide("matmul rank 3", torch.matmul, (2, 4, 8), (2, 8, 5))
    yield from _wide("matmul rank 4", torch.matmul, (2, 3, 4, 8), (2, 3, 8, 5))
    yield from _wide("matmul of 65537", torch.matmul, (1, 2, 65537), (1, 65537, 2))
    yield from _wide("einsum", lambda a, b: torch.einsum("bij,bjk->bik", a, b), (2, 3, 4), (2, 4, 5))


def _pools() -> Iterator[DeviceCase]:
    for name, call in (("avg_pool2d", F.avg_pool2d), ("max_pool2d", F.max_pool2d)):
        for kernel in ((2, 2), (9, 9), (256, 1), (257, 1), (1, 257), (256, 256), (256, 257)):
            size = kernel
            yield from _wide(
                f"{name} kernel {_text(kernel)}", lambda x, c=call, k=kernel: c(x, k, 1), (1, 2, *size)
            )
        for kernel in (8, 9):
            yield from _wide(
                f"{name} kernel {kernel}, padded",
                lambda x, c=call, k=kernel: c(x, k, 1, k // 2),
                (1, 2, 12, 12),
            )
        for stride in (1, 2, 3, 4):
            yield from _wide(
                f"{name} stride {stride}", lambda x, c=call, s=stride: c(x, 2, s), (1, 2, 14, 14)
            )
        yield from _wide(f"{name} batch 2", lambda x, c=call: c(x, 3, 2), (2, 2, 9, 9))
        yield from _wide(f"{name} ceil mode", lambda x, c=call: c(x, 3, 2, ceil_mode=True), (1, 2, 10, 10))
    for kernel in (3, 8, 9):
        yield from _wide(
            f"avg_pool2d kernel {kernel}, padded, not counted",
            lambda x, k=kernel: F.avg_pool2d(x, k, 1, k // 2, False, False),
            (1, 2, 9, 9),
        )
    yield from _wide("max_pool2d dilation 2", lambda x: F.max_pool2d(x, 3, 1, 0, 2), (1, 2, 9, 9))
    yield from _wide("adaptive_avg_pool2d to 1", lambda x: F.adaptive_avg_pool2d(x, 1), (1, 2, 9, 9))
    yield from _wide("adaptive_avg_pool2d 7 to 3", lambda x: F.adaptive_avg_pool2d(x, 3), (1, 2, 7, 7))


_UNARY = (
    *("abs", "ceil", "cos", "erf", "exp", "floor", "log", "neg", "reciprocal", "round", "rsqrt", "sqrt"),
    *("sigmoid", "sign", "sin", "tanh", "relu", "acos", "atan", "expm1", "log1p", "square", "logit"),
)
_FUNCTIONS = (
    *("gelu", "silu", "hardswish", "hardsigmoid", "mish"),
    *("softplus", "elu", "leaky_relu", "relu6", "selu"),
)


def _elementwise() -> Iterator[DeviceCase]:
    for name in _UNARY:
        yield from _wide(name, getattr(torch, name), (1, 3, 4, 5))
    for name in _FUNCTIONS:
        yield from _wide(name, getattr(F, name), (1, 3, 4, 5))
    for name in ["add", "sub", "mul", "div", "maximum", "minimum", "pow", "remainder", "fmod", "atan2"]:
        yield from _wide(name, getattr(torch, name), (1, 3, 4, 5), (1, 3, 4, 5))
    for name in ("add", "mul", "maximum"):
        yield from _wide(f"{name} broadcast", getattr(torch, name), (2, 3, 4, 5), (4, 1))
        yield from _wide(f"{name} rank 5", getattr(torch, name), (2, 2, 3, 4, 5), (2, 2, 3, 4, 5))
        yield from _wide(f"{name} rank 6", getattr(torch, name), (2, 2, 2, 3, 4, 5), (2, 2, 2, 3, 4, 5))
        yield from _wide(f"{name} of 65537", getattr(torch, name), (1, 65537), (1, 65537))
    for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
        yield from _wide(name, getattr(torch, name), (1, 3, 4, 5), (1, 3, 4, 5))
    yield from _wide("where", lambda a, b: torch.where(a > b, a, b), (1, 3, 4, 5), (1, 3, 4, 5))
    yield from _wide("clamp", lambda x: torch.clamp(x, -1, 2), (1, 3, 4, 5))
    yield from _wide("rsub", lambda x: 1 - x, (1, 3, 4, 5))
    yield from _wide("pow 2", lambda x: x**2, (1, 3, 4, 5))


def _reductions() -> Iterator[DeviceCase]:
    for name in ("sum", "mean", "amax", "amin", "var"):
        for axis in (-1, 1, 2):
            yield from _wide(
                f"{name} axis {axis}", lambda x, n=name, a=axis: getattr(torch, n)(x, a), (1, 3, 4, 5)
            )
        yield from _wide(f"{name} spatial", lambda x, n=name: getattr(torch, n)(x, (2, 3)), (2, 3, 4, 5))
        yield from _wide(f"{name} of 65537", lambda x, n=name: getattr(torch, n)(x, -1), (2, 65537))
        yield from _wide(f"{name} beside 65537", lambda x, n=name: getattr(torch, n)(x, 0), (2, 65537))
    yield from _wide("prod", lambda x: torch.prod(x, -1), (2, 3))
    yield from _wide("softmax", lambda x: torch.softmax(x, -1), (1, 3, 4, 5), result_scale=1 / 256)
    yield from _wide("softmax of channels", lambda x: torch.softmax(x, 1), (1, 3, 4, 5), result_scale=1 / 256)
    yield from _wide("log_softmax", lambda x: torch.log_softmax(x, -1), (4, 5))
    yield from _wide("layer_norm", lambda x: F.layer_norm(x, (5,)), (1, 4, 5))
    yield from _wide("group_norm", lambda x: F.group_norm(x, 2), (1, 4, 5, 5))
    yield from _wide("rms_norm", lambda x: F.rms_norm(x, (5,)), (1, 4, 5))
    yield from _wide("logsumexp", lambda x: torch.logsumexp(x, -1), (4, 5))
    yield from _wide("vector_norm", lambda x: torch.linalg.vector_norm(x, dim=-1), (4, 5))
    yield from _wide("cumsum", lambda x: torch.cumsum(x, -1), (4, 5))
    for count in (127, 128):
        yield from _wide(f"argmax of {count}", lambda x: torch.argmax(x, -1), (4, count))
    yield from _wide("argmax of channels", lambda x: torch.argmax(x, 1), (1, 5, 4, 4))
    yield from _wide("argmax of height", lambda x: torch.argmax(x, 2), (1, 5, 4, 4))
    yield from _wide("argmax of rank 5", lambda x: torch.argmax(x, -1), (1, 2, 5, 4, 4))
    yield from _wide("argmin", lambda x: torch.argmin(x, -1), (4, 7))


def _movements() -> Iterator[DeviceCase]:
    yield from _wide("reshape", lambda x: x.reshape(3, 20), (1, 3, 4, 5))
    for perm in ((0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2), (0, 2, 1, 3), (1, 0, 2, 3), (3, 2, 1, 0)):
        yield from _wide(f"permute {_text(perm)}", lambda x, p=perm: x.permute(p), (2, 3, 4, 5))
    yield from _wide("permute rank 3", lambda x: x.permute(2, 0, 1), (3, 4, 5))
    yield from _wide("permute rank 5", lambda x: x.permute(4, 0, 1, 3, 2), (2, 3, 4, 5, 2))
    yield from _wide("permute rank 6", lambda x: x.permute(4, 0, 5, 1, 3, 2), (2, 3, 4, 2, 2, 3))
    yield from _wide("permute with 65537", lambda x: x.permute(1, 0), (2, 65537))
    yield from _wide("permute with a product of 66000", lambda x: x.permute(3, 2, 1, 0), (300, 220, 300, 2))
    for axis in (0, 1, 3):
        yield from _wide(
            f"cat axis {axis}", lambda a, b, d=axis: torch.cat((a, b), d), (2, 3, 4, 5), (2, 3, 4, 5)
        )
    yield from _wide("stack", lambda a, b: torch.stack((a, b)), (3, 4), (3, 4))
    yield from _wide("slice", lambda x: x[:, 1:3], (1, 4, 4, 5))
    yield from _wide("slice step 2", lambda x: x[:, :, ::2], (1, 4, 4, 5))
    yield from _wide("select", lambda x: x[:, 1], (1, 4, 4, 5))
    yield from _wide("split", lambda x: torch.split(x, 2, 1)[1] + 0.5, (1, 4, 4, 5))
    yield from _wide("pad constant", lambda x: F.pad(x, (1, 2, 1, 0)), (1, 3, 4, 5))
    yield from _wide("pad constant 1", lambda x: F.pad(x, (1, 2), value=1.0), (1, 3, 4, 5))
    for mode in ("reflect", "replicate", "circular"):
        yield from _wide(f"pad {mode}", lambda x, m=mode: F.pad(x, (1, 2, 1, 0), mode=m), (1, 3, 4, 5))
    for axis in range(4):
        yield from _wide(f"flip axis {axis}", lambda x, d=axis: x.flip(d), (2, 3, 4, 5))
    yield from _wide("repeat", lambda x: x.repeat(1, 2, 1, 3), (1, 3, 4, 5))
    yield from _wide("expand", lambda x: x.expand(2, 3, 4, 5), (1, 3, 1, 5))
    yield from _wide("tril", torch.tril, (4, 5))
    yield from _wide("index_select", lambda x: torch.index_select(x, 1, torch.tensor([2, 0])), (2, 3, 4))
    yield from _wide("gather", lambda x: torch.gather(x, 1, torch.tensor([[0, 2]])), (1, 3))
    yield from _wide("roll", lambda x: torch.roll(x, 1, 1), (2, 3, 4))
    yield from _wide("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (1, 8, 4, 4))


def _samplings() -> Iterator[DeviceCase]:
    for factor in (2, 3, 4, 8, 16):
        yield from _wide(
            f"nearest {factor}", lambda x, f=factor: F.interpolate(x, scale_factor=float(f)), (1, 2, 5, 5)
        )
        yield from _wide(
            f"bilinear {factor}",
            lambda x, f=factor: F.interpolate(x, scale_factor=float(f), mode="bilinear"),
            (1, 2, 5, 5),
        )
        yield from _wide(
            f"bilinear {factor}, aligned corners",
            lambda x, f=factor: F.interpolate(
                x, size=(4 * f + 1, 4 * f + 1), mode="bilinear", align_corners=True
            ),
            (1, 2, 5, 5),
        )
    yield from _wide("nearest to half", lambda x: F.interpolate(x, scale_factor=0.5), (1, 2, 8, 8))
    yield from _wide("nearest 2x4", lambda x: F.interpolate(x, size=(10, 20)), (1, 2, 5, 5))
    yield from _wide("nearest 2, batch 2", lambda x: F.interpolate(x, scale_factor=2.0), (2, 2, 5, 5))
    yield from _wide(
        "grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=False), (1, 2, 5, 5), (1, 3, 3, 2)
    )


CASES: tuple[DeviceCase, ...] = (
    *_convolutions(),
    *_products(),
    *_pools(),
    *_elementwise(),
    *_reductions(),
    *_movements(),
    *_samplings(),
)
"""All cases."""
