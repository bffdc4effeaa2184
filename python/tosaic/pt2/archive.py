"""The zip archive of a ``.pt2`` file: its index, and its entries as views of the mapped file.

    model/models/model.json                   the program
    model/data/weights/weight_0               bytes of a storage, stored, so that they are not read but mapped
    model/data/weights/model_weights_config.json

Nothing of the archive is trusted: an entry lies inside the file, has a plain path, and occurs once. A
compressed entry unpacks to no more than the size that it claims, and all of them together to a multiple of
the size of the file.
"""

from __future__ import annotations

import mmap
import os
import struct
import weakref
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tosaic.options import shown
from tosaic.pt2.checked import beyond, damaged
from tosaic.reading import open_file

__all__ = ["Archive"]

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_ENCRYPTED = 1
_LEAST_UNPACKED = 64 << 20


class Archive:
    """A ``.pt2`` file: its entries by path, without the folder that torch puts around all of them.

    Parameters
    ----------
    path : Path

    Raises
    ------
    MissingFileError, ReadError
        As in `tosaic.reading.open_file`.
    InvalidGraph
        The file is no zip archive, is cut, or has an entry that a ``.pt2`` file cannot have.
    """

    def __init__(self, path: Path) -> None:
        with open_file("open", path) as file:
            try:
                index = zipfile.ZipFile(file).infolist()
            except Exception as error:  # zipfile raises several kinds for damaged files
                raise damaged("it is no zip archive", got=f"{type(error).__name__}: {error}") from None
            self._bytes = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
            self._address = self._bytes.ctypes.data
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._state = self._present_state()
        self._read: dict[str, NDArray[np.uint8]] = {}
        self._addresses: dict[str, int] = {}
        self._room = max(_LEAST_UNPACKED, 8 * len(self._bytes))
        root = index[0].filename.partition("/")[0] + "/" if index else ""
        self._entries: dict[str, zipfile.ZipInfo] = {}
        for entry in index:
            self._add(entry, root)

    def _add(self, entry: zipfile.ZipInfo, root: str) -> None:
        name = entry.filename
        parts = name.split("/")
        if "\\" in name or ":" in parts[0] or not {"", ".", ".."}.isdisjoint(parts):
            raise damaged("an entry has no plain path", got=shown(name))
        if not name.startswith(root):
            raise damaged("an entry lies outside of the folder of the others", expected=root, got=shown(name))
        name = name.removeprefix(root)
        if name in self._entries:
            raise damaged(f"the entry '{name}' occurs twice")
        self._entries[name] = entry

    def names(self, folder: str = "") -> list[str]:
        """Returns the paths of the entries in a folder."""
        return [name for name in self._entries if name.startswith(folder)]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        """Returns the bytes of an entry: a view of the mapped file, or what a compressed entry unpacks to.

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
        entry = self._entries.get(name)
        if entry is None:
            raise damaged(f"there is no entry '{name}'")
        if entry.flag_bits & _ENCRYPTED:
            raise beyond(f"the entry '{name}' is encrypted")
        start = self._start_of(name, entry)
        packed = self._bytes[start : start + entry.compress_size]
        if entry.compress_type == _STORED:
            self._addresses[name] = self._address + start
            if entry.file_size != entry.compress_size:
                raise damaged(
                    f"the stored entry '{name}' has two sizes",
                    expected=str(entry.compress_size),
                    got=str(entry.file_size),
                )
            return packed
        if entry.compress_type != _DEFLATED:
            raise beyond(
                f"the entry '{name}' is compressed by another method",
                expected="stored or deflated",
                got=str(entry.compress_type),
            )
        return self._unpack(name, entry, packed)

    def address_of(self, name: str) -> int:
        """Returns the address of the bytes of an entry."""
        found = self._addresses.get(name)
        if found is None:
            found = self._addresses[name] = self.bytes_of(name).ctypes.data
        return found

    def reserve(self, size: int, what: str) -> None:
        """Counts memory that is needed beside the mapped file.

        Raises
        ------
        InvalidGraph
            It is more than a file of this size may need.
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

    def _start_of(self, name: str, entry: zipfile.ZipInfo) -> int:
        """Returns where the data of an entry begins. Entries of torch are padded in their local header."""
        at, size = entry.header_offset, len(self._bytes)
        if at < 0 or at + _LOCAL_HEADER.size > size:
            raise damaged(f"the entry '{name}' begins outside of the file")
        magic, name_size, extra_size = _LOCAL_HEADER.unpack_from(self._bytes.data, at)
        start: int = at + _LOCAL_HEADER.size + name_size + extra_size
        if magic != b"PK\x03\x04":
            raise damaged(f"the entry '{name}' has no header")
        if start + entry.compress_size > size:
            got = f"{start + entry.compress_size}"
            raise damaged(f"the entry '{name}' ends outside of the file", expected=f"at most {size}", got=got)
        return start

    def _unpack(self, name: str, entry: zipfile.ZipInfo, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        self.reserve(entry.file_size, f"the entry '{name}'")
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            data = unpacker.decompress(packed.data, entry.file_size + 1)
        except zlib.error as error:
            raise damaged(f"the entry '{name}' cannot be unpacked", got=str(error)) from None
        if len(data) != entry.file_size:
            raise damaged(f"the entry '{name}' unpacks to another size", expected=str(entry.file_size))
        return np.frombuffer(data, np.uint8)
