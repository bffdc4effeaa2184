"""Bounds the memory for untrusted files: archives that expand, and arrays that claim a size.

A zip archive of a megabyte can unpack to a gigabyte, several of its members can be the same bytes, and the
header of an array can claim any shape. So the sizes that a file claims are compared with the size of the file
before anything is unpacked, and no member unpacks to more than it claims.
"""

from __future__ import annotations

import math
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable

_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_read_magic: Any = np.lib.format.read_magic


def room(size: int, *, least: int, times: int) -> int:
    """Returns how many bytes the members of an archive of `size` bytes may have in all."""
    return max(least, times * size)


def require_room(members: Iterable[zipfile.ZipInfo], allowed: int) -> None:
    """Checks the sizes that members claim. `zipfile` unpacks no member to more.

    Raises
    ------
    ValueError
        The members claim more than `allowed` bytes in all; the message has both numbers.
    """
    claimed = sum(member.file_size for member in members)
    if claimed > allowed:
        raise ValueError(f"{claimed} bytes when it is unpacked, of which at most {allowed} are read")


def require_claimed(file: IO[bytes], size: int, name: str, *, exact: bool = False) -> None:
    """Checks the header of an array in numpy's format, for which numpy makes room; seeks back to the array.

    Parameters
    ----------
    file : binary file
        The file, at the first byte of the array.
    size : int
        How many bytes the file has.
    name : str
        The name of the file or member, for messages.
    exact : bool
        The file is one that tosaic wrote: of version 1.0 of the format, with nothing after the elements.

    Raises
    ------
    ValueError
        The header claims more bytes than the file has, or, if `exact`, fewer. Or the array has a version of
        the format that is not read.
    """
    version = _read_magic(file)
    if version not in _HEADERS or (exact and version != (1, 0)):
        raise ValueError(f"'{name}' is of version {version[0]}.{version[1]} of the format of arrays")
    shape, _, dtype = _HEADERS[version](file)
    claimed, found = math.prod(shape) * dtype.itemsize, size - file.tell()
    if (exact and claimed != found) or (claimed > found and not dtype.hasobject):
        raise ValueError(f"'{name}' claims {claimed} bytes and has {found}")
    file.seek(0)
