"""Calls of grid samplers over floats and over integers, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
from torch import nn

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
COMBINATIONS = tuple(product(MODES, PADDINGS, (False, True)))
VOLUMES = tuple(c for c in COMBINATIONS if c[0] != "bicubic")  # torch has no bicubic samples of volumes
CHANNELS = (1, 2, 3, 4, 7)

Array = np.ndarray[Any, Any]
Combination = tuple[str, str, bool]


class Sample(nn.Module):
    """One call of grid_sample."""

    def __init__(self, combination: Combination) -> None:
        super().__init__()
        self.mode, self.padding, self.corners = combination

    def forward(self, image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(image, grid, self.mode, self.padding, self.corners)


@dataclass(frozen=True)
class Shapes:
    """The shapes of a call: of the image (N, C, H, W), and of the grid (N, H', W', 2).

    With volumes, the shapes are (N, C, D, H, W) and (N, D', H', W', 3).
    """

    image: tuple[int, ...]
    grid: tuple[int, ...]


def draw_shapes(rng: np.random.Generator, *, most: int = 12, spatial: int = 2) -> Shapes:
    """Draws small shapes: images of one pixel along an axis included, N up to 3."""
    n, c = int(rng.integers(1, 4)), int(rng.choice(CHANNELS))
    sides = [1 if rng.integers(8) == 0 else int(rng.integers(2, most + 1)) for _ in range(spatial)]
    outputs = [int(rng.integers(1, most + 1)) for _ in range(spatial)]
    return Shapes((n, c, *sides), (n, *outputs, spatial))


def draw_floats(rng: np.random.Generator, shapes: Shapes, *, odd: bool) -> tuple[Array, Array]:
    """Draws an image and a grid that reaches outside of it. `odd`: some positions are NaN or infinite."""
    image = rng.standard_normal(shapes.image).astype(np.float32)
    grid = (rng.random(shapes.grid) * 4 - 2).astype(np.float32)
    marks = np.array([0.0, 1.0, -1.0, 0.5, 1e4, -37.25], np.float32)
    places = rng.random(shapes.grid) < 0.15
    grid[places] = rng.choice(marks, int(places.sum()))
    if odd:
        places = rng.random(shapes.grid) < 0.1
        grid[places] = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), int(places.sum()))
    return image, grid


@dataclass(frozen=True)
class Quantized:
    """How the integers of a tensor represent numbers: (integer - zero_point) * scale."""

    dtype: str
    scale: float
    zero_point: int
    low: int
    high: int

    def numbers(self, integers: Array) -> Array:
        """Returns the numbers in float64."""
        return (integers.astype(np.float64) - self.zero_point) * self.scale

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Draws integers of the whole range, and its ends more often."""
        integers = rng.integers(self.low, self.high + 1, shape)
        ends = rng.random(shape) < 0.1
        integers[ends] = rng.choice([self.low, self.high, self.zero_point], int(ends.sum()))
        return integers.astype(self.dtype)

    def call(self) -> tuple[float, int, int, int, torch.dtype]:
        """Returns the arguments of quantize_per_tensor and dequantize_per_tensor."""
        return self.scale, self.zero_point, self.low, self.high, getattr(torch, self.dtype)


SNORM = Quantized("int8", 1 / 127, 0, -127, 127)
GRID16 = Quantized("int16", 1 / 32767, 0, -32767, 32767)
GRID8 = SNORM


def draw_qparams(rng: np.random.Generator, dtype: str, reach: float) -> Quantized:
    """Draws parameters whose numbers reach to about `reach`: int8 with any zero point, int16 with 0."""
    if dtype == "int16":
        return Quantized(dtype, reach * float(rng.uniform(0.5, 1.5)) / 32767, 0, -32768, 32767)
    zero_point = int(rng.integers(-128, 128)) if rng.integers(2) else 0
    return Quantized(dtype, reach * float(rng.uniform(0.5, 1.5)) / 127, zero_point, -128, 127)


@dataclass(frozen=True)
class IntegerCall:
    """A call over integers: its module has int8 or int16 inputs and result."""

    combination: Combination
    image: Quantized
    grid: Quantized
    result: Quantized
    args: tuple[Array, Array]

    def module(self) -> nn.Module:
        return QuantizedSample(self)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.args[0]), torch.from_numpy(self.args[1])


class QuantizedSample(nn.Module):
    """Dequantizes an image and a grid, samples, and quantizes."""

    def __init__(self, call: IntegerCall) -> None:
        super().__init__()
        self.call, self.inner = call, Sample(call.combination)

    def forward(self, image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.quantized_decomposed
        x = ops.dequantize_per_tensor(image, *self.call.image.call())
        g = ops.dequantize_per_tensor(grid, *self.call.grid.call())
        return ops.quantize_per_tensor(self.inner(x, g), *self.call.result.call())


def draw_integers(
    rng: np.random.Generator, combination: Combination, image: str, grid: str, *, most: int = 12
) -> IntegerCall:
    """Draws a call: in every other call, the parameters fit a SNORM image and a grid of -1..1."""
    shapes = draw_shapes(rng, most=most)
    if image == "int8" and rng.integers(2):
        sides = SNORM, GRID16 if grid == "int16" else GRID8, SNORM
    else:
        of_image = draw_qparams(rng, image, 1.0)
        reach = float(rng.choice([0.6, 1.0, 1.4, 3.0]))
        of_result = (
            of_image if rng.integers(2) else draw_qparams(rng, image, float(rng.choice([0.05, 1.0, 2.0])))
        )
        sides = of_image, draw_qparams(rng, grid, reach), of_result
    args = sides[0].draw(rng, shapes.image), sides[1].draw(rng, shapes.grid)
    return IntegerCall(combination, *sides, args)
