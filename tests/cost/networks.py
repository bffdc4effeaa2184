"""Small networks of integers whose modules are known, lowered for Ethos-U."""

from __future__ import annotations

from functools import cache

import torch
import tosaic
from torch import nn

TARGET = "TOSA-1.0+INT+int16+int4"
SIZE = 16


class Spotter(nn.Module):
    """A small keyword spotter: depthwise separable convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, (10, 4), 2, (5, 1)), nn.BatchNorm2d(8), nn.ReLU())
        blocks = [
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU())
            for _ in range(2)
        ]
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.MaxPool2d(5)
        self.head = nn.Linear(40, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))


class Attention(nn.Module):
    """An attention with a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query, self.key = nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.project = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        shares = torch.softmax(self.query(y) @ self.key(y).transpose(1, 2) / 4, -1)
        return x + self.project(shares @ y)


class Residual(nn.Module):
    """A residual block, with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, 2, 1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.shortcut = nn.Conv2d(8, 16, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


class Interrupted(nn.Module):
    """Two convolutions with an operator between them that the device does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(torch.flip(torch.relu(self.before(x)), [3]))


class Strided(nn.Module):
    """Two convolutions, of which the second has a stride with a dilation that Ethos-U55 does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 4, 4, dilation=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.far(torch.relu(self.near(x)))


_MADE = {
    "spotter": (Spotter, (1, 1, 49, 10)),
    "attention": (Attention, (1, 12, SIZE)),
    "residual": (Residual, (1, 8, 32, 32)),
    "interrupted": (Interrupted, (1, 3, 16, 16)),
    "strided": (Strided, (1, 3, 16, 16)),
}


@cache
def quantized(name: str) -> tosaic.QuantizedProgram:
    """Returns a quantized network."""
    make, shape = _MADE[name]
    torch.manual_seed(0)
    module, x = make().eval(), torch.randn(shape)
    return tosaic.quantize(torch.export.export(module, (x,)), [(x,)])


@cache
def lowered(name: str) -> tosaic.Lowered:
    """Returns a network, lowered as a whole."""
    return tosaic.lower(quantized(name), target=TARGET)


@cache
def split(name: str, claimant: str) -> tosaic.partitions.SplitLowered:
    """Returns a network, split between a device and the host."""
    return tosaic.lower(quantized(name), unsupported="split", claimants=[claimant])
