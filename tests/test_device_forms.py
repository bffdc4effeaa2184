"""Forms that Ethos-U computes well: linear layers, large strides, softmax and norms of bytes, maxima, tables.

The results are compared with torch, and with the reference model.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic.annotation import Fixed, Inputs
from tosaic.lowering.reference_model import run_reference_model

INT8 = "TOSA-1.0+INT"
ROUNDED = tosaic.QConfig.int8(every_operator=True)


def lowered_to_bytes(module: nn.Module, *samples: torch.Tensor) -> tosaic.Lowered:
    """Quantizes each operator of the module to 8 bits, with these samples, and lowers it."""
    exported = torch.export.export(module.eval(), (samples[0],))
    quantized = tosaic.quantize(exported, [(sample,) for sample in samples], config=ROUNDED)
    return tosaic.lower(quantized, target=INT8)


def operators(lowered: tosaic.Lowered) -> Counter[str]:
    return Counter(node.op for node in lowered.graph.nodes)


def equals_reference_model(lowered: tosaic.Lowered, sample: torch.Tensor) -> bool:
    ours = np.asarray(lowered.run(sample))
    return bool(np.array_equal(ours, np.asarray(run_reference_model(lowered, sample).outputs)))


def test_the_rows_of_a_linear_layer_are_the_width_of_its_image() -> None:
    lowered = lowered_to_bytes(nn.Linear(16, 8), torch.randn(5, 7, 16))
    (conv,) = [node for node in lowered.graph.nodes if node.op == "tosa.conv2d"]
    assert conv.operands[0].shape == (1, 1, 35, 16)


@pytest.mark.parametrize("size", [1, 2, (1, 4)], ids=["whole images", "quarters", "columns"])
def test_an_adaptive_average_with_one_scale_is_a_pool(size: int | tuple[int, int]) -> None:
    sample = torch.randn(1, 4, 8, 8)
    module = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.ZeroPad2d(1), nn.AdaptiveAvgPool2d(size))
    lowered = lowered_to_bytes(module, sample)
    assert operators(lowered)["tosa.avg_pool2d"] == 1
    assert operators(lowered)["tosa.depthwise_conv2d"] == 0
    assert equals_reference_model(lowered, sample)


@pytest.mark.parametrize(
    ("conv", "shape"),
    [
        (nn.Conv2d(3, 8, 16, 16), (1, 3, 48, 32)),
        (nn.Conv2d(3, 8, 7, 4, padding=2), (2, 3, 30, 29)),
        (nn.Conv1d(1, 8, 10, 5), (1, 1, 403)),
        (nn.Conv2d(4, 8, 3, (5, 2)), (1, 4, 23, 17)),
        (nn.Conv2d(4, 8, 2, 7, padding=1), (1, 4, 23, 17)),
    ],
    ids=["patches", "overlapping windows", "audio", "windows that skip rows", "small windows"],
)
def test_large_strides_become_channels(conv: nn.Module, shape: tuple[int, ...]) -> None:
    sample = torch.randn(shape)
    lowered = lowered_to_bytes(conv, sample)
    strides = [node.attrs["stride"] for node in lowered.graph.nodes if node.op == "tosa.conv2d"]
    assert len(strides) == 1
    assert max(strides[0]) <= 3
    assert equals_reference_model(lowered, sample)
    quantized = tosaic.quantize(torch.export.export(conv.eval(), (sample,)), [(sample,)], config=ROUNDED)
    unit = lowered.graph.outputs[0].qparams.scales[0]
    assert np.abs(np.asarray(lowered.run(sample)) - np.asarray(quantized.run(sample))).max() <= 1.001 * unit


def rows_of_scores(count: int) -> torch.Tensor:
    """Returns rows for a softmax: random ones, equal ones, one large score, many that are nearly hidden."""
    rows = torch.randn(6, count) * 2
    rows[1] = 0.0
    rows[2, 1:] = -6.0
    rows[3] = -11.0 * torch.rand(count)
    rows[4, 1:] = -11.0
    rows[4:6, 0] = 0.0
    rows[5, 1:] = -10.2  # exp(-10.2) is 1.2 units of 15 bits, and thousands of them count
    return rows.clamp(-11.0, 5.0)


@pytest.mark.parametrize("count", [2, 7, 197, 1500, 4096, 5000])
def test_shares_of_bytes_are_exact_to_an_eighth_of_a_unit(count: int) -> None:
    torch.manual_seed(count)
    sample = rows_of_scores(count)
    lowered = lowered_to_bytes(nn.Softmax(-1), sample)
    qparams = lowered.graph.inputs[0].qparams
    rounded = torch.fake_quantize_per_tensor_affine(
        sample, qparams.scales[0], qparams.zero_points[0], qparams.qmin, qparams.qmax
    )
    exact = torch.softmax(rounded.double(), -1).numpy()
    unit = lowered.graph.outputs[0].qparams.scales[0]
    error = np.abs(np.asarray(lowered.run(sample)) - np.minimum(exact, 255 * unit)) / unit
    assert error.max() <= 0.5 + 1 / 8
    assert equals_reference_model(lowered, sample)


def test_a_softmax_of_bytes_gathers_rows_only_and_computes_maxima_of_columns() -> None:
    lowered = lowered_to_bytes(nn.Softmax(-1), torch.randn(3, 32, 64))
    gathered = [node.results[0].shape for node in lowered.graph.nodes if node.op == "tosa.gather"]
    assert all(np.prod(shape) <= 3 * 32 for shape in gathered)
    (top,) = [node for node in lowered.graph.nodes if node.op == "tosa.reduce_max"]
    assert top.attrs["axis"] == top.operands[0].shape.index(64)
    assert top.attrs["axis"] < len(top.operands[0].shape) - 1


def readers_of(lowered: tosaic.Lowered, value: Any) -> int:
    return sum(operand.name == value.name for node in lowered.graph.nodes for operand in node.operands)


def test_a_table_of_a_difference_and_a_widened_operand_have_one_reader() -> None:
    lowered = lowered_to_bytes(nn.Softmax(-1), torch.randn(3, 32, 64))
    for node in lowered.graph.nodes:
        if node.op == "tosa.table":
            assert readers_of(lowered, node.operands[0]) == 1
        if node.op == "tosa.rescale" and node.operands[0].dtype == "i8" and node.results[0].dtype == "i32":
            assert readers_of(lowered, node.results[0]) == 1


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(24), nn.LayerNorm(24, elementwise_affine=False), nn.RMSNorm(24)]
)
def test_a_norm_of_bytes_finds_its_largest_number_among_the_bytes(norm: nn.Module) -> None:
    torch.manual_seed(0)
    sample = torch.randn(2, 9, 24) * torch.tensor([0.1, 3.0]).view(2, 1, 1)
    lowered = lowered_to_bytes(norm, sample)
    reduced = [node.operands[0].dtype for node in lowered.graph.nodes if "reduce_m" in node.op]
    assert reduced == ["i8", "i8"]
    assert equals_reference_model(lowered, sample)


def rows_of_a_norm(count: int) -> torch.Tensor:
    """Returns rows for a norm: random, far from 0, equal, one number that is off by a unit, outliers."""
    rows = torch.randn(8, count)
    rows[1] = 5.0 + 0.05 * rows[1]
    rows[2] = 3.0
    rows[3] = 0.0
    rows[4] = -2.0
    rows[4, 0] += 16 / 255
    rows[5, 0] = 8.0
    rows[6] = 8.0 * torch.sign(rows[6])
    rows[7, ::2] = 2.0
    return rows.clamp(-8.0, 8.0)


def exact_norm(norm: nn.Module, rows: torch.Tensor) -> np.ndarray[Any, Any]:
    return norm.double()(rows.double()).detach().numpy()


@pytest.mark.parametrize("count", [2, 24, 192, 768, 4096])
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("affine", [False, True], ids=["", "with weights"])
def test_norms_of_bytes_are_exact_to_an_eighth_of_a_unit(kind: Any, count: int, affine: bool) -> None:
    torch.manual_seed(count)
    norm = kind(count, elementwise_affine=affine, eps=1e-5)
    for parameter in norm.parameters():  # the plan rounds them to bytes: multiples of 1/64
        values = torch.randint(-100, 128, (count,)) / 64
        values[:2] = torch.tensor([-128, 127]) / 64
        parameter.data = values
    sample = rows_of_a_norm(count)
    lowered = lowered_to_bytes(norm, sample)
    q = lowered.graph.inputs[0].qparams
    rounded = torch.fake_quantize_per_tensor_affine(sample, q.scales[0], q.zero_points[0], q.qmin, q.qmax)
    out = lowered.graph.outputs[0].qparams
    low, high = ((bound - out.zero_points[0]) * out.scales[0] for bound in (out.qmin, out.qmax))
    exact = np.clip(exact_norm(norm, rounded), low, high)
    error = np.abs(np.asarray(lowered.run(sample)) - exact) / out.scales[0]
    assert error.max() <= 0.5 + 1 / 8
    assert equals_reference_model(lowered, sample)


def halfwords(rows: torch.Tensor) -> Any:
    """Returns the spec of an input of 16 bits with the range of the rows."""
    scale = float(rows.abs().max()) / 32767
    return Fixed("int16", scale, 0, -32768, 32767, "per_tensor_symmetric")


@pytest.mark.parametrize("count", [2, 24, 192, 768, 2048])
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("affine", [False, True], ids=["", "with weights"])
@pytest.mark.parametrize("size", [1.0, 1e-3, 30.0], ids=["", "small", "large"])
def test_norms_of_16_bits_are_exact_to_a_half_of_a_unit(
    kind: Any, count: int, affine: bool, size: float
) -> None:
    torch.manual_seed(count)
    norm = kind(count, elementwise_affine=affine, eps=1e-6)
    for parameter in norm.parameters():  # the plan rounds them to bytes: multiples of 1/64
        values = torch.randint(-100, 128, (count,)) / 64
        values[:2] = torch.tensor([-128, 127]) / 64
        parameter.data = values
    sample = size * rows_of_a_norm(count)
    exported = torch.export.export(norm.eval(), (sample,))
    quantized = tosaic.quantize(exported, [(sample,)], rules=[Inputs({0: halfwords(sample)})], config=ROUNDED)
    lowered = tosaic.lower(quantized, target=INT8)
    assert not {"tosa.gather", "tosa.bitwise_and", "tosa.reduce_max"} & set(operators(lowered))
    q = lowered.graph.inputs[0].qparams
    assert q.dtype == "i16"
    rounded = torch.clamp(torch.round(sample.double() / q.scales[0]), -32768, 32767) * q.scales[0]
    out = lowered.graph.outputs[0].qparams
    low, high = ((bound - out.zero_points[0]) * out.scales[0] for bound in (out.qmin, out.qmax))
    exact = np.clip(exact_norm(norm, rounded), low, high)
    error = np.abs(np.asarray(lowered.run(sample)) - exact) / out.scales[0]
    assert error.max() <= 0.5 + 1 / 2
    assert np.quantile(error, 0.99) <= 0.5 + 1 / 16
    assert equals_reference_model(lowered, sample)


class Stream(nn.Module):
    """A transformer's block without attention: two norms read the sums of a residual stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.hidden, self.branch = nn.Linear(width, 16), nn.Linear(16, width)
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = y + self.branch(nn.functional.gelu(self.hidden(self.norm(y))))
        result: torch.Tensor = self.head(self.last(y))
        return result


def test_the_sums_of_a_stream_have_16_bits_for_a_device_that_adds_them_as_fast() -> None:
    torch.manual_seed(0)
    module = Stream(24).eval()
    samples = [(torch.randn(1, 9, 24),) for _ in range(4)]
    exported = torch.export.export(module, samples[0])
    wanted = module(*samples[0]).detach().numpy()
    lost = {}
    for target in ("ethos-u85-256", "cortex-m55", None):
        quantized = tosaic.quantize(exported, samples, target=target)
        sums = [node.results[0].qparams for node in quantized.graph.nodes if node.op == "add"]
        assert [None if q is None else q.dtype for q in sums] == [
            {"ethos-u85-256": "i16", "cortex-m55": "i8", None: "i16"}[target]
        ]
        lowered = tosaic.lower(quantized, target=INT8)
        assert equals_reference_model(lowered, samples[0][0])
        lost[target] = float(np.abs(np.asarray(lowered.run(*samples[0])) - wanted).mean())
    assert lost["ethos-u85-256"] < lost["cortex-m55"]


@pytest.mark.parametrize("name", ["ethos-u85-257", "ethos-u9", "grid-sampler", "TOSA-9.0+INT", 3])
def test_a_target_that_has_no_plan_is_refused_by_name(name: Any) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=re.escape(str(name))):
        tosaic.QConfig.for_target(name)


def test_no_tensor_of_a_stream_is_read_in_two_shapes() -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(1, 9, 24),) for _ in range(4)]
    exported = torch.export.export(Stream(24).eval(), samples[0])
    lowered = tosaic.lower(tosaic.quantize(exported, samples, target="ethos-u85-256"), target=INT8)
    reshapes = [node for node in lowered.graph.nodes if node.op == "tosa.reshape"]
    weights = [node for node in reshapes if node.operands[0].kind == "constant"]
    assert len(reshapes) - len(weights) <= 2  # of the program's input and output


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.LayerNorm(1024), (32, 1024)),
        (nn.RMSNorm(768), (1, 768)),
        (nn.RMSNorm(2048), (8, 2048)),
        (nn.GroupNorm(2, 8), (1, 8, 6, 6)),
    ],
    ids=["wide", "one row", "long rows", "groups"],
)
def test_norms_of_ordinary_widths_have_no_gather(norm: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    assert norm.weight is not None
    norm.weight.data += 0.2 * torch.randn_like(norm.weight)
    sample = torch.randn(shape)
    lowered = lowered_to_bytes(norm, sample)
    assert not {"tosa.gather", "tosa.bitwise_and"} & set(operators(lowered))
    assert equals_reference_model(lowered, sample)


class Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax(-1)


@pytest.mark.parametrize(
    ("shape", "transposed"), [((3, 197, 197), True), ((4, 4096), False), ((2, 3, 8), False)]
)
def test_a_maximum_is_over_columns_if_the_transpose_is_worth_it(
    shape: tuple[int, ...], transposed: bool
) -> None:
    lowered = lowered_to_bytes(Largest(), torch.randn(shape))
    assert ("tosa.transpose" in operators(lowered)) == transposed


def test_a_kernel_smaller_than_a_large_stride_has_as_many_weights() -> None:
    lowered = lowered_to_bytes(nn.Conv2d(16, 16, 1, 8), torch.randn(1, 16, 33, 32))
    (conv,) = [node for node in lowered.graph.nodes if node.op == "tosa.conv2d"]
    assert conv.operands[1].shape == (16, 1, 1, 16)


class Shifted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.linspace(-3, 2, 48)


@pytest.mark.parametrize("seed", range(8))
def test_a_constant_next_to_bytes_is_stored_in_bytes(seed: int) -> None:
    torch.manual_seed(seed)
    sample = torch.randn(9, 48)
    lowered = lowered_to_bytes(Shifted(), sample)
    wide = [
        v for v in lowered.graph.values if v.kind == "constant" and v.dtype == "i32" and v.shape[-1] == 48
    ]
    assert not wide
    assert operators(lowered)["tosa.rescale"] == 3
    assert equals_reference_model(lowered, sample)


class SumAndAttention(nn.Module):
    """A convolution, a sum with its input, and an attention over the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.queries, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = (y + self.branch(y)).flatten(2).transpose(1, 2)
        z = nn.functional.scaled_dot_product_attention(self.queries(y), y, y)
        result: torch.Tensor = self.last(z)
        return result


@pytest.mark.parametrize("config", [tosaic.QConfig.precise(), None], ids=["precise", "default"])
def test_only_the_precise_plan_computes_sums_and_attentions_with_32_bits(config: Any) -> None:
    torch.manual_seed(0)
    module = SumAndAttention().eval()
    samples = [(torch.randn(1, 3, 6, 6),) for _ in range(4)]
    exported = torch.export.export(module, samples[0])
    by_quantize = tosaic.quantize(exported, samples, config=config)
    prepared = prepare_pt2e(exported.module(check_guards=False), tosaic.Quantizer(config))
    for sample in samples:
        prepared(*sample)
    by_torchao = tosaic.from_exported(torch.export.export(convert_pt2e(prepared), samples[0]))
    for program in (by_quantize, by_torchao):
        operators = [node.op for node in program.graph.nodes]
        assert ("sdpa" in operators) == (config is not None)
        assert ("softmax" in operators) == (config is None)
        (add,) = [node for node in program.graph.nodes if node.op == "add"]
        made = {result.name: node for node in program.graph.nodes for result in node.results}
        producers = [made[operand.name] for operand in add.operands]
        is_rounded = all(node.op == "dequantize" or node.results[0].qparams for node in producers)
        assert is_rounded == (config is None)
        lowered = tosaic.lower(program, target=INT8)
        assert equals_reference_model(lowered, samples[0][0])
