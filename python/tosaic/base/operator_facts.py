"""Facts of operators, from the table of the core."""

from __future__ import annotations

from functools import cache

from tosaic import _core


@cache
def elementwise_operators() -> frozenset[str]:
    """Returns the operators that compute each element of the result from one element of each operand."""
    return frozenset(each.name for each in _core.ops() if "elementwise" in each.traits)
