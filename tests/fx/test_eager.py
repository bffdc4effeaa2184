"""The run of an exported program in torch, which comparisons take as the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from tosaic.fx.eager import run_eager

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.arange(1.0, 13.0).reshape(3, 4)


class SharedBuffers(nn.Module):
    """Two buffers that a function makes of one tensor. One is written, both are returned."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        held = torch.zeros(3, 4)
        self.register_buffer("held", held)
        self.register_buffer("other", view(held))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.held.add_(x)
        return self.held * 1, self.other + 0


class WrittenTensors(nn.Module):
    """A parameter and a tensor that is no buffer are written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4), requires_grad=False)
        self.plain = torch.ones(3, 4)
        self.view = self.plain[1]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.weight.mul_(2)
        self.plain.add_(x)
        return x * self.weight, self.view + 0, self.plain * 1


def tensors_of(ep: torch.export.ExportedProgram) -> list[torch.Tensor]:
    held = [*ep.state_dict.values(), *ep.constants.values(), *ep.graph_module.__dict__.values()]
    return [each for each in held if isinstance(each, torch.Tensor)]


def assert_is_the_run_of_eager(module: nn.Module) -> None:
    """Compares two runs with one of eager on a copy of the module, and the program before and after."""
    ep = torch.export.export(module.eval(), (X,), strict=False)
    before = [each.clone() for each in tensors_of(ep)]
    assert before
    runs = [run_eager(ep, [X]), run_eager(ep, [X], trace=False)]
    for now, then in zip(tensors_of(ep), before, strict=True):
        assert torch.equal(now, then)
    expected = ep.module()(X)
    for run in runs:
        for found, value in zip(run.outputs, expected, strict=True):
            np.testing.assert_array_equal(found, value.detach().numpy())


VIEWS: dict[str, Any] = {
    "the same": lambda held: held,
    "a part": lambda held: held[1],
    "a transpose": lambda held: held.t(),
    "windows that overlap": lambda held: held.view(12).unfold(0, 4, 2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_buffers_that_share_memory_share_it_in_the_run(name: str) -> None:
    assert_is_the_run_of_eager(SharedBuffers(VIEWS[name]))


def test_a_written_tensor_of_the_program_does_not_change() -> None:
    assert_is_the_run_of_eager(WrittenTensors())
