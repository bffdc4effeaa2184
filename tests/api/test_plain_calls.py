"""Calls with plain arrays go to the session as they are; all other calls give the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tosaic


class _Weighted(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return a * scale - b


class _Pair(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"less": a - 1, "more": a + 1}


class _Accumulates(torch.nn.Module):
    def forward(self, total: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        total.add_(a)
        return total * 2


class _Subclass(torch.Tensor):
    pass


def _program(module: torch.nn.Module, *example: torch.Tensor) -> tosaic.Program:
    return tosaic.from_exported(torch.export.export(module, example))


A = torch.arange(6, dtype=torch.float32).reshape(2, 3)
B = torch.full((2, 3), 0.5)
ARRAYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda x: x,
    "array": lambda x: x.numpy(),
    "gradients": lambda x: x.clone().requires_grad_(),
    "parameter": torch.nn.Parameter,
    "subclass": lambda x: x.as_subclass(_Subclass),
    "strides": lambda x: x.t().contiguous().t(),
    "negative strides": lambda x: np.flip(np.flip(x.numpy(), 0).copy(), 0),
    "negated": lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag,
    "other byte order": lambda x: x.numpy().astype(">f4"),
    "lists": lambda x: x.tolist(),
}


@pytest.mark.parametrize("form", ARRAYS)
@pytest.mark.parametrize("prepared", [False, True])
def test_each_form_of_an_array_gives_the_same_result(form: str, prepared: bool) -> None:
    program = _program(_Weighted(), A, B)
    call = program.prepare() if prepared else program
    made = ARRAYS[form]
    wanted = (A * 2 - B).numpy()
    for found in (call(made(A), made(B)), call(made(A), b=made(B)), call(a=made(A), b=made(B))):
        assert found.tobytes() == wanted.tobytes()


def test_a_session_takes_only_plain_arrays() -> None:
    session = _program(_Weighted(), A, B).session
    for form in ("tensor", "array", "strides", "negative strides"):
        assert session.run_plain((ARRAYS[form](A), B)) is not None, form
    for form in ("gradients", "parameter", "subclass", "negated", "other byte order", "lists"):
        assert session.run_plain((A, ARRAYS[form](B))) is None, form
    assert session.run_plain((A,)) is None
    assert session.run_plain((A.bfloat16(), B)) is None


def test_nested_results_keep_their_structure() -> None:
    program = _program(_Pair(), A)
    for call in (program, program.prepare()):
        found = call(A)
        assert list(found) == ["less", "more"]
        assert found["less"].tobytes() == (A - 1).numpy().tobytes()
        assert found["more"].tobytes() == (A + 1).numpy().tobytes()


def test_written_arguments_are_written() -> None:
    program = _program(_Accumulates(), A.clone(), B)
    for call in (program, program.prepare(write_back=True)):
        total = A.clone()
        found = call(total, B)
        assert found.tobytes() == ((A + B) * 2).numpy().tobytes()
        assert torch.equal(total, A + B)
    prepared = program.prepare()
    prepared(A.clone(), B)
    assert prepared.mutations["total"].tobytes() == (A + B).numpy().tobytes()


def test_wrong_arguments_have_the_same_errors() -> None:
    program = _program(_Weighted(), A, B)
    for call in (program, program.prepare()):
        with pytest.raises(tosaic.LayoutMismatch, match=r"'b'"):
            call(A, B[:1])
        with pytest.raises(tosaic.LayoutMismatch, match=r"'a'"):
            call(A.double().numpy() > 0, B)
        with pytest.raises(tosaic.InvalidGraph, match=r"arg"):
            call(A)
        with pytest.raises(tosaic.InvalidGraph, match=r"specialised by export|arg"):
            call(A, B, 3.0)
