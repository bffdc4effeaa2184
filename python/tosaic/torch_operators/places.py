"""Places in memory: where the elements of a tensor lie, and which element lies at a place.

A tensor is an offset and the sizes and strides of its axes, all in elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

FEW_PLACES = 1 << 20
"""A list of this number of places is made for a smaller result too, such as a result without elements."""

_Array = np.ndarray[Any, Any]


def has_own_places(axes: Iterable[tuple[int, int]]) -> bool:
    """True if a step on an axis leads beyond all that the axes of smaller strides reach.

    Then no two elements share a place. `axes` are sizes and strides in any order.
    """
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in axes if size > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def places(offset: int, shape: Sequence[int], strides: Sequence[int]) -> _Array:
    """Returns where the elements of a tensor lie, in row-major order."""
    if 0 in shape:
        return np.empty(0, np.int64)
    where = np.full(1, offset, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        where = (where[:, None] + stride * np.arange(size)).reshape(-1)
    return where


def positions(where: _Array, offset: int, shape: Sequence[int], strides: Sequence[int]) -> _Array | None:
    """Returns which elements of a tensor, in row-major order, lie at these places; None if one has none.

    The places are divided by the strides, so that nothing of the tensor's own size is computed. If axes share
    places, all elements are looked at, and a large tensor has no answer.
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
