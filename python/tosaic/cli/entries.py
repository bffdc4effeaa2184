"""Entries of options such as ``--io inputs=int8``, which are read one by one and gathered into a dict."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tosaic.base.file_kinds import PTE
from tosaic.base.threads import MOST_THREADS


def bindings(given: Sequence[tuple[str, int, int]]) -> dict[str, dict[int, int]] | None:
    """Gathers sizes in a dict: ``("x", 0, 1)`` becomes ``{"x": {0: 1}}``."""
    bound: dict[str, dict[int, int]] = {}
    for name, axis, size in given:
        sizes = bound.setdefault(name, {})
        if axis in sizes:
            raise refused_option("--bind", f"axis {axis} of '{name}' is given twice", "each axis once")
        sizes[axis] = size
    return bound or None


def orders(given: Sequence[tuple[str, str, Any]]) -> dict[str, Any] | None:
    """Gathers orders in a dict: ``("inputs", "x", "nhwc")`` becomes ``{"inputs": {"x": "nhwc"}}``.

    An empty name means the whole side.
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


def refused_option(option: str, what: str, expected: str, hint: str = "") -> Exception:
    """Returns the error for a wrong entry of an option."""
    from tosaic.base.options import invalid  # loads the core, which --help does without

    return invalid(option, what, expected=expected, hint=hint)


def source_entry(text: str) -> tuple[str, str]:
    """Reads an entry of ``--source``: ``delegate0=a.tosa`` becomes ``("delegate0", "a.tosa")``."""
    delegate, _, file = text.partition("=")
    if not delegate or not file:
        raise argparse.ArgumentTypeError(f"'{text}' is not DELEGATE=FILE, such as delegate0=model.tosa")
    return delegate, file


def with_sources(given: Sequence[tuple[str, str]], *files: str) -> tuple[Any, ...]:
    """Returns the files; a ``.pte`` file among them is read, with the sources of its delegates."""
    if not given:
        return files
    from tosaic.pte.file import load_pte

    sources: dict[str, str] = {}
    for delegate, source in given:
        if delegate in sources:
            raise refused_option("--source", f"'{delegate}' is given twice", "one file for each delegate")
        sources[delegate] = source
    found = [file for file in files if PTE.holds(file)]
    if len(found) != 1:
        hint = "In Python, load_pte(path, sources=...) gives each file its own" if found else ""
        what = (
            f"{len(found) or 'none'} of the files {'are' if found else 'is a'} .pte file{'s' * bool(found)}"
        )
        raise refused_option("--source", what, "one .pte file", hint)
    return tuple(load_pte(file, sources=sources) if file in found else file for file in files)


def io_entry(text: str) -> tuple[str, str]:
    """Reads an entry of ``--io``: ``inputs=int8`` becomes ``("inputs", "int8")``."""
    place, _, dtype = text.rpartition("=")
    if not place or not dtype:
        raise argparse.ArgumentTypeError(f"'{text}' is not SIDE=DTYPE or NAME=DTYPE, such as inputs=int8")
    return place, dtype


def io_sides(given: Sequence[tuple[str, str]], program: Any) -> dict[str, Any] | None:
    """Gathers entries of ``--io`` in a dict: ``("x", "int8")`` becomes ``{"inputs": {"x": "int8"}}``.

    A place is ``inputs`` or ``outputs``, a name or index after one of these and a dot (``outputs.0``), or
    the path or name of an input or output of the program. A port's own entry has priority over its side.
    """
    named: dict[str, dict[str | int, str]] = {"inputs": {}, "outputs": {}}
    sides: dict[str, Any] = {}
    for place, dtype in given:
        side, dot, name = place.partition(".")
        if place in named:
            if place in sides:
                raise refused_option("--io", f"'{place}' is given twice", "each entry once")
            sides[place] = dtype
            continue
        if not dot or side not in named:
            side, name = _side_of(place, program), place
        key: str | int = int(name) if name.isdecimal() else name
        if key in named[side]:
            raise refused_option("--io", f"'{place}' is given twice", "each entry once")
        named[side][key] = dtype
    for side, ports in named.items():
        if ports:
            rest = _others(side, ports, sides[side], program) if side in sides else {}
            sides[side] = {**ports, **rest}
    return sides or None


def _side_of(place: str, program: Any) -> str:
    from tosaic.ports.port_names import known_names, near_names, position_of

    sides = {
        "inputs": [(port.path, port.name) for port in program.inputs],
        "outputs": [(port.path, port.name) for port in program.outputs if port.kind == "user"],
    }
    paths = [side for side, ports in sides.items() if place in [path for path, _ in ports]]
    found = [side for side, ports in sides.items() if position_of(place, ports) is not None]
    if len(paths or found) == 1:  # a path comes before the name of a value
        return (paths or found)[0]
    both = [*sides["inputs"], *sides["outputs"]]
    hint = near_names(place, both)
    if found:
        hint = f"Write inputs.{place} or outputs.{place}"
    expected = f"inputs, outputs, or {known_names(both)} after inputs. or outputs."
    raise refused_option("--io", f"there is no single input or output '{place}'", expected, hint)


def _others(side: str, named: dict[str | int, str], dtype: str, program: Any) -> dict[int, str]:
    """Returns a dtype for the quantized ports of a side that have no entry."""
    from tosaic.ports.port_names import position_of

    ports = [port for port in getattr(program, side) if port.kind == "user"]
    names = [(port.path, port.name) for port in ports]
    own = {position_of(key, names) for key in named}
    return {i: dtype for i, port in enumerate(ports) if i not in own and port.quantized}


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


def threads(text: str) -> int:
    """Reads a number of threads."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 to {MOST_THREADS}")
    return int(text)


def positive(text: str) -> int:
    """Reads a whole number that is at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number, 1 or more")
    return int(text)
