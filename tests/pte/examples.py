"""Small modules, and the ``.pte`` files that ExecuTorch's flows make of them. Everything is seeded."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

__all__ = ["EXAMPLES", "Example", "flattened", "make", "made_by_tosaic"]


class Classifier(nn.Module):
    """Convolution, batch norm, a linear layer on a view, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(288, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.norm(self.conv(x)))
        return torch.softmax(self.linear(y.flatten(1)) + 1.5, -1), y.mean((2, 3))


class Stateful(nn.Module):
    """Buffers that each run changes, and nested arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor, d: dict[str, torch.Tensor]) -> dict[str, Any]:
        self.total.add_(x)
        return {"y": self.total + d["a"], "z": [torch.where(x > 0, x, d["b"])]}


class Branching(nn.Module):
    """A branch inside a branch, on tensors, with a value from outside."""

    def forward(self, p: torch.Tensor, q: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = x * 2

        def inner(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.cond(q, lambda a, b: a + b, lambda a, b: a - b, (a, b))

        return torch.cond(p, inner, lambda a, b: a.cos() * b, (x, y)) + y


class Looping(nn.Module):
    """A loop over the rows of the argument."""

    def forward(self, xs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.map import map as over_rows

        return over_rows(lambda x, y: torch.sin(x) * y, xs, y)


class ChannelsLast(nn.Module):
    """Channels-last inputs and outputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() * torch.sigmoid(x) - x.abs()


class Movement(nn.Module):
    """Calls with lists of results, indices, and views."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, c = torch.split(x, [1, 2, 3], dim=1)
        values, indices = torch.max(c, dim=2)
        return torch.cat([a, b], 1).permute(2, 0, 1), values, indices, b.reshape(4, -1)[:, 1:3]


@dataclass(frozen=True)
class Example:
    """A module, example arguments, and the flow that makes its file.

    Attributes
    ----------
    module : torch.nn.Module
    inputs : tuple
    data : bytes
        The file.
    """

    module: nn.Module
    inputs: tuple[Any, ...]
    data: bytes
    sources: tuple[bytes, ...] = ()
    """The `.tosa` files of which payloads were made. The key is the index of the delegate."""

    def leaves(self) -> list[torch.Tensor]:
        """Returns the tensors of the arguments, in order."""
        return list(torch.utils._pytree.tree_leaves(self.inputs))


def _portable(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
    from executorch.exir import EdgeCompileConfig, to_edge

    exported = torch.export.export(module, inputs)
    return to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))


def _partitioned(name: str, quantizer: str = "") -> Callable[[nn.Module, tuple[Any, ...]], Any]:
    def lower(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        from models.quantize import converted
        from models.wrapped import PARTITIONERS
        from models.wrapped import lower as lower_with

        exported = (
            converted(module, [inputs], quantizer) if quantizer else torch.export.export(module, inputs)
        )
        return lower_with(exported, [PARTITIONERS[name]()])

    return lower


def _image() -> tuple[torch.Tensor]:
    return (torch.randn(1, 3, 8, 8),)


_Inputs = Callable[[], tuple[Any, ...]]
EXAMPLES: dict[str, tuple[Callable[[], nn.Module], _Inputs, Callable[..., Any]]] = {
    "portable": (Classifier, _image, _portable),
    "xnnpack": (Classifier, _image, _partitioned("xnnpack")),
    "tosa-fp": (Classifier, _image, _partitioned("tosa-fp")),
    "tosa-int": (Classifier, _image, _partitioned("tosa-int", "arm")),
    "state": (
        Stateful,
        lambda: (torch.randn(2, 3), {"a": torch.randn(3), "b": torch.randn(2, 3)}),
        _portable,
    ),
    "branch": (Branching, lambda: (torch.tensor(True), torch.tensor(False), torch.randn(2, 3)), _portable),
    "loop": (Looping, lambda: (torch.randn(4, 2, 3), torch.randn(2, 3)), _portable),
    "channels-last": (
        ChannelsLast,
        lambda: (torch.randn(2, 3, 5, 6).to(memory_format=torch.channels_last),),
        _portable,
    ),
    "movement": (Movement, lambda: (torch.randn(2, 6, 4),), _portable),
}
"""By name: the class of the module, a function that draws arguments, and the flow."""


@cache
def make(name: str) -> Example:
    """Returns the example with this name."""
    from executorch.exir import ExecutorchBackendConfig

    kind, draw, flow = EXAMPLES[name]
    with (
        torch.random.fork_rng(devices=()),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        torch.manual_seed(7)
        module = kind().eval()
        inputs = draw()
        manager = flow(module, inputs)
        data = bytes(manager.to_executorch(ExecutorchBackendConfig()).buffer)
    return Example(module, inputs, data)


@cache
def made_by_tosaic(claimant: str) -> Example:
    """Returns the int8 classifier, lowered with `TosaicPartitioner` for a claimant such as ``vgf``."""
    from models.quantize import converted
    from models.tosaic_delegates import file_of, modules_of, program_made
    from models.wrapped import lower
    from tosaic import Claimant
    from tosaic.executorch import TosaicPartitioner

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(7)
        module, inputs = Classifier().eval(), _image()
        manager = lower(converted(module, [inputs], "arm"), [TosaicPartitioner(claimant)])
    target = Claimant.named(claimant).target
    sources = tuple(program_made(each, target) for each in modules_of(manager))
    return Example(module, inputs, file_of(manager), sources)


def flattened(result: Any) -> Sequence[Any]:
    """Returns the tensors of a result, in order."""
    return list(torch.utils._pytree.tree_leaves(result))
