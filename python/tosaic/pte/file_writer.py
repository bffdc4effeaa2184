"""Writes a ``.pte`` file of several methods: the data that they share, and the segments of the file.

::

    program   segment 0: constants   segments 1, 2 ...: payloads   last segment: initial states
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tosaic import _core

if TYPE_CHECKING:
    from typing_extensions import Buffer

ReadArray: TypeAlias = Callable[[], NDArray[Any]]
"""Returns the elements of a constant; each call may compute them again."""

ALIGNMENT = 16  # bytes, of tensors in planned memory and of constants in their segment
_OWN_MEMORIES = 2  # memory 0 is reserved, and memory 1 is shared by the activations of all methods


class _Pool:
    """Elements of tensors that become one segment. Index 0 means "no data"."""

    def __init__(self) -> None:
        self.size = 0
        self.offsets = [0]
        self._arrays: list[ReadArray] = []

    def add(self, read: ReadArray, nbytes: int) -> int:
        self.offsets.append(self.size + -self.size % ALIGNMENT)
        self.size = self.offsets[-1] + nbytes
        self._arrays.append(read)
        return len(self.offsets) - 1

    def pieces(self) -> Iterator[Buffer]:
        """Yields the bytes of the segment; elements are read only when they are yielded."""
        end = 0
        for offset, read in zip(self.offsets[1:], self._arrays, strict=True):
            yield bytes(offset - end)
            elements = _elements(read())
            yield elements.data
            end = offset + elements.nbytes

    def __bool__(self) -> bool:
        return len(self.offsets) > 1


class FileWriter:
    """Collects the methods of a file; a `MethodWriter` writes each of them."""

    def __init__(self) -> None:
        self._methods: list[Any] = []
        self._weights, self._states = _Pool(), _Pool()
        self._known: dict[tuple[int, bytes], int] = {}
        self._payloads: dict[bytes, int] = {}
        self._memories = _OWN_MEMORIES

    def add_method(self, method: _core.PteMethod) -> None:
        """Adds a method that is finished."""
        self._methods.append(method)

    def add_constant(self, read: ReadArray) -> int:
        """Returns the index of the elements of a constant; equal ones are stored once.

        The elements are read now, for their digest, and again when they are written, so that few of them are
        in memory at a time.
        """
        elements = _elements(read())
        key = elements.nbytes, hashlib.sha256(elements.data).digest()
        at = self._known.get(key)
        if at is None:
            at = self._known[key] = self._weights.add(read, elements.nbytes)
        return at

    def add_state(self, array: NDArray[Any]) -> int:
        """Returns the index of the initial elements of a state."""
        return self._states.add(lambda: array, array.nbytes)

    def add_payload(self, data: bytes) -> int:
        """Returns the segment of a payload; equal ones are stored once."""
        return self._payloads.setdefault(data, len(self._payloads) + 1)

    def add_memory(self) -> int:
        """Returns the number of a planned memory that no other method has."""
        self._memories += 1
        return self._memories - 1

    def pieces(self) -> Iterator[Buffer]:
        """Yields the bytes of the file as buffers, one after the other.

        Raises
        ------
        UnsupportedOp
            Something is larger than the format allows.
        """
        segments: list[tuple[int, Iterable[Buffer]]] = [(self._weights.size, self._weights.pieces())]
        segments += [(len(each), [each]) for each in self._payloads]
        states = None
        if self._states:
            states = [_core.PtePieces(segment=len(segments), offsets=self._states.offsets)]
            segments.append((self._states.size, self._states.pieces()))
        head, places = _core.pte_head(
            _core.PteFile(
                methods=self._methods,
                segments=[],
                constants=_core.PtePieces(segment=0, offsets=self._weights.offsets),
                mutable_data=states,
                named_data=[],
            ),
            [size for size, _ in segments],
        )
        yield head.data
        end = head.nbytes
        for place, (size, parts) in zip(places, segments, strict=True):
            yield bytes(place - end)
            yield from parts
            end = place + size

    def finish(self) -> bytes:
        """Returns the bytes of the file, whose indices and places are checked.

        Raises
        ------
        UnsupportedOp
            Something is larger than the format allows.
        """
        data = b"".join(self.pieces())
        check(data)
        return data


def check(data: Buffer) -> None:
    """Checks every index and place of a file that was written."""
    _core.read_pte(data)


def _elements(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Returns the elements of an array in row-major order, as bytes."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
