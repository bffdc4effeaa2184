"""Reads in-place calls: records new values of the tensors that they write, and tensors with a new shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import proxy

from tosaic import _core
from tosaic.torch_operators.aliasing import Aliases, Conflict, nodes_in
from tosaic.torch_operators.compound_movement import Movements
from tosaic.torch_operators.foreign_calls import ForeignCalls
from tosaic.torch_operators.nested_graphs import NestedGraphs
from tosaic.torch_operators.node_writer import NodeWriter
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.reader import OUT_OF_PLACE, Reader
from tosaic.torch_operators.value import Ref
from tosaic.torch_operators.written_memory import BEHIND_ALL, Write, WrittenMemory


@dataclass(frozen=True, eq=False)
class _After:
    """Represents a node that torch's program would have if the call that wrote were functional."""

    name: str
    target: Any
    meta: Any


class _NamedMovements(Movements):
    """Gives each node a separate name, as the functional program would have."""

    def __init__(self, writer: NodeWriter, names: Iterator[str], write: Any) -> None:
        super().__init__(writer)
        self._writer, self._names, self._write = writer, names, write

    def emit(self, op: str, attrs: dict[str, Any] | None, *operands: Ref) -> Ref:
        self._name()
        return super().emit(op, attrs, *operands)

    def put(self, x: Ref, indices: Any, source: Ref) -> Ref:
        """Replaces elements of an `x` with one axis."""
        self._name()
        return super().put(x, indices, source)

    def _name(self) -> None:
        self._writer.node = _After(next(self._names), self._write.target, self._write.meta)


class InPlaceCalls:
    """The part of a reader of nodes that reads in-place calls; exists only for a graph that has some.

    Attributes
    ----------
    aliases : Aliases
        Which nodes share memory.
    """

    def __init__(self, reader: Reader, foreign: ForeignCalls, nested: NestedGraphs, aliases: Aliases) -> None:
        self.aliases = aliases
        self._reader: Reader = proxy(reader)  # the owner of this object
        self._writer = reader.writer
        self._foreign = foreign
        self._nested = nested
        self._memory = WrittenMemory(aliases, reader.env)

    def written(self, node: Any, row: OperatorRow, result: Any) -> None:
        """Records the new value of each written operand."""
        if row.writes_nothing(node):
            return
        args = row.complete(node.args, node.kwargs)
        if row.changes_shape:
            self._reshaped(node, args[0], result)
            return
        for position in row.mutates:
            operand, index = args[position], row.returned[position]
            if operand is None:
                continue
            if index is None or not hasattr(operand, "meta"):
                raise self._writer.error(
                    _core.UnsupportedOp,
                    f"it writes to '{row.names[position]}' without returning it",
                    hint=self._foreign.hint_of_writing(row),
                )
            if self._nested.own_place.prefix and self.aliases.reaches_source(operand):
                raise self._writer.error(
                    _core.UnsupportedOp,
                    "a nested graph writes to a value outside of it",
                    hint=self._reader.functional_hint(),
                )
            if self.aliases.reaches_attribute(operand):
                raise self._writer.error(
                    _core.UnsupportedOp,
                    f"it writes to '{operand.name}', which the module holds and the program does not list",
                    hint=OUT_OF_PLACE,
                )
            conflict = self.aliases.conflict_in(node, row, operand)
            if conflict is not None:
                raise self._reader.refuse_write(conflict, OUT_OF_PLACE)
            fresh = result[index] if isinstance(result, list | tuple) else result
            is_one_number = self.aliases.writes_one_number(node, row)
            self._memory.note(node, operand, fresh, is_one_number=is_one_number)

    def _reshaped(self, node: Any, operand: Any, result: Any) -> None:
        """Assigns the reshaped result to all nodes that are the same tensor object as the operand."""
        if self.aliases.is_placeholder(operand):
            raise self._writer.error(
                _core.UnsupportedOp,
                f"it changes the shape of input '{operand.name}' in place, which the caller would see",
                hint="Write x = x.unsqueeze(0) for x.unsqueeze_(0)",
            )
        same = self.aliases.same_as(node, operand)
        if isinstance(same, Conflict):
            raise self._reader.refuse_write(same)
        for member in same:
            self._memory.assign(member, result)

    def refresh(self, node: Any, row: OperatorRow | None) -> None:
        """Updates the operands of a node to the values that were written into their memory."""
        mutated = self.aliases.mutated
        if not mutated:
            return
        item = node.args[1] if row is not None and row.getitem else None
        wrapped = self._nested.wrapped.results.get(node, self._nested.wrapped.operands.get(node))
        read = node.all_input_nodes if wrapped is None else nodes_in(wrapped)
        touched = [each for each in read if each in mutated]
        if touched:
            self._memory.refresh(touched, self.aliases.position(node), self, item)

    def current(self, node: Any) -> Any:
        """Returns the value of a node after the last call."""
        self._memory.refresh([node], BEHIND_ALL, self)
        return self._reader.env[node]

    def moves_of(self, names: Iterator[str], write: Any) -> Movements:
        """Returns the writer of nodes with these names, for a call that wrote."""
        self._writer.row = self._writer.shared.rows.get(write.target)
        return _NamedMovements(self._writer, names, write)

    def refuse_read(self, write: Write, conflict: Conflict) -> Exception:
        """Returns the error for a read after a write whose elements are not known."""
        writer = self._writer
        writer.node, writer.row = write.node, writer.shared.rows.get(write.node.target)
        return self._reader.refuse_write(conflict)
