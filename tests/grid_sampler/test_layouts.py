"""Dim orders around samplers: images may be channels last, grids never, quantized grids neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from torch import nn
from tosaic.annotation import Fixed, Operator

SNORM8 = Fixed("int8", 1 / 127, 0, -127, 127, "per_tensor_symmetric")
UNIT16 = Fixed("int16", 1 / 32767, 0, -32767, 32767, "per_tensor_symmetric")


class Warp(nn.Module):
    """A convolution, a sampler at positions that are computed, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3, padding=1)

    def forward(self, image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return self.last(F.grid_sample(self.first(image), torch.tanh(grid), align_corners=False))


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.rand(1, 3, 8, 9, generator=generator) * 2 - 1,
        torch.rand(1, 6, 7, 2, generator=generator) * 2 - 1,
    )


def float_program() -> Any:
    return torch.export.export(Warp().eval(), arguments())


def quantized_program() -> Any:
    rules = [Operator("grid_sampler", {"input": SNORM8, "grid": UNIT16}, SNORM8)]
    return tosaic.quantize(float_program(), [arguments()], rules=rules, progress=False)


PROGRAMS = {"float": (float_program, "TOSA-1.0+FP"), "quantized": (quantized_program, "TOSA-1.0+INT+int16")}


def moves_of_grids(lowered: tosaic.Lowered) -> list[str]:
    """Returns the values in front of the sampler's grid that are transposed."""
    names = [t.value for t in lowered.layout.transposes]
    return [n for n in names if n.startswith(("grid", "tanh")) and not n.startswith("grid_sampler")]


def test_assign_dim_order_leaves_the_grid_row_major_and_the_image_goes_channels_last() -> None:
    graph = tosaic.from_exported(float_program()).graph
    lines = tosaic.Pipeline.default("TOSA-1.0+FP")["assign-dim-order"].run(graph).text().splitlines()
    (sampler,) = (line for line in lines if "grid_sample(" in line)
    assert "[1,4,6,7] order(0,2,3,1)" in sampler
    grids = [line for line in lines if "[1,6,7,2]" in line]
    assert len(grids) >= 2
    assert not [line for line in grids if "order" in line]


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_images_channels_last_outside_nothing_is_transposed(name: str) -> None:
    make, target = PROGRAMS[name]
    orders: Any = {"inputs": {"image": "channels_last"}, "outputs": {0: "channels_last"}}
    assert not tosaic.lower(make(), target=target, orders=orders).layout.transposes


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_lowered_sampler_transposes_no_grid_whatever_the_order_of_the_image(name: str) -> None:
    make, target = PROGRAMS[name]
    program, args = make(), arguments()
    plain = tosaic.lower(program, target=target)
    last = tosaic.lower(program, target=target, orders={"inputs": {"image": "channels_last"}})
    for lowered in (plain, last):
        assert moves_of_grids(lowered) == []
    assert len(last.layout.transposes) < len(plain.layout.transposes)
    image = args[0].contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(last.run(image, args[1]), plain.run(*args))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_grid_as_a_channels_last_input_is_refused(name: str) -> None:
    make, target = PROGRAMS[name]
    with pytest.raises(tosaic.LayoutMismatch, match="'grid' is the grid of a grid sampler"):
        tosaic.lower(make(), target=target, orders={"inputs": {"grid": "channels_last"}})
