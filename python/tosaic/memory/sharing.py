"""`share`: decides which values share memory, and how long each value is needed.

The rules:

- A view has the memory of its base.
- The first result of a step may be written over an operand if the step allows it, the operand is not read
  afterwards, it occupies its whole memory, both have the same size, and no other operand is in that memory.
- An operand of a concatenation of whole blocks is written into the result if three conditions hold: it
  occupies its own memory alone; its contents are not read after the result is overwritten; and the greatest
  need of all steps does not rise. The memory of the result is in use from the first step of its parts on.
- In a loop, no operand is overwritten, since the next iteration may read it again.
- An input that the caller owns, and a state, are overwritten only by their own new values. The memory of an
  input that is planned can be reused once it was read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tosaic.memory.schedule import Schedule, Step


@dataclass(frozen=True)
class Shared:
    """The memory of a value.

    Attributes
    ----------
    first, last : int
        The steps from which and until which it is needed, both inclusive.
    kind : str
        ``none``, ``view``, ``in_place`` or ``part``.
    target : int or None
        The value with which it shares memory directly.
    offset : int
        The first byte in the target.
    root : int
        The value that owns the memory.
    at : int
        The first byte in the root.
    """

    first: int
    last: int
    kind: str
    target: int | None
    offset: int
    root: int
    at: int = 0


def lifetimes(schedule: Schedule) -> tuple[list[int], list[int]]:
    """Returns the first and the last step at which each value is needed. Reading a view reads its base."""
    values, untouched = schedule.values, schedule.end + 1
    first = np.array([0 if each.kind in ("input", "state") else untouched for each in values], np.int64)
    last = np.zeros(len(values), np.int64)
    touched = [(number, (*step.reads, *step.writes)) for number, step in enumerate(schedule.steps)]
    for number, those in (*touched, (schedule.end, schedule.final)):
        for value in those:
            first[value], last[value] = min(first[value], number), max(last[value], number)
    for value in reversed(range(len(values))):  # bases come before their views, so views of views count
        view = values[value].view_of
        if view is not None and first[value] != untouched:
            base = view[0]
            first[base], last[base] = min(first[base], first[value]), max(last[base], last[value])
    # Inner loops come first, since a lifetime that one extends may reach into the outer loop.
    for begin, end in sorted(schedule.loops, key=lambda loop: loop[1]):
        met = (first <= end) & (last >= begin)
        first[met], last[met] = np.minimum(first[met], begin), np.maximum(last[met], end)
    for value in np.flatnonzero(first == untouched):  # never used: a view lives at the first step of its base
        view = values[value].view_of
        first[value] = last[value] = 0 if view is None else first[view[0]]
    return first.tolist(), last.tolist()


def share(
    schedule: Schedule,
    *,
    in_place: bool,
    may_overwrite: Callable[[int, int], bool],
    may_be_part: Callable[[int, int], bool] | None = None,
    alignment: int = 1,
    leaving: Set[int] = frozenset(),
) -> list[Shared]:
    """Decides which values share memory; one entry for each value.

    Parameters
    ----------
    schedule : Schedule
    in_place : bool
        Results may be computed over operands.
    may_overwrite : callable
        ``may_overwrite(root, result)``: True if the memory of `root` may hold `result`.
    may_be_part : callable, optional
        ``may_be_part(root, result)``: True if the memory of `root` may become a part of the memory of
        `result`. None: no operand is written into the result of a concatenation.
    alignment : int
        The alignment of values that are not views.
    leaving : set of int
        Values that are computed in the caller's memory if they occupy a whole memory.
    """
    sharing = _Sharing(schedule, may_overwrite)
    sharing.compute_in_place(in_place)
    if may_be_part is not None and any(step.parts for step in schedule.steps):
        sharing.write_parts(may_be_part, alignment, leaving)
    return sharing.found()


_Span: TypeAlias = tuple[int, int, int]
"""First step, last step, bytes."""


class _Sharing:
    def __init__(self, schedule: Schedule, may_overwrite: Callable[[int, int], bool]) -> None:
        self._schedule = schedule
        self._may_overwrite = may_overwrite
        self._first, self._last = lifetimes(schedule)
        self._read_until = list(self._last)
        self._target: dict[int, int] = {}  # result -> operand that it overwrites
        self._part: dict[int, tuple[int, int]] = {}  # memory -> result of a concatenation, first byte in it
        self._nearer: dict[int, tuple[int, int]] = {}  # value -> value nearer to its owner, first byte in it

    def compute_in_place(self, in_place: bool) -> None:
        repeated = self._schedule.in_loops()
        for number, step in enumerate(self._schedule.steps):
            if in_place and step.in_place and step.writes and not repeated[number]:
                self._over_an_operand(number, step)
        overwritten = {self._schedule.contents(each)[0] for each in self._target.values()}
        for i, value in enumerate(self._schedule.values):
            if value.kind == "state" and i not in overwritten:
                self._last[i] = self._schedule.end

    def found(self) -> list[Shared]:
        return [self._shared(i) for i in range(len(self._schedule.values))]

    def _owner(self, value: int) -> tuple[int, int]:
        """Returns the value that owns the memory of a value, and the value's first byte in it."""
        value, at = self._schedule.contents(value)
        chain: list[
            tuple[int, int]
        ] = []  # values, each with its first byte in the memory of the next value of the chain
        while (step := self._step_to_owner(value)) is not None:
            chain.append((value, step[1]))
            value = step[0]
        offset = 0
        for each, first in reversed(chain):
            offset += first
            self._nearer[each] = value, offset
        return value, at + offset

    def _step_to_owner(self, value: int) -> tuple[int, int] | None:
        """Returns the value in whose memory a value is, and its first byte there; None for an owner."""
        if value in self._nearer:
            return self._nearer[value]
        if value in self._target:
            return self._schedule.contents(self._target[value])[0], 0
        return self._part.get(value)

    def _root(self, value: int) -> int:
        return self._owner(value)[0]

    # ---- parts ----

    def write_parts(self, may_be_part: Callable[[int, int], bool], alignment: int, leaving: Set[int]) -> None:
        """Writes operands of concatenations into their results."""
        memories = _Memories(self._schedule, alignment)
        outside = {self._root(each) for each in leaving if self._fills(each)}
        for i, value in enumerate(self._schedule.values):
            root = self._root(i)
            nbytes = 0 if root in outside or value.kind == "constant" else self._schedule.values[root].nbytes
            memories.need(root, self._first[i], self._last[i], nbytes)
        memories.count()
        overwritten = {self._schedule.contents(each)[0]: result for result, each in self._target.items()}
        repeated = self._schedule.in_loops()
        for number, step in enumerate(self._schedule.steps):
            if not step.parts or repeated[number]:
                continue
            whole = step.writes[0]
            parts = {
                root: (whole, offset)
                for root, offset in self._parts(step, overwritten, alignment).items()
                if root not in outside and may_be_part(root, self._root(whole))
            }
            self._part |= {root: parts[root] for root in memories.joined(self._root(whole), parts)}

    def _fills(self, value: int) -> bool:
        """True if a value occupies the whole memory in which it is."""
        values = self._schedule.values
        return values[value].nbytes == values[self._root(value)].nbytes

    def _parts(self, step: Step, overwritten: Mapping[int, int], alignment: int) -> dict[int, int]:
        """Returns the memories that may become parts of a concatenation's result, with their first bytes."""
        whole = step.writes[0]
        found: dict[int, int] = {}
        end = self._first[overwritten[whole]] if whole in overwritten else self._schedule.end + 1
        readers = Counter(self._root(each) for each in step.reads)
        for operand, offset in step.parts:
            root, at = self._owner(operand)
            contents, _ = self._schedule.contents(operand)
            if self._schedule.values[root].kind != "result" or at or not self._fills(operand):
                continue
            if offset % alignment or readers[root] > 1 or root == self._root(whole):
                continue
            if contents in overwritten or self._read_until[contents] >= end:
                continue
            found[root] = offset
            self._read_until[whole] = max(self._read_until[whole], self._read_until[contents])
        return found

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
        span, (root, at) = (self._first[i], self._last[i]), self._owner(i)
        if view is not None:
            return Shared(*span, "view", view[0], view[1], root, at)
        if i in self._target:
            return Shared(*span, "in_place", self._target[i], 0, root, at)
        if i in self._part:
            return Shared(*span, "part", *self._part[i], root, at)
        return Shared(*span, "none", None, 0, root, at)


class _Memories:
    """The memories of a schedule over time, and the bytes that each step needs."""

    def __init__(self, schedule: Schedule, alignment: int) -> None:
        self._schedule, self._alignment = schedule, alignment
        self._spans: dict[int, _Span] = {}
        self._needed = np.array([*(self._aligned(step.scratch) for step in schedule.steps), 0])

    def _aligned(self, nbytes: int) -> int:
        return -(-nbytes // self._alignment) * self._alignment

    def need(self, root: int, first: int, last: int, nbytes: int) -> None:
        """Records that a memory is needed from one step to another."""
        begin, end, known = self._spans.get(root, (first, last, 0))
        self._spans[root] = min(begin, first), max(end, last), max(known, self._aligned(nbytes))

    def count(self) -> None:
        """Counts the bytes that each step needs."""
        for span in self._spans.values():
            self._add(span, 1)

    def _add(self, span: _Span, sign: int) -> None:
        first, last, nbytes = span
        self._needed[first : last + 1] += sign * nbytes

    def joined(self, whole: int, parts: Iterable[int]) -> list[int]:
        """Makes memories parts of another one, as long as the greatest need does not rise; returns the parts.

        The earliest parts are given up first, because the whole memory is needed from its earliest part on.
        """
        chosen = sorted(parts, key=lambda root: -self._spans[root][0])
        if not chosen:
            return chosen
        peak, old = self._needed.max(), self._spans[whole]
        for each in (whole, *chosen):
            self._add(self._spans[each], -1)
        while True:
            spans = [self._spans[each] for each in (whole, *chosen)]
            first, last = min(span[0] for span in spans), max(span[1] for span in spans)
            self._spans[whole] = first, last, old[2]
            self._add(self._spans[whole], 1)
            if not chosen or self._needed[first : last + 1].max() <= peak:
                return chosen
            self._add(self._spans[whole], -1)
            self._spans[whole] = old
            self._add(self._spans[chosen.pop()], 1)
