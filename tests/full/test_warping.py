"""A larger image-warping network through `export_model`; its groups also run on Vulkan.

Needs the extra ``devices`` and Debian's packages ``mesa-vulkan-drivers`` and ``libvulkan1``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from exporting.test_warping import INTEGERS, LAST, claimants, host_nodes, is_snorm, share_within_one_step
from torch import nn

HEIGHT, WIDTH, WIDE = 96, 128, 24


class Pyramid(nn.Module):
    """A flow from a pyramid of convolutions, upsampled; the warped image; residual convolutions after it."""

    def __init__(self, *, outputs: int = 1, gain: bool = False) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, WIDE, 3, 2, 1), nn.BatchNorm2d(WIDE), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(WIDE, WIDE, 3, 2, 1), nn.Hardswish())
        self.flow = nn.Conv2d(WIDE, 2, 3, padding=1)
        self.first = nn.Sequential(nn.Conv2d(3, WIDE, 3, padding=1), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(WIDE, WIDE, 3, padding=1, groups=WIDE), nn.ReLU6())
        self.last = nn.Conv2d(WIDE, 3, 1)
        y, x = torch.meshgrid(
            torch.linspace(-0.9, 0.9, HEIGHT), torch.linspace(-0.9, 0.9, WIDTH), indexing="ij"
        )
        self.register_buffer("base", torch.stack([x, y], -1)[None])
        self.outputs, self.gain = outputs, gain

    def forward(self, image: torch.Tensor, gain: torch.Tensor | None = None) -> Any:
        flow = torch.tanh(self.flow(self.deep(self.down(image))))
        flow = F.interpolate(flow, scale_factor=4.0, mode="bilinear", align_corners=False)
        warped = F.grid_sample(image, self.base + 0.1 * flow.permute(0, 2, 3, 1), align_corners=False)
        features = self.first(warped)
        result = torch.tanh(self.last(features + self.block(features)))
        if gain is not None:
            result = result * gain
        return (result, warped) if self.outputs == 2 else result


def network(**options: Any) -> nn.Module:
    torch.manual_seed(1)
    model = Pyramid(**options)
    with torch.no_grad():
        for (image,) in pictures(4):  # statistics of the batch norm
            model(image)
    return model.eval()


def pictures(count: int = 6, batch: int = 1) -> list[tuple[torch.Tensor]]:
    made = torch.Generator().manual_seed(3)
    coarse = [torch.rand(batch, 3, 12, 16, generator=made) * 2 - 1 for _ in range(count)]
    return [(F.interpolate(each, (HEIGHT, WIDTH), mode="bilinear"),) for each in coarse]


@pytest.mark.parametrize("batch", [1, 2])
def test_each_side_of_the_sampler_is_one_group_and_runs_on_vulkan(batch: int) -> None:
    samples = pictures(batch=batch)
    result = tosaic.export_model(
        network(),
        samples[0],
        recipe="vgf-snorm",
        samples=samples,
        io=INTEGERS,
        orders=LAST,
        check_on=["reference", "vgf"],
        verbose=0,
    )
    assert claimants(result) == ["vgf", "grid-sampler", "vgf"]
    assert host_nodes(result) == []
    borders = [port for part in result.lowered.parts for port in (*part.inputs, *part.outputs)]
    assert all(port.dim_order == (0, 2, 3, 1) for port in borders if port.shape[1] in (3, 4))
    assert all(port.dim_order == (0, 1, 2, 3) for port in borders if port.shape[-1] == 2)
    assert all(map(is_snorm, (*result.lowered.inputs, *result.lowered.outputs)))
    assert share_within_one_step(result, samples) >= 0.99
    assert {check.name for check in result.checks} >= {"reference", "vgf"}
    assert result.ok
    assert len(np.unique(result.run(np.zeros(result.lowered.inputs[0].shape, np.int8)))) > 8


@pytest.mark.parametrize("form", ["floats", "float input", "two outputs"])
def test_other_forms_of_the_boundary(form: str) -> None:
    images = pictures()
    options: dict[str, Any] = {"io": INTEGERS, "orders": LAST}
    model, samples = network(), images
    if form == "floats":
        options = {"quantize": False, "orders": LAST}
    elif form == "float input":
        model = network(gain=True)
        samples = [(image, torch.full((1,), 0.5)) for (image,) in images]
        options = {
            "io": {"inputs": {"image": "int8"}, "outputs": "int8"},
            "orders": {"inputs": {"image": "nhwc"}, "outputs": "nhwc"},
        }
    else:
        model = network(outputs=2)
        options["io"] = {"inputs": "int8", "outputs": {0: "int8", 1: "int8"}}
    result = tosaic.export_model(
        model, samples[0], recipe="vgf-snorm", samples=samples, check_on=["vgf"], verbose=0, **options
    )
    assert claimants(result).count("grid-sampler") == 1
    assert claimants(result).count("vgf") == 2
    assert result.ok
    dtypes = [port.dtype for port in (*result.lowered.inputs, *result.lowered.outputs)]
    assert (
        dtypes
        == {
            "floats": ["f32", "f32"],
            "float input": ["i8", "f32", "i8"],
            "two outputs": ["i8", "i8", "i8"],
        }[form]
    )
