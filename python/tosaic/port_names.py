"""What inputs and outputs are called: the same everywhere, in reports, options, calls and samples.

An input or output goes by its path, which is what a caller would write to reach it (``x``, ``batch['mask']``,
``out[0]``), by the name of its value in the graph (``batch_mask``), or by its index among those of the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tosaic.options import whole_number

__all__ = ["Named", "by_position", "known_names", "position_of"]

Named: TypeAlias = tuple[str, str]
"""Path and name of one input or output."""


def position_of(key: Any, named: Sequence[Named]) -> int | None:
    """Which of the inputs or outputs a key means; None if it means none. A path outranks another's name."""
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
    """The entries by position; None unless each key means one and no two the same."""
    out: dict[int, Any] = {}
    for key, value in given.items():
        position = position_of(key, named) if isinstance(key, str) else None
        if position is None or position in out:
            return None
        out[position] = value
    return out


def known_names(named: Iterable[Named]) -> str:
    """All that keys may be, for a message."""
    paths = [path or name for path, name in named]
    return f"one of {', '.join(map(repr, paths))}, or an index below {len(paths)}"
