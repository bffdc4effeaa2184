"""Contractions with a constant weight, their graphs, and the columns that torch says they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tosaic
from function_module import FunctionModule
from torch import nn
from torch.nn import functional
from tosaic import _core

Array = np.ndarray[Any, Any]


def exported(module: nn.Module, *inputs: torch.Tensor) -> _core.Graph:
    """Returns the graph of a module."""
    return tosaic.from_exported(torch.export.export(module.eval(), inputs)).graph


@dataclass(frozen=True)
class Case:
    """A module with one contraction, and the columns [groups, rows, columns] that it reads from an input."""

    name: str
    module: nn.Module
    shape: tuple[int, ...]
    columns: Callable[[torch.Tensor], torch.Tensor]

    def open(self) -> tuple[_core.Graph, str, _core.Contraction]:
        graph = exported(self.module, torch.zeros(self.shape))
        (node,) = _core.contractions(graph)
        return graph, node, _core.Contraction(graph, node)

    def weight(self) -> Array:
        (weight,) = [p for p in [*self.module.parameters(), *self.module.buffers()] if p.dim() > 1]
        return weight.detach().numpy()

    def __str__(self) -> str:
        return self.name


def windows_2d(conv: nn.Conv2d) -> Callable[[torch.Tensor], torch.Tensor]:
    """im2col by torch.nn.functional.unfold."""

    def columns(x: torch.Tensor) -> torch.Tensor:
        found = functional.unfold(x, conv.kernel_size, conv.dilation, conv.padding, conv.stride)
        batch, width, positions = found.shape
        parts = found.reshape(batch, conv.groups, width // conv.groups, positions)
        return parts.permute(1, 0, 3, 2).reshape(conv.groups, batch * positions, width // conv.groups)

    return columns


def windows_by_gradient(conv: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The columns of any convolution: the gradients of each result with respect to the weight."""

    def columns(x: torch.Tensor) -> torch.Tensor:
        transposed = isinstance(conv, nn.ConvTranspose1d | nn.ConvTranspose2d)
        call = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[conv.weight.dim() - 2]
        options: dict[str, Any] = {
            "stride": conv.stride,
            "padding": conv.padding,
            "dilation": conv.dilation,
            "groups": conv.groups,
        }
        if transposed:
            call = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d}[conv.weight.dim() - 2]
            options["output_padding"] = conv.output_padding
        weight = conv.weight.detach().to(x.dtype).requires_grad_()
        result = call(x, weight, **options).transpose(0, 1).flatten(1)  # [channels, positions]
        groups, channels = conv.groups, len(result) // conv.groups
        found = []
        for group in range(groups):
            first = result[group * channels]  # all channels of a group read the same columns
            rows = [torch.autograd.grad(each, weight, retain_graph=True)[0] for each in first]
            if transposed:
                inputs = weight.shape[0] // groups
                part = [row[group * inputs : (group + 1) * inputs, 0] for row in rows]
            else:
                part = [row[group * channels] for row in rows]
            found.append(torch.stack([each.flatten() for each in part]))
        return torch.stack(found)

    return columns


class Product(nn.Module):
    """matmul by a constant, on the right or on the left."""

    def __init__(self, weight: torch.Tensor, *, left: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.left = left

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight @ x if self.left else x @ self.weight


class Addmm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 5))
        self.bias = nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight, beta=0.5, alpha=2)


def cases() -> list[Case]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = [
            Case("linear", nn.Linear(12, 5), (2, 7, 12), lambda x: x.reshape(1, -1, 12)),
            Case("linear of one row", nn.Linear(12, 5), (12,), lambda x: x.reshape(1, 1, 12)),
            Case("matmul", Product(torch.randn(12, 5)), (3, 7, 12), lambda x: x.reshape(1, -1, 12)),
            Case(
                "matmul from the left",
                Product(torch.randn(5, 12), left=True),
                (3, 12, 7),
                lambda x: x.transpose(1, 2).reshape(1, -1, 12),
            ),
            Case("addmm", Addmm(), (9, 12), lambda x: x[None]),
        ]
        for name, conv in {
            "conv": nn.Conv2d(5, 4, 3),
            "conv with strides and pads": nn.Conv2d(6, 4, (3, 2), stride=(2, 1), padding=(1, 2), groups=2),
            "depthwise conv": nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=6),
            "pointwise conv": nn.Conv2d(80, 3, 1),
        }.items():
            shape = (2, conv.in_channels, 8, 9)
            found.append(Case(name, conv, shape, windows_2d(conv)))
        for name, conv in {
            "conv of one axis": nn.Conv1d(6, 4, 3, stride=2, padding=1, groups=2),
            "conv of three axes": nn.Conv3d(2, 3, (2, 3, 1), stride=(1, 2, 1), padding=(1, 0, 1)),
            "transposed conv": nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
            "transposed conv of one axis": nn.ConvTranspose1d(3, 2, 4, stride=3, dilation=2),
        }.items():
            shape = (2, conv.in_channels, 5, 4, 3)[: conv.weight.dim()]
            found.append(Case(name, conv, shape, windows_by_gradient(conv)))
    return found


def function(call: Callable[..., torch.Tensor]) -> nn.Module:
    return FunctionModule(call)


def correlated(rng: np.random.Generator, shape: tuple[int, ...], axis: int) -> Array:
    """Returns samples whose channels on `axis` depend on each other and have different ranges."""
    count = shape[axis]
    mixed = rng.normal(size=(count, max(2, count // 3))) @ rng.normal(size=(max(2, count // 3), count))
    mixed += 0.3 * rng.normal(size=(count, count))
    values = rng.normal(size=(*np.delete(shape, axis), count)) @ mixed * np.exp(rng.normal(size=count))
    return np.ascontiguousarray(np.moveaxis(values, -1, axis), dtype=np.float32)
