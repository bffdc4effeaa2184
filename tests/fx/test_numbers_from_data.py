"""Numbers that are read from data: positions, and operands of arithmetic.

Torch exports `x[i]` of a tensor `i` of rank 0 as ``item`` and ``select``. The number stays a tensor here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from function_module import FunctionModule
from refusals import refusal


def exported(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    return torch.export.export(FunctionModule(function), args)


def traced_back(x: torch.Tensor) -> torch.Tensor:
    """The path of Viterbi's algorithm."""
    x = x[:, :4]
    best, pointers = x[0], []
    for _ in range(3):
        best, pointer = (best[:, None] + x).max(0)
        pointers.append(pointer)
    state = best.argmax()
    path = [state]
    for pointer in reversed(pointers):
        state = pointer[state]
        path.append(state)
    return torch.stack(path)


def updated(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.mul_(i.item())
    return y


X = torch.linspace(-3, 5, 20).reshape(4, 5)
AT = torch.tensor(2)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (traced_back, (X,)),
        (lambda x: x[x[0].argmax() - 1], (X,)),
        (lambda x, i: x[i], (X, AT)),
        (lambda x, i: x[i], (X, torch.tensor(-4))),
        (lambda x, i: x[1, i], (X, AT)),
        (lambda x, i: x[:, i], (X, AT)),
        (lambda x, i: x[i[1]], (X, torch.tensor([0, 3]))),
        (lambda x, i: x.select(-1, i.item()), (X, torch.tensor([2], dtype=torch.int32))),
        (lambda x, i: x.select(0, i.item()), (X, torch.tensor(3, dtype=torch.uint8))),
        (lambda x, i: x.narrow(0, i.item(), 2), (X, AT)),
        (lambda x, i: x.narrow(1, i.item(), 2), (X, torch.tensor(-3))),
        (lambda x, i: x.masked_fill(x > 1, i.item()), (X, torch.tensor(2.7))),
        (lambda x, i: x > i.item(), (X, torch.tensor(0.3))),
        (lambda x, i: torch.rsub(x, i.item()), (X, AT)),
        (updated, (X, torch.tensor(1.5))),
    ],
)
def test_a_number_from_data_is_a_tensor_of_the_program(
    function: Callable[..., Any], args: tuple[torch.Tensor, ...], tmp_path: Path
) -> None:
    program = exported(function, *args)
    torch.export.save(program, tmp_path / "x.pt2")
    expected, arrays = function(*args).numpy(), [each.numpy() for each in args]
    for found in (
        tosaic.from_exported(program),
        tosaic.open_program(tmp_path / "x.pt2"),
        tosaic.lower(program, target="TOSA-1.0+INT+FP"),
        tosaic.lower(program, target="TOSA-1.0+FP"),
    ):
        result = found.run(*arrays)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("number", [2, 2.7, np.int32(3), np.float64(2.7000001)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int32, torch.bool])
def test_a_number_from_data_promotes_as_in_torch(number: Any, dtype: torch.dtype) -> None:
    x, n = (X * 3).to(dtype), torch.tensor(number)
    for function in (
        lambda x, n: x * n.item(),
        lambda x, n: x + n.item(),
        lambda x, n: x / n.item(),
        lambda x, n: x < n.item(),
    ):
        expected = function(x, n).numpy()
        found = tosaic.from_exported(exported(function, x, n)).run(x.numpy(), n.numpy())
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("function", "positions"),
    [(lambda x, i: x[i], (4, -5)), (lambda x, i: x.narrow(0, i.item(), 2), (3, -1, -5, 7))],
)
def test_positions_out_of_range_are_errors_as_in_torch(
    function: Callable[..., Any], positions: tuple[int, ...]
) -> None:
    program = exported(function, X, AT)
    for found in (tosaic.from_exported(program), tosaic.lower(program, target="TOSA-1.0+INT+FP")):
        for position in positions:
            with pytest.raises((IndexError, RuntimeError)):
                function(X, torch.tensor(position))
            text = refusal(tosaic.InvalidGraph, found.run, X.numpy(), np.array(position))
            assert "index out of range" in text


def test_arithmetic_on_numbers_names_where_they_are_read() -> None:
    program = exported(lambda x, n: x + 2 * n.item(), X, torch.tensor(2.0))
    text = refusal(tosaic.UnsupportedOp, lambda: tosaic.from_exported(program))
    assert "expected a number that does not depend on data, got node 'item'" in text
    assert "Keep the number a tensor, e.g. x + 2 * n in place of x + 2 * n.item()" in text


def written_behind(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    row = y[i]
    y.add_(1)
    return row


def test_a_row_whose_memory_is_written_later_is_refused() -> None:
    program = exported(written_behind, X, AT)
    text = refusal(tosaic.UnsupportedOp, lambda: tosaic.from_exported(program))
    assert "it writes to 'clone', whose memory 'select' may share" in text
