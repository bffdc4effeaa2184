"""Arrays that are stacks of arrays for an input."""

from __future__ import annotations

from collections.abc import Sequence


def entries_of(shape: Sequence[int], wanted: Sequence[int]) -> int | None:
    """Returns the number of entries of a stack; None for an array that is not a stack."""
    shape, wanted = tuple(shape), tuple(wanted)
    if shape == wanted or not shape:
        return None
    if shape[1:] == wanted:
        return shape[0]
    if not wanted or wanted[0] == 0 or shape[1:] != wanted[1:] or shape[0] % wanted[0]:
        return None
    return shape[0] // wanted[0]
