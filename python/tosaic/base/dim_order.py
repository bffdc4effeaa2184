"""Dim orders in Python: sequences of logical axes, outermost first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def channels_last(rank: int) -> tuple[int, ...]:
    """Returns the order with axis 1, the channels, innermost.

    Raises
    ------
    ValueError
        `rank` is less than 2, so there is no axis 1.

    Examples
    --------
    >>> channels_last(4)
    (0, 2, 3, 1)
    """
    if rank < 2:
        raise ValueError(f"an array of rank {rank} has no channels")
    return (0, *range(2, rank), 1)


def orders_of_formats(rank: int) -> list[tuple[int, ...]]:
    """Returns the dim orders of torch's memory formats: row-major and, for rank 4 and 5, channels last."""
    return [tuple(range(rank)), *([channels_last(rank)] if rank in (4, 5) else [])]


def significant_axes(shape: Sequence[Any], order: Sequence[int]) -> list[int]:
    """Returns the axes of `order` whose strides carry information: their extent is symbolic or not 1."""
    return [axis for axis in order if type(shape[axis]) is not int or shape[axis] != 1]


def is_same_order(shape: Sequence[Any], a: Sequence[int], b: Sequence[int]) -> bool:
    """True if both dim orders are the same memory layout for this shape: axes of extent 1 do not count."""
    return significant_axes(shape, a) == significant_axes(shape, b)


def is_of_format(shape: Sequence[Any], order: Sequence[int]) -> bool:
    """True if a dim order is that of one of torch's memory formats for this shape."""
    return any(is_same_order(shape, each, order) for each in orders_of_formats(len(shape)))


def has_order(shape: Sequence[Any], strides: Sequence[int], order: Sequence[int]) -> bool:
    """True if the strides agree with the order; there may be gaps, and sizes may be symbolic."""
    known = [strides[axis] for axis in significant_axes(shape, order) if strides[axis] != 0]
    return known == sorted(known, reverse=True) or any(type(size) is int and size == 0 for size in shape)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns row-major strides as torch computes them: empty axes count as one."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def dim_order_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """Returns the order of axes in memory, outermost first, and whether axes of size 1 make it ambiguous.

    Strides that are consistent with row-major order are row-major. Other strides that are consistent with
    channels last are channels last. Gaps are allowed in both. The strides of axes of size 1, and of repeated
    elements (stride 0), are ignored.
    """
    rank = len(shape)
    identity = tuple(range(rank))
    if has_order(shape, strides, identity):
        plain = contiguous_strides(shape)
        is_dense = all(shape[i] <= 1 or strides[i] == plain[i] for i in identity)
        return identity, is_dense and tuple(strides) != plain and rank >= 3 and all(shape)
    if rank >= 3 and has_order(shape, strides, channels_last(rank)):
        return channels_last(rank), False
    order = sorted((i for i in identity if shape[i] != 1), key=lambda i: (-strides[i], i))
    for axis in (i for i in identity if shape[i] == 1):  # placed after its logical predecessor
        order.insert(order.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(order), False
