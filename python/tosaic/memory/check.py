"""An independent check of a memory plan: it simulates the schedule on the planned places.

The check knows neither lifetimes nor the planner's decisions. Each write puts the mark of its value into the
bytes of its place, and each read has to find the mark of its value in every byte. So the step that reads a
buffer finds out if the buffer was overwritten too early.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from tosaic.memory.schedule import Schedule, Step

_SCRATCH = -1
_OWNED = ("input", "state")

_Marked: TypeAlias = tuple[int, int, int, int]
"""First byte, byte after the last, mark, and byte of the marked value at the first byte."""


@dataclass(frozen=True)
class Place:
    """Where a value is: a memory, and the first byte in it."""

    memory: str
    offset: int


def fault_of(
    schedule: Schedule,
    places: Sequence[Place | None],
    scratch: Sequence[Place | None],
    sizes: Mapping[str, int],
    *,
    alignment: int,
    owned: Sequence[str] = (),
) -> str:
    """Returns the first fault of a plan; empty if there is none.

    Parameters
    ----------
    schedule : Schedule
    places : sequence of Place or None
        One for each value; None for constants and views of them.
    scratch : sequence of Place or None
        One for each step.
    sizes : mapping of str to int
        The bytes of each memory.
    alignment : int
        The alignment of values that are not views.
    owned : sequence of str
        Memories that the program must not change, except for new values of the inputs in them.
    """
    return _Run(schedule, places, scratch, sizes, alignment).fault(owned)


class _Run:
    def __init__(
        self,
        schedule: Schedule,
        places: Sequence[Place | None],
        scratch: Sequence[Place | None],
        sizes: Mapping[str, int],
        alignment: int,
    ) -> None:
        self._schedule, self._places, self._scratch = schedule, places, scratch
        self._sizes, self._alignment = sizes, alignment
        self._bytes: dict[str, _Marks] = {}
        # contents -> (concatenation that contains them, offset from their bytes to its bytes)
        self._copies: dict[int, list[tuple[int, int]]] = {}

    def fault(self, owned: Sequence[str]) -> str:
        return self._bad_place() or self._at_start() or self._in_steps() or self._at_end(owned)

    def _bad_place(self) -> str:
        spans = [
            (value.name, value.nbytes, place, value.view_of is None)
            for value, place in zip(self._schedule.values, self._places, strict=True)
        ]
        spans += [
            (f"the scratch of {step.name}", step.scratch, place, True)
            for step, place in zip(self._schedule.steps, self._scratch, strict=True)
        ]
        for name, nbytes, place, is_aligned in spans:
            if place is None:
                continue
            if place.offset < 0 or place.offset + nbytes > self._sizes[place.memory]:
                return f"{name} is outside of {place.memory}"
            if is_aligned and place.offset % self._alignment:
                return f"{name} is not aligned"
        return ""

    def _at_start(self) -> str:
        given = [i for i, value in enumerate(self._schedule.values) if value.kind in _OWNED]
        for value in given:
            self._write(value)
        for value in given:
            if not self._holds(value):
                return f"{self._name(value)} and another input or state have the same bytes"
        return ""

    def _in_steps(self) -> str:
        for step, scratch in zip(self._schedule.steps, self._scratch, strict=True):
            for value in step.reads:
                if not self._holds(value):
                    return f"{step.name} reads {self._name(value)}, which was overwritten"
            if scratch is not None and step.scratch:
                span = (scratch.memory, scratch.offset, scratch.offset + step.scratch)
                for value in (*step.reads, *step.writes):
                    if self._meets(value, span):
                        return f"the scratch of {step.name} has bytes of {self._name(value)}"
                self._mark(span, _SCRATCH)
            parts = [each for each in step.parts if self._is_part(step.writes[0], *each)]
            clash = self._clash(step, {each for each, _ in parts})
            if clash is not None:
                return f"{step.name} writes {self._name(clash[0])} over {self._name(clash[1])}"
            for value in step.writes:
                self._write(value)
            for value, offset in parts:
                contents, at = self._schedule.contents(value)
                self._copies.setdefault(contents, []).append((step.writes[0], offset - at))
        return ""

    def _at_end(self, owned: Sequence[str]) -> str:
        schedule = self._schedule
        for needed in schedule.final:
            if not self._holds(needed):
                return f"{self._name(needed)} is needed at the end, and was overwritten"
        new = dict(schedule.new_values)
        for i, value in enumerate(schedule.values):
            place = self._places[i]
            if value.kind not in _OWNED or place is None:
                continue
            if value.kind != "state" and place.memory not in owned:
                continue
            span = (place.memory, place.offset, place.offset + value.nbytes)
            marks = {mark for _, _, mark, _ in self._within(span)}
            if not marks <= {i, schedule.contents(new.get(i, i))[0]}:
                return f"{value.name} is not the program's, and was overwritten"
        return ""

    # ---- bytes ----

    def _is_part(self, whole: int, value: int, offset: int) -> bool:
        """True if an operand's place is already its place in the result of a concatenation."""
        outer, own = self._span(whole), self._span(value)
        return outer is not None and own is not None and own[0] == outer[0] and own[1] == outer[1] + offset

    def _name(self, value: int) -> str:
        return self._schedule.values[value].name

    def _span(self, value: int) -> tuple[str, int, int] | None:
        place, nbytes = self._places[value], self._schedule.values[value].nbytes
        return None if place is None else (place.memory, place.offset, place.offset + nbytes)

    def _within(self, span: tuple[str, int, int]) -> list[_Marked]:
        memory, first, end = span
        return self._bytes[memory].within(first, end) if memory in self._bytes else []

    def _mark(self, span: tuple[str, int, int], mark: int) -> None:
        memory, first, end = span
        self._bytes.setdefault(memory, _Marks()).write(first, end, mark)

    def _write(self, value: int) -> None:
        span = self._span(value)
        if span is not None:
            self._mark(span, value)

    def _holds(self, value: int) -> bool:
        """True if the bytes of a value have its contents, or those of the base of a view."""
        span = self._span(value)
        if span is None:
            return True
        _, first, end = span
        contents, offset = self._schedule.contents(value)
        found = self._within(span)
        covered = sum(min(b, end) - max(a, first) for a, b, _, _ in found)
        same = self._same(contents, offset)
        return covered == end - first and all((mark, at + first - a) in same for a, _, mark, at in found)

    def _same(self, contents: int, offset: int) -> set[tuple[int, int]]:
        """Returns the values and bytes with these contents: the value itself, and concatenations of it."""
        found, new = {(contents, offset)}, [(contents, offset)]
        while new:
            value, at = new.pop()
            for whole, shift in self._copies.get(value, ()):
                if (whole, at + shift) not in found:
                    found.add((whole, at + shift))
                    new.append((whole, at + shift))
        return found

    def _meets(self, value: int, span: tuple[str, int, int]) -> bool:
        own = self._span(value)
        return own is not None and own[0] == span[0] and own[1] < span[2] and span[1] < own[2]

    def _clash(self, step: Step, inside: Set[int]) -> tuple[int, int] | None:
        """Returns a result and an operand or result that it overwrites although it must not; or None.

        If results do not overlap, an operand is compared with two results only: it can have the place of the
        first result of a step, and no other.
        """
        spans = {value: span for value in step.writes if (span := self._span(value)) and span[1] < span[2]}
        results = sorted(spans, key=lambda value: spans[value])
        for value, other in pairwise(results):
            if self._meets(value, spans[other]):
                return other, value
        ends = [(spans[value][0], spans[value][2]) for value in results]
        overwritable = set(step.in_place)
        for operand in step.reads:
            own = self._span(operand)
            if own is None or own[1] == own[2] or operand in spans:
                continue
            at = bisect_right(ends, (own[0], own[1]))
            for value in results[at : at + 2]:
                is_over = operand in overwritable and spans[value] == own
                may_be = value == step.writes[0] and (operand in inside or is_over)
                if not may_be and self._meets(value, own):
                    return value, operand
        return None


class _Marks:
    """The marks of the bytes of a memory, as disjoint spans by their first bytes."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._spans: list[_Marked] = []

    def within(self, first: int, end: int) -> list[_Marked]:
        """Returns the spans that have bytes from `first` to before `end`."""
        return self._spans[self._met(first, end)]

    def write(self, first: int, end: int, mark: int) -> None:
        """Marks bytes, and removes the marks that they had."""
        if first == end:
            return
        met = self._met(first, end)
        replaced, new = self._spans[met], [(first, end, mark, 0)]
        if replaced and replaced[0][0] < first:
            begin, _, other, at = replaced[0]
            new.insert(0, (begin, first, other, at))
        if replaced and replaced[-1][1] > end:
            begin, last, other, at = replaced[-1]
            new.append((end, last, other, at + end - begin))
        self._spans[met] = new
        self._firsts[met] = [each[0] for each in new]

    def _met(self, first: int, end: int) -> slice:
        begin = bisect_right(self._firsts, first)
        if begin and self._spans[begin - 1][1] > first:
            begin -= 1
        return slice(begin, max(begin, bisect_left(self._firsts, end)))
