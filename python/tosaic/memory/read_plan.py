"""Reads memory plans that `MemoryPlan.to_json` and `MemoryPlan.to_csv` wrote.

A JSON file has the whole plan. A CSV file has only the buffers: an arena is as large as its buffers need, its
bound is the greatest sum of live bytes, and steps are named by their numbers. Every plan that is read is
checked again: alignment, sizes of arenas, sharing, and buffers that overlap in time and bytes.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.json_text import parsed_json
from tosaic.base.options import invalid
from tosaic.base.reading import ReadError, read_bytes
from tosaic.memory.buffers import CALLER, CONSTANTS, MemoryArena, MemoryBuffer, alignment_of
from tosaic.memory.plan_options import KINDS

if TYPE_CHECKING:
    import os

    from tosaic.memory.plan import MemoryPlan

_INTEGERS = ("nbytes", "first", "last", "offset")
_COLUMNS = tuple(each.name for each in fields(MemoryBuffer))
_MOST_ALIGNMENT = 64
_MOST = 1 << 48
_MOST_ARENAS = 256
_STEPS_PER_BUFFER, _STEPS_AT_LEAST = 16, 4096
"""The most steps of a CSV file, which has no list of steps. Nearly every step of a plan makes a buffer."""


def plan_from_json(path: str | os.PathLike[str], kind: type[MemoryPlan]) -> MemoryPlan:
    """Reads a plan of a class from a JSON file; see `MemoryPlan.from_json`."""
    text = _text_of(path)
    try:
        data = parsed_json(text)
    except ValueError as error:
        raise _refusal(path, "not a JSON file", "the JSON of a memory plan", str(error)) from None
    keys = ("name", "arenas", "steps", "live_bytes", "buffers")
    if not isinstance(data, dict) or any(key not in data for key in keys):
        got = sorted(data) if isinstance(data, dict) else type(data).__name__
        raise _refusal(path, "not a memory plan", f"an object with {', '.join(keys)}", got)
    arenas = [_arena(path, row) for row in _rows(path, data, "arenas")]
    steps, live = _list(path, data, "steps", str), _list(path, data, "live_bytes", int)
    if not isinstance(data["name"], str):
        raise _refusal(path, "'name' is wrong", "a string", data["name"])
    if len(live) != len(steps) + 1:
        raise _refusal(path, "'live_bytes' is wrong", f"{len(steps) + 1} numbers", len(live))
    rows = _rows(path, data, "buffers")
    buffers = [_buffer(path, f"buffer {i}", row, len(steps)) for i, row in enumerate(rows)]
    counts = tuple(_count(path, "live_bytes", each) for each in live)
    return _checked(path, kind(data["name"], tuple(buffers), tuple(arenas), tuple(steps), counts))


def plan_from_csv(path: str | os.PathLike[str], kind: type[MemoryPlan]) -> MemoryPlan:
    """Reads a plan of a class from a CSV file; see `MemoryPlan.from_csv`."""
    rows = list(csv.reader(io.StringIO(_text_of(path))))
    if not rows or tuple(rows[0]) != _COLUMNS:
        got = ",".join(rows[0]) if rows else "nothing"
        raise _refusal(path, "wrong columns", ",".join(_COLUMNS), got)
    buffers, most_steps = [], _STEPS_AT_LEAST + _STEPS_PER_BUFFER * len(rows)
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(_COLUMNS):
            raise _refusal(path, f"line {number} has too few or many fields", len(_COLUMNS), len(row))
        found: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
        found["shape"] = [_number(path, f"shape in line {number}", n) for n in found["shape"].split("x") if n]
        for key in _INTEGERS:
            found[key] = _number(path, f"{key} in line {number}", found[key])
        buffers.append(_buffer(path, f"line {number}", found, most_steps))
    end = max((each.last for each in buffers), default=0)
    steps, live, arenas = tuple(map(str, range(end))), [0] * (end + 1), []
    names = dict.fromkeys(each.arena for each in buffers)
    _require_few(path, names)
    for name in names:
        members = [each for each in buffers if each.arena == name and each.kind != "internal"]
        if name in (CALLER, CONSTANTS) or not members:
            continue
        alignment = alignment_of((each.offset for each in members if each.alias == "none"), _MOST_ALIGNMENT)
        places = _places(path, buffers, name, alignment)
        _, _, bound, bytes_at = _core.place_shared(places, budget=0)
        size = max(each.offset + each.nbytes for each in members)
        arenas.append(MemoryArena(name, -(-size // alignment) * alignment, alignment, bound))
        live = [a + b for a, b in zip(live, [*bytes_at, *[0] * len(live)], strict=False)]
    return _checked(path, kind(Path(path).stem, tuple(buffers), tuple(arenas), steps, tuple(live)))


def _checked(path: str | os.PathLike[str], plan: MemoryPlan) -> MemoryPlan:
    """Returns the plan with the fault that the independent check finds."""
    names = [each.name for each in plan.arenas]
    _require_few(path, names)
    for twice, count in Counter([*names, *(each.name for each in plan.buffers)]).items():
        if count > 1:
            raise _refusal(path, "a name is there twice", "another name for each arena and buffer", twice)
    for each in plan.buffers:
        if each.arena not in (*names, CALLER, CONSTANTS):
            raise _refusal(path, f"the arena of '{each.name}' is unknown", names, each.arena)
    for arena in plan.arenas:
        members = [each for each in plan.buffers if each.arena == arena.name and each.kind != "internal"]
        places = _places(path, plan.buffers, arena.name, arena.alignment)
        offsets = [each.offset for each in members]
        fault = _core.placement_fault(places, offsets, arena.nbytes)
        if not fault and arena.lower_bound > arena.nbytes:
            fault = f"the lower bound, {arena.lower_bound:,} bytes, is above the size"
        if fault:
            return replace(plan, fault=f"{arena.name}: {_named(fault, members)}")
    return plan


def _require_few(path: str | os.PathLike[str], arenas: Collection[str]) -> None:
    """Refuses more arenas than devices have memories: checking each arena visits all buffers and steps."""
    if len(arenas) > _MOST_ARENAS:
        raise _refusal(path, "there are too many arenas", f"{_MOST_ARENAS} at most", len(arenas))


def _named(fault: str, members: Sequence[MemoryBuffer]) -> str:
    """Returns the text of a fault with names instead of numbers."""
    return re.sub(
        r"\b(buffers?|and) (\d+)\b", lambda found: f"{found[1]} '{members[int(found[2])].name}'", fault
    )


def _places(
    path: str | os.PathLike[str], buffers: Sequence[MemoryBuffer], arena: str, alignment: int = 1
) -> list[tuple[int, int, int, int, str, int, int]]:
    """Returns the buffers of an arena in the form of the planner and the check."""
    members = [each for each in buffers if each.arena == arena and each.kind != "internal"]
    position = {each.name: i for i, each in enumerate(members)}
    found = []
    for each in members:
        target, offset = -1, 0
        if each.alias != "none":
            if each.alias_of not in position:
                raise _refusal(
                    path, f"'{each.name}' shares memory with what is not there", arena, each.alias_of
                )
            target = position[each.alias_of]
            offset = max(0, each.offset - members[target].offset)  # the check reports a negative offset
        asked = 1 if each.alias == "view" else alignment
        found.append((each.nbytes, asked, each.first, each.last, each.alias, target, offset))
    return found


# ---- fields ----


def _text_of(path: str | os.PathLike[str]) -> str:
    try:
        data = read_bytes("memory plan", path)
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except ReadError as error:
        got = error.parts["got"] or error.parts["what"]
        raise _refusal(path, "cannot be read", "a text file", got) from None
    except UnicodeDecodeError as error:
        raise _refusal(path, "cannot be read", "a text file", str(error)) from None


def _rows(path: str | os.PathLike[str], data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = data[key]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _refusal(path, f"'{key}' is wrong", "a list of objects", type(rows).__name__)
    return rows


def _arena(path: str | os.PathLike[str], row: Mapping[str, Any]) -> MemoryArena:
    keys = ("name", "nbytes", "alignment", "lower_bound")
    if any(key not in row for key in keys) or not isinstance(row["name"], str):
        raise _refusal(path, "an arena is wrong", ", ".join(keys), dict(row))
    nbytes, alignment, bound = (_count(path, key, row[key]) for key in keys[1:])
    if alignment < 1 or alignment & (alignment - 1):
        raise _refusal(path, f"the alignment of '{row['name']}'", "a power of two", alignment)
    return MemoryArena(row["name"], nbytes, alignment, bound)


def _list(path: str | os.PathLike[str], data: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    found = data[key]
    if not isinstance(found, list) or not all(isinstance(each, kind) for each in found):
        raise _refusal(path, f"'{key}' is wrong", f"a list of {kind.__name__}", type(found).__name__)
    return found


def _buffer(path: str | os.PathLike[str], where: str, row: Mapping[str, Any], end: int) -> MemoryBuffer:
    """Reads a buffer, whose last step is `end` at most."""
    missing = [key for key in _COLUMNS if key not in row]
    if missing:
        raise _refusal(path, f"{where} has no {missing[0]}", ", ".join(_COLUMNS), ", ".join(row))
    for key in _COLUMNS:
        if key in _INTEGERS:
            _count(path, f"{key} of {where}", row[key])
        elif key != "shape" and not isinstance(row[key], str):
            raise _refusal(path, f"{key} of {where}", "a string", row[key])
    if not isinstance(row["shape"], list):
        raise _refusal(path, f"shape of {where}", "a list of extents", row["shape"])
    shape = tuple(_count(path, f"shape of {where}", each) for each in row["shape"])
    if row["kind"] not in (*KINDS, "constant", "internal"):
        raise _refusal(path, f"kind of {where}", ", ".join((*KINDS, "constant", "internal")), row["kind"])
    if row["alias"] not in ("none", "view", "in_place", "part"):
        raise _refusal(path, f"alias of {where}", "none, view, in_place or part", row["alias"])
    if row["last"] < row["first"]:
        raise _refusal(path, f"{where} ends before it begins", f"at least {row['first']}", row["last"])
    if row["last"] > end:
        raise _refusal(path, f"{where} is needed after the end", f"step {end} at most", row["last"])
    return MemoryBuffer(**{**{key: row[key] for key in _COLUMNS}, "shape": shape})


def _number(path: str | os.PathLike[str], what: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise _refusal(path, what, "a natural number", text)
    return int(text)


def _count(path: str | os.PathLike[str], what: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
        raise _refusal(path, what, "a natural number below 2**48", value)
    return value


def _refusal(path: str | os.PathLike[str], what: str, expected: object, got: object) -> Exception:
    return invalid("memory plan", f"{Path(path).name}: {what}", expected=str(expected), got=str(got))
