"""Image warping: fixed formats around a grid sampler and at the boundary, grid positions in float.

image, other -> convolutions -> flow -> base + flow -> clamp -> grid --+
image -> convolution -> tanh = features --------------------- image --+-> grid_sampler -> convolutions
                                 \\-> a slice of them moves the grid, too
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.quantizer.quantizers import QUANTIZERS, convert, qparams_of
from torch import nn
from tosaic.annotation import ExcludeFeeding, Fixed, Inputs, Operator, Outputs, Select
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

SNORM8 = Fixed("int8", 1 / 127, 0, -127, 127, "per_tensor_symmetric")
SNORM16 = Fixed("int16", 1 / 32767, 0, -32767, 32767, "per_tensor_symmetric")
RULES = (
    ExcludeFeeding("grid_sampler", "grid", until=Select(op="conv2d")),
    Inputs({"image": SNORM8, 1: SNORM8}),
    Operator("grid_sampler", {"input": SNORM8, "grid": SNORM16}, SNORM8),
    Outputs({0: SNORM8}),
)
WARPING_QUANTIZERS = ("vgf", "arm", "tosaic")  # names of fx.quantizer.quantizers.QUANTIZERS
TARGET = "TOSA-1.0+INT+FP+int16"


class Warp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flow = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1))
        self.features = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
        rows, columns = torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 10)
        ys, xs = torch.meshgrid(rows, columns, indexing="ij")
        self.register_buffer("base", torch.stack([xs, ys], -1)[None])

    def forward(self, image: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        flow = self.flow(torch.cat([image, other], 1))
        features = torch.tanh(self.features(image))
        moved = (flow + features[:, :2]) * 0.25
        grid = torch.clamp(self.base + moved.permute(0, 2, 3, 1), -1.0, 1.0)
        warped = F.grid_sample(features, grid, padding_mode="border", align_corners=False)
        return self.head(warped)


def rounds_no_flow(wrapped: Any) -> bool:
    """True for the quantizer that leaves the sums of a convolution to the positions that read them."""
    return isinstance(wrapped.inner, tosaic.Quantizer)


@pytest.fixture(scope="module")
def samples() -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(4)
    return [tuple(torch.rand(1, 3, 8, 10, generator=generator) * 2 - 1 for _ in range(2)) for _ in range(4)]


@pytest.fixture(scope="module", params=WARPING_QUANTIZERS)
def warp(request: pytest.FixtureRequest, samples: Any) -> tuple[Any, Any, Any]:
    """Returns the wrapped quantizer, its converted graph, and the converted graph without rules."""
    torch.manual_seed(5)
    module = Warp()
    wrapped = tosaic.wrap_quantizer(QUANTIZERS[request.param](), rules=RULES)
    return wrapped, convert(module, samples, wrapped), convert(module, samples, QUANTIZERS[request.param]())


def test_every_tensor_has_the_qparams_of_the_rules_or_those_it_had(warp: tuple[Any, Any, Any]) -> None:
    wrapped, made, plain = warp
    rows, before = ({row[0]: row[1:] for row in qparams_of(model)} for model in (made, plain))
    snorm8 = (pytest.approx(1 / 127), 0, -127, 127, "int8")
    expected = {
        "image": snorm8,
        "other": snorm8,
        "cat": snorm8,  # shares with the inputs
        "relu": before["relu"],
        "conv2d_1": before.get("conv2d_1"),  # the end of the flow, where the positions begin
        "conv2d_2": before["conv2d_2"],
        "tanh": snorm8,  # feeds the grid, too, and is the image
        "clamp": (pytest.approx(1 / 32767), 0, -32767, 32767, "int16"),
        "grid_sampler": snorm8,
        "relu_1": before["relu_1"],
        "conv2d_4": snorm8,
    }
    if rounds_no_flow(wrapped):
        assert "conv2d_1" not in before
        del expected["conv2d_1"]
    assert rows == expected
    assert len(rows) == len(qparams_of(made))  # no tensor is quantized twice


def test_weights_have_their_qparams_and_biases_follow_the_inputs(warp: tuple[Any, Any, Any]) -> None:
    _, made, plain = warp
    convolutions = [[n for n in model.graph.nodes if "conv2d" in str(n.target)] for model in (made, plain)]
    assert [len(each) for each in convolutions] == [5, 5]
    for ours, theirs in zip(*convolutions, strict=True):
        data, weight, bias = ours.args[:3]
        scale = made.get_buffer(weight.args[1].target)
        assert torch.equal(scale, plain.get_buffer(theirs.args[1].args[1].target))
        assert [weight.args[4:], bias.args[4:]] == [theirs.args[1].args[4:], theirs.args[2].args[4:]]
        bias_scale = made.get_buffer(bias.args[1].target)
        assert torch.allclose(bias_scale, scale * data.args[1], rtol=1e-6)


def test_the_positions_are_float_from_the_flow_to_the_grid(warp: tuple[Any, Any, Any]) -> None:
    wrapped, made, _ = warp
    nodes = {node.name: node for node in made.graph.nodes}
    for name, producer in (("slice_1", "tanh"), ("add", "conv2d_1")):
        read = nodes[name].args[0]
        if producer == "tanh" or not rounds_no_flow(wrapped):
            assert "dequantize_per_tensor" in str(read.target)
            read = read.args[0].args[0]
        assert read is nodes[producer]
    chain = [nodes["slice_1"], nodes["add"], nodes["mul"], nodes["permute"], nodes["add_1"], nodes["clamp"]]
    for producer, user in itertools.pairwise(chain):
        assert producer in user.all_input_nodes
        assert not wrapped.plan.has_annotation(producer.name)


def test_arms_notes_on_calls_say_which_are_quantized_now(warp: tuple[Any, Any, Any]) -> None:
    _, made, plain = warp
    notes, before = (
        {
            node.name: node.meta["custom"]["_arm_annotation_info"]["quantized"]
            for node in model.graph.nodes
            if node.op == "call_function" and "_arm_annotation_info" in node.meta.get("custom", {})
        }
        for model in (made, plain)
    )
    if not before:  # not a quantizer of Arm's
        assert notes == {}
        return
    positions = {"slice_1", "add", "mul", "permute", "add_1", "clamp"}
    assert set(before.values()) == {True}
    assert notes.keys() == before.keys() > positions
    assert {name for name, quantized in notes.items() if not quantized} == positions


def test_it_lowers_to_integers_and_floats_and_equals_the_reference_model(warp: Any, samples: Any) -> None:
    _, made, _ = warp
    exported = torch.export.export(made, samples[0])
    lowered = tosaic.lower(exported, target=TARGET)
    for sample in samples:
        reference = run_reference_model(lowered, *sample)
        assert reference.ok
        assert np.array_equal(reference.outputs, lowered.run(*sample))
    convolutions = [node for node in lowered.graph.nodes if node.op == "tosa.conv2d"]
    assert [node.operands[0].dtype for node in convolutions] == ["i8"] * 5
    assert any(node.op == "tosa.clamp" and node.operands[0].dtype == "f32" for node in lowered.graph.nodes)
    assert "i16" in {value.dtype for node in lowered.graph.nodes for value in node.results}
    comparison = tosaic.compare(exported, lowered, *samples[:1])
    assert comparison.ok, comparison
