"""Reads JSON values without trusting them, with few steps, since a program has thousands of them.

A function returns the value, or raises `WrongJsonError`. The code that reads a node, a tensor or another
entry catches `MISUSE` and names the entry (`damaged`), which may also raise Python's own errors.
"""

from __future__ import annotations

from typing import Any

from tosaic.base.options import invalid, shown, unsupported

_LIMIT = 1 << 63


class WrongJsonError(ValueError):
    """A value does not have the type or range of the format."""

    def __init__(self, expected: str, got: Any) -> None:
        super().__init__(f"expected {expected}, got {shown(got)}")
        self.expected, self.got = expected, shown(got)


MISUSE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)
"""The exceptions that a damaged value may raise when it is used. MemoryError is not the file's fault."""


def damaged(what: str, expected: str = "", got: str = "") -> Exception:
    """Returns the error for an archive that contradicts its format."""
    return invalid("pt2", what, expected=expected, got=got[:300])


def misused(what: str, error: BaseException) -> Exception:
    """Returns the error for an entry whose reading raised an exception of `MISUSE`."""
    if isinstance(error, WrongJsonError):
        return damaged(what, expected=error.expected, got=error.got)
    return damaged(what, got=f"{type(error).__name__}: {error}")


def beyond(what: str, expected: str = "", got: str = "") -> Exception:
    """Returns the error for something that only torch can read."""
    return unsupported("pt2", what, expected=expected, got=got[:300])


def integer(value: Any) -> int:
    """Returns an integer of at most 64 bits."""
    if type(value) is not int or not -_LIMIT <= value < _LIMIT:
        raise WrongJsonError("an integer of at most 64 bits", value)
    return value


def text(value: Any) -> str:
    """Returns a string that can be encoded, without NUL."""
    if type(value) is not str or "\0" in value or not _is_encodable(value):
        raise WrongJsonError("a string", value)
    return value


def _is_encodable(value: str) -> bool:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def listed(value: Any) -> list[Any]:
    """Returns a list."""
    if type(value) is not list:
        raise WrongJsonError("a list", value)
    return value


def mapping(value: Any) -> dict[str, Any]:
    """Returns an object."""
    if type(value) is not dict:
        raise WrongJsonError("an object", value)
    return value


def union(value: Any) -> tuple[str, Any]:
    """Returns the tag and the value of an object with one entry."""
    if type(value) is not dict or len(value) != 1:
        raise WrongJsonError("an object with one entry", value)
    return next(iter(value.items()))
