"""Parses untrusted JSON: `parsed_json`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

DEEPEST = 256
"""The most levels of nesting: readers recurse for each level, and Python allows about a thousand calls."""


def parsed_json(text: str | bytes) -> Any:
    """Returns the value of a text.

    Raises
    ------
    ValueError
        The text is not JSON, has more than `DEEPEST` levels, an object with the same key twice, of which
        readers take one or the other, or a string with half a character (a lone surrogate), which could not
        be written again.
    """
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise _too_deep() from None
    level, depth = [data], 0
    while level:
        if depth > DEEPEST:
            raise _too_deep()
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str) and not item.isascii():
                _require_whole(item)
        level, depth = below, depth + 1
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!a} occurs twice")
    return found


def _require_whole(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a string has half a character: {text!a}") from None


def _too_deep() -> ValueError:
    return ValueError(f"more than {DEEPEST} levels are nested")
