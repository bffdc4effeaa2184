"""Places in memory: the places of a tensor's elements, and the element at a place.

A tensor is an offset and the sizes and strides of its axes, all in elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

FEW_PLACES = 1 << 20
"""A list of at most this many places may be longer than the result, which may even have no elements."""

_Array = np.ndarray[Any, Any]


def has_own_places(axes: Iterable[tuple[int, int]]) -> bool:
    """True if no two elements can share a place.

    Each stride exceeds the reach of all axes of smaller strides. `axes` are sizes and strides in any order.
    """
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in axes if size > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def places(offset: int, shape: Sequence[int], strides: Sequence[int]) -> _Array:
    """Returns the places of a tensor's elements, in row-major order of the elements."""
    if 0 in shape:
        return np.empty(0, np.int64)
    where = np.full(1, offset, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        where = (where[:, None] + stride * np.arange(size)).reshape(-1)
    return where


def positions(where: _Array, offset: int, shape: Sequence[int], strides: Sequence[int]) -> _Array | None:
    """Returns the row-major indices of a tensor's elements at these places; None if one has no element.

    The places are divided by the strides, so the time does not depend on the tensor's size. If axes share
    places, all elements are compared; for a large tensor, the result is then None.
    """
    if 0 in shape:
        return None
    if has_own_places(zip(shape, strides, strict=True)):
        axes = [axis for axis, size in enumerate(shape) if size != 1]
        rest, found = where - offset, np.zeros_like(where)
        for axis in sorted(axes, key=lambda axis: -strides[axis]):
            index = rest // strides[axis]
            rest -= index * strides[axis]
            if ((index < 0) | (index >= shape[axis])).any():
                return None
            found += index * math.prod(shape[axis + 1 :])
        return None if rest.any() else found
    if math.prod(shape) > max(FEW_PLACES, where.size):
        return None
    own = places(offset, shape, strides)
    order = np.argsort(own, kind="stable")
    at = np.searchsorted(own, where, sorter=order)
    if (at >= own.size).any() or (own[order[at]] != where).any():
        return None
    return order[at]
