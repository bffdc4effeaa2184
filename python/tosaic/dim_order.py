"""Dim orders as Python has them: logical axes, outermost first."""

from __future__ import annotations

__all__ = ["channels_last"]


def channels_last(rank: int) -> tuple[int, ...]:
    """The order with axis 1, the channels, innermost.

    Raises
    ------
    ValueError
        There is no axis 1.

    Examples
    --------
    >>> channels_last(4)
    (0, 2, 3, 1)
    """
    if rank < 2:
        raise ValueError(f"an array of rank {rank} has no channels")
    return (0, *range(2, rank), 1)
