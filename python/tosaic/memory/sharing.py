"""Which values share memory, and how long each is needed: `share`.

The rules:

- A view has the memory of its base.
- The first result of a step may be computed over an operand if the step allows it, nobody reads the operand
  afterwards, it fills its memory, both have the same size, and no other operand is in that memory.
- Nothing is computed over an operand inside a loop, whose next round may read the operand again.
- An input that the caller owns, and a state, are overwritten only by their own new values. An input whose
  memory is planned belongs to the program once it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tosaic.memory.schedule import Schedule, Step

__all__ = ["Shared", "lifetimes", "share"]


@dataclass(frozen=True)
class Shared:
    """How a value is in memory.

    Attributes
    ----------
    first, last : int
        The steps from which and until which it is needed, both inclusive.
    kind : str
        ``none``, ``view`` or ``in_place``.
    target : int or None
        The value whose memory it shares.
    offset : int
        The first byte in the target.
    root : int
        The value to which the memory belongs.
    """

    first: int
    last: int
    kind: str
    target: int | None
    offset: int
    root: int


def lifetimes(schedule: Schedule) -> tuple[list[int], list[int]]:
    """Returns the first and the last step at which each value is needed. Reading a view reads its base."""
    count, values = len(schedule.values), schedule.values
    first: list[int | None] = [0 if each.kind in ("input", "state") else None for each in values]
    last = [0] * count
    for number, step in enumerate(schedule.steps):
        for value in (*step.reads, *step.writes):
            _touch(schedule, value, number, first, last)
    for value in schedule.final:
        _touch(schedule, value, schedule.end, first, last)
    # An inner loop ends before the outer one: what it extends may have to be extended again.
    for begin, end in sorted(schedule.loops, key=lambda loop: loop[1]):
        for value in range(count):
            start = first[value]
            if start is not None and start <= end and last[value] >= begin:
                first[value], last[value] = min(start, begin), max(last[value], end)
    for value, each in enumerate(first):
        if each is None:  # nothing reads it: a view lives when its base begins
            view = values[value].view_of
            first[value] = last[value] = 0 if view is None else first[view[0]] or 0
    return [each or 0 for each in first], last


def _touch(schedule: Schedule, value: int, step: int, first: list[int | None], last: list[int]) -> None:
    """Notes that a step reads or writes a value, and the bases of a view."""
    at: int | None = value
    while at is not None:
        first[at] = step if first[at] is None else first[at]
        last[at] = max(last[at], step)
        view = schedule.values[at].view_of
        at = None if view is None else view[0]


def share(
    schedule: Schedule,
    *,
    in_place: bool,
    may_overwrite: Callable[[int, int], bool],
) -> list[Shared]:
    """Decides which values share memory; one entry for each value.

    Parameters
    ----------
    schedule : Schedule
    in_place : bool
        Results may be computed over operands.
    may_overwrite : callable
        ``may_overwrite(root, result)``: True if the memory of `root` may hold `result`.
    """
    return _Sharing(schedule, may_overwrite).run(in_place)


class _Sharing:
    def __init__(self, schedule: Schedule, may_overwrite: Callable[[int, int], bool]) -> None:
        self._schedule = schedule
        self._may_overwrite = may_overwrite
        self._first, self._last = lifetimes(schedule)
        self._read_until = list(self._last)
        self._target: dict[int, int] = {}  # results in place of operands

    def run(self, in_place: bool) -> list[Shared]:
        for number, step in enumerate(self._schedule.steps):
            is_repeated = any(begin <= number <= end for begin, end in self._schedule.loops)
            if in_place and step.in_place and step.writes and not is_repeated:
                self._over_an_operand(number, step)
        overwritten = {self._schedule.contents(each)[0] for each in self._target.values()}
        for i, value in enumerate(self._schedule.values):
            if value.kind == "state" and i not in overwritten:
                self._last[i] = self._schedule.end
        return [self._shared(i) for i in range(len(self._schedule.values))]

    def _root(self, value: int) -> int:
        """Returns the value to which the memory of a value belongs."""
        value, _ = self._schedule.contents(value)
        while value in self._target:
            value, _ = self._schedule.contents(self._target[value])
        return value

    def _over_an_operand(self, number: int, step: Step) -> None:
        result = step.writes[0]
        if self._first[result] != number or self._schedule.values[result].view_of is not None:
            return
        for operand in step.in_place:
            if self._is_free(number, step, operand, result):
                self._target[result] = self._schedule.contents(operand)[0]
                return

    def _is_free(self, number: int, step: Step, operand: int, result: int) -> bool:
        values, root = self._schedule.values, self._root(operand)
        contents, _ = self._schedule.contents(operand)
        size = values[result].nbytes
        if size == 0 or not size == values[operand].nbytes == values[contents].nbytes == values[root].nbytes:
            return False
        if self._read_until[contents] != number or not self._may_overwrite(root, result):
            return False
        others = [*step.reads, *step.writes[1:]]
        others.remove(operand)
        return all(self._root(each) != root for each in others)

    def _shared(self, i: int) -> Shared:
        view = self._schedule.values[i].view_of
        span, root = (self._first[i], self._last[i]), self._root(i)
        if view is not None:
            return Shared(*span, "view", view[0], view[1], root)
        if i in self._target:
            return Shared(*span, "in_place", self._target[i], 0, root)
        return Shared(*span, "none", None, 0, root)
