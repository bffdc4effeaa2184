"""Pools, resizes and samplers agree with torch at every stage, infinities and NaN included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import tosaic
from function_module import FunctionModule
from fx.agreement import assert_agrees
from torch import nn

# torch's own run_decompositions uses a class that torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

X3, X4, X5 = torch.randn(2, 6, 9), torch.randn(2, 6, 8, 10), torch.randn(1, 4, 5, 6, 7)
IMAGES = {1: X3, 2: X4, 3: X5}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
INFINITE = X4.clone()
INFINITE[0, 0, 0, 0], INFINITE[1, 2, 3, 4] = float("inf"), float("-inf")

POOLS: dict[str, tuple[Any, torch.Tensor]] = {
    "dilated": (lambda x: F.max_pool2d(x, 3, 2, 1, 2), X4),
    "dilated, last window over the border": (
        lambda x: F.max_pool2d(x, (2, 3), (2, 1), (1, 0), (3, 2), True),
        X4,
    ),
    "dilated 1-d": (lambda x: F.max_pool1d(x, 3, 2, 1, 2), X3),
    "max 3-d": (lambda x: F.max_pool3d(x, 2, 2, 1), X5),
    "dilated 3-d": (lambda x: F.max_pool3d(x, 2, 1, 0, 2, True), X5),
    "average 2-d over the border": (lambda x: F.avg_pool2d(x, (3, 4), (3, 3), (1, 2), True, True), X4),
    "average 3-d": (lambda x: F.avg_pool3d(x, 2, 2, 1, True, False), X5),
    "average 3-d with a divisor": (lambda x: F.avg_pool3d(x, (2, 3, 2), 2, 1, True, True, 7), X5),
    "local response": (nn.LocalResponseNorm(3), X4),
    "adaptive average 1-d": (lambda x: F.adaptive_avg_pool1d(x, 4), X3),
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, (3, 7)), X4),
    "adaptive average, larger": (lambda x: F.adaptive_avg_pool2d(x, (11, 12)), X4),
    "adaptive average of infinities": (lambda x: F.adaptive_avg_pool2d(x, (3, 7)), INFINITE),
    "adaptive average 3-d": (lambda x: F.adaptive_avg_pool3d(x, (3, 2, 5)), X5),
    "adaptive maximum 1-d": (lambda x: F.adaptive_max_pool1d(x, 4), X3),
    "adaptive maximum": (lambda x: F.adaptive_max_pool2d(x, (3, 7)), INFINITE),
    "adaptive maximum, even": (lambda x: F.adaptive_max_pool2d(x, (4, 5)), X4),
    "adaptive maximum 3-d": (lambda x: F.adaptive_max_pool3d(x, (3, 2, 5)), X5),
}


@pytest.mark.parametrize("pool", POOLS)
def test_a_pool_agrees(pool: str) -> None:
    call, x = POOLS[pool]
    assert_agrees(call, x, tolerance=2e-5)


@pytest.mark.parametrize("axes", [1, 2])  # torch refuses three
def test_an_adaptive_average_of_no_channels_is_imported(axes: int) -> None:
    pool = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d)[axes - 1]
    x = torch.zeros(2, 0, *[3] * axes)

    class Pooled(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return pool(x, 2), y * 2

    program = tosaic.from_exported(torch.export.export(Pooled(), (x, torch.ones(2))))
    assert program.run(x, torch.ones(2))[0].shape == tuple(pool(x, 2).shape)


@pytest.mark.parametrize("size", [2, 0.6, (5, 7, 3)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "area", "linear"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_interpolate_agrees(axes: int, mode: str, size: Any) -> None:
    given = {"size": size[:axes]} if isinstance(size, tuple) else {"scale_factor": size}
    name = LINEAR[axes] if mode == "linear" else mode
    assert_agrees(lambda x: F.interpolate(x, mode=name, **given), IMAGES[axes], tolerance=2e-5)


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("size", [{"size": (11, 7)}, {"scale_factor": (1.7, 0.5)}], ids=["size", "scale"])
def test_bicubic_agrees(size: Any, corners: bool) -> None:
    assert_agrees(
        lambda x: F.interpolate(x, mode="bicubic", align_corners=corners, **size), X4, tolerance=1e-5
    )


def _grid() -> torch.Tensor:
    grid = torch.rand(2, 5, 7, 2, generator=torch.Generator().manual_seed(3)) * 2.6 - 1.3
    grid[0, 0, 0] = torch.tensor([1.0, -1.0])
    grid[0, 0, 1] = torch.tensor([0.0, 1.0])
    return grid


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_agrees(mode: str, padding: str, corners: bool) -> None:
    whole = mode == "bilinear"  # the other modes differ only in the elements that they read
    assert_agrees(
        lambda x, grid: F.grid_sample(x, grid, mode, padding, corners),
        X4,
        _grid(),
        tolerance=2e-5,
        reference_model=whole,
        decomposed=whole,
    )


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_positions_that_are_nan_or_infinite_agree_with_torch(
    mode: str, padding: str, odd: float
) -> None:
    grid = _grid()
    grid[0, 1, 2, 0], grid[1, 3, 3, 1] = odd, odd
    assert_agrees(
        lambda x, g: F.grid_sample(x, g, mode, padding, False),
        X4,
        grid,
        tolerance=2e-5,
        reference_model=False,
        decomposed=False,
    )


@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid behavior has changed:UserWarning")
@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("size", [(2, 3, 5, 6), (2, 3, 4, 5, 6), (2, 3, 1, 7)], ids=str)
def test_affine_grids_agree(size: tuple[int, ...], corners: bool) -> None:
    theta = torch.randn(2, len(size) - 2, len(size) - 1)
    # torch's own decompositions fail at the warning that torch prints for a grid of one pixel.
    whole = min(size) > 1
    assert_agrees(lambda t: F.affine_grid(t, size, corners), theta, tolerance=2e-6, decomposed=whole)


@pytest.mark.parametrize(("extent", "scale"), [(2, 1.3), (3, 1.4), (3, 2.3), (5, 2.1), (4, 0.6)])
def test_a_scale_that_is_not_the_ratio_of_extents_agrees_with_torch(extent: int, scale: float) -> None:
    """Nearest over two axes ignores the scale if extents are equal or double; over one axis it never does."""
    picture = torch.arange(2.0 * extent).reshape(1, 1, extent, 2)
    nearest = torch.ops.aten.upsample_nearest2d.vec
    assert_agrees(lambda x: nearest(x, None, [scale, 1.0]), picture)
    assert_agrees(lambda x: torch.ops.aten.upsample_nearest1d.vec(x, None, [scale]), picture[..., 0])
    bilinear = torch.ops.aten.upsample_bilinear2d.vec
    assert_agrees(lambda x: bilinear(x, None, False, [scale, 1.0]), picture, tolerance=1e-6)


@pytest.mark.parametrize("options", [(-100, 0), (3, 0), (0, -1)])
def test_a_grid_sampler_with_an_unknown_mode_is_refused_by_name(options: tuple[int, int]) -> None:
    """In 5-d, torch takes such a number; -1 was read as the last mode."""

    def call(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.grid_sampler(x, grid, 0, 0, False)

    exported = torch.export.export(
        FunctionModule(call), (torch.ones(1, 1, 1, 1, 1), torch.ones(1, 1, 1, 1, 3)), strict=False
    )
    (node,) = (each for each in exported.graph.nodes if "grid_sampler" in str(each.target))
    node.args = (*node.args[:2], *options, False)
    with pytest.raises(tosaic.InvalidGraph, match=r"an unknown \w+_mode: expected 0 .* \(node 'grid_sampler"):
        tosaic.from_exported(exported)
