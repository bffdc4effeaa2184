"""Small networks, programs and files that the tests of the API share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn


class ConvNet(nn.Module):
    """Conv, batch norm, relu, pool, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.max_pool2d(x, 2).flatten(1))


class Nested(nn.Module):
    """Nested inputs and outputs, a keyword, a constant result."""

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor], *, scale: torch.Tensor) -> dict[str, Any]:
        a, b = pair
        return {"sum": (a + b) * scale, "parts": [a * scale, (b - a, 7)]}


class Counter(nn.Module):
    """A buffer that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


class Unliftable(nn.Module):
    """Two operators that no TOSA target has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.det(x) + torch.special.i0(x).sum()


def warmed(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """Returns the model in evaluation mode, with batch norm statistics of `x`."""
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(x)
    return model.eval()


@dataclass(frozen=True)
class Case:
    model: nn.Module
    exported: Any
    x: torch.Tensor
    program: tosaic.Program
    lowered: tosaic.Lowered

    @property
    def array(self) -> np.ndarray:
        return self.x.numpy()

    def eager(self) -> np.ndarray:
        with torch.no_grad():
            return self.model(self.x).numpy()


@pytest.fixture(scope="session")
def case() -> Case:
    torch.manual_seed(11)
    x = torch.randn(2, 3, 8, 8)
    model = warmed(ConvNet(), x)
    exported = torch.export.export(model, (x,))
    program = tosaic.from_exported(exported)
    return Case(model, exported, x, program, tosaic.lower(program))


@pytest.fixture(scope="session")
def nested() -> tosaic.Program:
    args = ((torch.ones(2, 3), torch.ones(2, 3)),)
    return tosaic.from_exported(torch.export.export(Nested(), args, {"scale": torch.ones(())}))


@pytest.fixture
def counter() -> tosaic.Program:
    return tosaic.from_exported(torch.export.export(Counter(), (torch.ones(4),)))


@pytest.fixture(scope="session")
def unliftable() -> Any:
    return torch.export.export(Unliftable(), (torch.eye(3),))


@pytest.fixture(scope="session")
def dynamic() -> Any:
    batch = torch.export.Dim("batch", min=1, max=64)
    model = nn.Linear(4, 2)
    return torch.export.export(model, (torch.ones(3, 4),), dynamic_shapes=({0: batch},))


@pytest.fixture
def files(case: Case, tmp_path, monkeypatch):
    """Makes a folder the working directory, with model.pt2, model.tosa, model.tosaic, x.npz and x.npy."""
    monkeypatch.chdir(tmp_path)
    torch.export.save(case.exported, "model.pt2")
    case.lowered.save("model.tosa")
    case.program.save("model.tosaic")
    np.savez("x.npz", x=case.array)
    np.save("x.npy", case.array)
    return tmp_path
