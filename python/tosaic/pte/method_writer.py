"""Writes a method of a ``.pte`` file: values, instructions, and a memory plan over the whole method.

::

    file = FileWriter()
    writer = MethodWriter(file, "forward")
    x = writer.tensor("f32", (2, 3))
    y = writer.tensor("f32", (2, 3))
    writer.call("aten::relu", "out", [x], [y])
    writer.finish([x], [y])
    data = file.finish()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.options import unsupported
from tosaic.pte.file_writer import ALIGNMENT, FileWriter, ReadArray

if TYPE_CHECKING:
    from tosaic.devices.tool_cost import CostSummary

_CODES = {dtype: code for code, _, _, dtype in _core.pte_scalar_types() if dtype is not None}
_SEGMENT = 1
_ACTIVATIONS = 1  # the memory of planned tensors other than states; memory 0 is reserved


def code_of(dtype: str) -> int:
    """Returns the number of a dtype in the file.

    Raises
    ------
    UnsupportedOp
        The format does not have the dtype.
    """
    if dtype not in _CODES:
        raise unsupported("save", f"a .pte file has no tensors of {dtype}", expected=", ".join(_CODES))
    return _CODES[dtype]


@dataclass(frozen=True)
class Slot:
    """A value of the method: its index."""

    index: int


@dataclass(frozen=True)
class PtePayload:
    """The payload of a delegate, for its backend.

    Attributes
    ----------
    backend : str
        The id of the backend in the runtime.
    data : bytes
    specs : tuple of (str, bytes)
        Compile specs.
    cost : CostSummary, optional
        The cost estimate of the tool that compiled the payload, if it made one. It is not written.
    """

    backend: str
    data: bytes
    specs: tuple[tuple[str, bytes], ...] = ()
    cost: CostSummary | None = field(default=None, compare=False)


class MethodWriter:
    """Collects the values and instructions of a method of a file."""

    def __init__(self, file: FileWriter, name: str) -> None:
        self.name = name
        self._file = file
        self._values: list[Any] = []
        self._numbers: dict[tuple[str, str], Slot] = {}
        self._instructions: list[Any] = []
        self._operators: dict[tuple[str, str], int] = {}
        self._delegates: list[Any] = []
        self._planned: dict[int, None] = {}
        self._bases: dict[int, int] = {}  # view -> the tensor whose bytes it has
        self._arrays: dict[int, ReadArray] = {}  # constant, or view of one -> its elements
        self._states: dict[int, int] = {}  # state -> its offset in the memory of the method's states
        self._state_bytes = 0

    # ---- values ----

    def _add(self, value: Any) -> Slot:
        self._values.append(value)
        return Slot(len(self._values) - 1)

    def tensor(self, dtype: str, shape: Sequence[int], dim_order: Sequence[int] | None = None) -> Slot:
        """Adds a tensor, whose memory is planned."""
        slot = self._add(self._tensor(code_of(dtype), shape, dim_order))
        self._planned[slot.index] = None
        return slot

    def state(self, array: np.ndarray[Any, Any], dtype: str, name: str) -> Slot:
        """Adds a tensor that keeps its elements from run to run, with the array as initial elements."""
        slot = self.tensor(dtype, array.shape)
        self._values[slot.index].data = self._file.add_state(array)
        self._values[slot.index].extra = _core.PteExtra(name=name)
        self._states[slot.index] = self._state_bytes
        self._state_bytes += -(-max(self._values[slot.index].byte_size, 1) // ALIGNMENT) * ALIGNMENT
        return slot

    def constant(self, array: np.ndarray[Any, Any], dtype: str) -> Slot:
        """Adds a constant; see `constant_of`."""
        return self.constant_of(lambda: array, dtype, array.shape)

    def constant_of(self, read: ReadArray, dtype: str, shape: Sequence[int]) -> Slot:
        """Adds a constant. Only elements that something reads are written; equal ones are written once."""
        slot = self._add(self._tensor(code_of(dtype), shape, None))
        self._arrays[slot.index] = read
        return slot

    def view(self, slot: Slot, shape: Sequence[int], dim_order: Sequence[int]) -> Slot:
        """Returns a view of another tensor, which has the same bytes: no instruction, and no memory."""
        for same in (slot, self.base(slot)):
            known = self._values[same.index]
            if (list(known.sizes), list(known.dim_order)) == (list(shape), list(dim_order)):
                return same
        base = self._values[slot.index]
        made = self._add(self._tensor(base.scalar_type, shape, dim_order))
        if slot.index in self._arrays:
            self._arrays[made.index] = self._arrays[slot.index]
        else:
            self._bases[made.index] = self.base(slot).index
        return made

    def base(self, slot: Slot) -> Slot:
        """Returns the base of a view, whose bytes it has; a tensor that is no view is its own base."""
        return Slot(self._bases.get(slot.index, slot.index))

    def is_planned(self, slot: Slot) -> bool:
        """True for a tensor whose memory is planned, and not a constant."""
        return self.base(slot).index in self._planned

    @staticmethod
    def _tensor(code: int, shape: Sequence[int], dim_order: Sequence[int] | None) -> _core.PteTensor:
        order = list(range(len(shape))) if dim_order is None else list(dim_order)
        return _core.PteTensor(scalar_type=code, sizes=list(shape), dim_order=order)

    def plain(self, value: Any) -> Slot:
        """Adds a number, a text, None, or a list of numbers or tensors; equal ones share a value."""
        if isinstance(value, Slot):
            return value
        key = type(value).__name__, repr(value)
        if key not in self._numbers:
            self._numbers[key] = self._add(self._listed(value) if isinstance(value, list | tuple) else value)
        return self._numbers[key]

    def _listed(self, items: Sequence[Any]) -> Any:
        if any(isinstance(each, Slot) for each in items):
            return _core.PteTensorList(items=[each.index for each in items])
        if any(isinstance(each, float) for each in items):
            return _core.PteDoubleList(items=[float(each) for each in items])
        return _core.PteIntList(items=[self.plain(int(each)).index for each in items])

    def optional_tensors(self, slots: Sequence[Slot | None]) -> Slot:
        """Adds a list of tensors of which some may be None. The file has a type of its own for such lists."""
        return self._add(
            _core.PteOptionalTensorList(items=[-1 if each is None else each.index for each in slots])
        )

    # ---- instructions ----

    def call(
        self,
        name: str,
        overload: str,
        operands: Sequence[Any],
        results: Sequence[Slot],
        *,
        listed: bool = False,
    ) -> None:
        """Adds a call of an out variant: its arguments are operands, results, and the results again.

        If `listed`, the results are one argument of the call, a list of tensors.
        """
        op = self._operators.setdefault((name, overload), len(self._operators))
        outs = [each.index for each in results]
        together = self.plain(list(results)).index if listed or len(outs) > 1 else outs[0]
        results_as_arguments = [together] if listed else outs
        args = [self.plain(each).index for each in operands] + results_as_arguments + [together]
        self._instructions.append(_core.PteKernelCall(op=op, args=args))

    def call_in_place(self, name: str, operands: Sequence[Any]) -> None:
        """Adds a call that writes its first operand."""
        op = self._operators.setdefault((name, ""), len(self._operators))
        args = [self.plain(each).index for each in operands]
        self._instructions.append(_core.PteKernelCall(op=op, args=[*args, args[0]]))

    def delegate(self, payload: PtePayload, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> None:
        """Adds a call of a delegate."""
        args = [each.index for each in (*map(self._as_written, inputs), *outputs)]
        self._instructions.append(_core.PteDelegateCall(delegate=len(self._delegates), args=args))
        self._delegates.append(
            _core.PteDelegate(
                backend=payload.backend,
                location=_SEGMENT,
                index=self._file.add_payload(payload.data),
                specs=[
                    _core.PteCompileSpec(key=key, value=np.frombuffer(value, np.uint8))
                    for key, value in payload.specs
                ],
            )
        )

    def _as_written(self, slot: Slot) -> Slot:
        """Returns a view's base if both have the same extents in memory: delegates then read the same bytes.

        `load_pte` counts values that were written before as inputs, if it cannot read a delegate's payload.
        """
        base = self.base(slot)
        extents = [
            [tensor.sizes[axis] for axis in tensor.dim_order]
            for tensor in (self._values[slot.index], self._values[base.index])
        ]
        return base if extents[0] == extents[1] else slot

    # ---- the method ----

    def finish(
        self, inputs: Sequence[Slot], outputs: Sequence[Slot], containers: tuple[str, str] = ("", "")
    ) -> None:
        """Plans the memory, and adds the method to the file.

        Parameters
        ----------
        inputs, outputs : sequence of Slot
        containers : (str, str)
            The structure of arguments and of results.
        """
        memories = [0, self._plan(inputs, outputs), *self._place_states()]
        self._place_constants(outputs)
        self._file.add_method(
            _core.PteMethod(
                name=self.name,
                input_containers=containers[0],
                output_containers=containers[1],
                values=self._values,
                inputs=[each.index for each in inputs],
                outputs=[each.index for each in outputs],
                operators=[
                    _core.PteOperator(name=name, overload=overload) for name, overload in self._operators
                ],
                chains=[_core.PteChain(instructions=self._instructions)],
                delegates=self._delegates,
                memories=memories,
            )
        )

    def _plan(self, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
        """Places all tensors except states in one memory; returns its size. Inputs live from the start."""
        end = len(self._instructions)
        given = {self.base(each).index for each in inputs}
        first, last = dict.fromkeys(given, 0), dict.fromkeys(given, 0)
        for step, instruction in enumerate(self._instructions):
            for index in self._tensors_of(instruction.args):
                first.setdefault(index, step)
                last[index] = step
        last |= dict.fromkeys((self.base(each).index for each in outputs), end)
        planned = [index for index in self._planned if index not in self._states]
        used = [index for index in planned if index in first or index in last]
        sizes = [max(self._values[index].byte_size, 1) for index in used]
        buffers = [(size, first.get(index, 0), last[index]) for index, size in zip(used, sizes, strict=True)]
        offsets, size, _ = _core.place_buffers(buffers, alignment=ALIGNMENT)
        self._allocate(_ACTIVATIONS, dict(zip(used, offsets, strict=True)))
        return size

    def _place_constants(self, outputs: Sequence[Slot]) -> None:
        """Adds the elements of constants to the file. A constant that nothing reads becomes None.

        An unread constant is, for example, a weight of which a transposed copy is written for a kernel.
        """
        read = {each.index for each in outputs}
        for instruction in self._instructions:
            for index in instruction.args:
                value = self._values[index]
                is_list = isinstance(value, _core.PteTensorList | _core.PteOptionalTensorList)
                read.update(value.items if is_list else [index])
        added: dict[ReadArray, int] = {}  # a view has the same function as its base
        for index, elements in self._arrays.items():
            if index in read:
                if elements not in added:
                    added[elements] = self._file.add_constant(elements)
                self._values[index].data = added[elements]
            else:
                self._values[index] = None

    def _place_states(self) -> list[int]:
        """Places states in a memory that no other method of the file has; returns sizes of memories up to it.

        A runtime may load all methods into the same memories: memories of ExecuTorch's Python runtime are as
        large as the largest method needs. A state in the memory of activations would be overwritten by the
        activations of the other methods.
        """
        if not self._states:
            return []
        memory = self._file.add_memory()
        self._allocate(memory, self._states)
        return [0] * (memory - _ACTIVATIONS - 1) + [self._state_bytes]

    def _allocate(self, memory: int, offsets: Mapping[int, int]) -> None:
        """Assigns memory places to tensors and to their views."""
        for index in (*offsets, *self._bases):
            offset = offsets.get(self._bases.get(index, index))
            if offset is not None:
                self._values[index].allocation = _core.PteAllocation(memory=memory, offset=offset)

    def _tensors_of(self, args: Sequence[int]) -> list[int]:
        """Returns the base tensors of arguments, also of those in lists."""
        found = []
        for index in args:
            value = self._values[index]
            if isinstance(value, _core.PteTensorList | _core.PteOptionalTensorList):
                found += [item for item in value.items if item >= 0]
            elif isinstance(value, _core.PteTensor):
                found.append(index)
        return [self._bases.get(index, index) for index in found]
