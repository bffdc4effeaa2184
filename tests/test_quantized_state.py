"""State of quantized programs: a cache of keys and values that is read and updated with the same quantization
parameters is stored as integers, and every step computes what torch's q/dq graph computes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import Tensor, nn
from torchao.quantization.pt2e.observer import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)

pytestmark = pytest.mark.filterwarnings("ignore")
HEADS, STEPS, WIDTH = 2, 16, 8
UPDATES = ("index_copy", "index_put", "slice", "shift")


class CachedAttention(nn.Module):
    """Attention of one new position over a cache, which the forward updates."""

    def __init__(self, update: str) -> None:
        super().__init__()
        self.update = update
        self.register_buffer("k", torch.zeros(1, HEADS, STEPS, WIDTH))
        self.register_buffer("v", torch.zeros(1, HEADS, STEPS, WIDTH))
        self.query, self.key, self.value = (nn.Linear(16, 16, bias=False) for _ in range(3))

    def updated(self, cache: Tensor, new: Tensor, position: Tensor) -> Tensor:
        if self.update == "index_copy":
            return cache.index_copy_(2, position, new)
        if self.update == "index_put":
            cache[:, :, position] = new
            return cache
        if self.update == "slice":
            cache[:, :, 3:4] = new
            return cache
        return cache.copy_(torch.cat((cache[:, :, 1:], new), 2))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        q, k, v = (
            layer(x).view(1, 1, HEADS, WIDTH).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        keys, values = self.updated(self.k, k, position), self.updated(self.v, v, position)
        scores = torch.softmax(q @ keys.transpose(-1, -2) * WIDTH**-0.5, -1)
        return (scores @ values).transpose(1, 2).reshape(1, 1, -1)


class CacheQuantizer(Quantizer):
    """Quantizes linear layers, products and the cache, whose new value has its spec if `shares`."""

    def __init__(self, *, shares: bool = True) -> None:
        super().__init__()
        self.shares = shares

    def annotate(self, model: Any) -> Any:
        observer = MinMaxObserver.with_args(eps=2**-24)
        spec = QuantizationSpec(torch.int8, observer, -128, 127, qscheme=torch.per_tensor_affine)
        weight = QuantizationSpec(torch.int8, observer, -127, 127, qscheme=torch.per_tensor_symmetric)
        for node in model.graph.nodes:
            annotation = QuantizationAnnotation(output_qspec=spec, _annotated=True)
            name = str(node.target)
            floats = [n for n in node.all_input_nodes if n.meta["val"].dtype.is_floating_point]
            if name.startswith("aten.linear"):
                annotation.input_qspec_map = {node.args[1]: weight}
            elif name.startswith(("aten.index_", "aten.slice_scatter", "aten.cat")):
                shared = SharedQuantizationSpec((floats[0], node)) if self.shares else weight
                annotation.input_qspec_map = {floats[0]: spec, floats[1]: shared}
                annotation.output_qspec = shared
            elif not name.startswith(("aten.matmul", "aten.softmax", "aten.mul.")) and (
                node.op != "placeholder" or not node.meta["val"].dtype.is_floating_point
            ):
                continue
            node.meta["quantization_annotation"] = annotation
        return model

    def validate(self, model: Any) -> None:
        pass


def steps() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(59)
    return [(torch.randn(1, 1, 16, generator=generator), torch.tensor([i])) for i in range(8)]


def quantized(update: str, *, shares: bool = True) -> Any:
    torch.manual_seed(7)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exported = torch.export.export(CachedAttention(update).eval(), steps()[0])
        prepared = prepare_pt2e(exported.run_decompositions({}).module(), CacheQuantizer(shares=shares))
        for step in steps():
            prepared(*step)
        converted = convert_pt2e(prepared)
        for name, buffer in converted.named_buffers():
            if name in ("k", "v"):
                buffer.fill_(0.25)
        return torch.export.export(converted, steps()[0]).run_decompositions({})


def run_beside_torch(lowered: Any, exported: Any) -> None:
    """Compares all steps; both sides start from the initial values of the states."""
    module = exported.module()
    lowered.reset_state()
    unit = lowered.outputs[0].qparams.scale
    for step in steps():
        expected = module(*step).detach().double().numpy()
        assert np.abs(np.rint((lowered.run(*step) - expected) / unit)).max() <= 1


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+INT+variable", "TOSA-1.0+FP+INT"])
@pytest.mark.parametrize("update", UPDATES)
def test_a_cache_is_stored_as_integers_and_every_step_is_within_one_unit_of_torch(
    update: str, target: str
) -> None:
    exported = quantized(update)
    lowered = tosaic.lower(exported, target=target)
    assert [state.dtype for state in lowered.states] == ["i8", "i8"]
    run_beside_torch(lowered, exported)


def test_the_caches_are_variables_of_integers_in_the_file(tmp_path: Path) -> None:
    exported = quantized("index_put")
    lowered = tosaic.lower(exported, target="TOSA-1.0+INT+variable")
    lowered.save(tmp_path / "step.tosa")
    read = tosaic.load_tosa(tmp_path / "step.tosa")
    writes = [node for node in read.graph.nodes if node.op == "tosa.variable_write"]
    assert [node.operands[-1].dtype for node in writes] == ["i8", "i8"]
    for step in steps():
        integers = lowered.inputs[0].qparams.quantize(step[0].numpy())
        out = lowered.outputs[0].qparams
        found = out.dequantize(np.asarray(read.run(integers, step[1].numpy().astype(np.int32))))
        np.testing.assert_array_equal(found, lowered.run(*step))


def test_a_comparison_reads_the_new_value_of_a_state_as_the_numbers_that_it_represents() -> None:
    exported = quantized("index_copy")
    lowered = tosaic.lower(exported, target="TOSA-1.0+INT")
    comparison = tosaic.compare(exported, lowered, steps()[0])
    assert comparison.ok
    assert {"k", "v"} <= {output.path for output in comparison.outputs}


def test_a_cache_whose_new_value_has_other_parameters_stays_a_float() -> None:
    exported = quantized("index_put", shares=False)
    lowered = tosaic.lower(exported, target="TOSA-1.0+FP+INT")
    assert [state.dtype for state in lowered.states] == ["f32", "f32"]
    run_beside_torch(lowered, exported)


class Averaged(nn.Module):
    """A running average, which is read and stored."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.average.mul_(0.75).add_(x, alpha=0.25)
        return self.average + x


@pytest.mark.parametrize(
    ("config", "dtype"), [(tosaic.QConfig.int8(), "i8"), (tosaic.QConfig.int16x8(), "i16")], ids=["i8", "i16"]
)
def test_a_state_of_symmetric_integers_is_stored_as_integers(config: tosaic.QConfig, dtype: str) -> None:
    """Lowering dequantizes with the full range of the dtype, and the state is read with that from -32767."""
    torch.manual_seed(0)
    samples = [(torch.randn(2, 4),) for _ in range(6)]
    exported = torch.export.export(Averaged().eval(), samples[0], strict=False)
    program = tosaic.quantize(exported, samples, config=config, progress=False)
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+int16")
    assert [state.dtype for state in lowered.states] == [dtype]
    for (x,) in [*samples, (torch.full((2, 4), -40.0),), *samples]:  # a state that saturates, too
        unit = lowered.outputs[0].qparams.scales[0]
        np.testing.assert_allclose(lowered.run(x), program.run(x), atol=4.5 * unit)
    assert tosaic.compare(program, lowered, samples).ok


class Narrower(nn.Module):
    """Reads its state from -100 to 100 units, and stores -128 to 127."""

    def __init__(self, read: tuple[int, int], stored: tuple[int, int]) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 4))
        self.read, self.stored = read, stored

    @staticmethod
    def through(x: Tensor, low: int, high: int) -> Tensor:
        q = torch.ops.quantized_decomposed
        integers = q.quantize_per_tensor(x, 0.125, 0, low, high, torch.int8)
        return q.dequantize_per_tensor(integers, 0.125, 0, low, high, torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.through(x, -128, 127)
        before = self.through(self.h, *self.read)
        self.h.copy_(self.through(before + x, *self.stored))
        return self.through(before - x, -128, 127)


@pytest.mark.parametrize("stored", [(-128, 127), (-100, 100), (-50, 90)])
@pytest.mark.parametrize("read", [(-128, 127), (-100, 100)])
def test_a_stored_integer_is_bounded_as_the_program_reads_it(
    read: tuple[int, int], stored: tuple[int, int]
) -> None:
    """Without the bound, -128 would be read as -128 units, where torch reads -100."""
    module = Narrower(read, stored)
    exported = torch.export.export(module, (torch.zeros(1, 4),), strict=False)
    lowered = tosaic.lower(exported, target="TOSA-1.0+INT")
    assert [state.dtype for state in lowered.states] == ["i8"]
    calls = torch.tensor([[-16.0, 15.875, 1.0, -3.0], [1.0, 2.0, -30.0, 16.0], [0.5, -0.25, 3.0, 2.0]])
    samples = [(x,) for x in [*calls[:, None], *calls[:, None]]]
    assert tosaic.compare(exported, lowered, samples).ok  # compares the stored states, too
    for (x,) in samples:
        np.testing.assert_array_equal(lowered.run(x), module(x).numpy())
