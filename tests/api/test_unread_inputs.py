"""Unread inputs of a dtype that the target lacks: `run` accepts them, the file has integers instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic

INT = "TOSA-1.0+INT"
Q = torch.ops.quantized_decomposed
X, UNREAD = torch.tensor([-1.0, 0.5, 2.0, 3.0]), torch.full((2, 3), torch.nan)


def _through_integers(x: torch.Tensor) -> torch.Tensor:
    integers = Q.quantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
    return Q.dequantize_per_tensor(integers, 0.05, 3, -128, 127, torch.int8)


class _Quantized(torch.nn.Module):
    def forward(self, unread: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return _through_integers(_through_integers(x).tanh())


def _exported(unread: torch.Tensor = UNREAD) -> torch.export.ExportedProgram:
    return torch.export.export(_Quantized(), (unread, X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_quantized_program_accepts_an_unread_float(dtype: torch.dtype) -> None:
    unread = UNREAD.to(dtype)
    lowered = tosaic.lower(_exported(unread), target=INT)
    np.testing.assert_array_equal(lowered.run(unread, X), _Quantized()(unread, X).numpy())
    assert [port.name for port in lowered.inputs] == ["unread", "x"]


def test_the_file_has_an_integer_input_in_the_place_of_the_unread_float() -> None:
    lowered = tosaic.lower(_exported(), target=INT)
    values = [port.value for port in lowered.graph.inputs]
    assert [(value.dtype, tuple(value.shape)) for value in values] == [("i8", (2, 3)), ("i8", (4,))]
    assert tosaic.check(lowered.graph, target=INT).ok
    assert "unread" in str(lowered.io)
    assert "unread" in lowered.report().text


def test_an_unread_input_is_an_integer_if_integer_inputs_were_asked_for() -> None:
    lowered = tosaic.lower(_exported(), target=INT, io={"inputs": "int8"})
    integers = lowered.inputs[1].quantized[0].quantize(X.numpy())
    got = lowered.run(np.zeros((2, 3), np.int8), integers)
    np.testing.assert_array_equal(got, _Quantized()(UNREAD, X).numpy())


def test_a_program_of_integers_accepts_an_unread_float() -> None:
    class Integers(torch.nn.Module):
        def forward(self, unread: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    x = torch.tensor([1, 127], dtype=torch.int8)
    lowered = tosaic.lower(torch.export.export(Integers(), (UNREAD, x)), target=INT)
    np.testing.assert_array_equal(lowered.run(UNREAD, x), (x + 1).numpy())


def test_a_file_with_an_unread_input_computes_as_its_source(tmp_path: Path) -> None:
    lowered = tosaic.lower(_exported(), target=INT)
    lowered.save(tmp_path / "model.tosa")
    back = tosaic.load_tosa(tmp_path / "model.tosa")
    integers = lowered.inputs[1].quantized[0]
    got = back.run(np.zeros((2, 3), np.int8), integers.quantize(X.numpy()))
    expected = _Quantized()(UNREAD, X).numpy()
    np.testing.assert_array_equal(integers.dequantize(np.asarray(got)), expected)
    assert tosaic.compare(lowered.source, lowered, (torch.zeros(2, 3), X)).ok


def test_an_unread_i64_may_hold_any_integer() -> None:
    unread = torch.tensor([2**40, -(2**63)])
    lowered = tosaic.lower(_exported(unread), target=INT)
    np.testing.assert_array_equal(lowered.run(unread, X), _Quantized()(unread, X).numpy())


def test_an_unread_float_stays_a_float_on_a_target_with_floats() -> None:
    lowered = tosaic.lower(_exported(), target="TOSA-1.0+INT+FP")
    assert lowered.graph.inputs[0].dtype == "f32"
