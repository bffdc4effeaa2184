"""Saves and loads a program as one file: graph text, signature and weights.

The file is a zip archive without compression::

    manifest.json    format, version, signature, and the key and file of each weight
    graph.txt        the text form of the graph; it has only references to weights of more than 16 elements
    weights/N.npy    the elements of a weight, and of all weights that equal it, in the order of the text

The same program is always written as the same bytes. Reading needs numpy only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.json_text import parsed_json
from tosaic.base.options import checked, file_name, file_path, invalid
from tosaic.base.reading import open_file
from tosaic.base.unpacking import require_claimed, require_room
from tosaic.ports.signature_json import signature_from_json
from tosaic.program.archive_writer import FORMAT, GRAPH, MANIFEST, VERSION
from tosaic.program.constants_in_text import InTextOrder, Key, plain_array
from tosaic.program.program import Program
from tosaic.program.runnable import signature_fault

if TYPE_CHECKING:
    import zipfile

_read_array: Any = np.lib.format.read_array


def is_archive(path: str | os.PathLike[str]) -> bool:
    """True if the file is an archive of this format, of any version; False if it cannot be read."""
    import zipfile

    try:
        with open_file("load", path) as file, zipfile.ZipFile(file) as archive:
            if archive.getinfo(MANIFEST).compress_type != zipfile.ZIP_STORED:
                return True  # `load` reports the error
            try:
                manifest = parsed_json(archive.read(MANIFEST))
            except ValueError:
                return True
            return bool(manifest.get("format") == FORMAT)
    except Exception:  # any error of zip or JSON: the file is not an archive of this format
        return False


@checked
def load(path: str | os.PathLike[str]) -> Program:
    """Reads a program that `Program.save` wrote.

    Raises
    ------
    MissingFileError
        There is no such file. The error is a ``FileNotFoundError`` too.
    ReadError
        The system refuses to read the file.
    InvalidGraph
        The file is not such an archive, is damaged, or has another version of the format.
    """
    import zipfile

    file = file_path("load", path)
    name = file_name(file)
    try:
        with open_file("load", file) as opened, zipfile.ZipFile(opened) as archive:
            _require_stored(archive, name)
            # Several members may refer to the same bytes of the file.
            require_room(archive.infolist(), os.fstat(opened.fileno()).st_size)
            manifest = parsed_json(archive.read(MANIFEST))
            _check_version(manifest, name)
            text = archive.read(GRAPH).decode("utf-8")
            graph = _core.Graph.parse(text, constants=InTextOrder(_reader(archive, manifest)))
            signature = signature_from_json(manifest["signature"])
            module_types = {str(path): str(kind) for path, kind in manifest.get("module_types", {}).items()}
            fault = signature_fault(graph, signature)
            if fault:
                raise _unreadable(name, f"a signature that is not the graph's: {fault}")
    except (_core.Error, MemoryError):
        raise
    except Exception as error:  # a damaged archive may raise any error of zip, JSON or npy
        raise _unreadable(name, error) from error
    return Program.of_import(graph, signature, module_types=module_types)


def _reader(archive: zipfile.ZipFile, manifest: Any) -> Callable[[Key, _core.Constant], _core.Constant]:
    """Returns a function that reads a weight from the archive on request of the parser."""
    files = {_key(row): row["file"] for row in manifest["weights"]}
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def array_of(name: str) -> np.ndarray[Any, Any]:
        member = archive.getinfo(name)
        with archive.open(member) as file:
            require_claimed(file, member.file_size, member.filename, exact=True)
            stored: np.ndarray[Any, Any] = _read_array(file, allow_pickle=False)
        return np.asarray(stored, stored.dtype.newbyteorder("="), order="C")

    def read(key: Key, wanted: _core.Constant) -> _core.Constant:
        array = arrays.get(files[key])
        if array is None:
            array = arrays[files[key]] = array_of(files[key])
        made = _core.Constant(
            wanted.name, wanted.kind, wanted.dtype, wanted.shape, array.ctypes.data, array.nbytes, array
        )
        expected = plain_array(made.array)
        if (array.dtype, array.shape) != (expected.dtype, expected.shape):
            raise invalid(
                "load",
                f"'{files[key]}' holds another array than the graph says of '{wanted.name}'",
                expected=f"{expected.dtype} of shape {list(expected.shape)}",
                got=f"{array.dtype} of shape {list(array.shape)}",
            )
        return made

    return read


def _key(row: dict[str, Any]) -> Key:
    return row["name"], row["dtype"], tuple(row["shape"]), row["occurrence"]


def _require_stored(archive: zipfile.ZipFile, name: str) -> None:
    """Refuses compressed members, so that reading takes no more memory than the file has bytes."""
    import zipfile

    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise _unreadable(name, f"'{member.filename}' is compressed, and save compresses nothing")


def _check_version(manifest: object, name: str) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise invalid("load", f"'{name}' is no archive of tosaic", expected=f"the format '{FORMAT}'")
    if manifest.get("version") != VERSION:
        raise invalid(
            "load",
            f"'{name}' has another version",
            expected=str(VERSION),
            got=str(manifest.get("version")),
            hint="Save it again with this version of tosaic",
        )


def _unreadable(name: str, found: object) -> Exception:
    detail = f"{type(found).__name__}: {found}" if isinstance(found, Exception) else str(found)
    return invalid(
        "load", f"'{name}' cannot be read", expected="an archive written by Program.save", got=detail
    )
