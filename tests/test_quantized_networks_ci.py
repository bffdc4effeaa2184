"""Small networks of third-party quantizers: the same integers on every engine and on the reference model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic
from fx.exporting import exported
from models import integers
from models.integers import Quantized, measure_integers, violations
from models.parts import over_floats, part_of
from tosaic import _core
from tosaic.lowering.reference_model import ReferenceRun, run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers and torch.export warn about their own code
Q = torch.ops.quantized_decomposed
CASES = [
    ("ds_cnn_small", "arm"),
    ("ds_cnn_small", "xnnpack"),
    ("ds_cnn_small", "cortex-m"),
    ("resnet18_small", "xnnpack"),
    ("llama2_small", "arm"),
]


@pytest.mark.parametrize(("name", "quantizer"), CASES)
def test_a_quantized_network_computes_the_same_integers_on_every_engine(
    name: str, quantizer: str, converted_programs: Path
) -> None:
    measurement = measure_integers(name, quantizer, samples=3, folder=converted_programs)
    assert violations(measurement) == []
    assert measurement.target == "TOSA-1.0+INT"
    assert len(measurement.differing) >= 5


def test_a_single_element_that_differs_is_counted(
    monkeypatch: pytest.MonkeyPatch, converted_programs: Path
) -> None:
    def altered(*args: object) -> ReferenceRun:
        result = run_reference_model(*args)
        outputs = result.outputs.copy()
        outputs.flat[0] += 1
        return ReferenceRun(result.status, outputs)

    monkeypatch.setattr(integers, "run_reference_model", altered)
    measurement = measure_integers("ds_cnn_small", "cortex-m", samples=3, folder=converted_programs)
    assert measurement.differing["reference model"] == 3
    assert violations(measurement) == ["reference model: 3 elements differ"]


def test_every_violation_of_the_contract_is_reported() -> None:
    good = Quantized("n", "arm", "TOSA-1.0+INT", status="VALID", distinct=99, between_inputs=1.0, to_qdq=40.0)
    assert violations(good) == []
    broken = Quantized(
        "n",
        "arm",
        "TOSA-1.0+INT+FP",
        left=("add: 'add' is left to floats",),
        differing={"tosa, avx2": 1},
        status="UNPREDICTABLE",
        distinct=1,
        island_units=2,
        to_float=3.0,
        qdq_to_float=4.0,
    )
    assert len(violations(broken)) == 8


def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns a network with operators over integers, then over floats, then over integers."""
    first = Q.quantize_per_tensor(torch.tanh(number(x)), 0.01, 0, -128, 127, torch.int8)
    floats = (Q.dequantize_per_tensor(first, 0.01, 0, -128, 127, torch.int8) + y).exp()
    second = Q.quantize_per_tensor(floats, 0.05, -100, -128, 127, torch.int8)
    last = torch.sigmoid(Q.dequantize_per_tensor(second, 0.05, -100, -128, 127, torch.int8))
    return Q.quantize_per_tensor(last, 0.004, -128, -128, 127, torch.int8)


def number(x: torch.Tensor) -> torch.Tensor:
    return Q.dequantize_per_tensor(x, 0.02, 3, -128, 127, torch.int8)


@pytest.mark.parametrize("wanted", [over_floats, lambda node: not over_floats(node)])
def test_a_part_of_a_graph_computes_the_same_values_as_the_whole_graph(
    wanted: Callable[[object], bool],
) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(-128, 128, (4, 5), generator=generator).to(torch.int8)
    y = torch.randn(4, 5, generator=generator)
    lowered = tosaic.lower(exported(mixed, x, y), target="TOSA-1.0+INT+FP")
    part = part_of(lowered.graph, wanted)
    assert part is not None
    assert 0 < len(part.graph) < len(lowered.graph)
    values = dict(_core.Session(lowered.graph).trace([x.numpy(), y.numpy()])["values"])
    values |= {port.value.name: a.numpy() for port, a in zip(lowered.graph.inputs, (x, y), strict=True)}
    found = _core.Session(part.graph).run([values[name] for name in part.inputs])
    for name, array in zip(part.outputs, found, strict=True):
        np.testing.assert_array_equal(array, values[name])
    assert part_of(lowered.graph, lambda node: False) is None
