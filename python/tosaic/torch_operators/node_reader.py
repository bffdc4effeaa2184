"""Reads nodes as a ``torch.fx.Graph`` has them: one call, one node.

A node has ``op``, ``name``, ``target``, ``args``, ``kwargs``, ``meta``, ``users`` and ``all_input_nodes``,
as in ``torch.fx``. `tosaic.fx.importer` reads torch's own nodes, and `tosaic.pt2` those of a file.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.torch_operators.aliasing import Aliases
from tosaic.torch_operators.in_place import InPlaceCalls
from tosaic.torch_operators.nested_graphs import NestedGraphs
from tosaic.torch_operators.value import NoValue, Ref

__all__ = ["NodeReader"]

_PLAIN = frozenset({int, float, bool, str, type(None)})


class NodeReader(InPlaceCalls, NestedGraphs):
    """Reads the nodes of one graph into a builder."""

    if TYPE_CHECKING:

        def _resolve(self, target: Any) -> Any:
            """Returns the `OperatorRow` of a call target, or None for a call of no operator overload."""

        def _call(self, node: Any, row: Any) -> Any:
            """Reads a call of an operator overload."""

        def _foreign(self, node: Any) -> Any:
            """Reads a call of no operator overload."""

        node_type: type  # of a node

        def resolved(self, value: Any) -> Any:
            """Replaces the nodes in an argument by their values, and symbolic sizes by numbers."""

        def _attribute(self, node: Any) -> Any:
            """Reads an attribute of the module: a nested graph or a tensor."""

    # ---- walking ----

    def prepare(self, nodes: Sequence[Any]) -> None:
        """Resolves the call targets; if a call writes to its operands, finds out which nodes share memory."""
        rows = self._shared.rows
        mutates = False
        for node in nodes:
            if node.op == "call_function":
                target = node.target
                if target in rows:
                    row = rows[target]
                else:
                    row = rows[target] = self._resolve(target)
                if row is not None and row.mutates:
                    mutates = True
        if mutates:
            self._aliases = Aliases(nodes, lambda node: rows[node.target], self._counts)

    def _counts(self, user: Any) -> bool:
        """True for a use that makes a value live: any use except by a dropped call (an assertion)."""
        row = self._shared.rows.get(user.target) if user.op == "call_function" else None
        return row is None or not row.dropped

    def is_mutated(self, node: Any) -> bool:
        """True if a call writes into the memory of this node."""
        return self._aliases is not None and self._aliases.is_mutated(node)

    def read(self, nodes: Sequence[Any]) -> None:
        """Reads every call and attribute; the placeholders must be in ``env`` already."""
        node = None
        try:
            for node in nodes:
                self._read_node(node)
        except _core.UnsupportedOp as error:
            raise self._located(error, node) from error

    def _read_node(self, node: Any) -> None:
        env, op = self.env, node.op
        if op == "call_function":
            row = self._shared.rows[node.target]
            self._node, self._row = node, row
            if row is None:
                env[node] = self._foreign(node)
            elif row.getitem:
                env[node] = self._getitem(node)
            elif row.target in self._shared.foreign:
                env[node] = self._described(node, row, self._shared.foreign[row.target])
            elif row.dropped:
                env[node] = NoValue(row.target)
            else:
                env[node] = self._call(node, row)
        elif op == "get_attr":
            env[node] = self._attribute(node)
        elif op not in ("placeholder", "output"):
            raise self.error(
                _core.UnsupportedOp,
                f"an FX node of kind {op} has no meaning here",
                hint="Export the module",
            )

    def _located(self, error: Any, node: Any) -> Exception:
        """Locates the error of an unknown size at the node that needs it; other errors know their node."""
        parts = error.parts
        if parts["node"] or node is None:
            return error  # type: ignore[no-any-return]
        said = {key: parts[key] for key in ("expected", "got", "hint")}
        self._node = node
        return self.error(type(error), parts["what"], **said)

    def _getitem(self, node: Any) -> Any:
        container, index = node.args
        held = self.env[container]
        if isinstance(held, list | tuple | dict):
            return held[self.resolved(index)]
        return NoValue(str(container.target))

    def _values_of(self, node: Any, row: Any) -> list[Any]:
        """Returns the arguments of a call in the order of the schema: nodes by their values."""
        env, node_type = self.env, self.node_type
        args = node.args
        if node.kwargs or len(args) != row.arity:
            args = row.complete(args, node.kwargs)
        return [
            env[arg] if type(arg) is node_type else arg if type(arg) in _PLAIN else self.resolved(arg)
            for arg in args
        ]

    @staticmethod
    def _has_no_value(values: Sequence[Any]) -> bool:
        return any(type(value) is NoValue for value in values)

    # ---- the call ----

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
        return self._shared.sizes.value(self._node.meta["val"])
