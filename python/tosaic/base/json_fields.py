"""Reads untrusted JSON: every entry is checked, and errors name the entry."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tosaic.base.dtypes import NUMPY_INTEGERS
from tosaic.base.json_text import parsed_json
from tosaic.base.options import invalid, shown
from tosaic.base.quantization import Groups, QParams

_MOST_AXES = 64
_LIMIT = 1 << 63


def read_json(where: str, text: str | bytes) -> Fields:
    """Parses JSON whose outermost value is an object.

    Raises
    ------
    InvalidGraph
        The text is not JSON, or is another value.
    """
    try:
        data = parsed_json(text)
    except (TypeError, ValueError) as error:
        raise _damaged(where, "its JSON cannot be read", got=f"{type(error).__name__}: {error}") from None
    return Fields(data, where)


class Fields:
    """An object of JSON. Each method returns one entry, and raises InvalidGraph if it is missing or wrong.

    Parameters
    ----------
    data : object
        The parsed value, which must be an object.
    where : str
        The operation that reads it, for errors.
    path : str
        The place of the object in the file.
    """

    def __init__(self, data: Any, where: str, path: str = "") -> None:
        self._where = where
        self._path = path
        if not isinstance(data, dict):
            raise self.error("", "an object", data)
        self._data = data

    def error(self, key: str, expected: str, got: Any) -> Exception:
        """Returns the error for an entry."""
        place = ".".join(filter(None, (self._path, key))) or "the file"
        return _damaged(self._where, f"{place} is damaged", expected=expected, got=shown(got))

    def require_format(self, name: str, version: int) -> None:
        """Raises InvalidGraph unless the object states this format and version."""
        if self._data.get("format") != name:
            raise self.error("format", repr(name), self._data.get("format"))
        found = self._data.get("version")
        if type(found) is not int or found != version:
            raise _damaged(
                self._where,
                "it has another version",
                expected=str(version),
                got=shown(found),
                hint="Write it again with this version of tosaic",
            )

    def value(self, key: str) -> Any:
        """Returns an entry of any type."""
        if key not in self._data:
            raise self.error(key, "an entry", "none")
        return self._data[key]

    def text(self, key: str) -> str:
        """Returns a string."""
        found = self.value(key)
        if not isinstance(found, str):
            raise self.error(key, "a string", found)
        return found

    def flag(self, key: str, *, otherwise: bool | None = None) -> bool:
        """Returns true or false. If there is no entry, returns `otherwise` unless it is None."""
        if otherwise is not None and key not in self._data:
            return otherwise
        found = self.value(key)
        if not isinstance(found, bool):
            raise self.error(key, "true or false", found)
        return found

    def whole(self, key: str) -> int:
        """Returns an integer of at most 64 bits."""
        return self._whole(key, self.value(key))

    def count(self, key: str) -> int:
        """Returns an integer that is not negative."""
        found = self.whole(key)
        if found < 0:
            raise self.error(key, "an integer, 0 or more", found)
        return found

    def axes(self, key: str) -> tuple[int, ...]:
        """Returns a list of integers that are not negative, one for each axis."""
        found = self._list(key)
        if len(found) > _MOST_AXES:
            raise self.error(key, f"at most {_MOST_AXES} axes", f"{len(found)}")
        out = tuple(self._whole(key, each) for each in found)
        if any(each < 0 for each in out):
            raise self.error(key, "integers, 0 or more", found)
        return out

    def integers(self, key: str) -> tuple[int, ...]:
        """Returns a list of integers."""
        return tuple(self._whole(key, each) for each in self._list(key))

    def numbers(self, key: str) -> tuple[float, ...]:
        """Returns a list of finite numbers."""
        out = []
        for each in self._list(key):
            is_number = isinstance(each, int | float) and not isinstance(each, bool)
            if not is_number or abs(each) > 1e300 or not math.isfinite(each):
                raise self.error(key, "finite numbers", each)
            out.append(float(each))
        return tuple(out)

    def at(self, key: str) -> Fields:
        """Returns an object."""
        return Fields(self.value(key), self._where, self._below(key))

    def at_or_none(self, key: str) -> Fields | None:
        """Returns an object, or None for null."""
        return None if self.value(key) is None else self.at(key)

    def each(self, key: str) -> Iterator[Fields]:
        """Yields the objects of a list."""
        for i, entry in enumerate(self._list(key)):
            yield Fields(entry, self._where, self._below(f"{key}[{i}]"))

    def _below(self, key: str) -> str:
        return ".".join(filter(None, (self._path, key)))

    def _list(self, key: str) -> list[Any]:
        found = self.value(key)
        if not isinstance(found, list):
            raise self.error(key, "a list", found)
        return found

    def _whole(self, key: str, found: Any) -> int:
        if type(found) is not int or not -_LIMIT <= found < _LIMIT:
            raise self.error(key, "an integer of at most 64 bits", found)
        return found


def qparams_to_json(qparams: QParams) -> dict[str, Any]:
    """Returns qparams as dicts, lists, strings and numbers. Scales are exact."""
    groups = qparams.groups
    return {
        "dtype": qparams.dtype,
        "scales": list(qparams.scales),
        "zero_points": list(qparams.zero_points),
        "qmin": qparams.qmin,
        "qmax": qparams.qmax,
        "axis": qparams.axis,
        "groups": None if groups is None else {"axis": groups.axis, "size": groups.size},
    }


def qparams_from_json(fields: Fields) -> QParams:
    """Reads what `qparams_to_json` returned.

    Raises
    ------
    InvalidGraph
        An entry is missing or wrong, or the entries contradict each other.
    """
    dtype = fields.text("dtype")
    if dtype not in NUMPY_INTEGERS:
        raise fields.error("dtype", f"one of {', '.join(NUMPY_INTEGERS)}", dtype)
    scales, zero_points = fields.numbers("scales"), fields.integers("zero_points")
    if not scales or any(scale <= 0 for scale in scales):
        raise fields.error("scales", "numbers above 0", list(scales))
    if len(scales) != len(zero_points):
        raise fields.error("zero_points", f"{len(scales)}, as many as scales", list(zero_points))
    axis = None if fields.value("axis") is None else fields.count("axis")
    if axis is None and len(scales) != 1:
        raise fields.error("axis", "an axis, since there are several scales", None)
    groups = fields.at_or_none("groups")
    qmin, qmax = fields.whole("qmin"), fields.whole("qmax")
    if qmin > qmax:
        raise fields.error("qmin", f"at most {qmax}, which is qmax", qmin)
    return QParams(
        dtype,
        scales,
        zero_points,
        qmin,
        qmax,
        axis,
        None if groups is None else Groups(groups.count("axis"), groups.count("size")),
    )


def _damaged(where: str, what: str, **parts: str) -> Exception:
    return invalid(where, what, **parts)
