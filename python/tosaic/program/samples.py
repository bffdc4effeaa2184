"""Reads samples, the inputs for runs and comparisons of programs, from arrays, containers and files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from tosaic.base.options import file_name, file_path, invalid, shown
from tosaic.base.reading import open_file
from tosaic.base.unpacking import require_claimed, require_room, room
from tosaic.ports.port_names import by_position

if TYPE_CHECKING:
    from tosaic.program.program import Program

_MAGIC = b"\x93NUMPY"
_LEAST_UNPACKED = 1 << 30
_MOST_TIMES = 20  # an archive may unpack to 20 times its size, or to `_LEAST_UNPACKED` if that is more


@dataclass(frozen=True)
class Sample:
    """One call: positional and keyword arguments."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def read_samples(samples: Any, program: Program) -> list[Sample]:
    """Reads samples as calls of a program.

    Parameters
    ----------
    samples : tuple, dict, array, path or iterable of them
        A tuple holds positional arguments, a dict keyword arguments or arrays by input name or path. A
        ``.npz`` file is read as a dict, a ``.npy`` file as one array. A list, or any other iterable such as a
        DataLoader, holds several samples.
    program : Program
        The program that the samples are inputs of.

    Returns
    -------
    list of Sample
        At least one.

    Raises
    ------
    InvalidGraph
        There is no sample, a sample names an unknown input, or a file does not hold arrays of numbers.
    MissingFileError, ReadError
        A file cannot be read.
    """
    return list(iterate_samples(samples, program))


def iterate_samples(samples: Any, program: Program) -> Iterator[Sample]:
    """Yields the samples of `read_samples` one by one, so that a stream need not fit into memory.

    Raises
    ------
    InvalidGraph, MissingFileError, ReadError
        As `read_samples`; if there is no sample, the error is raised at the end of the stream.
    """
    count = 0
    if (
        isinstance(samples, Sample | tuple | Mapping | str | os.PathLike)
        or hasattr(samples, "__array__")
        or hasattr(samples, "shape")
    ):
        _require_arguments(samples, program, 0)
        yield _sample(samples, program)
        return
    if isinstance(samples, Iterable) and not isinstance(samples, bytes | bytearray):
        for item in samples:
            _require_arguments(item, program, count)
            yield _sample(item, program)
            count += 1
    if count == 0:
        raise invalid(
            "samples",
            "there is nothing to run on",
            expected="a tuple, dict, array or file of inputs, or several of them",
            got=shown(samples),
        )


def load_arrays(path: str | os.PathLike[str]) -> Any:
    """Reads a ``.npy`` file (an array) or a ``.npz`` file (a dict; a tuple if it was saved without names).

    Raises
    ------
    MissingFileError
        There is no such file.
    ReadError
        The system refuses to read the file.
    InvalidGraph
        The file has neither format, is damaged, or holds something else than arrays of numbers. Or it is
        compressed, and would unpack to more than 1 GiB and more than 20 times its size.
    """
    file = file_path("samples", path)
    with open_file("samples", file) as opened:
        try:
            loaded = _loaded(opened, file.name)
        except MemoryError:
            raise
        except Exception as error:  # a damaged file may raise any error of zip, zlib or npy
            raise _unreadable(file, f"{type(error).__name__}: {error}") from error
    if isinstance(loaded, np.ndarray):
        return loaded
    arrays: dict[str, Any] = {}
    for name, array in loaded:
        if not isinstance(array, np.ndarray):
            raise _unreadable(file, f"the member '{name}', which is no array")
        if name in arrays:
            raise _unreadable(file, f"two arrays of the name '{name}'")
        arrays[name] = array
    if arrays and list(arrays) == [f"arr_{i}" for i in range(len(arrays))]:
        return tuple(arrays.values())
    return arrays


def _loaded(file: IO[bytes], name: str) -> np.ndarray[Any, Any] | list[tuple[str, Any]]:
    """Returns the array, or the arrays of an ``.npz`` file with their names. Pickled data is refused."""
    start = file.read(6)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if start.startswith(b"PK"):
        _require_bounds(file, size)
    elif start.startswith(_MAGIC):
        require_claimed(file, size, name)
    else:  # numpy would unpickle other bytes
        raise ValueError("other bytes" if start else "an empty file")
    loaded = np.load(file, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        return [(each, loaded[each]) for each in loaded.files]


def _require_bounds(file: IO[bytes], size: int) -> None:
    """Refuses an archive that unpacks to far more than its size, or an array that claims more than it has."""
    import zipfile

    with zipfile.ZipFile(file) as archive:
        require_room(archive.infolist(), room(size, least=_LEAST_UNPACKED, times=_MOST_TIMES))
        for member in archive.infolist():
            with archive.open(member) as opened:
                start = opened.read(len(_MAGIC))
                opened.seek(0)
                if start == _MAGIC:
                    require_claimed(opened, member.file_size, member.filename)
    file.seek(0)


def _unreadable(file: Path, got: str) -> Exception:
    return invalid(
        "samples",
        f"'{file.parent / file_name(file)}' cannot be read",
        expected="an .npy or .npz file of numbers",
        got=got,
    )


def _require_arguments(item: Any, program: Program, index: int) -> None:
    """Raises InvalidGraph if a sample has more entries than the network has arguments, such as labels."""
    positional, keywords = program.signature.inputs.children
    most = len(positional.children) + len(keywords.keys)
    if isinstance(item, tuple | list) and len(item) > most:
        raise invalid(
            "samples",
            f"sample {index} has more entries than the network has arguments",
            expected=f"{most}: " + ", ".join(f"'{port.path or port.name}'" for port in program.inputs),
            got=f"{len(item)} entries",
            hint=f"Leave labels out: (batch[:{most}] for batch in loader)",
        )


def _sample(item: Any, program: Program) -> Sample:
    if isinstance(item, Sample):
        return item
    if isinstance(item, str | os.PathLike):
        item = load_arrays(item)
    if isinstance(item, Mapping):
        return _by_name(dict(item), program)
    if isinstance(item, tuple | list):
        return Sample(tuple(item))
    return Sample((item,))


def _by_name(arrays: dict[str, Any], program: Program) -> Sample:
    """Makes a nested call from a dict with all inputs by name or path. Other dicts are keyword arguments."""
    leaves = program.signature.input_leaves
    named = by_position(arrays, [(port.path, port.name) for port in program.inputs])
    if named is None or len(named) != len(program.inputs):
        return _keywords(arrays, program)
    indices = sorted(leaf.index for leaf in leaves if leaf.index is not None)
    by_index = {index: named[position] for position, index in enumerate(indices)}
    args, kwargs = program.signature.inputs.unflatten(
        [leaf.value if leaf.index is None else by_index[leaf.index] for leaf in leaves]
    )
    return Sample(tuple(args), dict(kwargs))


def _keywords(arrays: dict[str, Any], program: Program) -> Sample:
    signature = program.signature
    known = {*signature.arg_names, *signature.inputs.children[1].keys}
    unknown = [key for key in arrays if key not in known]
    if unknown:
        raise invalid(
            "samples",
            f"there is no input '{unknown[0]}'",
            expected="arrays named " + ", ".join(f"'{port.path or port.name}'" for port in program.inputs),
            got=", ".join(map(shown, arrays)),
        )
    return Sample((), arrays)
