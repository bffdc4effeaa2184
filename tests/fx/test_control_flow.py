"""torch.cond and torch.while_loop: imported, run, lowered to targets that have control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from function_module import FunctionModule
from fx.exporting import exported, ops
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

generator = torch.Generator().manual_seed(11)
X = torch.randn(3, 4, generator=generator)
IMAGE = torch.randn(1, 3, 5, 5, generator=generator)
CONV = nn.Conv2d(3, 4, 3, padding=1)
ZERO = torch.tensor(0)
FP, INT_FP = "TOSA-1.0+FP+cf", "TOSA-1.0+INT+FP+cf"


def softmax_or_less(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.softmax(1) * 2, lambda x: x - 1, (x,))


def nested(x: torch.Tensor) -> Any:
    def inner(x: torch.Tensor) -> Any:
        return torch.cond(x.max() > 1, lambda x: F.gelu(x), lambda x: x * 3, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x - 1, (x,))


def convolved(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: CONV(x).relu(), lambda x: CONV(x) * 0.5, (x,))


def counted(i: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, F.layer_norm(x, [4]) * 2), (i, x))


def counted_down(i: torch.Tensor, x: torch.Tensor) -> Any:
    def condition(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.logical_and(i >= 2, x.abs().max() < 100)

    return torch.while_loop(condition, lambda i, x: (i - 2, x * 2), (i, x))


def bounded_by_data(x: torch.Tensor) -> Any:
    return torch.while_loop(lambda x: x.abs().sum() < 100, lambda x: (x * 2,), (x,))


def reads_more_than_it_carries(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + y), (torch.zeros_like(ZERO), x))


CASES: dict[str, tuple[Callable[..., Any], list[tuple[torch.Tensor, ...]]]] = {
    "cond": (softmax_or_less, [(X.abs(),), (-X.abs(),)]),
    "nested cond": (nested, [(X.abs() + 1,), (X.abs() / 10,), (-X.abs(),)]),
    "cond over convolutions": (convolved, [(IMAGE,), (-IMAGE,)]),
    "counted loop": (counted, [(ZERO, X), (torch.tensor(4), X), (torch.tensor(9), X)]),
    "loop that counts down": (counted_down, [(torch.tensor(7), X), (torch.tensor(1), X)]),
    "loop bounded by data": (bounded_by_data, [(X,), (X * 100,)]),
    "loop over values it only reads": (reads_more_than_it_carries, [(X, X * 2)]),
}


def agree(got: Any, wanted: Any, tolerance: float = 2e-6) -> None:
    for g, w in zip(
        got if isinstance(got, tuple) else (got,),
        wanted if isinstance(wanted, tuple) else (wanted,),
        strict=True,
    ):
        assert np.asarray(g).shape == tuple(w.shape)
        np.testing.assert_allclose(np.asarray(g), w.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", [FP, INT_FP])
def test_every_stage_agrees_with_torch(name: str, target: str) -> None:
    call, samples = CASES[name]
    program = exported(FunctionModule(call), *samples[0])
    imported, lowered = tosaic.from_exported(program), tosaic.lower(program, target=target)
    for args in samples:
        with torch.no_grad():
            wanted = call(*args)
        agree(imported.run(*args), wanted)
        agree(lowered.run(*args), wanted)


@pytest.mark.parametrize("name", CASES)
def test_the_reference_model_agrees_with_torch(name: str) -> None:
    call, samples = CASES[name]
    lowered = tosaic.lower(exported(FunctionModule(call), *samples[0]), target=INT_FP)
    for args in samples:
        with torch.no_grad():
            wanted = call(*args)
        run = run_reference_model(lowered, *args)
        assert run.ok, run.log
        agree(run.outputs, wanted, tolerance=1e-5)


def test_regions_are_decomposed_simplified_and_folded() -> None:
    def call(x: torch.Tensor) -> Any:
        return torch.cond(
            x.sum() > 0, lambda x: (x.reshape(12) + torch.ones(3).sum()).reshape(3, 4), F.gelu, (x,)
        )

    lowered = tosaic.lower(exported(FunctionModule(call), X), target=FP)
    (node,) = [node for node in lowered.graph.nodes if node.op == "tosa.cond_if"]
    first, second = ([inner.op for inner in region.nodes] for region in node.regions)
    assert first == ["tosa.add"]  # it moved in front of the reshapes, which then cancel
    assert "tosa.erf" in second


def test_a_constant_predicate_leaves_only_the_branch_that_is_taken() -> None:
    class Known(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("flag", torch.tensor(False))

        def forward(self, x: torch.Tensor) -> Any:
            return torch.cond(self.flag, lambda x: x + 1, lambda x: F.relu(x - 1), (x,))

    lowered = tosaic.lower(exported(Known(), X), target="TOSA-1.0+FP")
    assert [node.op for node in lowered.graph.nodes] == ["tosa.sub", "tosa.clamp"]
    agree(lowered.run(X), F.relu(X - 1))


def test_the_refusal_of_a_target_without_control_flow_names_the_extension() -> None:
    with pytest.raises(tosaic.UnsupportedOp, match=r"no lowering to this .*Lower for TOSA-1.0\+FP\+cf,"):
        tosaic.lower(exported(FunctionModule(softmax_or_less), X), target="TOSA-1.0+FP")


def test_an_unbounded_counter_is_refused() -> None:
    def call(i: torch.Tensor, x: torch.Tensor) -> Any:
        return torch.while_loop(lambda i, x: x.sum() < 9, lambda i, x: (i + 1, x * 2), (i, x))

    with pytest.raises(tosaic.UnsupportedOp, match="an i64 result may not fit i32"):
        tosaic.lower(exported(FunctionModule(call), ZERO, X.abs()), target=INT_FP)


def test_a_counter_is_bounded_by_an_input_that_the_run_checks() -> None:
    def call(n: torch.Tensor, x: torch.Tensor) -> Any:
        return torch.while_loop(
            lambda i, n, x: i < n, lambda i, n, x: (i + 1, n.clone(), x + 1), (torch.zeros_like(n), n, x)
        )

    lowered = tosaic.lower(exported(FunctionModule(call), torch.tensor(3), X), target=INT_FP)
    agree(lowered.run(torch.tensor(6), X), call(torch.tensor(6), X))


def test_a_complex_branch_is_refused() -> None:
    def call(x: torch.Tensor) -> Any:
        spectrum = torch.cond(x.sum() > 0, lambda x: torch.fft.fft(x), lambda x: torch.fft.fft(x * 2), (x,))
        return torch.view_as_real(spectrum)

    with pytest.raises(tosaic.UnsupportedOp, match="complex"):
        ops(tosaic.from_exported(exported(FunctionModule(call), X)))
