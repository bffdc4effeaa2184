"""Calls with stacks of samples: the entries run one after the other, and the results are stacked again.

::

    input [1,3,8,8], output [1,10]      run([64,3,8,8]) -> [64,10]        a multiple of the first extent
                                        run([64,1,3,8,8]) -> [64,1,10]    an additional first axis

Stacks are as in `tosaic.quantize` and `tosaic.compare` (`tosaic.calibration.streams`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic.base.arrays import in_memory_order
from tosaic.base.options import invalid
from tosaic.ports.stacks import entries_of

if TYPE_CHECKING:
    from tosaic.ports.ports import Port


class StackedCall:
    """The entries of a call whose arrays are stacks.

    Parameters
    ----------
    leaves : sequence
        The caller's argument for each input.
    ports : sequence of Port
        The inputs.
    count : int
        The number of entries.
    has_axis : bool
        The stacks and the results have an additional first axis.
    """

    def __init__(self, leaves: Sequence[Any], ports: Sequence[Port], count: int, *, has_axis: bool) -> None:
        self._leaves, self._ports = leaves, ports
        self._stacked = [_entries(leaf, port) is not None for leaf, port in zip(leaves, ports, strict=True)]
        self.count = count
        self.has_axis = has_axis

    def __iter__(self) -> Iterator[list[Any]]:
        """Yields the arguments of each entry."""
        for entry in range(self.count):
            yield [
                self._entry(leaf, port, entry) if stacked else leaf
                for leaf, port, stacked in zip(self._leaves, self._ports, self._stacked, strict=True)
            ]

    def is_stacked(self, index: int) -> bool:
        """Returns whether each entry has its own array for an input."""
        return self._stacked[index]

    def _entry(self, leaf: Any, port: Port, entry: int) -> Any:
        return leaf[entry] if self.has_axis else leaf[entry * port.shape[0] : (entry + 1) * port.shape[0]]

    def joined(self, results: Sequence[Sequence[Any]], names: Sequence[str]) -> list[Any]:
        """Returns the results of all entries as one array each.

        Parameters
        ----------
        results : sequence of sequence of array
            By entry.
        names : sequence of str
            The names of the results.

        Raises
        ------
        InvalidGraph
            A result has no axis along which the entries could be joined.
        """
        found = []
        for name, arrays in zip(names, zip(*results, strict=True), strict=True):
            if self.has_axis:
                found.append(np.stack(arrays))
            elif arrays[0].ndim:
                found.append(np.concatenate(arrays))
            else:
                raise invalid(
                    "run",
                    f"output '{name}' is one number for each entry of a stack, and has no axis for them",
                    expected="arrays with one more axis in front: " + self._with_axis(),
                    got="arrays with a multiple of the extent of the first axis",
                )
        return found

    def _with_axis(self) -> str:
        texts = (
            f"'{port.path or port.name}' of [{','.join(map(str, (self.count, *port.shape)))}]"
            for index, port in enumerate(self._ports)
            if self.is_stacked(index)
        )
        return ", ".join(texts)


def stacked_call(leaves: Sequence[Any], ports: Sequence[Port], written: Sequence[int]) -> StackedCall | None:
    """Returns the entries of a call, or None if it is not a call with stacks.

    Parameters
    ----------
    leaves : sequence
        The caller's argument for each input.
    ports : sequence of Port
        The inputs.
    written : sequence of int
        The inputs that the program writes.

    Raises
    ------
    InvalidGraph
        The stacks have different numbers of entries, no entries, or different forms. Or the program writes an
        input that all entries share.
    """
    counts: dict[str, int] = {}
    has_axis: dict[str, bool] = {}
    for leaf, port in zip(leaves, ports, strict=True):
        count = _entries(leaf, port)
        name = port.path or port.name
        if count is not None:
            counts[name] = count
            has_axis[name] = len(leaf.shape) > len(port.shape)
        elif _shape(leaf) not in ((), tuple(port.shape)):
            return None
    if not counts:
        return None
    got = ", ".join(f"{count} of '{name}'" for name, count in counts.items())
    if len(set(counts.values())) > 1 or not all(counts.values()):
        raise invalid(
            "run",
            "the stacks of samples have different lengths" if all(counts.values()) else "a stack is empty",
            expected="one number of entries for all inputs, at least 1",
            got=got,
        )
    if len(set(has_axis.values())) > 1:
        forms = {True: "one more axis in front", False: "a multiple of the extent of the first axis"}
        raise invalid(
            "run",
            "the stacks of samples have different forms, so that the form of the results is open",
            expected="one form for all inputs",
            got=", ".join(f"'{name}' has {forms[each]}" for name, each in has_axis.items()),
        )
    call = StackedCall(leaves, ports, next(iter(counts.values())), has_axis=next(iter(has_axis.values())))
    for index in written:
        name = ports[index].path or ports[index].name
        if not call.is_stacked(index):
            raise invalid(
                "run",
                f"the program writes input '{name}', which belongs to all entries of a stack",
                expected="a stack of it, too",
                got=got,
                hint="Call run once for each entry, in the order of the calls",
            )
    return call


def laid_out(array: Any, port: Port) -> Any:
    """Returns an array of a file, or a stack of such arrays, in the input's dim order: files have none."""
    rank = len(port.shape)
    if not isinstance(array, np.ndarray) or array.ndim not in (rank, rank + 1):
        return array
    order = tuple(port.array_order)
    if array.ndim > rank:
        order = (0, *(axis + 1 for axis in order))
    return in_memory_order(array, order)


def _shape(leaf: Any) -> tuple[int, ...]:
    try:
        return tuple(leaf.shape)
    except (AttributeError, RuntimeError, TypeError):  # no array, or a nested tensor
        return ()


def _entries(leaf: Any, port: Port) -> int | None:
    return entries_of(_shape(leaf), port.shape)
