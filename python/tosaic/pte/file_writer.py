"""Writes a method of a ``.pte`` file: values, instructions, and a memory plan over the whole method.

::

    writer = MethodWriter("forward")
    x = writer.tensor("f32", (2, 3))
    y = writer.tensor("f32", (2, 3))
    writer.call("aten::relu", "out", [x], [y])
    data = writer.finish([x], [y])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tosaic import _core

__all__ = ["MethodWriter", "Payload", "Slot"]

_CODES = {dtype: code for code, _, _, dtype in _core.pte_scalar_types() if dtype is not None}
_ALIGNMENT = 16  # of tensors: in planned memory, and of constants in their segment
_SEGMENT = 1
_ACTIVATIONS = 1  # the memory of all planned tensors; memory 0 is reserved


@dataclass(frozen=True)
class Slot:
    """A value of the method: its index."""

    index: int


@dataclass(frozen=True)
class Payload:
    """What a backend gets for a delegate.

    Attributes
    ----------
    backend : str
        The id of the backend in the runtime.
    data : bytes
    specs : tuple of (str, bytes)
        Compile specs.
    """

    backend: str
    data: bytes
    specs: tuple[tuple[str, bytes], ...] = ()


class MethodWriter:
    """Collects the values and instructions of a method."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._values: list[Any] = []
        self._numbers: dict[tuple[str, str], Slot] = {}
        self._instructions: list[Any] = []
        self._operators: dict[tuple[str, str], int] = {}
        self._payloads: list[Payload] = []
        self._constants: list[bytes] = [b""]  # index 0 is "no data"
        self._constant_slots: dict[bytes, int] = {}
        self._planned: list[int] = []

    # ---- values ----

    def _add(self, value: Any) -> Slot:
        self._values.append(value)
        return Slot(len(self._values) - 1)

    def tensor(self, dtype: str, shape: Sequence[int], dim_order: Sequence[int] | None = None) -> Slot:
        """Adds a tensor, whose memory is planned."""
        slot = self._add(self._tensor(dtype, shape, dim_order))
        self._planned.append(slot.index)
        return slot

    def constant(self, array: np.ndarray[Any, Any], dtype: str) -> Slot:
        """Adds a constant. Equal elements are stored once."""
        data = np.ascontiguousarray(array).tobytes()
        at = self._constant_slots.get(data)
        if at is None:
            at = self._constant_slots[data] = len(self._constants)
            self._constants.append(data)
        tensor = self._tensor(dtype, array.shape, None)
        tensor.data = at
        return self._add(tensor)

    @staticmethod
    def _tensor(dtype: str, shape: Sequence[int], dim_order: Sequence[int] | None) -> _core.PteTensor:
        order = list(range(len(shape))) if dim_order is None else list(dim_order)
        return _core.PteTensor(scalar_type=_CODES[dtype], sizes=list(shape), dim_order=order)

    def plain(self, value: Any) -> Slot:
        """Adds a number, a text, None, or a list of integers or tensors; equal ones share a value."""
        if isinstance(value, Slot):
            return value
        key = type(value).__name__, repr(value)
        if key not in self._numbers:
            self._numbers[key] = self._add(self._listed(value) if isinstance(value, list | tuple) else value)
        return self._numbers[key]

    def _listed(self, items: Sequence[Any]) -> Any:
        if any(isinstance(each, Slot) for each in items):
            return _core.PteTensorList(items=[each.index for each in items])
        return _core.PteIntList(items=[self.plain(int(each)).index for each in items])

    # ---- instructions ----

    def call(self, name: str, overload: str, operands: Sequence[Any], results: Sequence[Slot]) -> None:
        """Adds a call of an out variant: operands, results, and the results once more."""
        op = self._operators.setdefault((name, overload), len(self._operators))
        outs = [each.index for each in results]
        returned = outs if len(outs) == 1 else [self.plain(list(results)).index]
        args = [self.plain(each).index for each in operands] + outs + returned
        self._instructions.append(_core.PteKernelCall(op=op, args=args))

    def delegate(self, payload: Payload, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> None:
        """Adds a call of a delegate."""
        self._payloads.append(payload)
        args = [each.index for each in (*inputs, *outputs)]
        self._instructions.append(_core.PteDelegateCall(delegate=len(self._payloads) - 1, args=args))

    # ---- the file ----

    def finish(
        self, inputs: Sequence[Slot], outputs: Sequence[Slot], containers: tuple[str, str] = ("", "")
    ) -> bytes:
        """Returns the file with this method alone.

        Parameters
        ----------
        inputs, outputs : sequence of Slot
        containers : (str, str)
            The structure of arguments and of results.
        """
        memory = self._plan(inputs, outputs)
        method = _core.PteMethod(
            name=self._name,
            input_containers=containers[0],
            output_containers=containers[1],
            values=self._values,
            inputs=[each.index for each in inputs],
            outputs=[each.index for each in outputs],
            operators=[_core.PteOperator(name=name, overload=overload) for name, overload in self._operators],
            chains=[_core.PteChain(instructions=self._instructions)],
            delegates=self._delegates(),
            memories=[0, memory],
        )
        data = _core.write_pte(self._file(method))
        _core.read_pte(data)  # checks every index and place
        return data

    def _plan(self, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
        """Places all tensors in one memory, and returns its size. Inputs live from the beginning."""
        end = len(self._instructions)
        first, last = dict.fromkeys((each.index for each in inputs), 0), {}
        for step, instruction in enumerate(self._instructions):
            for index in self._tensors_of(instruction.args):
                first.setdefault(index, step)
                last[index] = step
        last |= dict.fromkeys((each.index for each in outputs), end)
        used = [index for index in self._planned if index in first or index in last]
        sizes = [max(self._values[index].byte_size, 1) for index in used]
        buffers = [
            (size, first.get(index, 0), last.get(index, 0)) for index, size in zip(used, sizes, strict=True)
        ]
        offsets, size, _ = _core.place_buffers(buffers, alignment=_ALIGNMENT)
        for index, offset in zip(used, offsets, strict=True):
            self._values[index].allocation = _core.PteAllocation(memory=_ACTIVATIONS, offset=offset)
        return size

    def _tensors_of(self, args: Sequence[int]) -> list[int]:
        """Returns the indices of tensors among arguments, with those in lists."""
        found = []
        for index in args:
            value = self._values[index]
            if isinstance(value, _core.PteTensorList):
                found += list(value.items)
            elif isinstance(value, _core.PteTensor):
                found.append(index)
        return found

    def _delegates(self) -> list[Any]:
        return [
            _core.PteDelegate(
                backend=each.backend,
                location=_SEGMENT,
                index=1 + i,
                specs=[
                    _core.PteCompileSpec(key=key, value=np.frombuffer(value, np.uint8))
                    for key, value in each.specs
                ],
            )
            for i, each in enumerate(self._payloads)
        ]

    def _file(self, method: _core.PteMethod) -> _core.PteFile:
        """Returns the file: the constants are segment 0, and each payload is a segment behind it."""
        offsets, constants = [], bytearray()
        for data in self._constants:
            constants += bytes(-len(constants) % _ALIGNMENT)
            offsets.append(len(constants))
            constants += data
        segments = [bytes(constants), *(each.data for each in self._payloads)]
        return _core.PteFile(
            methods=[method],
            segments=[_core.PteSegment(bytes=np.frombuffer(each, np.uint8)) for each in segments],
            constants=_core.PtePieces(segment=0, offsets=offsets),
            named_data=[],
        )
