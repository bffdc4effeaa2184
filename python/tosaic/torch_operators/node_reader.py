"""Reads nodes as a ``torch.fx.Graph`` has them: one call, one node.

A node has ``op``, ``name``, ``target``, ``args``, ``kwargs``, ``meta``, ``users`` and ``all_input_nodes``,
as in ``torch.fx``. `tosaic.fx.reading.importer` reads torch's own nodes, and `tosaic.pt2` the nodes of a
file.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from tosaic import _core
from tosaic.ports.foreign import ForeignOp
from tosaic.torch_operators.aliasing import Aliases, Memory
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.call import can_read_data
from tosaic.torch_operators.complex_values import as_complex, has_complex
from tosaic.torch_operators.foreign_calls import ForeignCalls
from tosaic.torch_operators.in_place import InPlaceCalls
from tosaic.torch_operators.nested_graphs import NestedGraphs
from tosaic.torch_operators.node_writer import NodeWriter
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.origins import Where, place_of
from tosaic.torch_operators.reader import Reader
from tosaic.torch_operators.value import NoValue, Ref
from tosaic.torch_operators.wrappers import Place


class NodeReader(Reader):
    """Reads the nodes of one graph: calls by their rows, and all other nodes.

    Attributes
    ----------
    nodes : sequence
        All nodes that are read: those of the graph, and those of graphs in wrappers.
    foreign : ForeignCalls
    nested : NestedGraphs
    in_place : InPlaceCalls or None
        None if no call writes.
    """

    argument_types: ClassVar[_core.ArgumentTypes]
    plain_calls: ClassVar[_core.PlainCalls | None] = None
    """Reads most calls faster than `read_row`, with the same result; None if the nodes are not torch's."""

    def __init__(self, writer: NodeWriter, owner: Any = None) -> None:
        super().__init__(writer, owner)
        self.nodes: Sequence[Any] = ()
        self.foreign = ForeignCalls(self)
        self.nested = NestedGraphs(self, self.foreign)
        self.in_place: InPlaceCalls | None = None
        self._rows: Sequence[OperatorRow | None] = ()

    @abstractmethod
    def resolve(self, target: Any) -> OperatorRow | None:
        """Returns the row of a call target; None if the target is no operator overload."""

    @abstractmethod
    def attribute(self, node: Any) -> Any:
        """Reads an attribute of the module: a nested graph or a tensor."""

    @abstractmethod
    def memory(self) -> Memory:
        """Returns the `Memory` of the nodes."""

    @abstractmethod
    def read_complex(self, row: OperatorRow, values: Sequence[Any]) -> Any:
        """Reads a call with complex operands."""

    @abstractmethod
    def read_otherwise(self, row: OperatorRow, values: Sequence[Any]) -> Any:
        """Reads a call that has no row in the table, or with arguments that the row does not cover."""

    @abstractmethod
    def read_function(self, node: Any) -> Any:
        """Reads a call of no operator overload: arithmetic on sizes, or a higher-order operator."""

    def read_described(self, node: Any, row: OperatorRow, operator: ForeignOp) -> Any:
        """Reads a call of an operator that the user described."""
        return self.foreign.described(node, row, operator)

    # ---- walking ----

    def prepare(self, nodes: Sequence[Any], states: Container[Any] = ()) -> None:
        """See `Reader`."""
        self.nested.begin()
        collected: list[Any] = []
        found: list[OperatorRow | None] = []
        self.nodes, self._rows = collected, found
        if self._collect(nodes, self.nested.own_place, collected, found):
            counts = partial(_counts, self.writer.shared.rows)
            aliases = Aliases(collected, found, counts, self.memory(), states, self.nested.wrapped)
            self.in_place = InPlaceCalls(self, self.foreign, self.nested, aliases)
            self.writer.aliases = aliases

    def _collect(
        self, nodes: Sequence[Any], at: Place, collected: list[Any], found: list[OperatorRow | None]
    ) -> bool:
        """Adds the nodes of a graph with their rows, and before a wrapper the nodes of the graph it wraps.

        Returns True if a call writes.
        """
        rows = self.writer.shared.rows
        mutates = False
        for node in nodes:
            row = None
            if node.op == "call_function":
                target = node.target
                try:
                    row = rows[target]
                except KeyError:
                    row = rows[target] = self.resolve(target)
                if row is None:
                    inner = self.nested.opened(node, at)
                    if inner is not None and self._collect(*inner, collected, found):
                        mutates = True
                elif row.mutates:
                    mutates = True
            collected.append(node)
            found.append(row)
        return mutates

    @property
    def aliases(self) -> Aliases | None:
        """Which nodes share memory; None if no call writes."""
        return None if self.in_place is None else self.in_place.aliases

    @property
    def mutated(self) -> frozenset[Any]:
        """The nodes whose memory a call writes."""
        return frozenset() if self.in_place is None else self.in_place.aliases.mutated

    def read(self) -> None:
        """See `Reader`."""
        env, writer, nested, in_place = self.env, self.writer, self.nested, self.in_place
        foreign, places, outermost = writer.shared.foreign, nested.wrapped.places, nested.own_place
        node, at, read_row = None, outermost, self.read_row
        plain_calls, resolved, otherwise = self.plain_calls, self.resolved, self.read_otherwise
        try:
            for node, row in zip(self.nodes, self._rows, strict=True):
                if places and (place := places.get(node, outermost)) is not at:
                    at = place
                    nested.enter(place)
                if in_place is not None:
                    in_place.refresh(node, row)
                if row is not None and row.is_ordinary and not foreign:
                    writer.node, writer.row = node, row
                    made = None
                    if row.is_plain and plain_calls is not None:
                        made = plain_calls.read(node, row, env, writer, resolved, otherwise)
                    env[node] = read_row(node, row) if made is None else made
                else:
                    self._read_other(node, row)
        except MemoryError:
            raise
        except Exception as error:
            located = self.located(error, node)
            if located is error:
                raise
            raise located from error

    def _read_other(self, node: Any, row: Any) -> None:
        """Reads a node that is not a call of an ordinary row."""
        env, op = self.env, node.op
        if op == "call_function":
            self.writer.node, self.writer.row = node, row
            foreign = self.writer.shared.foreign
            if row is None:
                env[node] = self.read_function(node)
            elif row.getitem:
                env[node] = self._getitem(node)
            elif row.target in foreign:
                env[node] = self.read_described(node, row, foreign[row.target])
            elif row.dropped:
                env[node] = NoValue(row.target)
            elif row.evaluated and row.names:
                values = [self.resolved(arg) for arg in row.complete(node.args, node.kwargs)]
                env[node] = self._evaluate_size(row, values)
            else:
                env[node] = self.read_row(node, row)
        elif op == "get_attr":
            if node not in env:
                env[node] = self.attribute(node)
        elif op == "placeholder" and node in self.nested.wrapped.operands:
            env[node] = self.resolved(self.nested.wrapped.operands[node])
        elif op not in ("placeholder", "output"):
            raise self.writer.error(
                _core.UnsupportedOp,
                f"an FX node of kind {op} has no meaning here",
                hint="Export the module",
            )

    def located(self, error: Exception, node: Any) -> Exception:
        """Locates the error of an unknown size at the node that needs it; other errors know their node."""
        if not isinstance(error, _core.UnsupportedOp) or error.parts["node"] or node is None:
            return error
        return self.error_at(node, error, self.hint_of_size(node))

    def hint_of_size(self, node: Any) -> str:
        """Returns a hint to a computation whose result has a known size; empty: use the error's hint."""
        del node
        return ""

    def error_at(self, node: Any, error: Any, hint: str = "", at: Where | None = None) -> Exception:
        """Returns the error, located at a node, and possibly with another hint."""
        parts = error.parts
        self.writer.node = node
        return self.writer.error(
            type(error),
            parts["what"],
            expected=parts["expected"],
            got=parts["got"],
            hint=hint or parts["hint"],
            at=at,
        )

    def _getitem(self, node: Any) -> Any:
        container, index = node.args
        held = self.env[container]
        if isinstance(held, list | tuple | dict):
            return held[self.resolved(index)]
        return NoValue(str(container.target))

    # ---- the call ----

    def read_row(self, node: Any, row: Any) -> Any:
        """Reads a call by the row of the table; if the row cannot read it, by `read_otherwise`."""
        writer = self.writer
        values, is_plain = _core.read_arguments(
            self.argument_types, node.args, node.kwargs, row.names, row.defaults, self.env, self.resolved
        )
        try:
            writer.expect(node, row)
        except _core.UnsupportedOp:
            if not self.learn_sizes(values):
                raise
            writer.expect(node, row)
        if row.training_at and row.is_training(values):
            writer.note(
                "training",
                f"'{node.name}' ({row.target}) is in training mode: call .eval() before torch.export.export, "
                "unless that is what you mean",
            )
        if not is_plain and has_complex(values):
            return self.read_complex(row, values)
        result = None
        has_values = is_plain or NoValue not in map(type, values) or can_read_data(row.emit, values)
        if row.emit is not None and has_values:
            result = row.emit(writer, *values)
            if writer.is_complex:
                result = as_complex(writer, row.name, result)
        if result is None:
            result = self.read_otherwise(row, values)
        if row.mutates and self.in_place is not None:
            self.in_place.written(node, row, result)
        return result

    def copied(self, node: Any, value: Ref, into: Ref) -> Ref:
        """Returns a node's value as ``copy_`` writes it into an input: in the input's dtype and shape.

        After torch's decompositions, ``copy_`` still has to cast and broadcast the value.
        """
        writer = self.writer
        writer.node, writer.row = node, None
        if value.dtype != into.dtype:
            value = writer.emit_inferred(OP["cast"], {"dtype": into.dtype}, (value.id,))
        if tuple(value.shape) != tuple(into.shape):
            value = writer.emit_inferred(OP["expand"], {"shape": list(into.shape)}, (value.id,))
        return value

    def current(self, node: Any) -> Any:
        """Returns the value of a node after the last call."""
        return self.env[node] if self.in_place is None else self.in_place.current(node)

    def learn_sizes(self, values: Sequence[Any]) -> bool:
        """Learns result sizes that depend on data, if the data is constant; True if it did."""
        del values
        return False

    def _evaluate_size(self, row: Any, values: Sequence[Any]) -> Any:
        name = row.name.partition(".")[0]
        operand = values[0]
        if type(operand) is Ref and name == "sym_size":
            return operand.shape[values[1]] if row.arity > 1 else list(operand.shape)
        if type(operand) is Ref and name == "sym_numel":
            return math.prod(operand.shape)
        try:
            return self.writer.shared.sizes.value(self.writer.node.meta["val"])
        except _core.UnsupportedOp:
            if name != "sym_storage_offset":  # only assertions read the offset, which graphs do not have
                raise
            return NoValue(row.target, place_of(self.writer.node))


def _counts(rows: Mapping[Any, Any], user: Any) -> bool:
    """True for a use that makes a value live: any use except in a dropped call (an assertion)."""
    row = rows.get(user.target) if user.op == "call_function" else None
    return row is None or not row.dropped
