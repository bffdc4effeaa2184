"""Calls without a row: described operators, and opaque nodes, which store a call without interpreting it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import proxy

from tosaic import _core
from tosaic.base.exception_notes import add_note
from tosaic.ports.foreign import ForeignOp, TensorSpec, attributes_of_call
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.complex_values import HINT
from tosaic.torch_operators.opaque import arguments_json
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.origins import place_of
from tosaic.torch_operators.reader import Reader
from tosaic.torch_operators.value import NoValue, Ref, tensors_of

_READS_DATA = ("aten.item.default", "aten._local_scalar_dense.default")


class ForeignCalls:
    """The part of a reader of nodes that reads calls without a row.

    A node has the attributes of a ``torch.fx.Node``: ``name``, ``args``, ``kwargs`` and ``meta``. The reader
    defines the contents of ``meta["val"]``.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader: Reader = proxy(reader)  # the owner of this object
        self._writer = reader.writer

    def hint_of_writing(self, row: OperatorRow) -> str:
        """Returns the hint for a call that writes an operand; only torch's own have functional forms."""
        if row.target.startswith("aten."):
            return self._reader.functional_hint()
        return "Write an operator that returns the new value, and call that one"

    def described(self, node: Any, row: OperatorRow, operator: ForeignOp) -> Any:
        """Adds a node for a call of an operator that the user described."""
        if row.mutates:
            raise self._writer.error(
                _core.UnsupportedOp,
                f"{row.target} writes an operand, which a described operator may not do",
                hint=self.hint_of_writing(row),
            )
        values = [self._reader.resolved(arg) for arg in row.complete(node.args, node.kwargs)]
        keywords = keywords_of(row, values)
        result = self.opaque(row.target, values[: row.required], keywords, described=operator)
        if operator.types is not None:
            self.compare_types(operator, result, values[: row.required], keywords)
        return result

    def compare_types(
        self, operator: ForeignOp, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Raises InvalidGraph if the types that a description computes differ from torch's recorded types."""

        def spec(value: Any) -> Any:
            if type(value) is Ref:
                return TensorSpec(_core.DTYPES[value.dtype], tuple(value.shape))
            return type(value)(map(spec, value)) if isinstance(value, list | tuple) else value

        assert operator.types is not None
        try:
            computed = operator.types(*map(spec, args), **{key: spec(value) for key, value in kwargs.items()})
        except Exception as error:
            add_note(
                error, f"in the function 'types' of '{operator.target}', for node '{self._writer.node.name}'"
            )
            raise
        expected = list(computed) if isinstance(computed, list | tuple) else [computed]
        found = [spec(item) for item in (result if isinstance(result, list | tuple) else [result])]
        if expected != found:
            raise self._writer.error(
                _core.InvalidGraph,
                f"the description of {operator.target} computes other types than torch recorded",
                expected=str(found),
                got=str(expected),
            )

    def opaque(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        reason: str = "",
        described: ForeignOp | None = None,
    ) -> Any:
        """Adds an opaque node, which stores the call without interpreting it."""
        writer = self._writer
        node = writer.node
        recorded = node.meta.get("val")
        self.refuse_missing((args, kwargs))
        if isinstance(recorded, self._reader.number_types):
            return self._opaque_number(recorded, target, args)
        items = list(recorded) if isinstance(recorded, list | tuple) else [recorded]
        if any(isinstance(item, self._reader.tensor_type) and item.is_complex() for item in items):
            raise self._writer.error(
                _core.UnsupportedOp, f"{target} with a complex result is not supported", hint=HINT
            )
        mark = self._reader.mark()
        text, operands = arguments_json(args, kwargs, self._reader.describe, self._no_text, mark)
        by_torch = self._reader.run_by_torch(target) if described is None and not mark else None
        computed = None if by_torch is None else self._reader.computed_at_import(by_torch, args, kwargs)
        if computed is not None:
            return computed
        types = [self._writer.type_of(item) for item in items if isinstance(item, self._reader.tensor_type)]
        attributes = {"target": target, "arguments": text}
        description = described or by_torch
        if description is not None:
            tensors = tensors_of([args, list(kwargs.values())])
            attributes |= attributes_of_call(
                description,
                [len(tensor.shape) for tensor in tensors if isinstance(tensor, Ref)],
                [len(shape) for _, shape in types],
            )
        first = writer.builder.add_many(
            OP["opaque"], attributes, operands, writer.name(), writer.origin(), types
        )
        if described is None:
            because = f": {reason}" if reason else ""
            where = "an opaque node" if by_torch is None else "an opaque node, which torch runs"
            self._writer.note("opaque", f"'{node.name}' ({target}) is kept as {where}{because}")
        refs = iter(Ref(first + i, dtype, shape) for i, (dtype, shape) in enumerate(types))
        results = [
            next(refs) if isinstance(item, self._reader.tensor_type) else NoValue(target) for item in items
        ]
        return results if isinstance(recorded, list | tuple) else results[0]

    def _opaque_number(self, recorded: Any, target: str, args: Sequence[Any]) -> Any:
        """Returns the number if it follows from the bound shapes; else a `NoValue`, which few calls use."""
        try:
            return self._writer.shared.sizes.value(recorded)
        except _core.UnsupportedOp:
            only = args[0] if target in _READS_DATA and type(args[0]) is Ref else None
            if only is not None and only.shape:
                only = self._writer.emit_inferred(OP["reshape"], {"shape": []}, (only.id,))
            return NoValue(target, place_of(self._writer.node), only)

    def refuse_missing(self, value: Any) -> None:
        """Raises UnsupportedOp if a value has a `NoValue` in it."""
        if type(value) is NoValue:
            raise self._writer.error(
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
                self.refuse_missing(item)

    def _no_text(self, kind: str) -> Exception:
        return self._writer.error(
            _core.UnsupportedOp,
            f"an argument of type {kind} cannot be kept",
            hint="Call ep.run_decompositions() first, or rewrite the call without it",
        )


def keywords_of(row: OperatorRow, values: Sequence[Any]) -> dict[str, Any]:
    """Returns the arguments by name that differ from their defaults or have none."""
    rest = zip(row.names[row.required :], values[row.required :], row.defaults[row.required :], strict=True)
    return {
        name: value
        for name, value, default in rest
        if type(value) is Ref or name in row.needed_by_name or value != default
    }
