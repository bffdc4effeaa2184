"""Image warping in one call: VGF on both sides of the sampler unit, integers and channels last outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from torch import nn
from tosaic.recipes import SNORM

from exporting.networks import TwoInputs, TwoOutputs, Warp, images, seeded

INTEGERS = {"inputs": "int8", "outputs": "int8"}
LAST = {"inputs": "nhwc", "outputs": "nhwc"}


def claimants(result: tosaic.ExportResult) -> list[str]:
    return [group.claimant for group in result.lowered.partitions.groups]


def host_nodes(result: tosaic.ExportResult) -> list[str]:
    plan = result.lowered.partitions
    return [node.op for node, group in zip(plan.graph.nodes, plan.group_of, strict=True) if group is None]


def is_snorm(port: tosaic.ports.Port) -> bool:
    found = port.qparams
    return found is not None and (found.scale, found.zero_point, found.qmin, found.qmax) == (
        SNORM.scale,
        0,
        -127,
        127,
    )


def share_within_one_step(result: tosaic.ExportResult, samples: list[Any]) -> float:
    """The share of output elements that are at most one step of the output from torch's q/dq graph."""
    quantized = result.quantized
    assert isinstance(quantized, tosaic.QuantizedProgram)
    torch_module = quantized.to_exported().module(check_guards=False)
    within = []
    for sample in samples:
        with torch.no_grad():
            expected = torch_module(*sample).numpy()
        image = result.io.input(0).quantize(sample[0].numpy()).transpose(0, 2, 3, 1)
        integers = result.run(np.ascontiguousarray(image))
        found = result.io.output(0).dequantize(integers).transpose(0, 3, 1, 2)
        within.append(np.abs(found - expected) <= result.io.output(0).scale * 1.001)
    return float(np.mean(within))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_warping_network_has_a_vgf_group_on_each_side_of_the_sampler(batch: int) -> None:
    samples = list(images(batch=batch))
    result = tosaic.export_model(
        seeded(Warp), samples[0], recipe="vgf-snorm", samples=samples, io=INTEGERS, orders=LAST, verbose=0
    )
    assert claimants(result) == ["vgf", "grid-sampler", "vgf"]
    assert host_nodes(result) == []
    assert result.lowered.transposed_bytes == 0
    assert all(map(is_snorm, (*result.lowered.inputs, *result.lowered.outputs)))
    sampler = result.lowered.parts[1]
    orders = {port.dtype: port.dim_order for port in sampler.inputs}
    assert orders == {"i8": (0, 2, 3, 1), "i16": (0, 1, 2, 3)}
    assert [(port.dtype, port.dim_order) for port in sampler.outputs] == [("i8", (0, 2, 3, 1))]
    assert share_within_one_step(result, samples) >= 0.99
    assert result.ok
    outputs = result.run(np.zeros(result.lowered.inputs[0].shape, np.int8))
    assert len(np.unique(outputs)) > 8


def test_the_same_network_in_floats() -> None:
    samples = list(images())
    model = seeded(Warp)
    result = tosaic.export_model(
        model, samples[0], recipe="vgf-snorm", samples=samples, quantize=False, orders=LAST, verbose=0
    )
    assert claimants(result) == ["vgf", "grid-sampler", "vgf"]
    assert host_nodes(result) == []
    assert result.lowered.transposed_bytes == 0
    assert result.quantized is None
    x = np.ascontiguousarray(samples[1][0].numpy().transpose(0, 2, 3, 1))
    with torch.no_grad():
        expected = model(*samples[1]).numpy()
    np.testing.assert_allclose(result.run(x).transpose(0, 3, 1, 2), expected, atol=1e-5)


def test_one_input_may_stay_float() -> None:
    samples = [(image, torch.full((1,), 0.5)) for (image,) in images()]
    result = tosaic.export_model(
        seeded(TwoInputs),
        samples[0],
        recipe="vgf-snorm",
        samples=samples,
        io={"inputs": {"image": "int8"}, "outputs": "int8"},
        orders={"inputs": {"image": "nhwc"}, "outputs": "nhwc"},
        verbose=0,
    )
    assert [(port.path, port.dtype) for port in result.lowered.inputs] == [("image", "i8"), ("gain", "f32")]
    assert [port.path for port in result.io.inputs] == ["image"]
    assert result.lowered.transposed_bytes == 0
    assert claimants(result).count("grid-sampler") == 1
    assert result.ok


def test_two_outputs_have_their_parameters_by_position() -> None:
    samples = list(images())
    result = tosaic.export_model(
        seeded(TwoOutputs),
        samples[0],
        recipe="vgf-snorm",
        samples=samples,
        io={"inputs": "int8", "outputs": {0: "int8", 1: "float32"}},
        orders=LAST,
        verbose=0,
    )
    assert [port.dtype for port in result.lowered.outputs] == ["i8", "f32"]
    assert [port.index for port in result.io.outputs] == [0]
    assert is_snorm(result.lowered.outputs[0])
    assert claimants(result).count("grid-sampler") == 1
    assert result.ok


def test_images_of_four_channels_need_no_padding() -> None:
    samples = list(images())
    result = tosaic.export_model(
        seeded(Warp),
        samples[0],
        recipe="vgf-snorm",
        samples=samples,
        io=INTEGERS,
        orders=LAST,
        rgba={"inputs": ["image"], "outputs": [0]},
        verbose=0,
    )
    assert [port.shape for port in (*result.lowered.inputs, *result.lowered.outputs)] == [(1, 24, 32, 4)] * 2
    assert claimants(result) == ["vgf", "grid-sampler", "vgf"]
    narrow = tosaic.export_model(
        seeded(Warp), samples[0], recipe="vgf-snorm", samples=samples, io=INTEGERS, orders=LAST, verbose=0
    )
    image = result.io.input(0).quantize(samples[2][0].numpy()).transpose(0, 2, 3, 1)
    wide = np.concatenate([image, np.full_like(image[..., :1], 77)], -1)
    np.testing.assert_array_equal(
        result.run(np.ascontiguousarray(wide))[..., :3], narrow.run(np.ascontiguousarray(image))
    )


class OneChannel(nn.Module):
    """A spatial transformer: the sampler and a convolution read the image, each with a scale of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.flow = nn.Conv2d(channels, 2, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        grid = torch.tanh(self.flow(image)).permute(0, 2, 3, 1)
        return F.grid_sample(image, grid, align_corners=False)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_an_input_with_two_scales_may_be_one_float_tensor_of_a_group(channels: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    samples = [(torch.rand(1, channels, 16, 16),) for _ in range(3)]
    result = tosaic.export_model(
        OneChannel(channels).eval(),
        samples[0],
        recipe="vgf-snorm",
        samples=samples,
        folder=tmp_path / "out",
        verbose=0,
    )
    assert result.ok
    assert claimants(result).count("grid-sampler") == 1
    delegates = {each.backend for each in tosaic.load_pte(tmp_path / "out" / "model.pte").delegates}
    assert "VgfBackend" in delegates
    (image,) = samples[1]
    expected = np.asarray(result.quantized.run(image))
    assert len(np.unique(expected)) > 8
    step = result.quantized.outputs[0].quantized[0].scale
    np.testing.assert_allclose(np.asarray(result.run(image)), expected, atol=1.01 * step)
