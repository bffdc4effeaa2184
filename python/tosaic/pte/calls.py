"""Writes the nodes of a kernel call. The rows of `tosaic.torch_operators` see a `KernelWriter` as `Call`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosaic import _core
from tosaic.base.arrays import dtype_name
from tosaic.base.diagnostics import Diagnostics
from tosaic.base.dtypes import NUMPY
from tosaic.pte.rows import form_of, is_in_place
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.call import Call
from tosaic.torch_operators.dtypes import CATEGORY, CODE
from tosaic.torch_operators.numbers import number_array
from tosaic.torch_operators.origins import Origin, Where
from tosaic.torch_operators.value import Complex, NoValue, Ref

_MISUSE = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)

Types = list[tuple[int, Sequence[int]]]


def constant_of(name: str, kind: str, array: NDArray[Any], dtype: int | str) -> _core.Constant:
    """Returns a constant over the memory of an array, or over a copy if it is not row-major."""
    dense = np.ascontiguousarray(array)
    shape = tuple(array.shape)  # the copy of a rank-0 array has rank 1
    return _core.Constant(name, kind, dtype, shape, dense.ctypes.data, dense.nbytes, dense)


class KernelWriter(Call):
    """Writes the nodes of kernel calls.

    Parameters
    ----------
    builder : GraphBuilder
    method : Where
        The place of the method, for errors.
    diagnostics : Diagnostics
    outer : KernelWriter, optional
        The writer of the method, if this is the writer of a branch: nodes in both have different names.

    Attributes
    ----------
    node : str
        The name of the next node.
    target : tuple of str
        The operator of the call: its name and overload.
    place : tuple of (str, int)
        The file and line of the call.
    instruction : int
        The number of the instruction.
    """

    def __init__(
        self,
        builder: _core.GraphBuilder,
        method: Where,
        diagnostics: Diagnostics,
        outer: KernelWriter | None = None,
    ) -> None:
        super().__init__(builder)
        self._method = method
        self.diagnostics = diagnostics
        # Each name that is taken, with the next number to try after it.
        self._names: dict[str, int] = {} if outer is None else outer._names
        self.node = ""
        self.target = ("", "")
        self.place = ("", 0)
        self.instruction = -1
        self._used: set[int] = set()
        self._operands: Sequence[Any] = ()

    # ---- the call that is being read ----

    def begin(self, instruction: int, target: tuple[str, str], place: tuple[str, int] = ("", 0)) -> None:
        """Begins a call: its number, its operator (name and overload), and its file and line."""
        base = target[0].rpartition("::")[2].strip("_") or "call"
        name = base
        while name in self._names:
            self._names[base] += 1
            name = f"{base}_{self._names[base]}"
        self._names[name] = 0
        self.node, self.target, self.place, self.instruction = name, target, place, instruction

    @contextmanager
    def aside(self, target: str) -> Iterator[None]:
        """Writes nodes of another call in front of the current call, whose operands are being read."""
        present = self.node, self.target, self.dtype, self.shape, self.types
        self.begin(self.instruction, (target, ""), self.place)
        try:
            yield
        finally:
            self.node, self.target, self.dtype, self.shape, self.types = present

    def read_call(
        self, arguments: Sequence[Any], types: Types, used: set[int], operands: Sequence[Any]
    ) -> list[Any]:
        """Adds the nodes of the call; returns a `Ref` for each result that has a value, else a `NoValue`.

        Parameters
        ----------
        arguments : sequence
            Without results. Tensors are `Ref`.
        types : list
            Dtype and shape of each result.
        used : set of int
            The indices of results that something reads.
        operands : sequence
            The arguments as the file has them: tensors with their dim orders.
        """
        self.types, self._used, self._operands = types, used, operands
        self.dtype, self.shape = types[0] if types else (-1, ())
        form = form_of(*self.target, arguments)
        made = None if form is None else self.located(lambda: form.emit(self, *arguments))
        if made is None:
            return self._opaque(arguments)
        if isinstance(made, Complex):
            raise self.error(_core.UnsupportedOp, f"{self.target_name()} has a complex result")
        return list(made) if isinstance(made, list | tuple) else [made]

    def located(self, read: Callable[[], Any]) -> Any:
        """Returns what `read` returns; an error of the graph gets the place of the call."""
        try:
            return read()
        except (_core.UnsupportedOp, _core.InvalidGraph) as error:
            parts = error.parts
            if parts["where"] == "pte":
                raise
            kind = type(error)
            raise self.error(
                kind, parts["what"], expected=parts["expected"], got=parts["got"], hint=parts["hint"]
            ) from error
        except _MISUSE as error:  # rows rely on the schema of the operator, which a damaged file breaks
            got = f"{type(error).__name__}: {error}"
            raise self.error(
                _core.InvalidGraph, "the operator does not take these arguments", got=got
            ) from error

    def _opaque(self, arguments: Sequence[Any]) -> list[Ref]:
        """Adds an opaque node for a call that no row reads; the program runs only with a function for it."""
        namespace, _, base = self.target[0].rpartition("::")
        stem = "_".join(part for part in self.target[1].split("_") if part != "out") or "default"
        target = f"{namespace or 'aten'}.{base}.{stem}"
        self.note("opaque", f"'{self.node}' ({target}) is kept as an opaque node")
        return self.opaque(target, arguments, self.types)

    def opaque(self, target: str, arguments: Sequence[Any], types: Types) -> list[Ref]:
        """Adds an opaque node, which stores the call without interpreting it."""
        operands: list[int] = []

        def plain(value: Any) -> Any:
            if isinstance(value, Ref):
                operands.append(value.id)
                return {"$": len(operands) - 1}
            if isinstance(value, list):
                return [plain(each) for each in value]
            if isinstance(value, float) and not math.isfinite(value):
                return {"float": repr(value)}
            if isinstance(value, NoValue):
                raise self.without_value(value)
            return value

        document = {"args": [plain(each) for each in arguments], "kwargs": {}}
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        return self.emit_many(OP["opaque"], {"target": target, "arguments": text}, operands, types)

    def without_value(self, value: NoValue) -> Exception:
        """Returns the error for an argument that has no value."""
        return self.error(
            _core.UnsupportedOp, f"it uses a number that {value.target} reads from data at run time"
        )

    # ---- Call ----

    def name(self) -> str:
        """Returns the name of the next node."""
        return self.node

    def origin(self) -> Origin:
        """Returns the origin of the next node."""
        name, overload = self.target
        target = name.replace("::", ".") + (f".{overload}" if overload else "")
        # The file has no names of FX nodes, so nothing matches nodes of other programs by chance.
        return (f"instruction {self.instruction}", target, "", *self.place)

    def is_in_place(self) -> bool:
        """True if the kernel writes an operand."""
        return is_in_place(self.target[0])

    def target_name(self) -> str:
        """Returns the operator name of this call: ``add`` for ``aten::add.out``."""
        return self.target[0].removeprefix("aten::").rstrip("_")

    def first(self, result: Ref | None) -> list[Any] | None:
        """Returns the results of a call of which only the first is used; the others are `NoValue`."""
        rest = [NoValue(self.target[0])] * (len(self.types) - 1)
        return None if result is None else [result, *rest]

    def used_results(self) -> set[int]:
        """Returns the indices of the results that something reads."""
        return self._used

    def constant(self, value: bool | int | float, code: int) -> Ref:
        """Adds a rank-0 constant. A dtype that numpy does not have is cast from f32."""
        array = number_array(value, code)
        if array is None:
            wide = self.constant(float(value), CODE["f32"])
            return self.emit_inferred(OP["cast"], {"dtype": code}, (wide.id,))
        return Ref(self.builder.add_constant(constant_of("scalar", "lifted", array, code)), code, ())

    def lifted(self, elements: NDArray[Any]) -> Ref:
        """Adds a constant whose elements were computed while reading."""
        array = np.asarray(elements)
        code = CODE[dtype_name(array.dtype)]
        constant = constant_of(self.node, "lifted", array, code)
        return Ref(self.builder.add_constant(constant), code, tuple(array.shape))

    def known_elements(self, ref: Ref) -> NDArray[Any] | None:
        """Returns the elements of a constant as 64-bit numbers, or None for other values."""
        constant = self.builder.constant(ref.id)
        if constant is None or _core.DTYPES[ref.dtype] not in NUMPY:
            return None
        wide = np.float64 if CATEGORY[ref.dtype] == 2 else np.int64
        return np.asarray(constant.array).reshape(ref.shape).astype(wide)

    def order_of_format(self, memory_format: Any, rank: int) -> tuple[int, ...] | None:
        """Returns None: a value has the dim order of its tensor, whatever the call asks for."""
        del memory_format, rank
        return None

    def memory_of_operand(self, position: int) -> tuple[tuple[int, ...] | None, int]:
        """Returns the strides of an operand, which is dense in its dim order, and 0; else (None, 0)."""
        tensor = self._operands[position]
        if not isinstance(tensor, _core.PteTensor):
            return None, 0
        strides, step = [1] * len(tensor.sizes), 1
        for axis in reversed(tensor.dim_order):
            strides[axis] = step
            step *= max(tensor.sizes[axis], 1)
        return tuple(strides), 0

    def note(self, rule: str, message: str) -> None:
        """Adds a diagnostic about this call."""
        self.diagnostics.note(rule, message, self.node)

    def where(self) -> Where:
        """Returns the place of the call: the method, the instruction and the operator."""
        name, overload = self.target
        called = name + (f".{overload}" if overload else "")
        at = f", instruction {self.instruction} ('{called}')" if self.instruction >= 0 else ""
        return replace(self._method, inside=f"{self._method.inside}{at}")
