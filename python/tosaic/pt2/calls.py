"""Reads the calls of a ``.pt2`` graph, by the same rows as the calls of a program of torch."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosaic import _core
from tosaic.base.arrays import dtype_name
from tosaic.base.diagnostics import Diagnostics
from tosaic.ports.foreign import ForeignOp
from tosaic.pt2.checked import MISUSE
from tosaic.pt2.nodes import NestedGraph, Node
from tosaic.pt2.recorded_memory import RecordedMemory
from tosaic.pt2.schemas import is_of_torch, row_of
from tosaic.pt2.sizes import Sizes
from tosaic.pt2.tensors import Stored, Weights
from tosaic.pt2.values import Device, Dtype, MemoryFormat, Named, Symbolic, TensorMeta
from tosaic.torch_operators.aliasing import Conflict
from tosaic.torch_operators.complex_values import emit_complex, is_known
from tosaic.torch_operators.dtypes import CODE
from tosaic.torch_operators.nested_graphs import Wrapped
from tosaic.torch_operators.node_reader import NodeReader
from tosaic.torch_operators.operator_row import OperatorRow, getitem_row
from tosaic.torch_operators.origins import error_at, origin_of
from tosaic.torch_operators.value import Complex, NoValue, Ref, tensors_of

__all__ = ["ArchiveReader", "Shared", "code_of"]

_GETITEM = getitem_row()
_INT = frozenset({int})
_CONSTANTS = frozenset({int, float, bool, str, type(None), Dtype, Device, Named, MemoryFormat})


@dataclass(frozen=True)
class Shared:
    """What the readers of a program and of its nested graphs share."""

    weights: Weights
    sizes: Sizes
    diagnostics: Diagnostics
    rows: dict[Any, OperatorRow | None] = field(default_factory=dict)
    foreign: Mapping[str, ForeignOp] = field(default_factory=dict)  # by target


def code_of(meta: TensorMeta, what: str) -> int:
    """Returns the position of a dtype in DTYPES. If it has none, raises UnsupportedOp, which names `what`."""
    if meta.dtype.code < 0:
        raise _core.make_error(
            _core.UnsupportedOp,
            where="import",
            what=f"{what} has a dtype without a counterpart",
            got=str(meta.dtype),
        )
    return meta.dtype.code


class ArchiveReader(NodeReader):
    """Reads the nodes of one graph of an archive into a builder.

    Parameters
    ----------
    shared : Shared
    builder : GraphBuilder
    prefix : str
        The prefix of FX names in origins: the path of a nested graph, such as ``cond.0.``.
    """

    argument_types = _core.ArgumentTypes(Node, Ref, _CONSTANTS, (list, tuple))
    tensor_type = TensorMeta
    number_types = (Symbolic, int, float, bool)

    def __init__(self, shared: Shared, builder: _core.GraphBuilder, prefix: str = "") -> None:
        super().__init__(builder)
        self.env: dict[Any, Any] = {}
        self._shared = shared
        self._prefix = prefix
        self._owner: Any = None
        self._node: Any = None
        self._row: OperatorRow | None = None
        self._aliases = None
        self._is_complex = False
        self.weights_at: Mapping[str, str] = {}  # names of weights by placeholder name, in the program itself

    def release(self) -> None:
        """Forgets the nodes, after the last one was read."""
        self.env, self._aliases, self._memory_now = {}, None, None
        self._nodes, self._wrapped = (), Wrapped()

    def _memory(self) -> RecordedMemory:
        return RecordedMemory(self._shared.sizes, self._held)

    def _held(self, node: Any) -> Stored | None:
        """Returns the stored tensor that a placeholder stands for; None for inputs and unreadable tensors."""
        target = self.weights_at.get(node.name) if node.op == "placeholder" else None
        try:
            return None if target is None else self._shared.weights.stored(target)
        except (_core.UnsupportedOp, _core.InvalidGraph):
            return None

    def _refuse_write(self, conflict: Conflict, hint: str = "") -> Exception:
        if conflict.is_known:
            return super()._refuse_write(conflict, hint)
        return self.error(_core.UnsupportedOp, f"it writes to {conflict.what}", where="pt2")

    def _reader(self, module: NestedGraph, builder: _core.GraphBuilder, prefix: str) -> ArchiveReader:
        del module
        return ArchiveReader(self._shared, builder, prefix)

    # ---- walking ----

    def _resolve(self, target: Any) -> OperatorRow | None:
        if target is operator.getitem:
            return _GETITEM
        return row_of(target) if target.count(".") >= 2 and not target.startswith("torch.") else None

    def _located(self, error: Exception, node: Any) -> Exception:
        """Locates errors also of damaged files: rows rely on the schema of the operator."""
        if isinstance(error, _core.InvalidGraph):
            known = error.parts["node"] or error.parts["where"] == "pt2"
            return error if known or node is None else self._error_at(node, error)
        if node is None or isinstance(error, _core.Error) or not isinstance(error, MISUSE):
            return super()._located(error, node)
        self._node = node
        got = f"{type(error).__name__}: {error}"[:300]
        return self.error(_core.InvalidGraph, "the operator does not take these arguments", got=got)

    def _error_at(self, node: Any, error: Any, **more: str) -> Exception:
        """Returns an error like this one, located at a node. A ``[pt2]`` error keeps that mark."""
        if error.parts["where"] == "pt2":
            more["where"] = "pt2"
        return super()._error_at(node, error, **more)

    def _call(self, node: Any, row: OperatorRow) -> Any:
        return self._read_call(node, row) if row.names else self._without_row(node, row)

    def _complex_call(self, row: OperatorRow, values: Sequence[Any]) -> Any:
        result = None
        if is_known(row.name, row.emit):
            result = emit_complex(self, row.name, row.emit, values)
        if result is None:
            raise self._beyond(row)
        if row.mutates:
            self._written(self._node, row, result)
        return result

    def _read_otherwise(self, row: OperatorRow, values: Sequence[Any]) -> Any:
        del values
        raise self._beyond(row)

    def _without_row(self, node: Any, row: OperatorRow) -> Any:
        """Reads a call of an operator without a row: an opaque node, unless torch may take the call apart."""
        recorded = node.meta.get("val")
        args = [self.resolved(arg) for arg in node.args]
        kwargs = {key: self.resolved(arg) for key, arg in node.kwargs.items()}
        has_tensors = bool(tensors_of([*args, *kwargs.values()]))
        if is_of_torch(row.target) and not (isinstance(recorded, self.number_types) and has_tensors):
            raise self._beyond(row)
        if not _has_tensors(recorded) or row.target.split(".")[1].endswith("_"):
            raise self.error(
                _core.UnsupportedOp,
                f"{row.target} may write its operands, and the file does not have its schema",
                where="pt2",
            )
        return self._opaque(row.target, args, kwargs)

    def _beyond(self, row: OperatorRow) -> Exception:
        return self.error(
            _core.UnsupportedOp,
            f"{row.target} has no row of its own with these arguments, and torch's decompositions are needed",
            where="pt2",
        )

    def _described(self, node: Any, row: OperatorRow, operator: ForeignOp) -> Any:
        if row.names:
            return super()._described(node, row, operator)
        args = [self.resolved(arg) for arg in node.args]
        kwargs = {key: self.resolved(arg) for key, arg in node.kwargs.items()}
        result = self._opaque(row.target, args, kwargs, described=operator)
        if operator.types is not None:
            self._compare_types(operator, result, args, kwargs)
        return result

    def _attribute(self, node: Any) -> Any:
        return node.meta["val"]

    @staticmethod
    def _nested_of(attribute: Any, owner: Any) -> Any:
        del owner
        return attribute.meta["val"]

    @staticmethod
    def _is_higher_order(target: Any) -> bool:
        return str(target).startswith("higher_order.")

    def _foreign(self, node: Any) -> Any:
        """Reads a call that is no operator overload: arithmetic on sizes, or a higher-order operator."""
        values = [self.resolved(arg) for arg in node.args]
        keywords = {key: self.resolved(arg) for key, arg in node.kwargs.items()}
        name = node.target.rpartition(".")[2]
        if self._is_higher_order(node.target):
            return self._higher_order(node, name, values, keywords)
        for value in values:
            if type(value) is NoValue:
                return NoValue(name, value.place)
        recorded = node.meta.get("val")
        if isinstance(recorded, self.number_types) and not tensors_of(values):
            return self._shared.sizes.value(recorded)
        raise self.error(_core.UnsupportedOp, f"a call of {node.target} is not known", where="pt2")

    def resolved(self, value: Any) -> Any:
        """Replaces the nodes in an argument by their values, and symbolic sizes by numbers."""
        kind = type(value)
        if kind is Node:
            return self.env[value]
        if kind is list or kind is tuple:
            return [self.resolved(item) for item in value]
        if kind is dict:
            return {key: self.resolved(item) for key, item in value.items()}
        return self._shared.sizes.value(value) if kind is Symbolic else value

    @staticmethod
    def _describe(value: Any) -> dict[str, str] | None:
        if isinstance(value, Dtype):
            return {"repr": str(value)} if value.code < 0 else {"dtype": _core.DTYPES[value.code]}
        return {"repr": str(value)} if isinstance(value, complex | Device | Named | MemoryFormat) else None

    def _mark(self) -> str:
        return ""

    # ---- the call ----

    def _expect(self, node: Any, row: OperatorRow) -> None:
        """Sets the result types that the file records. A complex result has the type of a part."""
        recorded = node.meta.get("val")
        self._is_complex = False
        if type(recorded) is TensorMeta:
            self.dtype, self.shape = recorded.dtype.code, recorded.shape
            if self.dtype < 0 or not _INT.issuperset(map(type, self.shape)):
                self._is_complex = recorded.dtype.real >= 0
                self.dtype, self.shape = self._type_of(recorded)
            if not row.single:
                self.types = [(self.dtype, self.shape)]
            return
        if recorded is None and row.single:
            raise self.error(_core.InvalidGraph, "the node records no result", expected="a tensor")
        self.dtype = -1
        items = recorded if isinstance(recorded, list | tuple) else ()
        self.types = [self._type_of(item) if isinstance(item, TensorMeta) else (-1, ()) for item in items]
        if self.types:
            self.dtype, self.shape = self.types[0]

    def _type_of(self, tensor: TensorMeta) -> tuple[int, Sequence[int]]:
        dtype = tensor.dtype
        code = dtype.real if dtype.real >= 0 else code_of(tensor, f"a result of '{self._node.name}'")
        return code, self._shared.sizes.shape(tensor.shape)

    def _name(self) -> str:
        return str(self._node.name)

    def _origin(self) -> tuple[str, str, str, str, int]:
        node, row = self._node, self._row
        target = row.target if row is not None else node.target.removeprefix("higher_order.")
        return origin_of(self._prefix + node.name, target, node.meta)

    def note(self, rule: str, message: str) -> None:
        """Adds a diagnostic about this call."""
        self._shared.diagnostics.note(rule, message, self._name())

    def error(
        self,
        kind: type[Exception],
        what: str,
        *,
        expected: str = "",
        got: str = "",
        hint: str = "",
        node: Any = None,
        where: str = "import",
    ) -> Exception:
        """Returns an error located at this call, or at `node`."""
        node = self._node if node is None else node
        return error_at(kind, node, what, where=where, expected=expected, got=got, hint=hint)

    # ---- constants ----

    def constant(self, value: bool | int | float, code: int) -> Ref:
        """Adds a rank-0 constant."""
        return Ref(self.builder.add_constant(self._shared.weights.number(value, code)), code, ())

    def complex_constant(self, stored: Stored, kind: str) -> Complex:
        """Adds both parts of a complex tensor of the program as copied constants."""
        code = stored.meta.dtype.real
        real, imag = (
            Ref(self.builder.add_constant(part), code, stored.meta.shape)
            for part in self._shared.weights.parts(stored, kind)
        )
        return Complex(real, imag)

    def lifted(self, elements: NDArray[Any]) -> Ref:
        """Adds a constant whose elements were computed while reading."""
        array = np.ascontiguousarray(elements).reshape(np.shape(elements))
        code = CODE[dtype_name(array.dtype)]
        address = array.ctypes.data
        constant = _core.Constant(self._name(), "lifted", code, array.shape, address, array.nbytes, array)
        value = self.builder.add_constant(constant)
        return Ref(value, code, array.shape, value)

    def known_elements(self, ref: Ref) -> NDArray[Any] | None:
        """Returns the elements of a constant as 64-bit numbers, or None for other values."""
        constant = None if ref.held is None else self.builder.constant(ref.held)
        return None if constant is None else constant.numbers()

    def order_of_format(self, memory_format: Any, rank: int) -> tuple[int, ...] | None:
        """Returns the dim order that a memory format asks for; None for other formats and other values."""
        return memory_format.order(rank) if isinstance(memory_format, MemoryFormat) else None

    def memory_of_operand(self, position: int) -> tuple[tuple[int, ...] | None, int]:
        """Returns strides and storage offset of an operand as torch recorded them; else (None, 0)."""
        operand = self._node.args[position]
        if self._aliases is not None and type(operand) is Node:
            operand = self._aliases.shaped_by(operand, self._node)
        recorded = operand.meta.get("val")
        if recorded is None:
            return None, 0
        sizes = self._shared.sizes
        return tuple(sizes.shape(recorded.stride())), int(sizes.value(recorded.storage_offset()))


def _has_tensors(recorded: Any) -> bool:
    items = recorded if isinstance(recorded, list | tuple) else [recorded]
    return any(type(item) in (TensorMeta, Symbolic, int, float, bool) for item in items)
