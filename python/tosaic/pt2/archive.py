"""The zip archive of a ``.pt2`` file: its index, and its entries as views of the mapped file.

    model/models/model.json                   the program
    model/data/weights/weight_0               bytes of a storage; uncompressed, so it is mapped and not read
    model/data/weights/model_weights_config.json

The reader does not trust the archive. The core reads the index (``cpp/tosaic/pt2/zip_index.h``). A compressed
entry may unpack only to the size that it claims, and all entries together only to a multiple of the size of
the file.
"""

from __future__ import annotations

import mmap
import os
import weakref
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tosaic import _core
from tosaic.base.reading import open_file
from tosaic.base.unpacking import room
from tosaic.pt2.checked import beyond, damaged

_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
LEAST_UNPACKED = 64 << 20
MOST_TIMES = 8
"""All entries that are unpacked or copied may together have MOST_TIMES times the size of the file, or
`LEAST_UNPACKED` bytes if that is more."""


class Archive:
    """A ``.pt2`` file: its entries by path, without the folder that torch puts around all of them.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    index : Pt2Index
        The entries of the mapped file.

    Raises
    ------
    MissingFileError, ReadError
        As in `tosaic.base.reading.open_file`.
    InvalidGraph
        The file is not a zip archive, is cut, or has an entry that a ``.pt2`` file cannot have.
    """

    def __init__(self, path: Path) -> None:
        with open_file("open", path) as file:
            size = os.fstat(file.fileno()).st_size
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._state = self._present_state()
        self.index = _core.Pt2Index(mapped)
        self._bytes: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
        self._read: dict[str, NDArray[np.uint8]] = {}
        self._room = room(size, least=LEAST_UNPACKED, times=MOST_TIMES)

    def names(self, folder: str = "") -> list[str]:
        """Returns the paths of the entries in a folder."""
        return self.index.names(folder)

    def __contains__(self, name: str) -> bool:
        return name in self.index

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        """Returns the bytes of an entry: a view of the mapped file, or a compressed entry's unpacked bytes.

        Raises
        ------
        InvalidGraph
            There is no such entry, or it is not inside the file, or it is damaged.
        """
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = self._bytes_of(name)
        return found

    def _bytes_of(self, name: str) -> NDArray[np.uint8]:
        start, packed_size, size, method = self.index.place(name)
        packed = self._bytes[start : start + packed_size]
        if method == _STORED:
            if size != packed_size:
                raise damaged(
                    f"the stored entry '{name}' has two sizes", expected=str(packed_size), got=str(size)
                )
            return packed
        if method != _DEFLATED:
            raise beyond(
                f"the entry '{name}' is compressed by another method",
                expected="stored or deflated",
                got=str(method),
            )
        return self._unpack(name, size, packed)

    def reserve(self, size: int, what: str) -> None:
        """Counts memory that is needed in addition to the mapped file.

        Raises
        ------
        InvalidGraph
            The sum is more than a file of this size may need.
        """
        if size > self._room:
            raise damaged(
                f"{what} is too large to be unpacked or copied",
                expected=f"at most {self._room} bytes",
                got=f"{size} bytes",
            )
        self._room -= size

    def _present_state(self) -> tuple[int, int]:
        found = os.fstat(self._file)
        return found.st_size, found.st_mtime_ns

    def changed(self) -> str:
        """Returns a message if the file was written since it was opened; else an empty one."""
        return "" if self._present_state() == self._state else "the file was written after it was opened"

    def _unpack(self, name: str, size: int, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        self.reserve(size, f"the entry '{name}'")
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            data = unpacker.decompress(packed.data, size + 1)
        except zlib.error as error:
            raise damaged(f"the entry '{name}' cannot be unpacked", got=str(error)) from None
        if len(data) != size:
            raise damaged(f"the entry '{name}' unpacks to another size", expected=str(size))
        return np.frombuffer(data, np.uint8)
