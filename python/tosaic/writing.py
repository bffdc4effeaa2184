"""Files appear whole or not at all: each is written beside its place and moved there when it is complete.

The old file stays until the new one is on the disk, whatever goes wrong between. A symbolic link stays a
link: the file it leads to is replaced. A device or pipe, such as ``/dev/stdout``,
is written in one piece. Another hard link to the old file keeps the old contents.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from tosaic import _core
from tosaic.options import file_name

__all__ = ["WriteError", "make_folder", "whole_file", "write_arrays", "write_bytes", "write_text"]


class WriteError(_core.Error, OSError):
    """A file cannot be written; an old one is unchanged. ``errno`` is the system's number of the reason."""


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Opens a binary file that takes the place of `path` once the block has ended without an error.

    Raises
    ------
    WriteError
        The folder is missing, `path` is a folder, writing is not allowed, or the disk is full.
    """
    name = file_name(path)
    with _naming(name):  # the working folder may be gone, or a name be longer than the system takes
        place = Path(os.path.realpath(path))
        mode = _check_place(place, name)
    if mode is not None and not stat.S_ISREG(mode):
        contents = io.BytesIO()  # what cannot be sought in takes them in one piece
        yield contents
        with _naming(name), place.open("wb", buffering=0) as device:
            _write_all(device, contents.getbuffer())
        return
    with _naming(name):
        part, file = _open_beside(place)
        try:
            with file:
                if mode is not None:
                    part.chmod(stat.S_IMODE(mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(place)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise


def write_bytes(path: str | os.PathLike[str], data: bytes | memoryview) -> int:
    """Writes a whole file; returns its size."""
    with whole_file(path) as file:
        file.write(data)
    return len(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a whole file as UTF-8."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Writes a whole ``.npz`` file of arrays of any names; `numpy.savez` keeps some for itself."""
    with whole_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.save(member, array)


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made with its parents where it is missing.

    Raises
    ------
    WriteError
        A file is in its place, or it may not be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = error.strerror or str(error)
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            is_broken = folder.is_symlink() and not folder.exists()
            found = "a link that leads nowhere" if is_broken else "a file in its place"
        raise _error(error.errno, what=f"the folder '{folder}' cannot be made", got=found) from error
    return folder


def _check_place(place: Path, name: str) -> int | None:
    """The mode of the file that is to be replaced, None if there is none."""
    folder = place.parent
    if not folder.is_dir():
        found = "a file in its place" if folder.exists() else "no such folder"
        raise _error(
            errno.ENOTDIR if folder.exists() else errno.ENOENT,
            what=f"the folder of '{name}' is missing",
            expected=f"the folder '{folder}'",
            got=found,
        )
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unwritable(name, error) from error
    if stat.S_ISDIR(mode):
        raise _error(
            errno.EISDIR, what=f"'{name}' is a folder", expected="the path of a file", got=f"'{place}'"
        )
    if not os.access(place, os.W_OK):
        raise _error(errno.EACCES, what=f"'{name}' may not be written", got=f"'{place}' is read-only")
    return mode


def _open_beside(place: Path) -> tuple[Path, IO[bytes]]:
    """A new file in the same folder, with the permissions that any new file has."""
    while True:
        part = place.with_name(f".tosaic-{secrets.token_hex(8)}.part")
        try:
            return part, part.open("xb")
        except FileExistsError:
            continue


def _write_all(device: io.FileIO, data: memoryview) -> None:
    while data:
        data = data[device.write(data) :]


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Errors of the system name the file."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise _unwritable(name, error) from error


def _unwritable(name: str, error: OSError) -> WriteError:
    return _error(error.errno, what=f"'{name}' could not be written", got=error.strerror or str(error))


def _error(number: int | None, **parts: Any) -> WriteError:
    error: WriteError = _core.make_error(WriteError, where="write", **parts)
    error.errno = number
    return error
