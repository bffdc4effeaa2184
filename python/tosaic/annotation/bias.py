"""Scales of weights and biases with which the biases fit in 32 bits.

A contraction adds its bias to its sums of products, so the bias has the unit of the sums: the product of the
scales of data and weight. The scale of a channel whose weights are zero, or nearly zero, is tiny, and so is
that of an operand that was zero in all samples. The integers of a bias in such a unit would leave int32::

    weights of a channel are 0, bias 3    scale of the weights 1.2e-7, data 1/255:  3 / 4.7e-10 = 6.4e9
                                          scale of the weights raised to 7.1e-7:   3 / 2.8e-9  = 2^30

The raised scale costs no precision where each channel has its own: each product of such a channel is below
2^-15 of its bias, or 2^-8 with data of 16 bits. Where one scale is for all channels, the weights of the
other channels would lose bits. Their bias has a unit of its own instead, which lowering adds in another step.
Targets that know no such step (`QConfig.every_operator`, Arm's lowering) get the raised scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["LARGEST_BIAS", "fitting_bias_scales", "fitting_weight_scales", "lost_bits"]

LARGEST_BIAS = 2**30
"""The largest integer of a bias. The sums of products that are added to it have the other half of int32."""

_Array = np.ndarray[Any, Any]


def fitting_weight_scales(
    weight_scales: _Array, data_scale: float, bias: _Array, *, has_elements: bool, unit_of_sums: bool
) -> _Array:
    """Returns the scales of a weight, raised where the bias would not fit.

    Parameters
    ----------
    weight_scales : float32 array
        One, or one for each element of the bias.
    data_scale : float
        The scale of the other operand.
    bias : array
        Elements that are not finite are ignored.
    has_elements : bool
        Whether the weight has elements that its scales do not round to zero.
    unit_of_sums : bool
        The target knows no other unit of a bias: one scale for all channels is raised, too.
    """
    least = _magnitudes(bias) / (float(data_scale) * LARGEST_BIAS)
    if weight_scales.size != least.size:
        if has_elements and not unit_of_sums:
            return weight_scales
        least = least.max(initial=0.0, keepdims=True)
    raised: _Array = np.maximum(weight_scales, least.astype(np.float32))
    return raised


def fitting_bias_scales(scales: _Array, bias: _Array) -> _Array:
    """Returns the scales of a bias, raised where an element would not fit in 32 bits."""
    least = _magnitudes(bias) / LARGEST_BIAS
    if scales.size != least.size:
        least = least.max(initial=0.0, keepdims=True)
    # The scale of a bias that fits stays as it is: a rounding of half a unit is no reason for another one.
    fits = scales * np.float32(1 + 2**-10) >= least
    raised: _Array = np.where(fits, scales, least.astype(np.float32))
    return raised


def lost_bits(before: _Array, after: _Array) -> float:
    """Returns the most bits that a channel of a weight loses by a raised scale."""
    return float(np.log2(np.asarray(after, np.float64) / np.asarray(before, np.float64)).max(initial=0.0))


def _magnitudes(bias: _Array) -> _Array:
    found = np.abs(np.asarray(bias, np.float64)).reshape(-1)
    return np.where(np.isfinite(found), found, 0.0)
