"""Comparing programs: against torch, between stages, over samples and files."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic
from tosaic.program.comparison import Metrics, worst


def test_torch_against_the_lowered_program(case) -> None:
    comparison = tosaic.compare(case.exported, case.lowered, (case.x,))
    assert comparison
    assert comparison.first_divergence is None
    assert comparison.output.sqnr_db > 100
    assert {row.fx_name for row in comparison} >= {"batch_norm", "relu", "linear"}
    assert comparison["linear"].source.startswith("conftest.py:")


def test_local_and_inherited_errors_are_distinguished(case) -> None:
    comparison = tosaic.compare(case.program, case.lowered, (case.x,))
    linear = comparison["linear"]
    assert linear.local is not None
    assert linear.inherited is not None
    assert linear.local.sqnr_db > 100
    folded = comparison["batch_norm"]
    assert folded.local is not None
    assert folded.local.sqnr_db > 100
    assert tosaic.compare(case.program, case.lowered, (case.x,), local=False)["linear"].local is None


def test_a_wrong_weight_is_reported_at_its_node(case) -> None:
    wrong = torch.export.export(case.model, (case.x,))
    wrong.state_dict["head.bias"] = wrong.state_dict["head.bias"] + 100
    comparison = tosaic.compare(case.exported, tosaic.lower(wrong), (case.x,))
    assert not comparison
    assert comparison.first_divergence is not None
    assert comparison.first_divergence.fx_name == "linear"
    assert str(comparison).startswith("FAILED: TOSA-1.0+FP against ExportedProgram (torch)\n")
    assert comparison.report().sections[1].body.marked


@pytest.mark.parametrize("form", ["tuple", "dict", "array", "list", "npz", "npy", "loader"])
def test_samples_come_in_many_forms(case, files, form) -> None:
    samples = {
        "tuple": (case.x,),
        "dict": {"x": case.array},
        "array": case.array,
        "list": [(case.x,), {"x": case.array}],
        "npz": "x.npz",
        "npy": files / "x.npy",
        "loader": torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.cat([case.x, case.x])), batch_size=2
        ),
    }[form]
    comparison = tosaic.compare(case.program, case.lowered, samples, local=False)
    assert comparison.samples == (2 if form in ("list", "loader") else 1)
    assert comparison


def test_samples_may_name_nested_inputs_by_path(nested) -> None:
    arrays = {port.path: np.ones(port.shape, np.float32) for port in nested.inputs}
    assert tosaic.compare(nested, tosaic.lower(nested), arrays)


def test_files_are_compared(files) -> None:
    comparison = tosaic.compare("model.pt2", "model.tosa", "x.npz")
    assert comparison
    assert comparison.name_a == "model.pt2 (torch)"
    assert comparison.name_b == "model.tosa"
    assert {row.fx_name for row in comparison} >= {"relu", "linear"}


def test_an_unknown_input_is_named(case) -> None:
    with pytest.raises(tosaic.InvalidGraph) as error:
        tosaic.compare(case.program, case.lowered, {"y": case.array})
    assert str(error.value) == "[samples] there is no input 'y': expected arrays named 'x', got 'y'"


def test_no_sample_is_refused(case) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"^\[samples\] there is nothing to run on"):
        tosaic.compare(case.program, case.lowered, [])


def test_different_inputs_are_refused(case, nested) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"^\[compare\] the programs have different inputs"):
        tosaic.compare(case.program, nested, (case.x,))


def test_the_report_is_data_too(case) -> None:
    data = json.loads(tosaic.compare(case.exported, case.lowered, (case.x,)).report().json)
    assert data["ok"] is True
    assert data["outputs"][0]["metrics"]["count"] == 10
    assert {"total", "local", "inherited", "source"} <= set(data["rows"][0])


def test_the_metrics_of_several_samples_are_the_worst_ones() -> None:
    good = Metrics(4, 0, 0, math.inf, 1.0, 0.0, 0.0, 0.0, 0.0)
    bad = Metrics(4, 2, 0, 20.0, 0.9, 0.5, 0.1, 8.0, 7.0)
    assert worst([good, bad]) == Metrics(8, 2, 0, 20.0, 0.9, 0.5, 0.1, 8.0, 7.0)


class Unobserved(torch.nn.Module):
    """Operators without quantization parameters between a dequantize and a quantize node."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.quantized_decomposed
        real = ops.dequantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
        mean = (real + real.flip(0)).exp().sum(1) * 0.1
        whole = ops.quantize_per_tensor(mean, 0.5, -128, -128, 127, torch.int8)
        return ops.dequantize_per_tensor(whole, 0.5, -128, -128, 127, torch.int8)


def test_integers_without_quantization_parameters_are_not_compared_with_floats() -> None:
    x = torch.randint(-128, 127, (4, 8), dtype=torch.int8)
    exported = torch.export.export(Unobserved(), (x,), strict=False)
    comparison = tosaic.compare(exported, tosaic.lower(exported, target="TOSA-1.0+INT"), (x,))
    assert comparison, str(comparison)
    reasons = {item.fx_name: item.reason for item in comparison.unmatched}
    assert reasons["exp"] == "i32 without quantization parameters in b"
    assert {"quantize_per_tensor"} <= {row.fx_name for row in comparison} <= {"quantize_per_tensor", "flip"}
