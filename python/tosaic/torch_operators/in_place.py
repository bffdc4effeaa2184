"""In-place calls: each notes the new value of what it writes, and which tensors have a new shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tosaic import _core
from tosaic.torch_operators.aliasing import Aliases, Conflict, nodes_in
from tosaic.torch_operators.compound_movement import Movements
from tosaic.torch_operators.foreign_calls import OUT_OF_PLACE
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.value import Ref
from tosaic.torch_operators.writer import CallWriter
from tosaic.torch_operators.written_memory import BEHIND_ALL, Write, WrittenMemory

if TYPE_CHECKING:
    from tosaic.torch_operators.call import Call
    from tosaic.torch_operators.nested_graphs import Place, Wrapped

__all__ = ["InPlaceCalls"]


@dataclass(frozen=True, eq=False)
class _After:
    """Stands for a node of torch that there would be if the call that wrote were functional."""

    name: str
    target: Any
    meta: Any


class _NamedMovements(Movements):
    """Writes each node in the name of a node of its own, as the functional program would have."""

    def __init__(self, reader: InPlaceCalls, names: Iterator[str], write: Any) -> None:
        super().__init__(cast("Call", reader))
        self._reader, self._names, self._write = reader, names, write

    def _emit(self, op: str, attrs: dict[str, Any] | None, *operands: Ref) -> Ref:
        self._name()
        return super()._emit(op, attrs, *operands)

    def put(self, x: Ref, indices: Any, source: Ref) -> Ref:
        """Replaces elements of an `x` with one axis."""
        self._name()
        return super().put(x, indices, source)

    def _name(self) -> None:
        self._reader._node = _After(next(self._names), self._write.target, self._write.meta)


class InPlaceCalls(CallWriter):
    """The part of a reader of FX nodes that reads in-place calls."""

    _memory_now: WrittenMemory | None = None

    if TYPE_CHECKING:
        env: dict[Any, Any]
        _node: Any
        _row: Any
        _shared: Any
        _aliases: Aliases | None
        _own_place: Place
        _wrapped: Wrapped

        def functional_hint(self) -> str:
            """Returns how to make the program functional with the same numbers."""

        def _hint_of_writing(self, row: OperatorRow) -> str:
            """Returns what to do about a call that writes an operand."""

    def _written(self, node: Any, row: OperatorRow, result: Any) -> None:
        """Notes the new value of each written operand."""
        assert self._aliases is not None
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
                raise self.error(
                    _core.UnsupportedOp,
                    f"it writes to '{row.names[position]}' without returning it",
                    hint=self._hint_of_writing(row),
                )
            if self._own_place.prefix and self._aliases.reaches_source(operand):
                raise self.error(
                    _core.UnsupportedOp,
                    "a nested graph writes to a value outside of it",
                    hint=self.functional_hint(),
                )
            if self._aliases.reaches_attribute(operand):
                raise self.error(
                    _core.UnsupportedOp,
                    f"it writes to '{operand.name}', which the module holds and the program does not list",
                    hint=OUT_OF_PLACE,
                )
            conflict = self._aliases.conflict_in(node, row, operand)
            if conflict is not None:
                raise self._refuse_write(conflict, OUT_OF_PLACE)
            fresh = result[index] if isinstance(result, list | tuple) else result
            assert self._memory_now is not None
            is_one_number = self._aliases.writes_one_number(node, row)
            self._memory_now.note(node, operand, fresh, is_one_number=is_one_number)

    def _reshaped(self, node: Any, operand: Any, result: Any) -> None:
        """Assigns the reshaped result to all nodes that are the same tensor object as the operand."""
        assert self._aliases is not None
        if self._aliases.is_placeholder(operand):
            raise self.error(
                _core.UnsupportedOp,
                f"it changes the shape of input '{operand.name}' in place, which the caller would see",
                hint="Write x = x.unsqueeze(0) for x.unsqueeze_(0)",
            )
        same = self._aliases.same_as(node, operand)
        if isinstance(same, Conflict):
            raise self._refuse_write(same)
        assert self._memory_now is not None
        for member in same:
            self._memory_now.assign(member, result)

    def _refresh(self, node: Any, row: OperatorRow | None) -> None:
        """Gives the operands of a node the values that were written into their memory."""
        assert self._aliases is not None
        assert self._memory_now is not None
        item = node.args[1] if row is not None and row.getitem else None
        wrapped = self._wrapped.results.get(node, self._wrapped.operands.get(node))
        read = node.all_input_nodes if wrapped is None else nodes_in(wrapped)
        mutated = self._aliases.mutated
        touched = [each for each in read if each in mutated]
        if touched:
            self._memory_now.refresh(touched, self._aliases.position(node), self, item)

    def current(self, node: Any) -> Any:
        """Returns the value of a node after the last call."""
        if self._memory_now is not None:
            self._memory_now.refresh([node], BEHIND_ALL, self)
        return self.env[node]

    def moves_of(self, names: Iterator[str], write: Any) -> Movements:
        """Returns what writes nodes of these names, in the place of a call that wrote."""
        self._row = self._shared.rows.get(write.target)
        return _NamedMovements(self, names, write)

    def refuse_read(self, write: Write, conflict: Conflict) -> Exception:
        """Returns the error for a read after a write of which the elements are not known."""
        self._node, self._row = write.node, self._shared.rows.get(write.node.target)
        return self._refuse_write(conflict)

    def _refuse_write(self, conflict: Conflict, hint: str = "") -> Exception:
        return self.error(
            _core.UnsupportedOp, f"it writes to {conflict.what}", hint=hint or self.functional_hint()
        )
