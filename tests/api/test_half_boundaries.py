"""Quantized programs of f16 and bf16: integers between their inputs and outputs, as for f32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

HALVES = (torch.float16, torch.bfloat16)
NAMES = {torch.float16: "f16", torch.bfloat16: "bf16"}
TARGET = "TOSA-1.0+INT"


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.silu(self.norm(self.conv(x)))
        return self.linear((y + y.mean((2, 3), keepdim=True)).mean((2, 3))).softmax(-1)


class Moved(nn.Module):
    """The input is moved before it is quantized, and the output after it was dequantized."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.permute(1, 0)).reshape(3, -1)


class Autocast(nn.Module):
    """Weights and inputs of f32, products of bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.second(self.first(x).relu()).float()


class Counter(nn.Module):
    """A state in 16-bit floats, which each call reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x + self.state)
        self.state.copy_(y)
        return y.relu()


def array(tensor: torch.Tensor) -> Any:
    return tensor.detach().float().numpy()


def floats(found: Any) -> Any:
    return np.asarray(found).astype(np.float32)


def lowered_array(tensor: torch.Tensor) -> Any:
    """The tensor as a numpy array of its own dtype; numpy has bfloat16 from ml_dtypes."""
    import ml_dtypes

    return array(tensor).astype(ml_dtypes.bfloat16 if tensor.dtype == torch.bfloat16 else np.float16)


def db(expected: Any, found: Any) -> float:
    noise = float(np.square(expected - found).sum())
    return 10 * float(np.log10(np.square(expected).sum() / noise)) if noise else 200.0


def quantized(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    samples = [torch.randn(shape, dtype=torch.float32).to(dtype) for _ in range(4)]
    program = torch.export.export(module.eval(), (samples[0],))
    return tosaic.quantize(program, [(each,) for each in samples], progress=False), samples


@pytest.mark.parametrize("dtype", HALVES, ids=NAMES.values())
@pytest.mark.parametrize(("module", "shape"), [(Network, (1, 3, 8, 8)), (Moved, (6, 3))])
def test_a_program_of_halves_has_only_integers_between_its_halves(
    module: type[nn.Module], shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    network = module().to(dtype).eval()
    program, samples = quantized(network, shape, dtype)
    lowered = tosaic.lower(program, target=TARGET)
    assert not [value for value in lowered.graph.values if value.dtype in ("f16", "bf16", "f32")]
    assert [port.dtype for port in (*lowered.inputs, *lowered.outputs)] == [NAMES[dtype]] * 2
    assert all(port.qparams is not None for port in (*program.inputs, *program.outputs))
    path = tmp_path / "model.tosa"
    lowered.save(path, sidecar=True)
    again = tosaic.load_tosa(path)
    for sample in samples:
        expected = array(network(sample))
        found = floats(lowered.run(sample))
        assert db(expected, found) > 25
        assert np.array_equal(floats(again.run(sample)), found)
        assert db(floats(program.run(sample)), found) > 35
        model = run_reference_model(lowered, lowered_array(sample)).outputs
        assert np.array_equal(floats(model), found)


@pytest.mark.parametrize("dtype", HALVES, ids=NAMES.values())
def test_the_quantizer_and_torchao_give_the_same_for_halves(dtype: torch.dtype) -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    torch.manual_seed(2)
    network = Network().to(dtype).eval()
    samples = [torch.randn(1, 3, 8, 8).to(dtype) for _ in range(4)]
    program = torch.export.export(network, (samples[0],))
    prepared = prepare_pt2e(program.module(), tosaic.Quantizer())
    for sample in samples:
        prepared(sample)
    converted = torch.export.export(convert_pt2e(prepared), (samples[0],))
    lowered = tosaic.lower(converted, target=TARGET)
    assert not [value for value in lowered.graph.values if value.dtype in ("f16", "bf16", "f32")]
    for sample in samples:
        assert db(array(network(sample)), floats(lowered.run(sample))) > 22


def test_integers_can_be_asked_for_where_halves_were() -> None:
    torch.manual_seed(3)
    program, samples = quantized(Network().half(), (1, 3, 8, 8), torch.float16)
    plain = tosaic.lower(program, target=TARGET)
    integers = tosaic.lower(program, target=TARGET, io={"inputs": "int8", "outputs": "int8"})
    (entry,), (exit_,) = program.inputs, program.outputs
    assert entry.qparams is not None
    assert exit_.qparams is not None
    for sample in samples:
        found = integers.run(entry.qparams.quantize(array(sample)))
        assert found.dtype == np.int8
        assert np.array_equal(exit_.qparams.dequantize(found).astype(np.float16), plain.run(sample))


def test_products_of_autocast_become_integers() -> None:
    torch.manual_seed(4)
    network = Autocast().eval()
    samples = [torch.randn(2, 6) for _ in range(4)]
    exported = torch.export.export(network, (samples[0],))
    program = tosaic.quantize(exported, [(each,) for each in samples], progress=False)
    lowered = tosaic.lower(program, target=TARGET)
    for sample in samples:
        assert db(array(network(sample)), floats(lowered.run(sample))) > 25


def test_a_state_of_halves_is_stored_as_integers() -> None:
    torch.manual_seed(5)
    network = Counter().half().eval()
    samples = [torch.randn(1, 4).half() for _ in range(4)]
    exported = torch.export.export(network, (samples[0],))
    made = tosaic.quantize(exported, [(each,) for each in samples], progress=False)
    lowered = tosaic.lower(made, target=TARGET)
    assert [state.tensors[0].dtype for state in lowered.states] == ["i8"]
    for sample in samples:
        assert db(floats(made.run(sample)), floats(lowered.run(sample))) > 25


def test_half_values_that_others_read_stay_halves() -> None:
    """Only what is quantized on all sides becomes f32: the cosine below computes with floats of 16 bits."""

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).cos()

    torch.manual_seed(6)
    network = Split().half().eval()
    samples = [torch.randn(2, 4).half() for _ in range(4)]
    exported = torch.export.export(network, (samples[0],))
    made = tosaic.quantize(exported, [(each,) for each in samples], progress=False)
    lowered = tosaic.lower(made, target="TOSA-1.0+INT+FP")
    for sample in samples:
        assert db(array(network(sample)), floats(lowered.run(sample))) > 20


def test_an_export_of_halves_for_cortex_m_says_what_it_lacks() -> None:
    torch.manual_seed(7)
    network = Moved().half().eval()
    sample = torch.randn(6, 3).half()
    made = tosaic.export_model(network, (sample,), samples=[(sample,)], recipe="cortex-m")
    assert made.ok
    assert any("model.float()" in note for note in made.notes)
