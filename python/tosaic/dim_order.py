"""Dim orders in Python: sequences of logical axes, outermost first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["channels_last", "is_of_format", "is_same_order", "orders_of_formats", "significant_axes"]


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
