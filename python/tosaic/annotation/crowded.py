"""Numbers that leave few integers to others with the same scale.

A result has one scale for the numbers of all its operands::

    where(hidden, -256, x)     x is in -2..4, so that one step for both is 1: x has 7 integers

The histogram distinguishes such a result from one whose numbers become rarer towards the largest ones, or are
only zeros and ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FEW_INTEGERS = 16
"""A warning names numbers that have fewer integers than this."""

LARGEST_NEAR = 1e4
"""The largest magnitude that the planner takes for an activation."""

HIDING_REMEDY = "If those only hide elements, make them about ten times the largest of the first"
"""The remedy in messages that name first the crowded numbers ("the first"), then the largest ones."""

_EACH = 4  # histogram bins for each integer: results with fewer are truth values or counts
_LEAST_RATIO = 100.0  # of the squared numbers to their squared errors: 20 dB


@dataclass(frozen=True)
class CrowdedNumbers:
    """Numbers of a tensor that are represented by few of its integers.

    Attributes
    ----------
    least, greatest : float
        The bounds of these numbers.
    integers : int
        How many integers represent them.
    beside : float
        The quantized value of the tensor's largest number.
    """

    least: float
    greatest: float
    integers: int
    beside: float


def crowded_numbers(
    histogram: Any, scale: float, zero_point: int, qmin: int, qmax: int, near: Any = None
) -> CrowdedNumbers | None:
    """Returns the numbers to which the largest ones leave few integers; None if there are no such numbers.

    Parameters
    ----------
    histogram : Histogram
    scale : float
    zero_point, qmin, qmax : int
        The qparams with which the numbers are quantized.
    near : Histogram, optional
        A histogram of all numbers up to `LARGEST_NEAR` in magnitude, needed if there are larger numbers: then
        `histogram` counts all numbers far below the largest ones as zero.

    Returns
    -------
    CrowdedNumbers or None
        None also if the numbers have an SQNR of 20 dB with their integers, or if there are so few different
        numbers that they may be truth values.

    Examples
    --------
    >>> import numpy as np
    >>> from tosaic import _core
    >>> histogram = _core.Histogram()
    >>> histogram.observe(np.r_[np.linspace(-2, 4, 100, dtype=np.float32), np.float32(-256)])
    >>> crowded_numbers(histogram, 1.0, 127, -128, 127).integers
    3
    """
    if not histogram.range.finite:
        return None
    numbers, counts = _bins(histogram)
    if near is not None and near.range.finite:
        is_far = np.abs(numbers) > LARGEST_NEAR
        of_near = _bins(near)
        numbers = np.concatenate([numbers[is_far], of_near[0]])
        counts = np.concatenate([counts[is_far], of_near[1]])
    integers = np.clip(np.rint(numbers / scale) + zero_point, qmin, qmax) - zero_point
    magnitudes = np.abs(numbers)
    largest = integers[magnitudes.argmax()]
    others = (magnitudes < magnitudes.max() / 2) & (integers != largest)
    used = len(np.unique(integers[others]))
    if not 0 < used < FEW_INTEGERS or others.sum() <= _EACH * used:
        return None
    numbers, counts, integers = numbers[others], counts[others], integers[others]
    error = float((counts * (numbers - integers * scale) ** 2).sum())
    if float((counts * numbers**2).sum()) >= _LEAST_RATIO * error:
        return None
    return CrowdedNumbers(float(numbers.min()), float(numbers.max()), used, float(largest * scale))


def _bins(histogram: Any) -> tuple[Any, Any]:
    """Returns the means of the bins and how many numbers each has."""
    return np.array(histogram.means, np.float64), np.array([n for _, n in histogram.counts], np.float64)
