"""Writes files atomically: to a temporary file in the same folder, which is renamed when it is complete.

If writing fails, the old file is unchanged; it is replaced only when the new one is on the disk. A symbolic
link stays a link, and the file that the link leads to is replaced. A device or pipe, such as ``/dev/stdout``,
gets the whole contents at the end. Another hard link to the old file still has the old contents.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.options import file_name
from tosaic.base.visible import one_line

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Buffer


_WRITE_BACK_BYTES = 32 << 20  # the system is asked to write to disk after this many bytes


class WriteError(_core.Error, OSError):
    """A file cannot be written; an existing file is unchanged. ``errno`` is the system's error number."""


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Opens a binary file that replaces `path` when the block has ended without an error.

    Raises
    ------
    WriteError
        The folder is missing, `path` is a folder, writing is not allowed, or the disk is full.
    """
    name = file_name(path)
    with _naming(name):  # the working folder may be missing, or the name too long
        place = Path(os.path.realpath(path))
        mode = _check_place(place, name)
    if mode is not None and not stat.S_ISREG(mode):
        contents = io.BytesIO()  # a buffer, since the device may not support seeking
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


def check_place(path: str | os.PathLike[str]) -> None:
    """Checks that a file can be written to `path`, before work whose result goes there. Writes nothing.

    Raises
    ------
    WriteError
        The folder is missing, `path` is a folder, or the existing file is read-only.
    """
    name = file_name(path)
    with _naming(name):
        _check_place(Path(os.path.realpath(path)), name)


def write_bytes(path: str | os.PathLike[str], data: bytes | memoryview) -> int:
    """Writes a whole file; returns its size."""
    return write_pieces(path, [data])


def write_pieces(path: str | os.PathLike[str], pieces: Iterable[Buffer]) -> int:
    """Writes a whole file from buffers, one after the other; returns its size."""
    with whole_file(path) as file:
        return append_pieces(file, pieces)


def written(file: IO[bytes]) -> Buffer:
    """Returns everything that was written so far to a file of `whole_file`, without copying it to memory."""
    if isinstance(file, io.BytesIO):
        return file.getbuffer()
    file.flush()
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def append_pieces(file: IO[bytes], pieces: Iterable[Buffer]) -> int:
    """Writes buffers to a file, one after the other; returns the number of bytes."""
    size = begun = 0
    for part in _parts(pieces):
        size += file.write(part)
        if size - begun >= _WRITE_BACK_BYTES and not isinstance(file, io.BytesIO):
            file.flush()
            _core.start_write_back(file.fileno(), begun, size - begun)
            begun = size
    return size


def _parts(pieces: Iterable[Buffer]) -> Iterator[memoryview]:
    for piece in pieces:
        with memoryview(piece) as view, view.cast("B") as whole:
            for begin in range(0, len(whole), _WRITE_BACK_BYTES):
                with whole[begin : begin + _WRITE_BACK_BYTES] as part:
                    yield part


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a whole file as UTF-8."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Writes a whole ``.npz`` file. Any name is allowed, unlike in `numpy.savez`, which reserves some."""
    import zipfile

    import numpy as np

    with whole_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.save(member, array)


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Makes a folder and its parents if they do not exist; returns its path.

    Raises
    ------
    WriteError
        There is a file at `path`, or the system refuses to make the folder.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = error.strerror or str(error)
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            is_broken = folder.is_symlink() and not folder.exists()
            found = "a link that leads nowhere" if is_broken else "a file in its place"
        raise _error(error.errno, what=f"the folder '{_name(folder)}' cannot be made", got=found) from error
    return folder


def _name(path: Path) -> str:
    """Returns a path for messages."""
    return one_line(str(path))


def require_new_folder(path: str | os.PathLike[str]) -> None:
    """Checks that a new folder can be made at `path`, before work whose result goes there. Writes nothing.

    Raises
    ------
    WriteError
        There is a file at `path`, or a folder that is not empty, or the system refuses to make a folder.
    """
    folder = Path(path)
    with _naming(str(folder)):
        if folder.is_dir():
            entries = sorted(each.name for each in folder.iterdir())
            if entries:
                raise _error(
                    errno.ENOTEMPTY,
                    what=f"the folder '{_name(folder)}' is not empty",
                    expected="a folder that does not exist, or an empty one",
                    got=", ".join(entries[:3]) + (", ..." if len(entries) > 3 else ""),
                )
        elif folder.exists() or folder.is_symlink():
            raise _error(
                errno.EEXIST,
                what=f"the folder '{_name(folder)}' cannot be made",
                got="a file in its place",
            )
        above = next(each for each in folder.absolute().parents if each.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            found = "read-only" if above.is_dir() else "a file"
            raise _error(
                errno.EACCES,
                what=f"the folder '{_name(folder)}' cannot be made",
                got=f"'{_name(above)}' is {found}",
            )


@contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Makes a folder that is renamed to `path` when the block has ended without an error.

    Yields the path of a folder next to it, to which the block writes. After an error, this folder is removed.
    A link to an empty folder stays a link: its folder is filled.

    Raises
    ------
    WriteError
        As `require_new_folder`, or a file cannot be written.
    """
    require_new_folder(path)
    folder = Path(path).resolve()
    made: list[Path] = []
    part = folder.with_name(f".tosaic-{os.urandom(8).hex()}.part")
    try:
        with _naming(str(folder)):
            for each in reversed([each for each in folder.parents if not each.exists()]):
                each.mkdir()
                made.append(each)
            part.mkdir()
            yield part
            with suppress(FileNotFoundError):
                folder.rmdir()
            part.replace(folder)
    except BaseException:
        import shutil

        shutil.rmtree(part, ignore_errors=True)
        for each in reversed(made):
            with suppress(OSError):
                each.rmdir()
        raise


def moved(file: Path, place: Path) -> Path:
    """Renames a whole file to `place`, which it replaces, and returns `place`.

    Raises
    ------
    WriteError
        The system refuses to rename the file.
    """
    with _naming(str(place)):
        file.replace(place)
    return place


def _check_place(place: Path, name: str) -> int | None:
    """Checks that a file can be written to `place`; returns the mode of an existing file there, or None.

    Raises
    ------
    WriteError
        The folder is missing, `place` is a folder, or the existing file is read-only.
    """
    folder = place.parent
    if not folder.is_dir():
        found = "a file in its place" if folder.exists() else "no such folder"
        raise _error(
            errno.ENOTDIR if folder.exists() else errno.ENOENT,
            what=f"the folder of '{name}' is missing",
            expected=f"the folder '{_name(folder)}'",
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
            errno.EISDIR,
            what=f"'{name}' is a folder",
            expected="the path of a file",
            got=f"'{_name(place)}'",
        )
    if not os.access(place, os.W_OK):
        raise _error(errno.EACCES, what=f"'{name}' may not be written", got=f"'{_name(place)}' is read-only")
    return mode


def _open_beside(place: Path) -> tuple[Path, IO[bytes]]:
    """Opens a new file in the same folder, with the default permissions of new files."""
    while True:
        part = place.with_name(f".tosaic-{os.urandom(8).hex()}.part")
        try:
            return part, part.open("x+b")
        except FileExistsError:
            continue


def _write_all(device: io.FileIO, data: memoryview) -> None:
    while data:
        data = data[device.write(data) :]


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turns an OSError of the block into a WriteError that names the file."""
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
