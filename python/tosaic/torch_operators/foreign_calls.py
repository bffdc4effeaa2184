"""Calls without a row: described operators, and opaque nodes, which store a call without interpreting it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tosaic import _core
from tosaic.base.exception_notes import add_note
from tosaic.ports.foreign import ForeignOp, TensorSpec, attributes_of_call
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.complex_values import HINT
from tosaic.torch_operators.opaque import arguments_json
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.origins import place_of
from tosaic.torch_operators.value import NoValue, Ref, tensors_of
from tosaic.torch_operators.writer import CallWriter

__all__ = ["FUNCTIONALIZE", "OUT_OF_PLACE", "ForeignCalls"]

FUNCTIONALIZE = "Call ep.run_decompositions() first, which makes the program functional"
OUT_OF_PLACE = "Write a call that returns the new value: y = y.mul(2) in place of y.mul_(2)"

_READS_DATA = ("aten.item.default", "aten._local_scalar_dense.default")


class ForeignCalls(CallWriter):
    """The part of a reader of FX nodes that reads calls without a row.

    A node has what a ``torch.fx.Node`` has: ``name``, ``args``, ``kwargs`` and ``meta``. A subclass says what
    ``meta["val"]`` holds.
    """

    tensor_type: ClassVar[Any]
    """The type of a recorded tensor."""
    number_types: ClassVar[Any]
    """The types of a recorded number."""

    if TYPE_CHECKING:
        _node: Any
        _row: Any
        _shared: Any

        def note(self, rule: str, message: str) -> None:
            """Adds a diagnostic about this call."""

        def resolved(self, value: Any) -> Any:
            """Replaces the nodes in an FX argument by their values, and symbolic sizes by numbers."""

        def _mark(self) -> str:
            """Returns ``training`` or ``random`` if TOSA has no counterpart for this reason; else empty."""

        def _describe(self, value: Any) -> dict[str, str] | None:
            """Returns the entry of `arguments_json` for a dtype, a device or the like."""

        def _type_of(self, tensor: Any) -> tuple[int, Sequence[int]]:
            """Returns dtype and shape of a recorded tensor."""

    def autocast_hint(self) -> str:
        """Returns how to make the casts of a region of autocast explicit."""
        return "Save ep.run_decompositions({}), which writes out its casts"

    def functional_hint(self) -> str:
        """Returns how to make the program functional with the same numbers."""
        return OUT_OF_PLACE

    def _run_by_torch(self, target: str) -> ForeignOp | None:
        """Returns a description of an operator of torch that tosaic does not have, if torch may run it."""
        del target
        return None

    def _computed_at_import(self, operator: ForeignOp, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Returns the results of a call that torch runs, as constants; None unless its operands are."""
        del operator, args, kwargs
        return None

    def _hint_of_writing(self, row: OperatorRow) -> str:
        """Returns what to do about a call that writes an operand; only torch's own have functional forms."""
        if row.target.startswith("aten."):
            return self.functional_hint()
        return "Write an operator that returns the new value, and call that one"

    def _described(self, node: Any, row: OperatorRow, operator: ForeignOp) -> Any:
        """Adds a node for a call of an operator that the user described."""
        if row.mutates:
            raise self.error(
                _core.UnsupportedOp,
                f"{row.target} writes an operand, which a described operator may not do",
                hint=self._hint_of_writing(row),
            )
        values = [self.resolved(arg) for arg in row.complete(node.args, node.kwargs)]
        keywords = self._keywords(row, values)
        result = self._opaque(row.target, values[: row.required], keywords, described=operator)
        if operator.types is not None:
            self._compare_types(operator, result, values[: row.required], keywords)
        return result

    def _compare_types(
        self, operator: ForeignOp, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Raises InvalidGraph if the types that a description computes are not those that torch recorded."""

        def spec(value: Any) -> Any:
            if type(value) is Ref:
                return TensorSpec(_core.DTYPES[value.dtype], tuple(value.shape))
            return type(value)(map(spec, value)) if isinstance(value, list | tuple) else value

        assert operator.types is not None
        try:
            computed = operator.types(*map(spec, args), **{key: spec(value) for key, value in kwargs.items()})
        except Exception as error:
            add_note(error, f"in the function 'types' of '{operator.target}', for node '{self._node.name}'")
            raise
        expected = list(computed) if isinstance(computed, list | tuple) else [computed]
        found = [spec(item) for item in (result if isinstance(result, list | tuple) else [result])]
        if expected != found:
            raise self.error(
                _core.InvalidGraph,
                f"the description of {operator.target} computes other types than torch recorded",
                expected=str(found),
                got=str(expected),
            )

    @staticmethod
    def _keywords(row: OperatorRow, values: Sequence[Any]) -> dict[str, Any]:
        """Returns the arguments by name that differ from their defaults or have none."""
        rest = zip(
            row.names[row.required :], values[row.required :], row.defaults[row.required :], strict=True
        )
        return {
            name: value
            for name, value, default in rest
            if type(value) is Ref or name in row.needed_by_name or value != default
        }

    def _opaque(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        reason: str = "",
        described: ForeignOp | None = None,
    ) -> Any:
        """Adds an opaque node, which stores the call without interpreting it."""
        node = self._node
        recorded = node.meta.get("val")
        self._refuse_missing((args, kwargs))
        if isinstance(recorded, self.number_types):
            return self._opaque_number(recorded, target, args)
        items = list(recorded) if isinstance(recorded, list | tuple) else [recorded]
        if any(isinstance(item, self.tensor_type) and item.is_complex() for item in items):
            raise self.error(
                _core.UnsupportedOp, f"{target} with a complex result is not supported", hint=HINT
            )
        mark = self._mark()
        text, operands = arguments_json(args, kwargs, self._describe, self._no_text, mark)
        by_torch = self._run_by_torch(target) if described is None and not mark else None
        computed = None if by_torch is None else self._computed_at_import(by_torch, args, kwargs)
        if computed is not None:
            return computed
        types = [self._type_of(item) for item in items if isinstance(item, self.tensor_type)]
        attributes = {"target": target, "arguments": text}
        description = described or by_torch
        if description is not None:
            tensors = tensors_of([args, list(kwargs.values())])
            attributes |= attributes_of_call(
                description,
                [len(tensor.shape) for tensor in tensors if isinstance(tensor, Ref)],
                [len(shape) for _, shape in types],
            )
        first = self.builder.add_many(OP["opaque"], attributes, operands, self._name(), self._origin(), types)
        if described is None:
            because = f": {reason}" if reason else ""
            where = "an opaque node" if by_torch is None else "an opaque node, which torch runs"
            self.note("opaque", f"'{node.name}' ({target}) is kept as {where}{because}")
        refs = iter(Ref(first + i, dtype, shape) for i, (dtype, shape) in enumerate(types))
        results = [next(refs) if isinstance(item, self.tensor_type) else NoValue(target) for item in items]
        return results if isinstance(recorded, list | tuple) else results[0]

    def _opaque_number(self, recorded: Any, target: str, args: Sequence[Any]) -> Any:
        """Returns the number if it follows from the bound shapes; else a `NoValue`, which few calls use."""
        try:
            return self._shared.sizes.value(recorded)
        except _core.UnsupportedOp:
            only = args[0] if target in _READS_DATA and type(args[0]) is Ref else None
            if only is not None and only.shape:
                only = self.emit_inferred(OP["reshape"], {"shape": []}, (only.id,))
            return NoValue(target, place_of(self._node), only)

    def _refuse_missing(self, value: Any) -> None:
        if type(value) is NoValue:
            raise self.error(
                _core.UnsupportedOp,
                f"it uses a result of {value.target} that has no value here",
                expected="a number that does not depend on data" if value.place else "",
                got=value.place,
                hint="Keep the number a tensor, e.g. x + 2 * n in place of x + 2 * n.item()"
                if value.place
                else "Results that are not kept cannot be imported",
            )
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for item in value:
                self._refuse_missing(item)

    def _no_text(self, kind: str) -> Exception:
        return self.error(
            _core.UnsupportedOp,
            f"an argument of type {kind} cannot be kept",
            hint="Call ep.run_decompositions() first, or rewrite the call without it",
        )
