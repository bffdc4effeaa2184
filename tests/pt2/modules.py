"""Small modules of many kinds, whose files are read by our reader and by torch: `MODULES`."""

from __future__ import annotations

import operator
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["MODULES", "Case", "saved"]


@dataclass
class Case:
    """A module and the arguments of its export."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


class Pair(NamedTuple):
    first: Any
    second: Any


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Any], **buffers: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *args: Any) -> Any:
        return self.function(*args, *dict(self.named_buffers()).values())


class _Counter(nn.Module):
    """Has a buffer that it writes, one that is not saved with the module, and a shared weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.rand(4), persistent=False)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.second(torch.relu(self.first(x))) * self.scale + self.steps


class _Nested(nn.Module):
    def forward(self, batch: dict[str, Any], pair: Any, *, mask: Any, factor: float = 2.0) -> Any:
        y = batch["x"] * factor + pair[0]
        return OrderedDict(sum=y, parts=[y.neg(), (mask & (y > 0), 3, None)])


class _WithPair(nn.Module):
    def forward(self, pair: Pair) -> Pair:
        return Pair(pair.first + 1, pair.second[1])


class _Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: torch.relu(x).cos(), (x,))


class _Loop(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch._higher_order_ops.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)
        )


class _WithoutGradients(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        return y + x


class _InPlace(nn.Module):
    def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out.copy_(x.t())
        y = x.clone()
        y.add_(1).relu_()
        y.unsqueeze_(0)
        return y * 2


def _channels_last() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(inplace=True), nn.MaxPool2d(2))
    return model.eval().to(memory_format=torch.channels_last)


def _ring() -> Any:
    storage = torch.arange(24, dtype=torch.float32)
    return storage[4:16].view(3, 4), storage[8:20].view(3, 4).t()


def _case(function: Callable[..., Any], *args: Any, **buffers: Any) -> Case:
    return Case(_Function(function, **buffers), args)


def _modules() -> dict[str, Callable[[], Case]]:
    x, image = torch.randn(2, 4), torch.randn(1, 3, 8, 8)
    return {
        "linear": lambda: Case(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)), (x,)),
        "channels last": lambda: Case(_channels_last(), (image.to(memory_format=torch.channels_last),)),
        "depthwise": lambda: Case(nn.Conv2d(4, 8, 3, 2, 1, groups=4, bias=False), (torch.randn(1, 4, 9, 9),)),
        "transposed": lambda: Case(nn.ConvTranspose2d(3, 4, 3, 2, 1, 1), (image,)),
        "attention": lambda: Case(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (torch.randn(1, 5, 8),)
        ),
        "embedding": lambda: Case(nn.Embedding(10, 4), (torch.tensor([[1, 9, 0]]),)),
        "recurrent": lambda: Case(nn.LSTM(4, 3), (torch.randn(5, 1, 4),)),
        "states": lambda: Case(_Counter().eval(), (x,)),
        "nested": lambda: Case(
            _Nested(), ({"x": x}, (x, 7)), {"mask": torch.ones(2, 4, dtype=torch.bool), "factor": 0.5}
        ),
        "namedtuple": lambda: Case(_WithPair(), (Pair(x, [x, x + 1]),)),
        "branches": lambda: Case(_Branches(), (x,)),
        "loop": lambda: Case(_Loop(), (x,)),
        "without gradients": lambda: Case(_WithoutGradients(), (x,)),
        "in place": lambda: Case(_InPlace(), (torch.randn(2, 3), torch.randn(3, 2))),
        "split": lambda: _case(lambda x: [part * i for i, part in enumerate(torch.split(x, 1, 1))], x),
        "several results": lambda: _case(lambda x: (*torch.max(x, 1), torch.min(x, 0)[1]), x),
        "unused result": lambda: _case(lambda x: torch.max(x, 1)[1], x),
        "shared storage": lambda: _case(
            lambda x, a, b: (x @ a.t(), x @ b[:, :3]), x, a=_ring()[0], b=_ring()[1]
        ),
        "expanded": lambda: _case(operator.add, x, b=torch.rand(2, 1).expand(2, 4)),
        "constants": lambda: _case(lambda x: x * torch.tensor([1.0, 2, 3, 4]) + torch.tensor(2), x),
        "index": lambda: _case(lambda x: x[:, torch.tensor([2, 0])][None, ..., :1], x),
        "infinite": lambda: _case(lambda x: x.masked_fill(x > 0, float("-inf")).clamp(min=-3), x),
        "half": lambda: Case(nn.Linear(4, 4).half(), (x.half(),)),
        "bfloat16": lambda: _case(
            lambda x, w: (x @ w) * 0.3 + 2, x.bfloat16(), w=torch.rand(4, 4).bfloat16()
        ),
        "integers": lambda: _case(lambda x, y: (x // 3 + y) % 5, torch.arange(6), y=torch.arange(6)),
        "bool": lambda: _case(lambda a, b: a ^ b, torch.tensor([True, False]), b=torch.tensor([True, True])),
        "bytes": lambda: _case(lambda a, b: a + b, torch.arange(4, dtype=torch.uint8), b=torch.arange(4)),
        "double": lambda: _case(lambda a, b: (a * b).sum(), x.double(), b=torch.rand(4).double()),
        "empty": lambda: _case(lambda x, e: torch.cat([x, e]), x, e=torch.zeros(0, 4)),
        "casts": lambda: _case(lambda x: x.to(torch.float16).to(torch.int32).float(), x),
        "formats": lambda: _case(
            lambda x: x.to(memory_format=torch.channels_last).contiguous() + x.clone(), image
        ),
        "pads": lambda: _case(lambda x: F.pad(x, (1, 2), value=3.0), x),
        "interpolates": lambda: _case(
            lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False), image
        ),
        "strings": lambda: _case(
            lambda x: F.gelu(x, approximate="tanh") + x.div(2, rounding_mode="floor"), x
        ),
        "complex constant": lambda: _case(
            lambda x, w: torch.view_as_real(torch.view_as_complex(x) * w),
            torch.randn(3, 2),
            w=torch.randn(3, dtype=torch.complex64),
        ),
        "training": lambda: Case(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)), (x,)),
        "decomposed": lambda: Case(nn.Hardswish(), (x,)),
        "strict": lambda: Case(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (x,), options={"strict": True}),
    }


MODULES = _modules()


def saved(case: Case, path: Any) -> Any:
    """Exports a module and saves the program; returns the program."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own recurrent layers
        exported = torch.export.export(case.module, case.args, case.kwargs, **case.options)
    torch.export.save(exported, path)
    return exported
