"""Entries of options such as ``--io inputs=int8``, which are read one by one and gathered into a dict."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

__all__ = [
    "binding",
    "bindings",
    "entries",
    "io_entry",
    "order_entry",
    "orders",
    "positive",
    "refused_option",
]


def bindings(given: Sequence[tuple[str, int, int]]) -> dict[str, dict[int, int]] | None:
    """Gathers sizes in a dict: ``("x", 0, 1)`` becomes ``{"x": {0: 1}}``."""
    bound: dict[str, dict[int, int]] = {}
    for name, axis, size in given:
        sizes = bound.setdefault(name, {})
        if axis in sizes:
            raise refused_option("--bind", f"axis {axis} of '{name}' is given twice", "each axis once")
        sizes[axis] = size
    return bound or None


def entries(option: str, given: Sequence[tuple[str, Any]]) -> dict[str, Any] | None:
    """Gathers entries in a dict.

    A key that occurs twice is refused: a dict would silently use the last one.
    """
    entries: dict[str, Any] = {}
    for key, value in given:
        if key in entries:
            raise refused_option(option, f"'{key}' is given twice", "each entry once")
        entries[key] = value
    return entries or None


def orders(given: Sequence[tuple[str, str, Any]]) -> dict[str, Any] | None:
    """Gathers orders in a dict: ``("inputs", "x", "nhwc")`` becomes ``{"inputs": {"x": "nhwc"}}``.

    An empty name stands for the whole side.
    """
    sides: dict[str, Any] = {}
    for side, name, form in given:
        forms: Any = sides.setdefault(side, {}) if name else sides
        key = int(name) if name.isdecimal() else name or side
        if not isinstance(forms, dict) or key in forms:
            raise refused_option(
                "--orders", f"'{side}' is given twice", "one order for all, or one for each name"
            )
        forms[key] = form
    return sides or None


def refused_option(option: str, what: str, expected: str) -> Exception:
    """Returns the error for a wrong entry of an option."""
    from tosaic import _core

    return _core.make_error(_core.InvalidGraph, where=option, what=what, expected=expected)


def io_entry(text: str) -> tuple[str, str]:
    """Reads an entry of ``--io``: ``inputs=int8`` becomes ``("inputs", "int8")``."""
    side, _, dtype = text.partition("=")
    if not side or not dtype:
        raise argparse.ArgumentTypeError(f"'{text}' is not SIDE=DTYPE, such as inputs=int8")
    return side, dtype


def order_entry(text: str) -> tuple[str, str, str | tuple[int, ...]]:
    """Reads an entry of ``--orders``: ``inputs.x=nhwc`` becomes ``("inputs", "x", "nhwc")``."""
    place, _, form = text.rpartition("=")
    side, dot, name = place.partition(".")
    if not side or not form or (dot and not name):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not SIDE=ORDER or SIDE.NAME=ORDER, such as inputs.x=channels_last"
        )
    axes = form.strip("()").split(",")
    if all(axis.strip().isdecimal() for axis in axes):
        return side, name, tuple(map(int, axes))
    return side, name, form


def binding(text: str) -> tuple[str, int, int]:
    """Reads an entry of ``--bind``: ``x:0=1`` becomes ``("x", 0, 1)``."""
    place, _, size = text.rpartition("=")
    name, _, axis = place.rpartition(":")
    if not name or not size.isdecimal() or not axis.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not INPUT:AXIS=SIZE, such as x:0=1")
    return name, int(axis), int(size)


def positive(text: str) -> int:
    """Reads a whole number that is at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number, 1 or more")
    return int(text)
