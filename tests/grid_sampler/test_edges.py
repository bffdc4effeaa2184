"""Samplers at the edges: empty and single extents, long sides, strided inputs, dtypes that torch refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tosaic

from grid_sampler.cases import COMBINATIONS, GRID16, SNORM, VOLUMES, IntegerCall, Sample, Shapes, draw_floats
from grid_sampler.exact import distance
from grid_sampler.test_floats import assert_close, exported, torch_result
from grid_sampler.test_integers import by_kernel, lowered

SINGLE = [
    Shapes((1, 1, 1, 1), (1, 1, 1, 2)),
    Shapes((2, 3, 1, 9), (2, 1, 5, 2)),
    Shapes((1, 2, 9, 1), (1, 5, 1, 2)),
]
SINGLE_VOLUMES = [Shapes((1, 1, 1, 1, 1), (1, 1, 1, 1, 3)), Shapes((2, 2, 1, 3, 1), (2, 1, 2, 1, 3))]


@pytest.mark.parametrize("shapes", [*SINGLE, *SINGLE_VOLUMES], ids=lambda s: str(s.image))
def test_axes_of_one_pixel(shapes: Shapes) -> None:
    rng = np.random.default_rng(1)
    for combination in VOLUMES if len(shapes.image) == 5 else COMBINATIONS:
        args = draw_floats(rng, shapes, odd=False)
        expected = torch_result(combination, args)
        program = exported(combination, args)
        assert_close(program.run(*args), expected, args[0])
        assert_close(tosaic.lower(program, target="TOSA-1.0+FP").run(*args), expected, args[0])


@pytest.mark.parametrize("shapes", SINGLE, ids=lambda s: str(s.image))
def test_axes_of_one_pixel_over_integers(shapes: Shapes) -> None:
    rng = np.random.default_rng(2)
    for combination in COMBINATIONS:
        args = SNORM.draw(rng, shapes.image), GRID16.draw(rng, shapes.grid)
        call = IntegerCall(combination, SNORM, GRID16, SNORM, args)
        found = by_kernel(call)
        assert distance(call, found).max() <= 1
        np.testing.assert_array_equal(lowered(call).run(*args), found)


@pytest.mark.parametrize(
    "shapes",
    [
        Shapes((0, 3, 4, 5), (0, 6, 7, 2)),
        Shapes((2, 3, 4, 5), (2, 0, 7, 2)),
        Shapes((0, 3, 4, 5, 6), (0, 6, 7, 2, 3)),
    ],
    ids=lambda s: f"{s.image} {s.grid}",
)
def test_an_empty_batch_or_grid_has_an_empty_result(shapes: Shapes) -> None:
    combination = COMBINATIONS[0]
    args = np.zeros(shapes.image, np.float32), np.zeros(shapes.grid, np.float32)
    found = exported(combination, args).run(*args)
    assert found.shape == torch_result(combination, args).shape


@pytest.mark.parametrize("shape", [(1, 2, 3, 4096), (1, 1, 4096, 2)], ids=str)
def test_long_sides(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    for combination in COMBINATIONS:
        args = draw_floats(rng, Shapes(shape, (1, 3, 200, 2)), odd=False)
        args[1][np.abs(args[1]) > 3] = 0.25  # the last bit of a position of 1e7 pixels is a pixel
        found = exported(combination, args).run(*args)
        # Reflected positions differ from torch's positions by an ulp of the position: 2^-11 pixels.
        allowed = 1e-5 if combination[1] != "reflection" else 4e-3
        wrong = np.abs(found - torch_result(combination, args)) > allowed * np.abs(args[0]).max()
        assert wrong.mean() <= (0.01 if combination[0] == "nearest" else 0)


def turned(array: Any, *, channels_last: bool) -> torch.Tensor:
    """Returns a tensor of the same elements with other strides."""
    tensor = torch.from_numpy(array)
    if channels_last:
        return tensor.contiguous(memory_format=torch.channels_last)
    return torch.stack([tensor, tensor], -1)[..., 1]


@pytest.mark.parametrize("channels_last", [True, False], ids=["channels last", "with gaps"])
def test_inputs_with_other_strides_are_sampled_alike(channels_last: bool) -> None:
    args = draw_floats(np.random.default_rng(4), Shapes((2, 3, 5, 6), (2, 4, 5, 2)), odd=False)
    for combination in COMBINATIONS[::4]:
        tensors = [turned(a, channels_last=channels_last) for a in args]
        assert not tensors[0].is_contiguous()
        program = tosaic.from_exported(torch.export.export(Sample(combination), tuple(tensors)))
        assert_close(np.asarray(program.run(*tensors)), torch_result(combination, args), args[0])


def test_dtypes_that_differ_are_refused() -> None:
    args = draw_floats(np.random.default_rng(5), Shapes((1, 1, 3, 3), (1, 2, 2, 2)), odd=False)
    text = exported(COMBINATIONS[0], args).graph.text()
    assert "%grid: f32" in text
    with pytest.raises(tosaic.InvalidGraph, match="f16"):
        tosaic.program.Graph.parse(text.replace("%grid: f32", "%grid: f16")).verify()
