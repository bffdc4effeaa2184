"""Programs with many views: elementwise operators between reshapes, permutes and concats.

The tests lower them as float programs and, after quantization, as integer programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from layouts.modules import Sized

__all__ = ["VIEW_PROGRAMS", "view_program"]

Tensor = torch.Tensor


class _Call(nn.Module):
    def __init__(
        self, function: Callable[..., Any], constants: dict[str, Tensor], parts: nn.ModuleDict
    ) -> None:
        super().__init__()
        self.parts = parts
        for name, constant in constants.items():
            self.register_buffer(name, constant)
        self._names = tuple(constants)
        self._function = function

    def forward(self, *inputs: Tensor) -> Any:
        known = {name: getattr(self, name) for name in self._names}
        return self._function(*inputs, **known, **dict(self.parts.items()))


def _pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2, 1, 1)


def _row(n: int) -> Tensor:
    return torch.linspace(0.5, 1.5, n)


def _full(*shape: int) -> Tensor:
    return torch.linspace(0.5, 1.5, int(torch.tensor(shape).prod())).view(shape)


_Row = tuple[Callable[..., Any], tuple[tuple[int, ...], ...], dict[str, Any]]

# By name: the function, the shapes of its inputs, and its constants and layers.
_ROWS: dict[str, _Row] = {
    "scaled between pools": (
        lambda x, a, b: F.max_pool2d((F.max_pool2d(x, 1).view(1, 4, 2, 2) * a).view(1, 2, 4, 2) * b, 1),
        ((1, 2, 2, 4),),
        {"a": _full(1, 4, 2, 2), "b": _full(1, 2, 4, 2)},
    ),
    "numbers between pools": (
        lambda x: _pool((_pool(x).view(1, 4, 6, 15) * 0.5).view(1, 8, 5, 9) + 1.5),
        ((1, 8, 4, 8),),
        {},
    ),
    "there and back": (
        lambda x: _pool(torch.relu(_pool(x).view(1, 9, 6, 7) - 0.5).view(1, 6, 9, 7)),
        ((1, 6, 8, 6),),
        {},
    ),
    "there and back twice": (
        lambda x: _pool(
            torch.tanh(torch.relu(_pool(x).view(1, 9, 6, 7) - 0.5).view(1, 7, 9, 6)).view(1, 6, 9, 7)
        ),
        ((1, 6, 8, 6),),
        {},
    ),
    "flat and back": (
        lambda x: _pool((_pool(x).flatten() * 2).view(1, 6, 9, 7)),
        ((1, 6, 8, 6),),
        {},
    ),
    "flat with a constant": (
        lambda x, a: _pool((_pool(x).flatten(1) * a).view(1, 6, 9, 7)),
        ((1, 6, 8, 6),),
        {"a": _full(378)},
    ),
    "constant by channel, other rows": (
        lambda x, a: _pool((_pool(x) * a).view(1, 6, 7, 9) - 0.5),
        ((1, 6, 8, 6),),
        {"a": _full(6, 1, 1)},
    ),
    "constant by channel, split": (
        lambda x, a: _pool((_pool(x).view(1, 2, 3, 63) * a).view(1, 6, 7, 9)),
        ((1, 6, 8, 6),),
        {"a": _full(2, 3, 1)},
    ),
    "constant by row": (
        lambda x, a: _pool((_pool(x).view(1, 3, 18, 7) + a).view(1, 6, 7, 9)),
        ((1, 6, 8, 6),),
        {"a": _row(7)},
    ),
    "two images, flat": (
        lambda x, y: _pool((_pool(x).flatten(1) + _pool(y).flatten(1)).view(1, 6, 9, 7)),
        ((1, 6, 8, 6), (1, 6, 8, 6)),
        {},
    ),
    "two images, other shapes": (
        lambda x, y: _pool((_pool(x).view(1, 9, 6, 7) * _pool(y).view(1, 9, 6, 7)).view(1, 6, 9, 7)),
        ((1, 6, 8, 6), (1, 6, 6, 8)),
        {},
    ),
    "image and rows": (
        lambda x, y: _pool((_pool(x).view(1, 9, 42) + y).view(1, 6, 9, 7)),
        ((1, 6, 8, 6), (1, 9, 42)),
        {},
    ),
    "two readers, one a row": (
        lambda x, a: (
            _pool((y := torch.sigmoid(_pool(x).view(1, 9, 6, 7))).view(1, 6, 9, 7)),
            y.flatten(1) * a,
        ),
        ((1, 6, 8, 6),),
        {"a": _row(378)},
    ),
    "two readers, two images": (
        lambda x: (
            _pool((y := torch.sigmoid(_pool(x).view(1, 9, 6, 7))).view(1, 6, 9, 7)),
            _pool((y * 2).view(1, 6, 7, 9)),
        ),
        ((1, 6, 8, 6),),
        {},
    ),
    "gate over channels": (
        lambda x: _pool((y := _pool(x).view(1, 3, 2, 63)).sigmoid().mul(y).view(1, 6, 7, 9)),
        ((1, 6, 8, 6),),
        {},
    ),
    "squeezed gate": (
        lambda x: _pool(((y := _pool(x)) * y.mean((2, 3), keepdim=True).sigmoid()).view(1, 6, 7, 9) + 1),
        ((1, 6, 8, 6),),
        {},
    ),
    "clamps": (
        lambda x: _pool(F.hardtanh(_pool(x).view(1, 21, 18) * 3).view(1, 6, 9, 7).clamp(-0.5, 0.5)),
        ((1, 6, 8, 6),),
        {},
    ),
    "where": (
        lambda x: _pool(torch.where((y := _pool(x).view(1, 9, 6, 7)) > 0, y, y * 0.1).view(1, 6, 9, 7)),
        ((1, 6, 8, 6),),
        {},
    ),
    "leaky, flat": (
        lambda x: _pool(F.leaky_relu(_pool(x).flatten(1), 0.1).view(1, 6, 9, 7)),
        ((1, 6, 8, 6),),
        {},
    ),
    "hardswish, flat": (
        lambda x: _pool(F.hardswish(_pool(x).view(1, 18, 21)).view(1, 6, 9, 7)),
        ((1, 6, 8, 6),),
        {},
    ),
    "permute between": (
        lambda x: _pool(
            (_pool(x).permute(0, 2, 3, 1).reshape(1, 63, 6) * 2).view(1, 9, 7, 6).permute(0, 3, 1, 2)
        ),
        ((1, 6, 8, 6),),
        {},
    ),
    "permute, other rows": (
        lambda x: _pool(
            (_pool(x).permute(0, 2, 3, 1).reshape(1, 21, 18) * 2).view(1, 9, 7, 6).permute(0, 3, 1, 2)
        ),
        ((1, 6, 8, 6),),
        {},
    ),
    "permute, twice over": (
        lambda x: _pool(
            (torch.relu(_pool(x).flatten(2).transpose(1, 2)).reshape(1, 21, 18) + 1)
            .view(1, 63, 6)
            .transpose(1, 2)
            .reshape(1, 6, 9, 7)
        ),
        ((1, 6, 8, 6),),
        {},
    ),
    "cat of flat images": (
        lambda x, y: _pool(torch.cat([_pool(x).flatten(1), _pool(y).flatten(1)], 1).view(1, 12, 9, 7) * 2),
        ((1, 6, 8, 6), (1, 6, 8, 6)),
        {},
    ),
    "cat, scaled, split": (
        lambda x: _pool((torch.cat([_pool(x), _pool(x * 2)], 1).view(1, 9, 12, 7) - 1).view(1, 12, 9, 7)),
        ((1, 6, 8, 6),),
        {},
    ),
    "softmax of rows": (
        lambda x: _pool(_pool(x).flatten(2).softmax(1).view(1, 6, 7, 9)),
        ((1, 6, 8, 6),),
        {},
    ),
    "softmax of a view": (
        lambda x: _pool(_pool(x).view(1, 6, 63).softmax(2).mul(2).view(1, 6, 9, 7)),
        ((1, 6, 8, 6),),
        {},
    ),
    "heads of an image": (
        lambda x: _pool((_pool(x).view(1, 2, 3, 63) * 2).softmax(2).reshape(1, 6, 9, 7)),
        ((1, 6, 8, 6),),
        {},
    ),
    "convolutions, scaled view": (
        lambda x, a, first, last: last((first(x).view(1, 12, 6, 8) * a).view(1, 8, 8, 9)),
        ((1, 4, 9, 8),),
        {"a": _full(1, 12, 6, 8), "first": nn.Conv2d(4, 8, 1), "last": nn.Conv2d(8, 4, 1)},
    ),
    "convolutions, flat gelu": (
        lambda x, first, last: last(F.gelu(first(x).flatten(2)).view(1, 8, 9, 8)),
        ((1, 4, 9, 8),),
        {"first": nn.Conv2d(4, 8, 1), "last": nn.Conv2d(8, 4, 1)},
    ),
    "convolutions, foreign gelu": (
        lambda x, first, last: last(F.gelu(first(x).view(1, 9, 64)).view(1, 8, 9, 8)),
        ((1, 4, 9, 8),),
        {"first": nn.Conv2d(4, 8, 1), "last": nn.Conv2d(8, 4, 1)},
    ),
    "residual through a view": (
        lambda x, first, last: last(
            ((y := first(x)).view(1, 9, 64).tanh() + y.view(1, 9, 64)).view(1, 8, 9, 8)
        ),
        ((1, 4, 9, 8),),
        {"first": nn.Conv2d(4, 8, 1), "last": nn.Conv2d(8, 4, 1)},
    ),
    "batch of images as one": (
        lambda x, first, last: last((first(x).view(2, 24, 24) * 0.5).view(1, 16, 9, 8)),
        ((2, 4, 9, 8),),
        {"first": nn.Conv2d(4, 8, 1), "last": nn.Conv2d(16, 4, 1)},
    ),
    "linear after a scaled view": (
        lambda x, first, last: last((first(x).view(1, 24, 24) * 0.5).view(1, 36, 16)),
        ((1, 4, 9, 8),),
        {"first": nn.Conv2d(4, 8, 1), "last": nn.Linear(16, 4)},
    ),
    "rows of an image, scaled": (
        lambda x, a, first, last: last((first(x).flatten(2).transpose(1, 2) * a).reshape(1, 72, 8)),
        ((1, 4, 9, 8),),
        {"a": _row(8), "first": nn.Conv2d(4, 8, 1), "last": nn.Linear(8, 4)},
    ),
    "channel shuffle, scaled": (
        lambda x, a, first, last: last((first(x).view(1, 2, 4, 72).transpose(1, 2) * a).reshape(1, 8, 9, 8)),
        ((1, 4, 9, 8),),
        {"a": _full(1, 4, 2, 1), "first": nn.Conv2d(4, 8, 1), "last": nn.Conv2d(8, 4, 1)},
    ),
    "pixel shuffle, foreign view": (
        lambda x, first, last: last(F.pixel_shuffle(first(x), 2).view(1, 16, 36).relu().view(1, 2, 18, 16)),
        ((1, 4, 9, 8),),
        {"first": nn.Conv2d(4, 8, 1), "last": nn.Conv2d(2, 4, 1)},
    ),
    "average pool of views": (
        lambda x: F.avg_pool2d((F.avg_pool2d(x, 2).view(1, 4, 6, 4) * 2).view(1, 8, 4, 3) + 1, 1),
        ((1, 8, 8, 6),),
        {},
    ),
    "upsampled views": (
        lambda x: F.interpolate(
            (F.interpolate(x, scale_factor=2).view(1, 9, 32) * 2).view(1, 4, 6, 12) - 1, scale_factor=2
        ),
        ((1, 2, 6, 6),),
        {},
    ),
    "slice of a scaled view": (
        lambda x: _pool((_pool(x).view(1, 9, 6, 7) * 2).view(1, 6, 9, 7)[:, 1:5]),
        ((1, 6, 8, 6),),
        {},
    ),
    "pad of a scaled view": (
        lambda x: _pool(F.pad((_pool(x).view(1, 9, 6, 7) * 2).view(1, 6, 9, 7), (1, 1, 1, 1))),
        ((1, 6, 8, 6),),
        {},
    ),
    "mean of a scaled view": (
        lambda x: (_pool(x).view(1, 9, 6, 7) * 2).view(1, 6, 9, 7).mean((2, 3)),
        ((1, 6, 8, 6),),
        {},
    ),
    "expanded row": (
        lambda x, y: _pool((_pool(x).view(1, 6, 63) + y).view(1, 6, 7, 9)),
        ((1, 6, 8, 6), (1, 6, 1)),
        {},
    ),
    "long chain": (
        lambda x: _pool(
            (
                ((((_pool(x).view(1, 18, 21) * 2).view(1, 9, 42) - 1).relu().view(378) + 0.5).view(1, 27, 14))
                .tanh()
                .view(1, 7, 54)
                * 3
            ).view(1, 6, 9, 7)
        ),
        ((1, 6, 8, 6),),
        {},
    ),
}

VIEW_PROGRAMS = tuple(_ROWS)


def view_program(name: str) -> Sized:
    """Returns the program of this name, with weights and inputs from a fixed seed."""
    torch.manual_seed(0)
    function, shapes, known = _ROWS[name]
    layers = nn.ModuleDict({key: layer for key, layer in known.items() if isinstance(layer, nn.Module)})
    constants = {key: value for key, value in known.items() if isinstance(value, Tensor)}
    module = _Call(function, constants, layers).eval()
    return Sized(name, module, tuple(torch.randn(shape) for shape in shapes))
