"""Finds the nodes of a `CallGraph` that conditions select."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from tosaic import _core
from tosaic.annotation.call_graph import CallGraph

__all__ = ["select"]


def select(graph: CallGraph, conditions: Mapping[str, str | Sequence[str]]) -> list[int]:
    """Returns the positions of the nodes for which all conditions hold.

    Parameters
    ----------
    graph : CallGraph
    conditions : mapping
        ``name``, ``regex``, ``module``, ``type``, ``op``, ``nodes``, as in `tosaic.QConfig.set`.

    Raises
    ------
    InvalidGraph
        There are conditions, and no node for which they hold. The message has near names.
    """
    if not conditions:
        return list(range(len(graph)))
    calls = [graph._core.call(i) for i in range(len(graph))]
    found = [
        i
        for i, call in enumerate(calls)
        if all(_HOLDS[key](call, wanted) for key, wanted in conditions.items())
    ]
    if not found:
        raise _nothing(calls, conditions)
    return found


def _in_module(call: Mapping[str, Any], wanted: str) -> bool:
    return any(path and fnmatchcase(path, wanted) for path, _ in call["modules"])


def _of_type(call: Mapping[str, Any], wanted: str) -> bool:
    return any(kind == wanted or kind.rpartition(".")[2] == wanted for _, kind in call["modules"])


def _short(target: str) -> str:
    return target.split(".")[1] if target.count(".") else target


_HOLDS: dict[str, Any] = {
    "name": lambda call, wanted: call["name"] == wanted,
    "regex": lambda call, wanted: re.fullmatch(wanted, call["name"]) is not None,
    "module": _in_module,
    "type": _of_type,
    "op": lambda call, wanted: wanted in (call["target"], _short(call["target"])),
    "nodes": lambda call, wanted: call["name"] in wanted,
}


def _nothing(calls: Sequence[Mapping[str, Any]], conditions: Mapping[str, Any]) -> Exception:
    known = {call["name"] for call in calls} | {_short(call["target"]) for call in calls}
    known |= {part for call in calls for scope in call["modules"] for part in (scope[0], scope[1].rpartition(".")[2])}
    wanted = [value for each in conditions.values() for value in ([each] if isinstance(each, str) else each)]
    near = sorted({match for text in wanted for match in get_close_matches(text, [k for k in known if k], 3)})
    text = ", ".join(f"{key}={value!r}" for key, value in conditions.items())
    return _core.make_error(
        _core.InvalidGraph,
        where="QConfig",
        what=f"the selection {text} selects nothing",
        hint=f"Near names: {', '.join(near)}" if near else "",
    )
