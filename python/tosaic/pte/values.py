"""The values of a method while its instructions are read: numbers, lists, and tensors as values of a graph.

A tensor that is read before anything writes it is a state: its value persists from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.base.dtypes import NUMPY
from tosaic.pte.calls import KernelWriter, constant_of
from tosaic.pte.facts import LISTS, MethodFacts, is_external, is_permuted, name_of
from tosaic.pte.memory import Memory
from tosaic.pte.scalar_type import scalar_type
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.dtypes import CODE
from tosaic.torch_operators.value import Ref

_SIZES = {code: size for code, _, size, _ in _core.pte_scalar_types()}


class ValueReader:
    """Stores the values of a method, or of a branch of it, while a writer adds nodes.

    Parameters
    ----------
    method : MethodFacts
    writer : KernelWriter
    outer : ValueReader, optional
        The reader of the method, if this is the reader of a branch.

    Attributes
    ----------
    env : dict of int to object
        By index of a value: what was last written to it.
    memory : Memory
        The values in planned memory.
    written : list of int
        Indices of the values that were written.
    states : list of (int, int)
        The index of the value of each state, and its position among the inputs.
    input_count : int
    """

    def __init__(self, method: MethodFacts, writer: KernelWriter, outer: ValueReader | None = None) -> None:
        self._method = method
        self._writer = writer
        self._outer = outer
        self.env: dict[int, Any] = {}
        self.memory = Memory()
        self.written: list[int] = []
        self.states: list[tuple[int, int]] = []
        self.input_count = 0
        self._stored: dict[int, Ref] = {}

    # ---- values ----

    def value(self, index: int) -> Any:
        """Returns a value in the form that rows read: a number, a list, None, or a `Ref`."""
        value = self._method.values[index]
        if isinstance(value, _core.PteTensor):
            return self.tensor(index)
        if index in self.env:
            return self.env[index]
        if isinstance(value, LISTS):
            return [None if item < 0 else self.value(item) for item in value.items]
        return list(value.items) if hasattr(value, "items") else value

    def tensor(self, index: int) -> Ref:
        """Returns the current value of a tensor."""
        found = self.known(index)
        if found is not None:
            return found
        tensor = self._method.values[index]
        if tensor.allocation is None:
            raise self._fault(index, "is read before anything writes it")
        if not self.memory.is_free(tensor):
            raise self._fault(index, "lies in memory that another value has overwritten in part")
        if self._outer is not None:
            raise self._fault(index, "is read in a branch before anything writes it")
        state = self._method.state_of(index)
        ref = self._state(state, self._method.values[state])
        return ref if state == index else self.reinterpreted(ref, self._method.values[state], index)

    def scratch(self, index: int) -> Ref:
        """Returns a value for the temporary buffer of a kernel: its bytes mean nothing before the call."""
        return self._zeros_of(f"scratch_{index}", index, self._method.values[index])

    def known(self, index: int) -> Ref | None:
        """Returns the current value of a tensor; None if nothing has written it."""
        tensor = self._method.values[index]
        if tensor.allocation is None and (tensor.data or is_external(tensor)):
            return self._constant(index, tensor)
        held = self.env.get(index)
        if tensor.allocation is None or tensor.byte_size == 0:
            if held is None and tensor.byte_size == 0:
                return self._empty(index, tensor)
            return held if isinstance(held, Ref) else None
        written = self.memory.at(tensor)
        if written is None:
            if held is not None:
                raise self._fault(index, "is read after the memory plan has overwritten it")
            return None
        if written.index == index:
            return written.ref
        return self.reinterpreted(written.ref, written.tensor, index)

    def reinterpreted(self, ref: Ref, held: _core.PteTensor, index: int) -> Ref:
        """Returns a tensor with the bytes of another tensor: the same elements in memory order."""
        tensor = self._method.values[index]
        if tensor.scalar_type != held.scalar_type:
            raise self._fault(index, "has the bytes of a value of another dtype", unsupported=True)
        dtype = ref.dtype
        with self._writer.aside("view"):
            if is_permuted(held):
                ref = self.permuted(ref, held.dim_order)
            order = list(tensor.dim_order)
            physical = [tensor.sizes[axis] for axis in order]
            if list(ref.shape) != physical:
                ref = self._writer.emit_inferred(OP["reshape"], {"shape": physical}, (ref.id,))
            if is_permuted(tensor):
                ref = self.permuted(ref, [order.index(axis) for axis in range(len(order))])
        return Ref(ref.id, dtype, tuple(tensor.sizes))

    def permuted(self, ref: Ref, perm: Sequence[int]) -> Ref:
        """Adds a node that permutes the axes of a value."""
        return self._writer.emit_inferred(OP["permute"], {"perm": list(perm)}, (ref.id,))

    def write(self, index: int, made: Any) -> None:
        """Records the new value of an instruction's result."""
        self.env[index] = made
        self.written.append(index)
        if isinstance(made, Ref):
            self.memory.write(index, made, self._method.values[index])

    def type_of(self, index: int) -> tuple[int, tuple[int, ...]]:
        """Returns the dtype and shape of a tensor."""
        tensor = self._method.values[index]
        if not isinstance(tensor, _core.PteTensor):
            raise self._fault(index, f"is {type(tensor).__name__}, and the result of an operator is a tensor")
        return self._dtype(index, tensor), tuple(tensor.sizes)

    def _dtype(self, index: int, tensor: _core.PteTensor) -> int:
        name, dtype = scalar_type(tensor)
        if dtype is None:
            raise self._fault(index, f"has dtype {name}, which graphs do not have", unsupported=True)
        return CODE[dtype]

    def _fault(self, index: int, what: str, *, unsupported: bool = False) -> Exception:
        at = f"instruction {self._writer.instruction} reads value {index}, which {what}"
        if self._writer.instruction < 0:
            at = f"value {index} {what}"
        return self._method.error(at, unsupported=unsupported)

    # ---- constants and states ----

    def elements(self, index: int, tensor: _core.PteTensor) -> np.ndarray[Any, Any] | None:
        """Returns the stored elements of a tensor, with torch's axes; None without data in the file."""
        stored = self._method.file.elements_of(tensor)
        if stored is None:
            return None
        dtype = self._numpy_dtype(tensor, self._dtype(index, tensor))
        order = list(tensor.dim_order)
        physical = np.frombuffer(stored, np.uint8).view(dtype).reshape([tensor.sizes[axis] for axis in order])
        return physical.transpose(np.argsort(order))

    @staticmethod
    def _numpy_dtype(tensor: _core.PteTensor, code: int) -> np.dtype[Any]:
        """Returns the numpy dtype of the elements; unsigned integers of that size if numpy lacks it."""
        size = _SIZES[tensor.scalar_type]
        return NUMPY.get(_core.DTYPES[code], np.dtype(f"u{size}"))

    def _constant(self, index: int, tensor: _core.PteTensor) -> Ref:
        if index in self._stored:
            return self._stored[index]
        array = self.elements(index, tensor)
        if array is None:
            what = f"is the weight '{name_of(tensor)}' of another file, which is not read"
            raise self._fault(index, what, unsupported=True)
        code = self._dtype(index, tensor)
        name = name_of(tensor) or f"constant_{index}"
        kind = "parameter" if tensor.requires_grad else "lifted"
        value = self._writer.builder.add_constant(constant_of(name, kind, array, code))
        ref = self._stored[index] = Ref(value, code, tuple(tensor.sizes))
        return ref

    def _empty(self, index: int, tensor: _core.PteTensor) -> Ref:
        """Returns a tensor without elements, which may be read before it is written."""
        return self._zeros_of(f"empty_{index}", index, tensor)

    def _zeros_of(self, name: str, index: int, tensor: _core.PteTensor) -> Ref:
        code = self._dtype(index, tensor)
        array = self._zeros(index, tensor, code)
        value = self._writer.builder.add_constant(constant_of(name, "lifted", array, code))
        return Ref(value, code, tuple(tensor.sizes))

    def _zeros(self, index: int, tensor: _core.PteTensor, code: int) -> np.ndarray[Any, Any]:
        try:
            return np.zeros(tuple(tensor.sizes), self._numpy_dtype(tensor, code))
        except (MemoryError, ValueError):
            raise self._fault(index, f"has {tensor.byte_size} bytes, too many for this machine") from None

    def _state(self, index: int, tensor: _core.PteTensor) -> Ref:
        code = self._dtype(index, tensor)
        name = name_of(tensor) or f"state_{len(self.states)}"
        array = self.elements(index, tensor)
        if array is None:
            array = self._zeros(index, tensor, code)
            self._method.diagnostics.note(
                "unset-state",
                f"'{name}' has no initial value in the file, and begins with zeros",
                name,
            )
        initial = constant_of(name, "buffer", array, code)
        value = self._writer.builder.add_input(name, code, tensor.sizes, name, None, initial)
        self.states.append((index, self.input_count))
        self.input_count += 1
        ref = Ref(value, code, tuple(tensor.sizes))
        self.env[index] = ref
        self.memory.write(index, ref, tensor)
        return ref
