"""Writes to standard output and standard error, which may be closed or full."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from tosaic.base.visible import visible


class OutputError(Exception):
    """Standard output cannot be written: the disk is full, or the system reports another error."""


def say(text: str) -> None:
    """Writes to standard output; escapes characters that its encoding lacks, or that control a terminal.

    It is not an error if the reader of a pipe, such as ``head``, has ended: the exit code is still that of
    the command's result.

    Raises
    ------
    OutputError
        The system refuses to write. Standard output is then redirected to the null device.
    """
    stream = sys.stdout
    if stream is None:  # closed before the process began
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(visible(text).encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        silence(stream)
    except OSError as error:
        silence(stream)
        raise OutputError(f"[output] standard output could not be written: got {error.strerror}") from error


def silence(stream: Any) -> None:
    """Redirects a stream to the null device, because the interpreter's final flush would fail again."""
    with suppress(OSError, ValueError, AttributeError):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def complain(message: str, code: int, *, before: str = "") -> int:
    """Writes a message to standard error, if that can be written; returns the exit code `code`."""
    try:
        sys.stderr.write(visible(f"{before}tosaic: {message}\n"))
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # full, closed or absent; the exit code remains
        silence(sys.stderr)
    return code
