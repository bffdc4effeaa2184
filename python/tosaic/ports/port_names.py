"""Names of inputs and outputs, which reports, options, calls and samples share.

An input or output is named by its path, by the name of its value in the graph (``batch_mask``), or by its
index among the user's inputs (outputs). The path is the expression with which a caller reaches the array:
``x``, ``batch['mask']``, ``out[0]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tosaic.base.options import whole_number

Named: TypeAlias = tuple[str, str]
"""Path and name of one input or output."""


def position_of(key: Any, named: Sequence[Named]) -> int | None:
    """Returns the position of the input or output that `key` names, or None.

    Paths are searched before names.
    """
    if isinstance(key, str):
        for spelling in (0, 1):
            for position, names in enumerate(named):
                if key and key == names[spelling]:
                    return position
        return None
    try:
        index = whole_number(key)
    except TypeError:
        return None
    return index if 0 <= index < len(named) else None


def by_position(given: Mapping[Any, Any], named: Sequence[Named]) -> dict[int, Any] | None:
    """Returns entries by position; None if a key is not in `named`, or two keys name the same port."""
    out: dict[int, Any] = {}
    for key, value in given.items():
        position = position_of(key, named) if isinstance(key, str) else None
        if position is None or position in out:
            return None
        out[position] = value
    return out


def known_names(named: Iterable[Named]) -> str:
    """Returns the accepted keys, as a text for an error message."""
    paths = [path or name for path, name in named]
    return f"one of {', '.join(map(repr, paths))}, or an index below {len(paths)}"


def near_names(key: Any, named: Iterable[Named]) -> str:
    """Returns a hint with names that are similar to an unknown one; empty if there are none."""
    if not isinstance(key, str):
        return ""
    from difflib import get_close_matches

    names = dict.fromkeys(name for pair in named for name in pair if name)
    near = get_close_matches(key, names, n=3, cutoff=0.6)
    return f"Did you mean {' or '.join(map(repr, near))}" if near else ""
