"""Opens files for reading, and turns errors of the system into errors of tosaic that name the file.

A device may have no end, and a pipe may never begin: reading ``/dev/zero`` takes all memory. In an untrusted
folder, a link with a plain name may lead to one. So only regular files are read, and pipes that the caller
passes as ``/dev/stdin`` or another path in ``/dev``.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tosaic import _core
from tosaic.base.options import file_name
from tosaic.base.visible import one_line


class ReadError(_core.Error, OSError):
    """A file cannot be read. ``errno`` is the system's error number."""


class MissingFileError(ReadError, FileNotFoundError):
    """There is no file with this path."""


def open_file(where: str, path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a file for reading; the caller closes it.

    Parameters
    ----------
    where : str
        Name of the public function that reads, for the error message.
    path : path

    Raises
    ------
    MissingFileError
        There is no such file.
    ReadError
        The system refuses to open the file, or it is a device or a pipe.
    """
    with _naming(where, path):
        _require_end(path)
        return open(path, "rb")  # noqa: PTH123 - the caller closes it


def read_bytes(where: str, path: str | os.PathLike[str]) -> bytes:
    """Returns the contents of a file.

    Raises
    ------
    MissingFileError
        There is no such file.
    ReadError
        As in `open_file`, or the system refuses to read the file.
    """
    with _naming(where, path), open_file(where, path) as file:
        return file.read()


def _require_end(path: str | os.PathLike[str]) -> None:
    """Refuses files that may have no end. They are not opened, since opening may block forever, too."""
    mode = os.stat(path).st_mode  # noqa: PTH116 - paths of bytes, too
    is_piped = stat.S_ISFIFO(mode) and Path("/dev") in Path(os.fsdecode(path)).parents
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or is_piped):  # `open` refuses a folder
        raise OSError(errno.EINVAL, "a device or pipe, which may have no end")


@contextmanager
def _naming(where: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns an OSError of the block into a ReadError or MissingFileError that names the file."""
    try:
        yield
    except _core.Error:
        raise
    except ValueError as error:  # a path with a null character
        what = f"'{one_line(os.fsdecode(path))}' is no path"
        raise _core.make_error(ReadError, where=where, what=what, got=str(error)) from error
    except OSError as error:
        found: ReadError
        if isinstance(error, FileNotFoundError):
            what = f"there is no file '{one_line(os.fspath(path))}'"
            found = _core.make_error(MissingFileError, where=where, what=what)
        else:
            reason = error.strerror or str(error)
            what = f"'{file_name(path)}' could not be read"
            found = _core.make_error(ReadError, where=where, what=what, got=reason)
        found.errno = error.errno
        raise found from error
