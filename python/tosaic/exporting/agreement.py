"""Decides whether a lowered program differs from its quantized program by rounding only.

Integer arithmetic rounds at other places than the quantized program, so elements differ by a unit or two.
With few elements, a ratio of errors says little: of eight elements, the quantized program may have all right
by chance, and the lowered program be off by a unit. So the errors of many elements are judged by their
distribution. For each output, in units of its scale:

    d = found - expected                            n elements of all samples
    e = expected - floats                           the rounding errors of the quantized program
    noise = max(mean(e²), 1)                        an error of one unit is rounding
    mean(d²) <= noise * (1 + 4 * sqrt(2 / n))       otherwise a kernel is wrong or elements are permuted
    |mean(d)| <= max(1/2, sqrt(mean(e²)) / 2)       otherwise a zero point is shifted

The tolerance of the noise follows from the spread of a mean of n squares. The second condition applies only
if the mean exceeds five of its standard deviations. These follow from the means of the samples, since
elements of one sample are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tosaic.exporting.checks import Runs
    from tosaic.program.program import Program

ENOUGH_ELEMENTS = 64
"""The number of elements from which on the distribution of an output is judged, if samples suffice."""

MOST_SAMPLES = 32

_SPREAD = 4.0
_LEAST_BIAS = 0.5
_DEVIATIONS = 5.0
_MOVES = frozenset(("reshape", "permute", "clone", "expand", "slice", "select", "split", "cat"))

_Array = np.ndarray[Any, Any]


def agrees(floats: Runs, expected: Runs, found: Runs, units: Sequence[float | None]) -> bool:
    """Returns whether found outputs differ from expected ones only by rounding.

    Parameters
    ----------
    floats, expected, found : sequence of sequence of array
        By sample and output, in the same form: outputs of the float program, of the quantized program, and of
        the lowered program.
    units : sequence of float or None
        By output: its scale; None for an output that is not rounded.
    """
    return all(
        _agree(
            [each[at] for each in floats], [each[at] for each in expected], [each[at] for each in found], unit
        )
        for at, unit in enumerate(units)
    )


def _agree(
    floats: Sequence[_Array], expected: Sequence[_Array], found: Sequence[_Array], unit: float | None
) -> bool:
    scale = 1.0 if unit is None else unit
    differences = [_in_units(two, one, scale) for one, two in zip(expected, found, strict=True)]
    errors = [_in_units(two, one, scale) for one, two in zip(floats, expected, strict=True)]
    if any(each is None for each in differences):
        return False
    d = np.concatenate([each for each in differences if each is not None])
    e = np.concatenate([each for each in errors if each is not None] or [np.zeros(0)])
    if not d.size:
        return True
    rounding = float(np.mean(e**2)) if e.size else 0.0
    noise = rounding if unit is None else max(rounding, 1.0)
    if float(np.mean(d**2)) > noise * (1 + _SPREAD * math.sqrt(2 / d.size)):
        return False
    means = np.array([float(np.mean(each)) for each in differences if each is not None and each.size])
    bias = abs(float(np.mean(means)))
    if unit is None or len(means) < 4 or bias <= max(_LEAST_BIAS, math.sqrt(rounding) / 2):
        return True
    return bias <= _DEVIATIONS * float(np.std(means, ddof=1)) / math.sqrt(len(means))


def _in_units(found: _Array, expected: _Array, unit: float) -> _Array | None:
    """Returns the differences of the finite elements; None if only one array has infinities or NaN."""
    if found.shape != expected.shape:
        return None
    one, two = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(two)):
        return None
    difference: _Array = ((two - one) / unit)[finite]
    return difference


def units_of_outputs(quantized: Program) -> list[float | None]:
    """Returns the scale of each of the caller's outputs that a program rounds; None for other outputs."""
    return [_unit(output.value) for output in quantized.graph.outputs if output.kind == "user"]


def _unit(value: Any) -> float | None:
    while True:
        if value.qparams is not None:
            return float(max(value.qparams.scales))
        node = value.producer
        if node is None or not node.operands:
            return None
        if node.op == "dequantize":
            return float(max(node.attrs["scales"]))
        if node.op not in _MOVES:
            return None
        value = node.operands[0]
