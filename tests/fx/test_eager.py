"""The run of an exported program in torch, which comparisons take as the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic.fx.running.eager import run_eager

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
    """A parameter and a tensor that is not a buffer are written."""

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


SORTED: dict[str, Callable[[torch.Tensor], Any]] = {
    "topk": lambda x: torch.topk(x, 2, 1),
    "topk of the last axis": lambda x: torch.topk(x, 3),
    "sort": lambda x: torch.sort(x, 1),
    "argsort": lambda x: torch.argsort(x, 0),
    "kthvalue": lambda x: torch.kthvalue(x, 2, 1),
    "median": lambda x: torch.median(x, 1),
    "median with its axis": lambda x: torch.median(x, 0, keepdim=True),
    "nanmedian": lambda x: torch.nanmedian(x, 1),
}


class Ordered(nn.Module):
    """Views of results that are possible with the strides of torch's results."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = SORTED[self.call](x)
        results = (found,) if isinstance(found, torch.Tensor) else tuple(found)
        return tuple(each.as_strided((each.numel(),), (1,)) for each in results)


@pytest.mark.parametrize("call", SORTED)
@pytest.mark.parametrize("layout", ["row-major", "transposed"])
def test_calls_that_put_the_first_of_equal_elements_first_have_torchs_strides(call: str, layout: str) -> None:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    x = x if layout == "row-major" else x.transpose(0, 2).contiguous().transpose(0, 2)
    module = Ordered(call)
    ep = torch.export.export(module, (x,))
    for found, expected in zip(run_eager(ep, [x]).outputs, module(x), strict=True):
        np.testing.assert_array_equal(found, expected.numpy())


def test_results_of_topk_can_be_viewed_in_a_comparison() -> None:
    class Best(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values, places = torch.topk(x, 5)
            return values.view(1, -1), places.view(1, -1)

    x = torch.rand(1, 2, 64, generator=torch.Generator().manual_seed(0))
    exported = torch.export.export(Best(), (x,))
    assert tosaic.compare(exported, tosaic.lower(exported), (x,)).ok
