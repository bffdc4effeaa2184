"""Writes of one number: elements that share memory get it in whichever order they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from refusals import refusal
from torch import nn


class Computed(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x.clone())


def _own_element(x: torch.Tensor) -> torch.Tensor:
    x.reshape(1, 1, -1)[:, :, -1, ...] = x[0, 0]
    return x


def _windows(x: torch.Tensor) -> torch.Tensor:
    x.unfold(1, 3, 1)[:] = 0.0
    return x


def _some_windows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    windows = x.unfold(1, 3, 1)[:, ::2]
    windows.fill_(2.5)
    x[0, 3] = 7
    return x * 2, windows


def _zeros(x: torch.Tensor) -> torch.Tensor:
    x.unfold(1, 2, 1)[:, 1:].zero_()
    return x


def _strided(x: torch.Tensor) -> torch.Tensor:
    x.as_strided((2, 2), (1, 1), 2).fill_(7.0)
    return x


def _expanded(x: torch.Tensor) -> torch.Tensor:
    x[:, :1].expand(2, 4).fill_(7.0)
    return x


def _by_its_element(x: torch.Tensor) -> torch.Tensor:
    x.unfold(1, 3, 1).fill_(x[0, 1])
    return x + x[0, 0]


def _copied(x: torch.Tensor) -> torch.Tensor:
    x.unfold(1, 3, 1).copy_(torch.tensor(3.0))
    return x


@pytest.mark.parametrize(
    "function",
    [
        _own_element,
        _windows,
        _some_windows,
        _zeros,
        _strided,
        _expanded,
        _by_its_element,
        _copied,
    ],
)
def test_one_number_is_written_to_elements_that_share_memory(
    function: Callable[..., Any], tmp_path: Path
) -> None:
    x = torch.arange(1.0, 17).reshape(2, 8)
    program = torch.export.export(Computed(function), (x,))
    torch.export.save(program, tmp_path / "x.pt2")
    expected = function(x.clone())
    for found in (
        tosaic.from_exported(program),
        tosaic.open_program(tmp_path / "x.pt2"),
        tosaic.lower(program, target="TOSA-1.0+FP"),
    ):
        results = found.run(x.numpy())
        pairs = zip(results, expected, strict=True) if isinstance(expected, tuple) else [(results, expected)]
        for result, each in pairs:
            np.testing.assert_array_equal(result, each.numpy())


def _sum(x: torch.Tensor) -> torch.Tensor:
    x.unfold(1, 3, 1).add_(1)
    return x


def _several(x: torch.Tensor) -> torch.Tensor:
    x.unfold(1, 3, 1).copy_(torch.arange(3.0))
    return x


@pytest.mark.parametrize("function", [_sum, _several])
def test_several_numbers_in_shared_memory_are_refused(function: Callable[..., Any]) -> None:
    program = torch.export.export(Computed(function), (torch.ones(2, 8),))
    text = refusal(tosaic.UnsupportedOp, lambda: tosaic.from_exported(program))
    assert "it writes to 'unfold', of which several elements share memory" in text
