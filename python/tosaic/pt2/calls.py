"""Reads the calls of a ``.pt2`` graph, by the same rows as the calls of torch's programs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from tosaic import _core
from tosaic.ports.foreign import ForeignOp
from tosaic.pt2.archive_writer import ArchiveWriter
from tosaic.pt2.checked import MISUSE
from tosaic.pt2.nodes import NestedGraph, Node
from tosaic.pt2.recorded_memory import RecordedMemory
from tosaic.pt2.schemas import is_of_torch, row_of
from tosaic.pt2.tensors import Stored
from tosaic.pt2.values import Device, Dtype, MemoryFormat, Named, Symbolic, TensorMeta
from tosaic.torch_operators.aliasing import Conflict
from tosaic.torch_operators.complex_values import emit_complex, is_known
from tosaic.torch_operators.node_reader import NodeReader
from tosaic.torch_operators.operator_row import OperatorRow, getitem_row
from tosaic.torch_operators.origins import Where
from tosaic.torch_operators.value import NoValue, Ref, tensors_of
from tosaic.torch_operators.wrappers import Wrapped

_GETITEM = getitem_row()
_INT = frozenset({int})
_CONSTANTS = frozenset({int, float, bool, str, type(None), Dtype, Device, Named, MemoryFormat})


class ArchiveReader(NodeReader):
    """Reads the nodes of one graph of an archive, with a writer into a builder."""

    argument_types = _core.ArgumentTypes(Node, Ref, _CONSTANTS, (list, tuple))
    tensor_type = TensorMeta
    number_types = (Symbolic, int, float, bool)
    writer: ArchiveWriter

    def __init__(self, writer: ArchiveWriter) -> None:
        super().__init__(writer)
        self._shared = writer.shared
        self.weights_at: Mapping[str, str] = {}  # names of weights by placeholder name, in the program itself

    def release(self) -> None:
        """Drops the references to the nodes, after the last one was read."""
        self.env, self.nodes, self.in_place = {}, (), None
        self.nested.wrapped, self.writer.aliases = Wrapped(), None

    def memory(self) -> RecordedMemory:
        """See `NodeReader`."""
        return RecordedMemory(self._shared.sizes, self._held)

    def _held(self, node: Any) -> Stored | None:
        """Returns the stored tensor of a weight's placeholder; None for inputs and unreadable tensors."""
        target = self.weights_at.get(node.name) if node.op == "placeholder" else None
        try:
            return None if target is None else self._shared.weights.stored(target)
        except (_core.UnsupportedOp, _core.InvalidGraph):
            return None

    def refuse_write(self, conflict: Conflict, hint: str = "") -> Exception:
        """Adds that torch may know more, if the conflict is not certain."""
        if conflict.is_known:
            return super().refuse_write(conflict, hint)
        return self._only_in_torch(f"it writes to {conflict.what}")

    def inner(self, module: NestedGraph, builder: _core.GraphBuilder, prefix: str) -> ArchiveReader:
        """See `Reader`."""
        del module
        return ArchiveReader(ArchiveWriter(self._shared, builder, prefix))

    # ---- walking ----

    def resolve(self, target: Any) -> OperatorRow | None:
        """See `NodeReader`."""
        if target is operator.getitem:
            return _GETITEM
        return row_of(target) if target.count(".") >= 2 and not target.startswith("torch.") else None

    def located(self, error: Exception, node: Any) -> Exception:
        """Also locates errors that a damaged file causes in rows, which rely on the operator's schema."""
        if isinstance(error, _core.InvalidGraph):
            known = error.parts["node"] or error.parts["where"] == "pt2"
            return error if known or node is None else self.error_at(node, error)
        if node is None or isinstance(error, _core.Error) or not isinstance(error, MISUSE):
            return super().located(error, node)
        self.writer.node = node
        got = f"{type(error).__name__}: {error}"[:300]
        return self.writer.error(_core.InvalidGraph, "the operator does not take these arguments", got=got)

    def error_at(self, node: Any, error: Any, hint: str = "", at: Where | None = None) -> Exception:
        """Returns an error like this one, located at a node. A ``[pt2]`` error keeps that mark."""
        if error.parts["where"] == "pt2":
            at = Where.of(node, "pt2")
        return super().error_at(node, error, hint, at)

    def _only_in_torch(self, what: str) -> Exception:
        """Returns the error for a call that needs torch; `read_pt2` adds a hint how to read the file."""
        return self.writer.error(_core.UnsupportedOp, what, at=Where.of(self.writer.node, "pt2"))

    def read_row(self, node: Any, row: OperatorRow) -> Any:
        """Reads a call of an operator overload, which need not have a row."""
        return super().read_row(node, row) if row.names else self._without_row(node, row)

    def read_complex(self, row: OperatorRow, values: Sequence[Any]) -> Any:
        """See `NodeReader`."""
        result = None
        if is_known(row.name, row.emit):
            result = emit_complex(self.writer, row.name, row.emit, values)
        if result is None:
            raise self._beyond(row)
        if self.in_place is not None and row.mutates:
            self.in_place.written(self.writer.node, row, result)
        return result

    def read_otherwise(self, row: OperatorRow, values: Sequence[Any]) -> Any:
        """See `NodeReader`."""
        del values
        raise self._beyond(row)

    def _without_row(self, node: Any, row: OperatorRow) -> Any:
        """Reads a call of an operator without a row: an opaque node, unless torch may decompose the call."""
        recorded = node.meta.get("val")
        args = [self.resolved(arg) for arg in node.args]
        kwargs = {key: self.resolved(arg) for key, arg in node.kwargs.items()}
        has_tensors = bool(tensors_of([*args, *kwargs.values()]))
        if is_of_torch(row.target) and not (isinstance(recorded, self.number_types) and has_tensors):
            raise self._beyond(row)
        if not _has_tensors(recorded) or row.target.split(".")[1].endswith("_"):
            raise self._only_in_torch(
                f"{row.target} may write its operands, and the file does not have its schema"
            )
        return self.foreign.opaque(row.target, args, kwargs)

    def _beyond(self, row: OperatorRow) -> Exception:
        return self._only_in_torch(
            f"{row.target} has no row of its own with these arguments, and torch's decompositions are needed"
        )

    def read_described(self, node: Any, row: OperatorRow, operator: ForeignOp) -> Any:
        """Reads a call of an operator that the user described. Torch may have no schema for it."""
        if row.names:
            return super().read_described(node, row, operator)
        args = [self.resolved(arg) for arg in node.args]
        kwargs = {key: self.resolved(arg) for key, arg in node.kwargs.items()}
        result = self.foreign.opaque(row.target, args, kwargs, described=operator)
        if operator.types is not None:
            self.foreign.compare_types(operator, result, args, kwargs)
        return result

    def attribute(self, node: Any) -> Any:
        """See `NodeReader`."""
        return node.meta["val"]

    def nested_of(self, attribute: Any, owner: Any) -> Any:
        """See `Reader`."""
        del owner
        return attribute.meta["val"]

    def is_higher_order(self, target: Any) -> bool:
        """See `Reader`."""
        return str(target).startswith("higher_order.")

    def read_function(self, node: Any) -> Any:
        """Reads a call that is not an operator overload: arithmetic on sizes, or a higher-order operator."""
        values = [self.resolved(arg) for arg in node.args]
        keywords = {key: self.resolved(arg) for key, arg in node.kwargs.items()}
        name = node.target.rpartition(".")[2]
        if self.is_higher_order(node.target):
            return self.nested.read(node, name, values, keywords)
        for value in values:
            if type(value) is NoValue:
                return NoValue(name, value.place)
        recorded = node.meta.get("val")
        if isinstance(recorded, self.number_types) and not tensors_of(values):
            return self._shared.sizes.value(recorded)
        raise self._only_in_torch(f"a call of {node.target} is not known")

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

    def describe(self, value: Any) -> dict[str, str] | None:
        """See `Reader`."""
        if isinstance(value, Dtype):
            return {"repr": str(value)} if value.code < 0 else {"dtype": _core.DTYPES[value.code]}
        return {"repr": str(value)} if isinstance(value, complex | Device | Named | MemoryFormat) else None


def _has_tensors(recorded: Any) -> bool:
    items = recorded if isinstance(recorded, list | tuple) else [recorded]
    return any(type(item) in (TensorMeta, Symbolic, int, float, bool) for item in items)
