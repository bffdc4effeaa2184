"""Networks of many branches, each a contraction with weights of one magnitude and biases of another.

A branch is `Branch(operator, spread, weight, bias)`. Its spread says which channels have these magnitudes:

    alone       all channels; biases of both signs
    beside      the first channel; the others have weights of about 0.3 and biases of about 0.1
    below       as beside, with a negative bias that a ReLU discards: the other channels must keep their bits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

SPREADS = ("alone", "beside", "below")
WEIGHTS = (0.0, 1e-14, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
BIASES = (0.0, 1e-3, 1.0, 3.0, 1e2, 1e4, 1e6)
_CHANNELS = 4
_NORMS: dict[int, Any] = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d}


class Addmm(nn.Module):
    """A product of two matrices, and a bias for each column."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(_CHANNELS, _CHANNELS))
        self.bias = nn.Parameter(torch.randn(_CHANNELS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Baddbmm(nn.Module):
    """Products of stacks of matrices, and a bias for each column."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, _CHANNELS, _CHANNELS))
        self.bias = nn.Parameter(torch.randn(1, 1, _CHANNELS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


@dataclass(frozen=True)
class Operator:
    """How a contraction is made, and the shape of its input."""

    make: Any
    shape: tuple[int, ...]
    axis: int = 0
    """The axis of the result channels in the weight; -1: the last one."""


def _conv(kind: Any, rank: int, *, axis: int = 0, **options: Any) -> Operator:
    shape = (1, _CHANNELS, *([5] if rank == 3 else [4] * (rank - 2)))
    return Operator(lambda: kind(_CHANNELS, _CHANNELS, 2, **options), shape, axis)


OPERATORS = {
    "conv1d": _conv(nn.Conv1d, 3),
    "conv2d": _conv(nn.Conv2d, 4),
    "conv3d": _conv(nn.Conv3d, 5),
    "conv2d, 2 groups": _conv(nn.Conv2d, 4, groups=2),
    "depthwise": _conv(nn.Conv2d, 4, groups=_CHANNELS),
    "transposed 1d": _conv(nn.ConvTranspose1d, 3, axis=1),
    "transposed 2d": _conv(nn.ConvTranspose2d, 4, axis=1, stride=2),
    "transposed 2d, 2 groups": _conv(nn.ConvTranspose2d, 4, axis=1, groups=2),
    "linear": Operator(lambda: nn.Linear(_CHANNELS, _CHANNELS), (3, _CHANNELS)),
    "addmm": Operator(Addmm, (3, _CHANNELS), -1),
    "baddbmm": Operator(Baddbmm, (2, 3, _CHANNELS), -1),
}


@dataclass(frozen=True)
class Branch:
    """One contraction of a network."""

    operator: str
    spread: str
    weight: float
    bias: float


class Branches(nn.Module):
    """All branches on one input, each with its result.

    Parameters
    ----------
    branches : sequence of Branch
    norm : bool
        After each convolution of one or two dimensions there is a batch norm that does not change anything.
    """

    def __init__(self, branches: Sequence[Branch], *, norm: bool = False) -> None:
        super().__init__()
        self.calls = nn.ModuleList()
        for branch in branches:
            call = OPERATORS[branch.operator].make()
            with torch.no_grad():
                _fill(call, branch)
            is_conv = isinstance(call, nn.modules.conv._ConvNd)
            kind = _NORMS.get(len(OPERATORS[branch.operator].shape)) if norm and is_conv else None
            parts = [call, *([] if kind is None else [kind(_CHANNELS)])]
            self.calls.append(nn.Sequential(*parts, *([nn.ReLU()] if branch.spread == "below" else [])))

    def forward(self, x: torch.Tensor) -> Any:
        return tuple(call(x) for call in self.calls)


def _fill(call: Any, branch: Branch) -> None:
    axis = OPERATORS[branch.operator].axis
    weight = torch.rand_like(call.weight).sub_(0.5).mul_(2)
    rows = weight.movedim(axis, 0)
    bias = torch.randn_like(call.bias).mul_(0.1)
    flat = bias.view(-1)
    if branch.spread == "alone":
        weight.mul_(branch.weight)
        flat.copy_(torch.tensor([1, -1, 0.5, -0.25]) * branch.bias)
    else:
        rows[1:] = (0.1 + 0.2 * rows[1:].abs()) * (1 if branch.spread == "below" else rows[1:].sign())
        rows[0] *= branch.weight
        flat[0] = branch.bias if branch.spread == "beside" else -branch.bias
    call.weight.copy_(weight)
    call.bias.copy_(bias)


def sample(operator: str, *, zero: bool = False) -> torch.Tensor:
    """Returns an input of a network in 0..1, or zeros."""
    found = torch.rand(OPERATORS[operator].shape)
    return torch.zeros_like(found) if zero else found
