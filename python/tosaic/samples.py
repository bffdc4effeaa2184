"""Samples: the inputs that programs are run and compared on, in the forms people have them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.options import file_name, file_path, shown
from tosaic.port_names import by_position

if TYPE_CHECKING:
    from tosaic.program import Program

__all__ = ["Sample", "load_arrays", "read_samples"]


@dataclass(frozen=True)
class Sample:
    """One call: positional and keyword arguments."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def read_samples(samples: Any, program: Program) -> list[Sample]:
    """Calls of `program` from what the user gave.

    Parameters
    ----------
    samples : tuple, dict, array, path or iterable of them
        A tuple holds positional arguments, a dict keyword arguments or arrays by input name or path. ``.npz``
        files are dicts, ``.npy`` files one array. A list, or any other iterable such as a DataLoader, holds
        several samples.
    program : Program
        Whose inputs they are.

    Raises
    ------
    InvalidGraph
        No sample, or one that names no input.
    """
    if (
        isinstance(samples, tuple | Mapping | str | os.PathLike)
        or hasattr(samples, "__array__")
        or hasattr(samples, "shape")
    ):
        found = [_sample(samples, program)]
    elif isinstance(samples, Iterable):
        found = [_sample(item, program) for item in samples]
    else:
        found = []
    if not found:
        raise _core.make_error(
            _core.InvalidGraph,
            where="samples",
            what="there is nothing to run on",
            expected="a tuple, dict, array or file of inputs, or several of them",
            got=shown(samples),
        )
    return found


def load_arrays(path: str | os.PathLike[str]) -> Any:
    """What a ``.npy`` (an array) or ``.npz`` file (a dict, or a tuple if saved without names) holds."""
    file = file_path("samples", path)
    name = str(file.parent / file_name(file))
    try:
        loaded = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _core.make_error(
            _core.InvalidGraph,
            where="samples",
            what=f"'{name}' cannot be read",
            expected="an .npy or .npz file",
            got=str(error),
        ) from error
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        arrays = {key: loaded[key] for key in loaded.files}
    if arrays and list(arrays) == [f"arr_{i}" for i in range(len(arrays))]:
        return tuple(arrays.values())
    return arrays


def _sample(item: Any, program: Program) -> Sample:
    if isinstance(item, str | os.PathLike):
        item = load_arrays(item)
    if isinstance(item, Mapping):
        return _by_name(dict(item), program)
    if isinstance(item, tuple | list):
        return Sample(tuple(item))
    return Sample((item,))


def _by_name(arrays: dict[str, Any], program: Program) -> Sample:
    """Arrays by name or path become the nested call; anything else is taken as keyword arguments."""
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
        raise _core.make_error(
            _core.InvalidGraph,
            where="samples",
            what=f"there is no input '{unknown[0]}'",
            expected="arrays named " + ", ".join(f"'{port.path or port.name}'" for port in program.inputs),
            got=", ".join(map(shown, arrays)),
        )
    return Sample((), arrays)
