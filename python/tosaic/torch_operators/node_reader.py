"""Reads nodes as a ``torch.fx.Graph`` has them: one call, one node.

A node has ``op``, ``name``, ``target``, ``args``, ``kwargs``, ``meta``, ``users`` and ``all_input_nodes``,
as in ``torch.fx``. `tosaic.fx.reading.importer` reads torch's own nodes, and `tosaic.pt2` the nodes of a
file.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tosaic import _core
from tosaic.torch_operators.aliasing import Aliases, Memory
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.call import can_read_data
from tosaic.torch_operators.complex_values import as_complex, has_complex
from tosaic.torch_operators.in_place import InPlaceCalls
from tosaic.torch_operators.nested_graphs import NestedGraphs, Place, Wrapped
from tosaic.torch_operators.origins import module_path, place_of, source_of
from tosaic.torch_operators.value import NoValue, Ref
from tosaic.torch_operators.written_memory import WrittenMemory

if TYPE_CHECKING:
    from tosaic.torch_operators.call import Call

__all__ = ["NodeReader"]

_CALLS = _core.CallWriter(module_path, source_of, Ref)


class NodeReader(InPlaceCalls, NestedGraphs):
    """Reads the nodes of one graph into a builder."""

    _rows: Sequence[Any] = ()
    _nodes: Sequence[Any] = ()
    _wrapped = Wrapped()
    _own_place = Place("", None)
    _outer: Any = None  # the writer of the call whose decomposition this reader reads

    if TYPE_CHECKING:

        def _resolve(self, target: Any) -> Any:
            """Returns the `OperatorRow` of a call target, or None for a call of no operator overload."""

        def _expect(self, node: Any, row: Any) -> None:
            """Sets the types of the results that are recorded for the call."""

        def _complex_call(self, row: Any, values: Sequence[Any]) -> Any:
            """Reads a call with complex operands."""

        def _read_otherwise(self, row: Any, values: Sequence[Any]) -> Any:
            """Reads a call that has no row in the table, or with arguments that the row does not cover."""

        def _foreign(self, node: Any) -> Any:
            """Reads a call of no operator overload."""

        argument_types: _core.ArgumentTypes
        _is_complex: bool  # the result of the call

        def resolved(self, value: Any) -> Any:
            """Replaces the nodes in an argument by their values, and symbolic sizes by numbers."""

        def _attribute(self, node: Any) -> Any:
            """Reads an attribute of the module: a nested graph or a tensor."""

        def _memory(self) -> Memory:
            """Returns what is known of the memory of the nodes."""

    # ---- walking ----

    def prepare(self, nodes: Sequence[Any], states: Container[Any] = ()) -> None:
        """Resolves the call targets; if a call writes to its operands, finds out which nodes share memory.

        `states` are the attributes that calls may write, because a module holds what they write.
        """
        rows = self._shared.rows
        mutates = False
        self._wrapped, self._own_place = Wrapped(), Place(self._prefix, self._owner)
        nodes = self._nodes = list(self._with_nested(nodes, self._own_place, set()))
        self._rows = found = []
        for node in nodes:
            row = None
            if node.op == "call_function":
                target = node.target
                try:
                    row = rows[target]
                except KeyError:
                    row = rows[target] = self._resolve(target)
                if row is not None and row.mutates:
                    mutates = True
            found.append(row)
        if mutates:
            counts = partial(_counts, rows)
            self._aliases = Aliases(nodes, found, counts, self._memory(), states, self._wrapped)
            self._memory_now = WrittenMemory(self._aliases, self.env)

    @property
    def aliases(self) -> Aliases | None:
        """Which nodes share memory; None if no call writes."""
        return self._aliases

    @property
    def mutated(self) -> frozenset[Any]:
        """The nodes whose memory a call writes."""
        return frozenset() if self._aliases is None else self._aliases.mutated

    @property
    def nodes(self) -> Sequence[Any]:
        """The nodes that are read: the nodes of the graph, and of the graphs of wrappers."""
        return self._nodes

    def read(self) -> None:
        """Reads every call and attribute; placeholders must be in ``env`` already, and attributes may be."""
        env, foreign = self.env, self._shared.foreign
        places, own = self._wrapped.places, self._own_place
        node = None
        try:
            for node, row in zip(self._nodes, self._rows, strict=True):
                if places:
                    self._prefix, self._owner = places.get(node, own)
                if self._memory_now is not None:
                    self._refresh(node, row)
                if row is not None and row.is_ordinary and not foreign:
                    self._node, self._row = node, row
                    env[node] = self._read_call(node, row)
                else:
                    self._read_other(node, row)
        except MemoryError:
            raise
        except Exception as error:
            located = self._located(error, node)
            if located is error:
                raise
            raise located from error

    def _read_other(self, node: Any, row: Any) -> None:
        """Reads what is no call of an ordinary row."""
        env, op = self.env, node.op
        if op == "call_function":
            self._node, self._row = node, row
            if row is None:
                env[node] = self._foreign(node)
            elif row.getitem:
                env[node] = self._getitem(node)
            elif row.target in self._shared.foreign:
                env[node] = self._described(node, row, self._shared.foreign[row.target])
            elif row.dropped:
                env[node] = NoValue(row.target)
            elif row.evaluated and row.names:
                values = [self.resolved(arg) for arg in row.complete(node.args, node.kwargs)]
                env[node] = self._evaluate_size(row, values)
            else:
                env[node] = self._call(node, row)
        elif op == "get_attr":
            if node not in env:
                env[node] = self._attribute(node)
        elif op == "placeholder" and node in self._wrapped.operands:
            env[node] = self.resolved(self._wrapped.operands[node])
        elif op not in ("placeholder", "output"):
            raise self.error(
                _core.UnsupportedOp,
                f"an FX node of kind {op} has no meaning here",
                hint="Export the module",
            )

    def _located(self, error: Exception, node: Any) -> Exception:
        """Locates the error of an unknown size at the node that needs it; other errors know their node."""
        if not isinstance(error, _core.UnsupportedOp) or error.parts["node"] or node is None:
            return error
        hint = self._hint_of_size(node)
        return self._error_at(node, error, **({"hint": hint} if hint else {}))

    def _hint_of_size(self, node: Any) -> str:
        """Returns what has a known size in place of the result of a call; empty: what the error says."""
        del node
        return ""

    def _error_at(self, node: Any, error: Any, **more: str) -> Exception:
        """Returns an error like this one, located at a node. `more` are other arguments of `error`."""
        parts = error.parts
        said = {key: parts[key] for key in ("expected", "got", "hint")}
        self._node = node
        return self.error(type(error), parts["what"], **(said | more))

    def _getitem(self, node: Any) -> Any:
        container, index = node.args
        held = self.env[container]
        if isinstance(held, list | tuple | dict):
            return held[self.resolved(index)]
        return NoValue(str(container.target))

    @staticmethod
    def _has_no_value(values: Sequence[Any]) -> bool:
        return any(type(value) is NoValue for value in values)

    # ---- the call ----

    def _call(self, node: Any, row: Any) -> Any:
        """Reads a call of an operator overload."""
        return self._read_call(node, row)

    def _read_call(self, node: Any, row: Any) -> Any:
        """Reads a call by the row of the table or, where that cannot read it, as the reader does."""
        values, is_plain = _core.read_arguments(
            self.argument_types, node.args, node.kwargs, row.names, row.defaults, self.env, self.resolved
        )
        try:
            self._expect(node, row)
        except _core.UnsupportedOp:
            if not self._learn_sizes(values):
                raise
            self._expect(node, row)
        if row.training_at and row.is_training(values):
            self.note(
                "training",
                f"'{node.name}' ({row.target}) is in training mode: call .eval() before torch.export.export, "
                "unless that is what you mean",
            )
        if not is_plain and has_complex(values):
            return self._complex_call(row, values)
        result = None
        has_values = is_plain or NoValue not in map(type, values) or can_read_data(row.emit, values)
        if row.emit is not None and has_values:
            result = row.emit(self, *values)
            if self._is_complex:
                result = as_complex(cast("Call", self), row.name, result)
        if result is None:
            result = self._read_otherwise(row, values)
        if row.mutates:
            self._written(node, row, result)
        return result

    def copied(self, node: Any, value: Ref, into: Ref) -> Ref:
        """Returns the value of a node as ``copy_`` writes it into an input: in the input's dtype and shape.

        Torch's decompositions leave it to ``copy_`` to cast and to broadcast what the program writes.
        """
        self._node, self._row = node, None
        if value.dtype != into.dtype:
            value = self.emit_inferred(OP["cast"], {"dtype": into.dtype}, (value.id,))
        if tuple(value.shape) != tuple(into.shape):
            value = self.emit_inferred(OP["expand"], {"shape": list(into.shape)}, (value.id,))
        return value

    def _learn_sizes(self, values: Sequence[Any]) -> bool:
        """Learns result sizes that depend on data, if the data is constant; True if it did."""
        del values
        return False

    def emit(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds the node of this call. Its type is checked against the type that torch recorded."""
        row = self._row
        if self._outer is not None or row is None or row.mutates:
            return super().emit(op, attrs, operands)
        added: Ref = _CALLS.add(
            self.builder,
            op,
            attrs,
            operands,
            self._node,
            self._prefix,
            row.target,
            self.dtype,
            self.shape,
        )
        return added

    def target_name(self) -> str:
        """Returns the operator name of this call: ``add`` for ``add.Tensor``."""
        assert self._row is not None
        return str(self._row.name).partition(".")[0]

    def _is_in_place(self) -> bool:
        row = self._row
        return row is not None and bool(row.mutates)

    def first(self, result: Ref | None) -> list[Any] | None:
        """Returns the results of a call of which only the first is used; the others are `NoValue`."""
        return (
            None if result is None else [result] + [NoValue(str(self._node.target))] * (len(self.types) - 1)
        )

    def used_results(self) -> set[int]:
        """Returns the indices of results whose getitem has a user, or all if the tuple itself is used."""
        used = set()
        for user in self._node.users:
            if user.target is not operator.getitem:
                return set(range(len(self.types)))
            if user.users:
                used.add(user.args[1])
        return used

    def only_first(self) -> bool:
        """True if no result of the call except result 0 is used."""
        return self.used_results() <= {0}

    def _evaluate_size(self, row: Any, values: Sequence[Any]) -> Any:
        name = row.name.partition(".")[0]
        operand = values[0]
        if type(operand) is Ref and name == "sym_size":
            return operand.shape[values[1]] if row.arity > 1 else list(operand.shape)
        if type(operand) is Ref and name == "sym_numel":
            return math.prod(operand.shape)
        try:
            return self._shared.sizes.value(self._node.meta["val"])
        except _core.UnsupportedOp:
            if name != "sym_storage_offset":  # assertions read it, and the graph has no offsets
                raise
            return NoValue(row.target, place_of(self._node))


def _counts(rows: Mapping[Any, Any], user: Any) -> bool:
    """True for a use that makes a value live: any use except by a dropped call (an assertion)."""
    row = rows.get(user.target) if user.op == "call_function" else None
    return row is None or not row.dropped
