"""Small modules with conflicting layouts, each with its inputs, for counting the transposes of compilers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["MODULES", "Sized", "example"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class Sized:
    """A module in inference mode, and its inputs."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]


class _Call(nn.Module):
    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self._function(*self.parts, *inputs)


class _Attention(nn.Module):
    """Self-attention with several heads, written with views, transposes and matmuls."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        lead = x.shape[:-1]

        def split(y: Tensor) -> Tensor:
            return y.view(*lead, self.heads, -1).transpose(-3, -2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return self.out((scores @ v).transpose(-3, -2).reshape(x.shape))


class _Windows(nn.Module):
    """Attention within the windows of a channels-last image, as in Swin."""

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.size, self.norm, self.attention = size, nn.LayerNorm(width), _Attention(width, heads)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        s = self.size
        windows = self.norm(x).view(n, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5)
        found = self.attention(windows.reshape(-1, s * s, c))
        joined = found.view(n, h // s, w // s, s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return x + joined


def _image(c: int = 8, h: int = 12, w: int = 12) -> tuple[Tensor]:
    return (torch.randn(1, c, h, w),)


def _rows(*shape: int) -> tuple[Tensor]:
    return (torch.randn(*shape),)


def _last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def _stacked(kind: type[nn.Module], **options: Any) -> nn.Module:
    return _Call(lambda cell, x: cell(x)[0], kind(8, 12, batch_first=True, **options))


_BUILDERS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "conv1d": lambda: (nn.Conv1d(8, 6, 3, padding=1), _rows(1, 8, 20)),
    "conv1d chain": lambda: (
        nn.Sequential(nn.Conv1d(8, 6, 3), nn.ReLU(), nn.Conv1d(6, 4, 3)),
        _rows(1, 8, 20),
    ),
    "conv2d": lambda: (nn.Conv2d(8, 6, 3, padding=1), _image()),
    "conv2d, inputs channels last": lambda: (nn.Conv2d(8, 6, 3), (_last(_image()[0]),)),
    "conv2d of one channel": lambda: (nn.Conv2d(1, 6, 3), _image(1)),
    "conv2d to one channel": lambda: (nn.Conv2d(8, 1, 3), _image()),
    "conv2d residual": lambda: (
        _Call(
            lambda a, b, x: x + b(F.relu(a(x))), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        ),
        _image(),
    ),
    "conv2d, rows and back": lambda: (
        _Call(
            lambda a, f, b, x: b(f(a(x).flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)),
            nn.Conv2d(8, 8, 1),
            nn.Linear(8, 8),
            nn.Conv2d(8, 8, 1),
        ),
        _image(),
    ),
    "conv2d grouped": lambda: (nn.Conv2d(8, 12, 3, groups=4), _image()),
    "conv2d depthwise": lambda: (nn.Conv2d(8, 16, 3, groups=8), _image()),
    "conv2d dilated": lambda: (nn.Conv2d(8, 6, 3, dilation=2), _image()),
    "conv3d": lambda: (nn.Conv3d(4, 6, 3, padding=1), _rows(1, 4, 5, 6, 7)),
    "conv transpose 2d": lambda: (nn.ConvTranspose2d(8, 6, 2, stride=2), _image()),
    "conv transpose, skip": lambda: (
        _Call(
            lambda d, u, x: torch.cat([x, u(F.relu(d(x)))], 1),
            nn.Conv2d(8, 8, 2, stride=2),
            nn.ConvTranspose2d(8, 8, 2, stride=2),
        ),
        _image(),
    ),
    "batch norm after cat": lambda: (
        _Call(lambda a, n, x: n(torch.cat([x, a(x)], 1)), nn.Conv2d(8, 4, 3, padding=1), nn.BatchNorm2d(12)),
        _image(),
    ),
    "max pool": lambda: (nn.MaxPool2d(2), _image()),
    "max pool dilated": lambda: (nn.MaxPool2d(3, stride=1, dilation=2), _image()),
    "average pool, padded": lambda: (nn.AvgPool2d(3, stride=2, padding=1), _image()),
    "adaptive pool and linear": lambda: (
        nn.Sequential(nn.Conv2d(8, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)),
        _image(),
    ),
    "upsample bilinear": lambda: (nn.Upsample(scale_factor=2, mode="bilinear"), _image()),
    "upsample nearest, conv": lambda: (
        nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(8, 4, 3)),
        _image(),
    ),
    "pixel shuffle": lambda: (nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.PixelShuffle(2)), _image()),
    "pixel shuffle between": lambda: (
        nn.Sequential(nn.Conv2d(8, 16, 3), nn.PixelShuffle(2), nn.Conv2d(4, 4, 3)),
        _image(),
    ),
    "pixel unshuffle": lambda: (nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(32, 8, 1)), _image()),
    "unfold": lambda: (nn.Unfold(2, stride=2), _image()),
    "channel shuffle": lambda: (
        nn.Sequential(nn.Conv2d(8, 8, 1), nn.ChannelShuffle(2), nn.Conv2d(8, 8, 1)),
        _image(),
    ),
    "squeeze and excite": lambda: (
        _Call(
            lambda a, s, e, x: (
                (y := F.relu(a(x))) * torch.sigmoid(e(F.relu(s(y.mean((2, 3), keepdim=True)))))
            ),
            nn.Conv2d(8, 8, 3),
            nn.Conv2d(8, 4, 1),
            nn.Conv2d(4, 8, 1),
        ),
        _image(),
    ),
    "mean without keepdim": lambda: (
        _Call(lambda a, f, x: f(a(x).mean((2, 3))), nn.Conv2d(8, 8, 3), nn.Linear(8, 4)),
        _image(),
    ),
    "softmax over channels": lambda: (_Call(lambda a, x: a(x).softmax(1), nn.Conv2d(8, 8, 3)), _image()),
    "argmax over channels": lambda: (_Call(lambda a, x: a(x).amax(1), nn.Conv2d(8, 8, 3)), _image()),
    "group norm": lambda: (nn.GroupNorm(2, 8), _image()),
    "group norm between": lambda: (
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3)),
        _image(),
    ),
    "instance norm between": lambda: (
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.InstanceNorm2d(8), nn.Conv2d(8, 8, 3)),
        _image(),
    ),
    "layer norm": lambda: (nn.LayerNorm(16), _rows(2, 10, 16)),
    "layer norm of an image": lambda: (
        _Call(
            lambda a, n, b, x: b(n(a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)),
            nn.Conv2d(8, 8, 3),
            nn.LayerNorm(8),
            nn.Conv2d(8, 8, 3),
        ),
        _image(),
    ),
    "attention of rank 2": lambda: (_Attention(16, 2), _rows(10, 16)),
    "attention of rank 3": lambda: (_Attention(16, 2), _rows(2, 10, 16)),
    "attention of rank 4": lambda: (_Attention(16, 2), _rows(2, 3, 10, 16)),
    "multi-head attention": lambda: (
        _Call(lambda m, x: m(x, x, x, need_weights=False)[0], nn.MultiheadAttention(16, 2, batch_first=True)),
        _rows(2, 10, 16),
    ),
    "multi-head attention, one sample": lambda: (
        _Call(lambda m, x: m(x, x, x, need_weights=False)[0], nn.MultiheadAttention(16, 2, batch_first=True)),
        _rows(1, 10, 16),
    ),
    "encoder layer": lambda: (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), _rows(2, 10, 16)),
    "window attention": lambda: (_Windows(8, 2, 4), _rows(1, 8, 8, 8)),
    "patches, attention": lambda: (
        _Call(
            lambda p, m, x: m(p(x).flatten(2).transpose(1, 2)),
            nn.Conv2d(3, 16, 4, stride=4),
            _Attention(16, 2),
        ),
        _image(3, 16, 16),
    ),
    "lstm": lambda: (_stacked(nn.LSTM), _rows(2, 5, 8)),
    "lstm, both directions": lambda: (_stacked(nn.LSTM, bidirectional=True), _rows(1, 5, 8)),
    "gru": lambda: (_stacked(nn.GRU), _rows(2, 5, 8)),
    "linear of rank 4": lambda: (nn.Linear(8, 6), _rows(2, 3, 4, 8)),
    "linear over channels": lambda: (
        _Call(lambda f, x: f(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), nn.Linear(8, 6)),
        _image(),
    ),
    "view chain": lambda: (
        _Call(
            lambda a, x: a(x).view(1, 2, 3, 144).transpose(1, 2).reshape(1, 6, 12, 12) * 2, nn.Conv2d(8, 6, 1)
        ),
        _image(),
    ),
    "permute, add, permute": lambda: (
        _Call(lambda x: (x.permute(0, 2, 3, 1) + 1).permute(0, 3, 1, 2)),
        _image(),
    ),
    "permute of rank 5": lambda: (
        _Call(
            lambda a, x: F.relu(a(x)).permute(0, 2, 3, 1).reshape(1, 6, 2, 6, 16).mean(2), nn.Conv2d(8, 8, 1)
        ),
        _image(),
    ),
    "matmul of images": lambda: (_Call(lambda a, x: a(x) @ x.transpose(2, 3), nn.Conv2d(8, 8, 1)), _image()),
    "slice and cat": lambda: (
        _Call(
            lambda a, b, x: torch.cat([a(x[:, :4]), b(x[:, 4:])], 1), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
        ),
        _image(),
    ),
    "two readers": lambda: (
        _Call(lambda a, f, x: (F.relu(y := a(x)), f(y.flatten(1))), nn.Conv2d(8, 4, 3), nn.Linear(400, 4)),
        _image(),
    ),
    "space to depth, linear": lambda: (
        _Call(
            lambda f, x: f(x.view(1, 8, 6, 2, 6, 2).permute(0, 2, 4, 3, 5, 1).reshape(1, 36, 32)),
            nn.Linear(32, 8),
        ),
        _image(),
    ),
}

MODULES = tuple(_BUILDERS)


def example(name: str) -> Sized:
    """Returns the module of this name, with weights and inputs from a fixed seed."""
    torch.manual_seed(0)
    module, inputs = _BUILDERS[name]()
    return Sized(name, module.eval(), inputs)
