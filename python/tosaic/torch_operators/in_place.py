"""In-place calls: each assigns a new value to the nodes that are the same tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.torch_operators.aliasing import Aliases
from tosaic.torch_operators.foreign_calls import FUNCTIONALIZE, hint_of_writing
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

    def _written(self, node: Any, row: OperatorRow, result: Any) -> None:
        """Assigns the new value of each written operand to all nodes that are the same whole tensor."""
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
                    hint=hint_of_writing(row),
                )
            if self._prefix and self._aliases.reaches_placeholder(operand):
                raise self.error(
                    _core.UnsupportedOp, "a nested graph writes to a value outside of it", hint=FUNCTIONALIZE
                )
            fresh = result if type(result) is Ref else result[index]
            self._aliases.update(node, operand, self.env, fresh, self._refuse_shared)

    def _reshaped(self, node: Any, operand: Any, result: Any) -> None:
        """Assigns the reshaped result to all nodes that are the same tensor object as the operand."""
        assert self._aliases is not None
        if self._aliases.is_placeholder(operand):
            raise self.error(
                _core.UnsupportedOp,
                f"it changes the shape of input '{operand.name}' in place, which the caller would see",
                hint="Write x = x.unsqueeze(0) for x.unsqueeze_(0)",
            )
        self._aliases.reshape(node, operand, self.env, result)

    def _refuse_shared(self, operand: Any, other: Any) -> Exception:
        return self.error(
            _core.UnsupportedOp,
            f"it writes to '{operand.name}', whose memory '{other.name}' shares in part and is seen later",
            hint=FUNCTIONALIZE,
        )
