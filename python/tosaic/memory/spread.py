"""Spreads buffers over several memories of limited size.

The memories are given fastest first. Buffers are placed in this order: most frequently read and written
first; among equals, those that are needed for the shortest time; then the largest. Each buffer goes into the
first memory in which it fits together with the buffers that are already there. So the most used bytes are in
the fast memory, and the traffic to slow memories is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np

from tosaic import _core

Fields: TypeAlias = tuple[int, int, int, int, str, int, int]
"""A buffer in the form that the core's planner takes."""


@dataclass(frozen=True)
class Movable:
    """A buffer that can be placed in any of several memories.

    Attributes
    ----------
    name : str
    nbytes, first, last : int
        Size, and the steps from which and until which it is needed.
    accesses : int
        How often its bytes are read or written.
    alignment : int
        The least alignment that it needs.
    """

    name: str
    nbytes: int
    first: int
    last: int
    accesses: int
    alignment: int = 1


def spread(
    movables: Sequence[Movable],
    memories: Mapping[str, tuple[int | None, int]],
    fixed: Mapping[str, Sequence[Movable]],
) -> list[str]:
    """Returns the memory of each movable; the last memory takes what does not fit into the others.

    Parameters
    ----------
    movables : sequence of Movable
    memories : mapping of str to (int or None, int)
        Size (None for no limit) and alignment of each, fastest first.
    fixed : mapping of str to sequence of Movable
        The buffers whose memory is fixed.
    """
    *limited, last = memories
    found = [last] * len(movables)

    def key(i: int) -> tuple[int, int, int]:
        each = movables[i]
        return -each.accesses, each.last - each.first, -each.nbytes

    left = sorted(range(len(movables)), key=key)
    steps = 1 + max((each.last for each in (*movables, *chain(*fixed.values()))), default=0)
    for name in limited:
        size, alignment = memories[name]
        memory = _Memory(size, alignment, fixed.get(name, ()), steps)
        taken = set(memory.take([(i, movables[i]) for i in left]))
        for i in taken:
            found[i] = name
        left = [i for i in left if i not in taken]
    return found


_Numbered: TypeAlias = tuple[int, Movable]


class _Memory:
    """A memory of limited size, and the values in it."""

    def __init__(self, size: int | None, alignment: int, held: Iterable[Movable], steps: int) -> None:
        self._size, self._alignment = size, alignment
        self._held = list(held)
        self._needed = np.zeros(steps, np.int64)
        for each in self._held:
            self._add(each, 1)

    def take(self, offered: Sequence[_Numbered]) -> list[int]:
        """Takes the values that fit, in this order; returns the numbers of the taken values.

        First, all values are placed together for which no step needs too many bytes. If that fails, each half
        is tried separately.
        """
        chosen = [each for each in offered if self._has_room(each[1])]
        if not chosen or self._fits():
            return [number for number, _ in chosen]
        for _, movable in chosen:
            self._add(movable, -1)
            self._held.pop()
        middle = len(offered) // 2
        return [] if middle == 0 else self.take(offered[:middle]) + self.take(offered[middle:])

    def _has_room(self, movable: Movable) -> bool:
        """Adds the movable, unless a step then needs more bytes than the memory has."""
        self._add(movable, 1)
        needed = self._needed[movable.first : movable.last + 1]
        if self._size is not None and needed.max() > self._size:
            self._add(movable, -1)
            return False
        self._held.append(movable)
        return True

    def _add(self, movable: Movable, sign: int) -> None:
        nbytes = _aligned(movable.nbytes, self._alignment)
        self._needed[movable.first : movable.last + 1] += sign * nbytes

    def _fits(self) -> bool:
        """True if the planner finds a place for all values."""
        if self._size is None:
            return True
        fields: list[Fields] = [
            (m.nbytes, max(self._alignment, m.alignment), m.first, m.last, "none", -1, 0) for m in self._held
        ]
        placed = _core.place_shared(fields, enough=self._size, budget=_core.PLACE_BUDGET // 10)
        return placed[1] <= self._size


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def peak_of(movables: Sequence[Movable], alignment: int) -> tuple[int, int]:
    """Returns the step at which the most bytes are needed, and their number."""
    change: dict[int, int] = {}
    for each in movables:
        nbytes = _aligned(each.nbytes, alignment)
        change[each.first] = change.get(each.first, 0) + nbytes
        change[each.last + 1] = change.get(each.last + 1, 0) - nbytes
    at, needed, most = 0, 0, 0
    for step in sorted(change):
        needed += change[step]
        if needed > most:
            at, most = step, needed
    return at, most
