"""Groups of steps that are computed some rows at a time: the same results as step by step, also in place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tosaic
from models.zoo import quiet
from torch import nn
from tosaic import _core

Rows = Callable[[torch.Tensor], torch.Tensor]


class AfterLinear(nn.Module):
    """`rows` of a value that the run computes, so that its memory may get the result."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.rows = rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows(self.linear(x))


def _attention(y: torch.Tensor) -> torch.Tensor:
    return y + torch.softmax(y @ y.transpose(1, 2), -1) @ y


def _first_rows(y: torch.Tensor) -> torch.Tensor:
    """The left operand of the product is a part of the memory that holds the sum's operand."""
    parts = y.reshape(2, -1, 32)
    return y.reshape(-1, 64) + torch.sigmoid(parts[1] @ parts[0].transpose(0, 1) @ y.reshape(-1, 64))


SHAPES: dict[str, tuple[tuple[int, ...], Rows]] = {
    "in place": ((1, 1000, 64), lambda y: y + torch.sigmoid(y * 2.0) * y),
    "reads its first row": ((1, 1000, 64), lambda y: y + torch.sigmoid(y * y[:, :1])),
    "reads its last row": ((1, 1000, 64), lambda y: y * torch.softmax(y - y[:, -1:], -1)),
    "reads its first batch": ((8, 130, 64), lambda y: y + torch.sigmoid(y * y[:1])),
    "multiplies by itself": ((3, 257, 64), _attention),
    "reads other rows": ((1, 514, 64), _first_rows),
    "reads a reshaped view": ((1, 1000, 64), lambda y: y + torch.tanh(y * y.reshape(1000, 64)).exp()),
}


@pytest.mark.parametrize("stage", ["exported", "tosa"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_group_overwrites_only_rows_that_nobody_reads_later(name: str, stage: str) -> None:
    shape, rows = SHAPES[name]
    torch.manual_seed(0)
    module, x = AfterLinear(rows).eval(), torch.randn(shape)
    with quiet(), torch.no_grad():
        expected = module(x).numpy()
        graph = tosaic.lower(torch.export.export(module, (x,)), target="TOSA-1.0+FP").at(stage).graph
    for threads in (1, 2, 3, 8):
        session = _core.Session(graph, threads=threads, share_all=threads > 1)
        alone = session.trace([x.numpy()])["outputs"][0]
        assert np.abs(alone - expected).max() <= 1e-5 * np.abs(expected).max()
        for _ in range(3):
            assert session.run([x.numpy()])[0].tobytes() == alone.tobytes(), f"{threads} threads"


def test_a_sum_with_what_was_computed_from_it_is_in_place() -> None:
    shape, rows = SHAPES["in place"]
    module, x = AfterLinear(rows).eval(), torch.randn(shape)
    with quiet():
        graph = tosaic.lower(torch.export.export(module, (x,)), target="TOSA-1.0+FP").at("exported").graph
    session = _core.Session(graph)
    values = {value["name"]: value for value in session.memory["values"]}
    assert values["add"]["alias"] == "in_place"
    assert values["add"]["alias_of"] == "linear"
    assert any("rows" in step["kernel"] for step in session.profiled_steps)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_gelu_of_nan_has_the_same_bytes_for_all_threads(threads: int) -> None:
    class Gelu(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.clamp(nn.functional.gelu(x * 0.0), min=0.5)

    x = torch.full((1, 100, 33), float("nan"))
    x[0, ::2], x[0, ::3] = float("inf"), -float("inf")
    with quiet():
        graph = tosaic.from_exported(torch.export.export(Gelu(), (x,))).graph
    expected = _core.Session(graph, share_memory=False).run([x.numpy()])[0]
    session = _core.Session(graph, threads=threads, share_all=threads > 1, least_group_bytes=0)
    assert session.run([x.numpy()])[0].tobytes() == expected.tobytes()
