"""Values that depend on no input: computed once with the float meaning of the Q/DQ graph, and then stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
import tosaic
from fx.exporting import exported
from models.constants import measure_constants, violations
from models.integers import convert
from models.zoo import build, one_thread, quiet
from quantize_calls import RANGES, qdq
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
Q = torch.ops.quantized_decomposed
generator = torch.Generator().manual_seed(23)
X = torch.randn(3, 8, generator=generator)


PARAMETERS = {n: (torch.linspace(0.01, 0.03, n), torch.arange(n) % 5) for n in (3, 6, 8)}


def by_channel(x: torch.Tensor, axis: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    """Quantizes and dequantizes with a scale and a zero point for each position of an axis."""
    count = x.shape[axis]
    scales, zeros = PARAMETERS[count]
    low, high = RANGES[dtype]
    made = Q.quantize_per_channel(x, scales, zeros, axis, low, high, dtype)
    return Q.dequantize_per_channel(made, scales, zeros, axis, low, high, dtype)


def angles() -> torch.Tensor:
    """Returns the angles of a rotary embedding: a quantized product of two quantized constants."""
    frequencies = qdq(10000 ** -(torch.arange(4.0) / 4), 0.0078, -128)
    positions = qdq(torch.arange(3.0), 0.0157, -128)
    return qdq(positions[:, None] @ frequencies[None], 0.0118, -11)


CONSTANTS: dict[str, Callable[[], torch.Tensor]] = {
    "rotary angles": lambda: torch.cat([qdq(angles().cos(), 0.008, 1), qdq(angles().sin(), 0.007, -3)], -1),
    "products by einsum": lambda: torch.einsum(
        "i,j->ij", qdq(torch.arange(3.0), 0.02, 4), qdq(torch.ones(8), 0.01)
    ),
    "positions": lambda: qdq((torch.arange(24) * 3 % 7).float().reshape(3, 8) / 3, 0.013, 5) * 2,
    "positions of 32 bits": lambda: qdq(torch.arange(24.0).reshape(3, 8), 1e-5, 0, torch.int32) + 1,
    "a mask": lambda: qdq(torch.where(torch.ones(3, 8).tril() > 0, 0.0, -9.0), 0.0353, 127),
    "unsigned": lambda: qdq(torch.linspace(-1, 1, 24).reshape(3, 8), 0.0078, 128, torch.uint8).exp(),
    "of 16 bits": lambda: qdq(torch.linspace(-1, 1, 24).reshape(3, 8), 3e-5, 0, torch.int16).tanh(),
    "by channel": lambda: by_channel(torch.linspace(-2, 2, 24).reshape(3, 8), 1) * 3,
    "by channel, unsigned": lambda: by_channel(torch.linspace(0, 2, 24).reshape(3, 8), 0, torch.uint8).sqrt(),
    "ties": lambda: qdq(torch.arange(-12, 12).reshape(3, 8) * 0.5 + 0.25, 0.5, 1) + qdq(torch.ones(8), 0.3),
    "quantized again": lambda: qdq(qdq(torch.linspace(-1, 1, 24).reshape(3, 8), 0.007, 3), 0.011, -5),
    "a softmax": lambda: F.softmax(qdq(torch.linspace(-2, 2, 24).reshape(3, 8), 0.02, 3), -1),
    "a table of which rows are taken": lambda: qdq(torch.linspace(-1, 1, 40).reshape(5, 8), 0.008)[
        torch.tensor([4, 0, 2])
    ],
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_behind_quantizers_is_what_torch_computes(name: str) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        known = qdq(CONSTANTS[name](), 0.03, 2)
        return qdq(qdq(x, 0.03, 2) + known, 0.05, -1), known

    ep = exported(call, X)
    found = measure_constants(ep, (X,))
    assert violations(found) == []
    assert found.ties == []
    assert found.integers["imported"] >= 24
    lowered = tosaic.lower(ep, target="TOSA-1.0+INT")
    total, known = (np.asarray(a) for a in lowered.run(X))
    expected, truth = (tensor.numpy() for tensor in call(X))
    np.testing.assert_array_equal(known, truth)
    assert np.abs(total - expected).max() < 0.051
    reference = run_reference_model(lowered, X)
    assert reference.ok
    for ours, model in zip((total, known), reference.outputs, strict=True):
        np.testing.assert_array_equal(ours, model)


@pytest.mark.parametrize("name", CONSTANTS)
def test_no_operator_over_constants_remains_after_folding(name: str) -> None:
    graph = tosaic.from_exported(exported(lambda x: x + CONSTANTS[name](), X)).graph
    folded = _core.run_pass("fold-constants", graph)
    assert set(Counter(node.op for node in folded.nodes)) <= {"add", "dequantize", "index"}
    again = _core.run_pass("fold-constants", folded)
    assert again is None or again.text() == folded.text()


def test_constants_at_stage_quantized_are_folded_by_the_numbers_that_they_represent() -> None:
    text = """tosaic 1
graph @forward stage=quantized {
  const %a: i8[2] q(i8 -128..127 scale 0.5 zp 3) = buffer [3,7]
  const %b: i8[2] q(i8 -128..127 scale 0.25 zp 0) = buffer [5,-6]
  input %x: i8[2] q(i8 -128..127 scale 0.1 zp 0) path="x"
  %mul: i8[2] q(i8 -128..127 scale 0.75 zp -1) = mul(%a, %b)
  %add: i8[2] q(i8 -128..127 scale 0.1 zp 0) = add(%x, %mul) {alpha=1}
  return %add path="out"
}
"""
    graph = tosaic.program.Graph.parse(text)
    folded = _core.run_pass("fold-constants", graph)
    (add,) = folded.nodes
    # %mul: (3 - 3) * 0.5 = 0 is stored as -1; (7 - 3) * 0.5 * -6 * 0.25 = -3 is stored as -3 / 0.75 - 1 = -5.
    assert add.operands[1].constant.array.tolist() == [-1, -5]


def test_a_weight_that_is_transposed_stays_an_integer_constant() -> None:
    weight = torch.randn(6, 8, generator=generator) * 0.2

    def call(x: torch.Tensor) -> torch.Tensor:
        return qdq(qdq(x, 0.03, 2) @ by_channel(weight, 0).t(), 0.05, -1)

    ep = exported(call, X)
    assert violations(measure_constants(ep, (X,))) == []
    quantized = tosaic.from_exported(ep).graph
    for name in ("fold-constants", "fold-qdq", "fold-constants"):
        quantized = _core.run_pass(name, quantized) or quantized
    matmul = next(node for node in quantized.nodes if node.op == "matmul")
    assert matmul.operands[1].dtype == "i8"
    assert [node.op for node in quantized.nodes] == ["quantize", "matmul", "dequantize"]


@pytest.mark.parametrize("zero", [0, -7])
def test_a_quantized_constant_multiplies_by_its_own_integers(zero: int) -> None:
    """If the product of the integers is halfway between two results, it is rounded up, as RESCALE rounds."""
    integers = torch.randint(-120, 121, (2, 256, 8), generator=torch.Generator().manual_seed(7))
    values, factors = integers[0], integers[1][:4].repeat(64, 1)

    def call(x: torch.Tensor) -> torch.Tensor:
        return qdq(qdq(x, 0.25, 0) * qdq(factors * 0.5, 0.5, zero), 8.0, 3)

    whole = {"inputs": "int8", "outputs": "int8"}
    low = tosaic.lower(exported(call, values * 0.25), target="TOSA-1.0+INT", io=whole)
    products = (values * factors).numpy()
    assert (products % 64 == 32).sum() > 20
    expected = np.clip(np.floor(products / 64 + 0.5) + 3, -128, 127)
    np.testing.assert_array_equal(low.run(values.to(torch.int8)), expected)


@pytest.mark.parametrize("case", ["llama2_small.arm", "ds_cnn_small.arm", "ds_cnn_small.xnnpack"])
def test_the_constants_of_a_quantized_network_equal_torchs_at_every_stage(
    case: str, converted_programs: Path
) -> None:
    name, quantizer = case.split(".")
    network = build(name)
    with one_thread(), quiet():
        program = convert(network, quantizer, converted_programs)
        found = measure_constants(program, network.sample(0))
    assert violations(found) == []
    assert found.calls >= 10
    assert found.floats["imported"] > 1000
    if name.startswith("llama"):
        assert all(found.integers[stage] > 100 for stage in ("imported", "exported", "quantized"))


def test_a_constant_that_is_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from models import constants

    ep = exported(lambda x: x + CONSTANTS["positions"](), X)
    run: Any = constants._run

    def altered(graph: Any, arrays: list[Any]) -> dict[str, Any]:
        values = run(graph, arrays)
        name = "quantize_per_tensor"
        values[name] = values[name].copy()
        values[name].flat[5] += 1
        return values

    monkeypatch.setattr(constants, "_run", altered)
    assert any("torch" in line for line in violations(measure_constants(ep, (X,), target="TOSA-1.0+INT+FP")))


def test_a_quantized_table_is_indexed_along_its_second_axis() -> None:
    class Indexed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.linspace(-1, 1, 6).reshape(2, 3))

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return qdq(qdq(self.table, 0.05, -100)[:, i], 0.03, 7)

    i = torch.tensor([[2, 0], [1, 1]])
    lowered = tosaic.lower(exported(Indexed(), i), target="TOSA-1.0+INT")
    np.testing.assert_array_equal(lowered.run(i), Indexed()(i))
