"""Wrong programs: the fault is two modules deep, so error messages can name a module path and a line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import tosaic
from function_module import FunctionModule
from torch import nn


class Net(nn.Module):
    """A network of one faulty layer, called `layer`."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer = FunctionModule(function)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def export(function: Callable[..., torch.Tensor], x: torch.Tensor) -> Any:
    return torch.export.export(Net(function).eval(), (x,))


def place(function: Callable[..., Any], node: str) -> str:
    """Returns how a message names a node of `function`: ``(node 'exp', module 'layer', test_x.py:12)``."""
    file = inspect.getsourcefile(function)
    assert file is not None
    line = inspect.getsourcelines(function)[1] + 1  # the line below `def`
    return f"(node '{node}', module 'layer', {file.rsplit('/', 1)[-1]}:{line})"


@pytest.fixture(scope="session")
def pooled() -> tosaic.Lowered:
    """Returns a small network that lowers: relu, average pool."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(torch.relu(x), 2)

    return tosaic.lower(export(forward, torch.randn(1, 2, 8, 8)))
