"""Scales of weights: per tensor, per channel, or per channel and group of input channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.annotation.observers import LeastError
from tosaic.base.quantization import Groups

_Array = np.ndarray[Any, Any]
_LEAST_RATIO, _RATIOS = 0.6, 21  # the search for a group: least ratio to the fitting scale, and steps


def weight_qparams(
    arrays: Sequence[_Array],
    axis: int | None,
    group_size: int | None,
    observer: Any,
    options: Mapping[str, Any],
) -> tuple[tuple[float, ...], tuple[int, ...], Groups | None]:
    """Returns scales, zero points and groups for weights that share them.

    Parameters
    ----------
    arrays : sequence of float32 array
    axis : int, optional
        The axis of the channels, each of which has its own scale.
    group_size : int, optional
        The number of neighbours in a row (axis 0) or in a column (axis 1) that share a scale.
    observer : MinMax or LeastError
    options : mapping
        Keyword arguments of the core's functions that choose qparams.
    """
    if axis is None:
        chosen = [_chosen([each.reshape(-1) for each in arrays], observer, options)]
        return (*_columns(chosen), None)
    if group_size is None:
        return (*_columns(_by_channel(arrays, axis, observer, options)), None)
    scales = _by_group(arrays[0], axis, group_size, observer, options)
    found = tuple(map(float, scales))
    return found, (0,) * len(found), Groups(1 - axis, group_size)


def _columns(chosen: Sequence[tuple[float, int]]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    return tuple(scale for scale, _ in chosen), tuple(zero_point for _, zero_point in chosen)


def _chosen(parts: Sequence[_Array], observer: Any, options: Mapping[str, Any]) -> tuple[float, int]:
    if isinstance(observer, LeastError):
        histogram = _core.Histogram()
        for each in parts:
            histogram.observe(each)
        scale, zero_point, _ = _core.least_error_qparams(histogram, **options)
        return scale, zero_point
    bounds = _core.ObservedRange()
    for each in parts:
        bounds.observe(each)
    return _core.range_qparams(bounds, **options)


def _by_channel(
    arrays: Sequence[_Array], axis: int, observer: Any, options: Mapping[str, Any]
) -> list[tuple[float, int]]:
    if not isinstance(observer, LeastError):
        return _core.channel_range_qparams(arrays, axis, **options)
    histograms = [_core.Histogram() for _ in range(arrays[0].shape[axis])]
    for each in arrays:
        _core.observe_channels(histograms, each, axis)
    return [_core.least_error_qparams(each, **options)[:2] for each in histograms]


def _by_group(array: _Array, axis: int, size: int, observer: Any, options: Mapping[str, Any]) -> _Array:
    """Returns the scales of symmetric groups, first by channel, then by group.

    With `MinMax`, all elements of a group just fit. With `LeastError`, the scale has the least squared error
    among even steps up to the fitting scale, because a group has too few elements for a histogram.
    """
    rows = np.moveaxis(array, (axis, 1 - axis), (0, 1))
    rows = rows.reshape(rows.shape[0] * rows.shape[1] // size, -1)
    rows = np.where(np.isfinite(rows), rows, np.float32(0))
    least = np.float32(options["least_scale"])
    fitting = np.abs(rows).max(1) / np.float32(min(-options["qmin"], options["qmax"]))
    best: _Array = np.maximum(fitting, least)
    fitting = best
    if not isinstance(observer, LeastError):
        return best
    least_error = np.full_like(fitting, np.inf)
    for ratio in np.linspace(1, _LEAST_RATIO, _RATIOS, dtype=np.float32):
        scale = np.maximum(fitting * ratio, least)
        rounded = np.clip(np.rint(rows / scale[:, None]), options["qmin"], options["qmax"])
        error = np.square(rounded * scale[:, None] - rows).sum(1)
        best = np.where(error < least_error, scale, best)
        least_error = np.minimum(error, least_error)
    return best
