"""Notes on exceptions of the user's functions: they say where tosaic called the function."""

from __future__ import annotations


def add_note(error: BaseException, note: str) -> None:
    """Adds a line to the traceback of an exception. Python 3.10 has no such notes, and nothing is added."""
    add = getattr(error, "add_note", None)
    if add is not None:
        add(note)
