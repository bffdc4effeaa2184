"""Saves and loads a program as one file: graph text, signature and weights.

The file is a zip archive without compression::

    manifest.json    format, version, signature, and the key and file of each weight
    graph.txt        the text form of the graph; it has only references to weights of more than 16 elements
    weights/N.npy    the elements of one weight; weights are numbered in the order of the text

The same program is always written as the same bytes. Reading needs numpy only.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tosaic import _core
from tosaic.base.json_text import parsed_json
from tosaic.base.options import checked, file_name, file_path, shown
from tosaic.base.reading import open_file
from tosaic.base.unpacking import require_claimed, require_room
from tosaic.base.writing import whole_file
from tosaic.program.program import Program
from tosaic.program.runnable import signature_fault

if TYPE_CHECKING:
    from tosaic.ports.signature import Signature, Tree

__all__ = [
    "FORMAT",
    "VERSION",
    "InTextOrder",
    "constants_in_text_order",
    "is_archive",
    "load",
    "plain_array",
    "save",
    "signature_from_json",
    "signature_to_json",
]

FORMAT = "tosaic program"
VERSION = 1
_MANIFEST = "manifest.json"
_GRAPH = "graph.txt"
_MOMENT = (1980, 1, 1, 0, 0, 0)  # time stamp of all members, so that the bytes do not depend on the time
_read_array: Any = np.lib.format.read_array
_write_array: Any = np.lib.format.write_array
Key: TypeAlias = tuple[str, str, tuple[int, ...], int]
"""Name, dtype and shape of a constant, and its number among the constants that share all three."""


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Writes `program`; see `tosaic.Program.save`."""
    weights: list[dict[str, Any]] = []
    with whole_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for key, constant in constants_in_text_order(program.graph):
            name, dtype, shape, occurrence = key
            member = f"weights/{len(weights)}.npy"
            weights.append(
                {"name": name, "dtype": dtype, "shape": shape, "occurrence": occurrence, "file": member}
            )
            buffer = io.BytesIO()
            _write_array(buffer, plain_array(constant.array), version=(1, 0), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(member, _MOMENT), buffer.getbuffer())
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "signature": signature_to_json(program.signature),
            "weights": weights,
        }
        if program.module_types:
            manifest["module_types"] = program.module_types
        archive.writestr(zipfile.ZipInfo(_GRAPH, _MOMENT), program.graph.text())
        archive.writestr(zipfile.ZipInfo(_MANIFEST, _MOMENT), json.dumps(manifest, indent=1))


def is_archive(path: str | os.PathLike[str]) -> bool:
    """True if the file is an archive of this format, of any version; False if it cannot be read."""
    try:
        with open_file("load", path) as file, zipfile.ZipFile(file) as archive:
            if archive.getinfo(_MANIFEST).compress_type != zipfile.ZIP_STORED:
                return True  # `load` says what is wrong with it
            try:
                manifest = parsed_json(archive.read(_MANIFEST))
            except ValueError:
                return True
            return bool(manifest.get("format") == FORMAT)
    except Exception:  # any error of zip or JSON: the file is no archive of this format
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
    file = file_path("load", path)
    name = file_name(file)
    try:
        with open_file("load", file) as opened, zipfile.ZipFile(opened) as archive:
            _require_stored(archive, name)
            # Several members may be the same bytes of the file.
            require_room(archive.infolist(), os.fstat(opened.fileno()).st_size)
            manifest = parsed_json(archive.read(_MANIFEST))
            _check_version(manifest, name)
            text = archive.read(_GRAPH).decode("utf-8")
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
    program = Program(graph, signature)
    program._module_types = module_types
    return program


class InTextOrder:
    """A callback for `Graph.parse` that finds the constants that a text refers to.

    `find` is called with the key of a constant, as in `constants_in_text_order`, and the constant without its
    bytes. It returns the constant with its bytes, or None. The parser must ask for constants in the order of
    the text, since this class counts constants of equal name, dtype and shape.
    """

    def __init__(self, find: Callable[[Key, _core.Constant], _core.Constant | None]) -> None:
        self._find = find
        self._seen: dict[tuple[Any, ...], int] = {}

    def __call__(self, wanted: _core.Constant) -> _core.Constant | None:
        """Returns the constant for the next reference in the text."""
        base = (wanted.name, wanted.dtype, tuple(wanted.shape))
        occurrence = self._seen.get(base, 0)
        self._seen[base] = occurrence + 1
        return self._find((*base, occurrence), wanted)


def _reader(archive: zipfile.ZipFile, manifest: Any) -> Callable[[Key, _core.Constant], _core.Constant]:
    """Returns a function that reads one weight from the archive when the parser asks for it."""
    files = {_key(row): row["file"] for row in manifest["weights"]}

    def read(key: Key, wanted: _core.Constant) -> _core.Constant:
        member = archive.getinfo(files[key])
        with archive.open(member) as file:
            require_claimed(file, member.file_size, member.filename, exact=True)
            stored: np.ndarray[Any, Any] = _read_array(file, allow_pickle=False)
        array = np.asarray(stored, stored.dtype.newbyteorder("="), order="C")
        made = _core.Constant(
            wanted.name, wanted.kind, wanted.dtype, wanted.shape, array.ctypes.data, array.nbytes, array
        )
        expected = plain_array(made.array)
        if (array.dtype, array.shape) != (expected.dtype, expected.shape):
            raise _core.make_error(
                _core.InvalidGraph,
                where="load",
                what=f"'{files[key]}' holds another array than the graph says of '{wanted.name}'",
                expected=f"{expected.dtype} of shape {list(expected.shape)}",
                got=f"{array.dtype} of shape {list(array.shape)}",
            )
        return made

    return read


def constants_in_text_order(graph: _core.Graph) -> Iterator[tuple[Key, _core.Constant]]:
    """Yields each constant with its key, in the order of the graph's text form."""
    seen: dict[tuple[Any, ...], int] = {}
    for constant in _in_text_order(graph):
        base = (constant.name, constant.dtype, tuple(constant.shape))
        occurrence = seen.get(base, 0)
        seen[base] = occurrence + 1
        yield (*base, occurrence), constant


def _in_text_order(graph: _core.Graph) -> Iterator[_core.Constant]:
    initials = {port.value.id: port.initial for port in graph.inputs if port.initial is not None}
    for value in graph.values:
        if value.id in initials:
            yield initials[value.id]
        elif value.constant is not None:
            yield value.constant
        elif value.producer is not None and value.producer.results[0] == value:
            for region in value.producer.regions:
                yield from _in_text_order(region)


def plain_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the array in a dtype that numpy has: bfloat16 and float8 become integers of their bits."""
    if array.dtype.kind in "biuf" and array.dtype.isbuiltin == 1:
        return array
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _key(row: dict[str, Any]) -> Key:
    return row["name"], row["dtype"], tuple(row["shape"]), row["occurrence"]


def _require_stored(archive: zipfile.ZipFile, name: str) -> None:
    """Refuses compressed members, so that reading takes no more memory than the file has bytes."""
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise _unreadable(name, f"'{member.filename}' is compressed, and save compresses nothing")


def _check_version(manifest: object, name: str) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _core.make_error(
            _core.InvalidGraph,
            where="load",
            what=f"'{name}' is no archive of tosaic",
            expected=f"the format '{FORMAT}'",
        )
    if manifest.get("version") != VERSION:
        raise _core.make_error(
            _core.InvalidGraph,
            where="load",
            what=f"'{name}' has another version",
            expected=str(VERSION),
            got=str(manifest.get("version")),
            hint="Save it again with this version of tosaic",
        )


def _unreadable(name: str, found: object) -> Exception:
    detail = f"{type(found).__name__}: {found}" if isinstance(found, Exception) else str(found)
    return _core.make_error(
        _core.InvalidGraph,
        where="load",
        what=f"'{name}' cannot be read",
        expected="an archive written by Program.save",
        got=detail,
    )


def _tree_to_json(tree: Tree) -> Any:
    if tree.kind == "leaf":
        return "leaf"
    return {
        "kind": tree.kind,
        "children": [_tree_to_json(child) for child in tree.children],
        "keys": [_plain_value(key, "a key") for key in tree.keys],
        "type": tree.type_name,
    }


def _tree_from_json(data: Any) -> Tree:
    from tosaic.ports.signature import Tree

    if data == "leaf":
        return Tree("leaf")
    children = tuple(_tree_from_json(child) for child in _listed(data["children"]))
    return Tree(data["kind"], children, tuple(_listed(data["keys"])), data["type"])


def _listed(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError(f"not a list: {shown(data)}")
    return data


def _plain_value(value: Any, what: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise _core.make_error(
        _core.UnsupportedOp,
        where="save",
        what=f"{what} of the signature cannot be written",
        expected="None, a bool, a number or a string",
        got=repr(value),
    )


def _leaves_to_json(leaves: Any) -> list[Any]:
    return [
        {
            "path": leaf.path,
            "index": leaf.index,
            "value": _plain_value(leaf.value, f"the constant '{leaf.path}'"),
        }
        for leaf in leaves
    ]


def signature_to_json(signature: Signature) -> dict[str, Any]:
    """Returns a signature as dicts, lists, strings and numbers."""
    return {
        "inputs": _tree_to_json(signature.inputs),
        "outputs": _tree_to_json(signature.outputs),
        "input_leaves": _leaves_to_json(signature.input_leaves),
        "output_leaves": _leaves_to_json(signature.output_leaves),
        "arg_names": list(signature.arg_names),
    }


def signature_from_json(data: Any) -> Signature:
    """Reads what `signature_to_json` returned. Damaged data may raise any exception."""
    from tosaic.ports.signature import InputLeaf, OutputLeaf, Signature

    return Signature(
        inputs=_tree_from_json(data["inputs"]),
        outputs=_tree_from_json(data["outputs"]),
        input_leaves=tuple(InputLeaf(**leaf) for leaf in _listed(data["input_leaves"])),
        output_leaves=tuple(OutputLeaf(**leaf) for leaf in _listed(data["output_leaves"])),
        arg_names=tuple(_listed(data["arg_names"])),
    )
