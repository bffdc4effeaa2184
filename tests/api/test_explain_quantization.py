"""What `explain_quantization` says of programs whose floats are known."""

from __future__ import annotations

import json

import pytest
import torch
import tosaic
from quantize_calls import dq, q, qdq
from torch import nn


def exported(module: nn.Module, *args: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(module.eval(), args)


class Quantized(nn.Module):
    """A convolution and a ReLU between quantized values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = qdq(self.conv.weight, 0.02, 0)
        y = torch.conv2d(qdq(x, 0.05, 3), weight, self.conv.bias)
        return qdq(torch.relu(y), 0.1, -128)


class HalfQuantized(Quantized):
    """The result of a sigmoid is not quantized, and nothing around `exp` is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.sigmoid(super().forward(x)))


class FloatHead(Quantized):
    """A second output is computed from the float input."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x), torch.erf(torch.exp(x))


IMAGE = torch.randn(1, 2, 6, 6)


def test_a_program_of_integers_has_no_float_operators() -> None:
    explanation = tosaic.explain_quantization(exported(Quantized(), IMAGE))
    assert explanation.is_integer
    assert explanation.floats == ()
    assert "computes with integers" in str(explanation)


def test_values_have_the_parameters_of_the_calls_that_quantize_them() -> None:
    values = tosaic.explain_quantization(exported(Quantized(), IMAGE)).values
    found = {(v.kind, v.qparams.scale, v.qparams.zero_points) for v in values if v.qparams.dtype == "i8"}
    assert {("constant", 0.02, (0,)), ("result", 0.1, (-128,))} <= found
    assert any((scale, zero) == (0.05, (3,)) for _, scale, zero in found)
    convs = [v for v in values if v.op == "relu"]
    assert all("test_explain_quantization.py" in v.source for v in convs)


def test_values_that_no_quantizer_quantized_are_listed_with_source_lines() -> None:
    explanation = tosaic.explain_quantization(exported(HalfQuantized(), IMAGE))
    assert explanation.is_integer  # sigmoid and exp are computed with integers of 32 bits
    (sigmoid,) = explanation.unquantized
    assert "its result is read as a float by node 'exp'" in sigmoid.what
    assert "test_explain_quantization.py" in sigmoid.source


def test_operators_that_compute_with_floats_are_listed_with_source_lines() -> None:
    explanation = tosaic.explain_quantization(exported(FloatHead(), IMAGE))
    assert not explanation.is_integer
    assert [f.op for f in explanation.floats] == ["quantize", "exp", "erf"]
    assert "its operand is a float" in explanation.floats[0].reasons[0].what
    for found in explanation.floats[1:]:
        assert found.reasons[0].what == "no operand or result is quantized"
        assert "test_explain_quantization.py" in found.source


def test_a_float_program_has_only_float_operators() -> None:
    explanation = tosaic.explain_quantization(
        exported(nn.Sequential(nn.Linear(3, 2), nn.GELU()), torch.ones(1, 3))
    )
    assert explanation.values == ()
    assert [f.op for f in explanation.floats] == ["linear", "gelu"]


def test_an_input_with_a_scale_for_each_channel_is_quantized_by_a_float_operator() -> None:
    class PerChannelActivation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales, self.zeros = nn.Buffer(torch.tensor([0.1, 0.2])), nn.Buffer(torch.zeros(2).long())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ops = torch.ops.quantized_decomposed
            y = ops.quantize_per_channel(x, self.scales, self.zeros, 1, -128, 127, torch.int8)
            y = ops.dequantize_per_channel(y, self.scales, self.zeros, 1, -128, 127, torch.int8)
            return qdq(torch.softmax(y, 1), 1 / 256, -128)

    explanation = tosaic.explain_quantization(exported(PerChannelActivation(), torch.randn(1, 2)))
    assert [f.op for f in explanation.floats] == ["quantize"]
    with pytest.raises(tosaic.UnsupportedOp, match="input 'x' stays f32: it has a scale for each channel"):
        tosaic.lower(exported(PerChannelActivation(), torch.randn(1, 2)), target="TOSA-1.0+INT")


def test_the_explanation_agrees_with_lowering_to_integers() -> None:
    for module in (Quantized(), HalfQuantized(), FloatHead()):
        program = exported(module, IMAGE)
        fits = bool(tosaic.check(program, target="TOSA-1.0+INT"))
        assert tosaic.explain_quantization(program).is_integer == fits


def test_the_report_has_json_and_html() -> None:
    report = tosaic.explain_quantization(exported(FloatHead(), IMAGE)).report()
    data = json.loads(report.json)
    assert [f["op"] for f in data["floats"]] == ["quantize", "exp", "erf"]
    assert any(v["qparams"]["scales"] == [0.02] for v in data["values"])
    assert "erf" in report.html


def test_a_lowered_program_is_refused() -> None:
    lowered = tosaic.lower(exported(Quantized(), IMAGE), target="TOSA-1.0+INT")
    with pytest.raises(
        tosaic.InvalidGraph, match=r"already lowered.*stage exported or quantized.*stage tosa"
    ):
        tosaic.explain_quantization(lowered.graph)


def test_quantized_inputs_are_values() -> None:
    class Integers(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return q(torch.relu(dq(x, 0.5, 1)), 0.5, 1)

    values = tosaic.explain_quantization(exported(Integers(), torch.zeros(2, dtype=torch.int8))).values
    assert {v.qparams.scale for v in values} == {0.5}
    assert any(v.is_output for v in values)


def test_the_function_is_still_there_after_its_module_was_imported() -> None:
    """A module of the same name as a public function would take its place in the package."""
    import pkgutil

    modules = {module.name for module in pkgutil.iter_modules(tosaic.__path__)}
    functions = {name for name in tosaic.__all__ if callable(getattr(tosaic, name))}
    assert modules.isdisjoint(functions)
