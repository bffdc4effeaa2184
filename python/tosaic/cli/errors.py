"""Converts an error to an exit code, a message and, with ``--json``, an object."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tosaic.cli.output import OutputError, complain, say

ABOUT_FOREIGN = (
    'The command line takes no descriptions of operators. docs/reference/cli.md, "Foreign operators", has '
    "the lines of Python that run, lower or compare such a program."
)
OK, FAILED, USAGE, UNSUPPORTED, INTERNAL = range(5)
INTERRUPTED = 130


def exit_code(error: Exception) -> int:
    """Returns the exit code for an error that a command raised."""
    from tosaic import _core

    if isinstance(error, _core.UnsupportedOp | _core.SpecViolation):
        return UNSUPPORTED
    if isinstance(error, _core.InternalError):
        return INTERNAL
    if isinstance(error, _core.Error | OSError | ImportError | MemoryError):
        return USAGE
    return INTERNAL


def message_of(error: Exception) -> str:
    """Returns the message for an error; for a fault of tosaic, the traceback too."""
    from tosaic import _core

    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"there is no file '{error.filename}'"
    if isinstance(error, _core.Error | OSError | ImportError):
        return str(error) + _about_foreign(error)
    if isinstance(error, MemoryError):
        return "there is not enough memory" + (f": {error}" if str(error) else "")
    import traceback

    return "".join(traceback.format_exception(error)) + "This is a fault of tosaic; please report it."


def _about_foreign(error: Exception) -> str:
    """Returns advice about foreign operators, because the hints of such an error are calls in Python."""
    if any("foreign" in parts.get("what", "") for parts in problems_of(error)):
        return f"\n{ABOUT_FOREIGN}"
    return ""


def kind_of(error: Exception) -> str:
    """Returns the name of the error's class; for a missing file, the name of Python's own class."""
    return "FileNotFoundError" if isinstance(error, FileNotFoundError) else type(error).__name__


def problems_of(error: Exception) -> list[dict[str, str]]:
    """Returns the parts of each problem that an error of tosaic lists; empty for other errors."""
    each = getattr(error, "each", None) or [getattr(error, "parts", None)]
    return [dict(parts) for parts in each if parts]


def fail(
    message: str,
    code: int,
    *,
    kind: str,
    as_json: bool,
    problems: Sequence[dict[str, str]] = (),
    before: str = "",
) -> int:
    """Reports an error as text on standard error and, with `as_json`, also as JSON on standard output."""
    complain(message, code, before=before)
    if as_json:
        error = {"kind": kind, "message": message, "exit_code": code, "problems": list(problems)}
        try:
            say(json.dumps({"error": error}, indent=2) + "\n")
        except OutputError as fault:
            return complain(str(fault), USAGE)
    return code
