"""In-place calls: each assigns a new value to the nodes that are the same tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.torch_operators.aliasing import Aliases, Conflict
from tosaic.torch_operators.foreign_calls import OUT_OF_PLACE
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.value import Ref
from tosaic.torch_operators.writer import CallWriter

__all__ = ["InPlaceCalls"]


class InPlaceCalls(CallWriter):
    """The part of a reader of FX nodes that reads in-place calls."""

    if TYPE_CHECKING:
        env: dict[Any, Any]
        _aliases: Aliases | None
        _prefix: str

        def functional_hint(self) -> str:
            """Returns how to make the program functional with the same numbers."""

        def _hint_of_writing(self, row: OperatorRow) -> str:
            """Returns what to do about a call that writes an operand."""

    def _written(self, node: Any, row: OperatorRow, result: Any) -> None:
        """Assigns the new value of each written operand to all nodes with the same elements."""
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
            if self._prefix and self._aliases.reaches_source(operand):
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
            fresh = result if type(result) is Ref else result[index]
            self._aliases.update(node, operand, self.env, fresh, self._refuse_write)

    def _reshaped(self, node: Any, operand: Any, result: Any) -> None:
        """Assigns the reshaped result to all nodes that are the same tensor object as the operand."""
        assert self._aliases is not None
        if self._aliases.is_placeholder(operand):
            raise self.error(
                _core.UnsupportedOp,
                f"it changes the shape of input '{operand.name}' in place, which the caller would see",
                hint="Write x = x.unsqueeze(0) for x.unsqueeze_(0)",
            )
        conflict = self._aliases.reshape(node, operand, self.env, result)
        if conflict is not None:
            raise self._refuse_write(conflict)

    def _refuse_write(self, conflict: Conflict, hint: str = "") -> Exception:
        return self.error(
            _core.UnsupportedOp, f"it writes to {conflict.what}", hint=hint or self.functional_hint()
        )
