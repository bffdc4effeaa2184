"""Samples as a stream of flat arrays, one entry for each run of the program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.arrays import in_memory_order
from tosaic.base.options import invalid, layout_mismatch
from tosaic.ports.stacks import entries_of
from tosaic.program.samples import Sample, iterate_samples, read_samples

if TYPE_CHECKING:
    from tosaic.ports.ports import Port
    from tosaic.program.program import Program


def sample_arrays(samples: Any, program: Program) -> Iterator[list[Any]]:
    """Yields the arrays of each run, in the order of the program's inputs.

    A sample may hold a stack of samples: arrays with an additional first axis, or with a multiple of the
    program's extent on the first axis. All stacked arrays of a sample have the same number of entries. An
    array that is not stacked is used for all entries. An array in another dim order than its input's is
    copied: files of samples have no dim orders.

    Raises
    ------
    InvalidGraph
        There is no sample, the stacks of a sample have different numbers of entries, or a sample does not fit
        the inputs. The error has the index of the run.
    LayoutMismatch
        An array has another dtype or shape than its input.
    """
    runs = 0
    for sample in iterate_samples(samples, program):
        try:
            for arrays in _entries(program.arrays(*sample.args, **sample.kwargs), program):
                yield [_laid_out(array, port) for array, port in zip(arrays, program.inputs, strict=True)]
                runs += 1
        except _core.Error as error:
            raise at_sample(runs, error) from error
    if not runs:
        raise invalid(
            "samples",
            "there is nothing to run on",
            expected="a stack with at least one sample",
            got="stacks without entries",
        )


def single_samples(samples: Sequence[Sample], program: Program) -> Iterator[Sample]:
    """Yields samples as they are, and stacks of samples (see `sample_arrays`) one entry after the other.

    A sample that does not fit the inputs is yielded as it is, for the error of the run.
    """
    for sample in samples:
        try:
            entries = list(_entries(program.arrays(*sample.args, **sample.kwargs), program))
        except _core.Error:
            entries = []
        if len(entries) < 2:
            yield sample
            continue
        names = [port.path or port.name for port in program.inputs]
        for arrays in entries:
            yield from read_samples(dict(zip(names, arrays, strict=True)), program)


def _laid_out(array: Any, port: Port) -> Any:
    """Returns an array of the shape of an input in the dim order of the input."""
    if not isinstance(array, np.ndarray) or array.shape != tuple(port.shape):
        return array
    return in_memory_order(array, port.array_order)


def at_sample(index: int, error: Any) -> Exception:
    """Returns an error of the same kind that names a sample."""
    parts = {**error.parts, "what": f"sample {index}: {error.parts['what']}"}
    kind: type[_core.Error] = type(error)
    return _core.make_error(kind, **parts)


def _entries(arrays: Sequence[Any], program: Program) -> Iterator[list[Any]]:
    counts = {}
    for array, port in zip(arrays, program.inputs, strict=True):
        count = entries_of(array.shape, port.shape)
        if count is not None:
            counts[port.path or port.name] = count
        elif array.ndim and array.shape != tuple(port.shape):
            raise _wrong_shape(array, port)
    if not counts:
        yield list(arrays)
        return
    if len(set(counts.values())) > 1:
        raise invalid(
            "samples",
            "the stacks of samples have different lengths",
            expected="one number of entries for all inputs",
            got=", ".join(f"{count} of '{name}'" for name, count in counts.items()),
        )
    for entry in range(next(iter(counts.values()))):
        yield [_entry(array, port.shape, entry) for array, port in zip(arrays, program.inputs, strict=True)]


def _wrong_shape(array: Any, port: Port) -> Exception:
    shape, got = ("[" + ",".join(map(str, each)) + "]" for each in (port.shape, array.shape))
    return layout_mismatch(
        "samples",
        f"input '{port.path or port.name}' has the wrong shape",
        expected=f"{shape}, or a stack of such arrays",
        got=got,
    )


def _entry(array: Any, wanted: Sequence[int], entry: int) -> Any:
    if entries_of(array.shape, wanted) is None:
        return array
    if array.shape[1:] == tuple(wanted):
        return array[entry]
    return array[entry * wanted[0] : (entry + 1) * wanted[0]]
