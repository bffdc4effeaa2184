"""Writes a ``.pte`` file of several methods: what they share, and the segments of the file.

::

    program   segment 0: constants   segments 1, 2 ...: payloads   last segment: initial states
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tosaic import _core

__all__ = ["ALIGNMENT", "FileWriter"]

ALIGNMENT = 16  # of tensors: in planned memory, and of constants in their segment
_OWN_MEMORIES = 2  # memory 0 is reserved, and memory 1 is shared by the activations of all methods


class _Pool:
    """Elements of tensors that will be one segment. Index 0 is "no data"."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.offsets = [0]

    def add(self, elements: bytes) -> int:
        self.data += bytes(-len(self.data) % ALIGNMENT)
        self.offsets.append(len(self.data))
        self.data += elements
        return len(self.offsets) - 1

    def __bool__(self) -> bool:
        return len(self.offsets) > 1


class FileWriter:
    """Collects the methods of a file, which a `MethodWriter` writes."""

    def __init__(self) -> None:
        self._methods: list[Any] = []
        self._constants, self._states = _Pool(), _Pool()
        self._known: dict[bytes, int] = {}
        self._payloads: dict[bytes, int] = {}
        self._memories = _OWN_MEMORIES

    def add_method(self, method: _core.PteMethod) -> None:
        """Adds a method that is finished."""
        self._methods.append(method)

    def add_constant(self, elements: bytes) -> int:
        """Returns the index of the elements of a constant; equal ones are stored once."""
        at = self._known.get(elements)
        if at is None:
            at = self._known[elements] = self._constants.add(elements)
        return at

    def add_state(self, elements: bytes) -> int:
        """Returns the index of the initial elements of a state."""
        return self._states.add(elements)

    def add_payload(self, data: bytes) -> int:
        """Returns the segment of a payload; equal ones are stored once."""
        return self._payloads.setdefault(data, len(self._payloads) + 1)

    def add_memory(self) -> int:
        """Returns the number of a planned memory that no other method has."""
        self._memories += 1
        return self._memories - 1

    def finish(self) -> bytes:
        """Returns the bytes of the file.

        Raises
        ------
        UnsupportedOp
            Something is larger than the format can have.
        """
        segments: list[bytes | bytearray] = [self._constants.data, *self._payloads]
        states = None
        if self._states:
            states = [_core.PtePieces(segment=len(segments), offsets=self._states.offsets)]
            segments.append(self._states.data)
        data = _core.write_pte(
            _core.PteFile(
                methods=self._methods,
                segments=[_core.PteSegment(bytes=np.frombuffer(each, np.uint8)) for each in segments],
                constants=_core.PtePieces(segment=0, offsets=self._constants.offsets),
                mutable_data=states,
                named_data=[],
            )
        )
        _core.read_pte(data)  # checks every index and place
        return data
