"""Exact results of samplers over integers, in float64, and how far integers are from them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from grid_sampler.cases import Array, IntegerCall, Quantized

TIE = 1e-6
"""Nearest positions that are as close to the middle of two pixels may be rounded to either, in pixels."""


def real_result(call: IntegerCall, *, shift: tuple[float, float] = (0.0, 0.0)) -> Array:
    """Returns the sample of the numbers that the integers mean, with the grid moved by `shift` pixels."""
    image, grid = call.image.numbers(call.args[0]), call.grid.numbers(call.args[1])
    mode, padding, corners = call.combination
    for axis in range(2):
        extent = image.shape[3 - axis]
        steps = max((extent - 1 if corners else extent) / 2, 1e-9)
        grid[..., axis] += shift[axis] / steps
    result = F.grid_sample(torch.from_numpy(image), torch.from_numpy(grid), mode, padding, corners)
    return result.numpy()


def units_apart(found: Array, real: Array, to: Quantized) -> Array:
    """Returns the distance of integers from the real results, in units; a saturated integer is exact."""
    exact = np.clip(real / to.scale + to.zero_point, to.low, to.high)
    return np.abs(found.astype(np.float64) - exact)


def distance(call: IntegerCall, found: Array) -> Array:
    """Returns the distance of each element from the exact real result, in units of the result.

    A nearest sample at a tie counts as the closer of its pixels: which is right depends on the last bit of
    a scale.
    """
    if call.combination[0] != "nearest":
        return units_apart(found, real_result(call), call.result)
    shifts = [(x, y) for x in (-TIE, 0.0, TIE) for y in (-TIE, 0.0, TIE)]
    all_of = [units_apart(found, real_result(call, shift=s), call.result) for s in shifts]
    return np.asarray(np.min(all_of, axis=0))
