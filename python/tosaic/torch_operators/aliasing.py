"""Which FX nodes share memory, from the alias annotations of torch's schemas.

The importer uses this to turn in-place calls into new values. An in-place call assigns a new value to its
operand, and to every node that is the same whole tensor (detach, alias, earlier in-place results, views of
the same shape). A node that shares only part of the memory would need the value written through the view, so
the call is refused if such a node is used later.

A call that changes the shape of its operand in place (``t_``, ``squeeze_``) writes no element. From then on
only the nodes that are that very tensor object (earlier in-place results) have the new shape. The shape of a
view does not change, and the view no longer counts as the whole tensor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from tosaic.torch_operators.operator_row import OperatorRow

__all__ = ["Aliases"]


class Aliases:
    """Memory shared between the nodes of one FX graph.

    Attributes
    ----------
    mutated : frozenset of nodes
        The nodes whose memory a call writes.
    """

    def __init__(
        self, nodes: Sequence[Any], rows: Sequence[OperatorRow | None], counts: Callable[[Any], bool]
    ) -> None:
        self._counts = counts
        self._position = {node: i for i, node in enumerate(nodes)}
        # Most nodes share no memory: what holds for these is in none of the following dicts.
        self._parent: dict[Any, Any] = {}  # a node without an entry is a root
        # The tensor object of each node: an in-place call returns its operand itself.
        self._tensor: dict[Any, Any] = {}
        # For each tensor object, pairs of a position and a node: from the position on, the object has the
        # whole value of the node.
        self._wholes: dict[Any, list[tuple[int, Any]]] = {}
        self._members: dict[Any, list[Any]] = {}
        writing: list[Any] = []
        for node, row in zip(nodes, rows, strict=True):
            if node.op == "call_function":
                self._add(node, row, writing)
        joined = {*self._parent, *self._parent.values()}
        for node in sorted(joined, key=self._position.__getitem__):
            self._members.setdefault(self._root(node), []).append(node)
        written = {self._root(node) for node in writing}
        self.mutated = frozenset(node for root in written for node in self._members_of(root))
        # For each root: the members before the current position that may still be read, and how many members
        # are before it.
        self._seen_again: dict[Any, list[Any]] = {}
        self._passed: dict[Any, int] = {}

    def _add(self, node: Any, row: OperatorRow | None, writing: list[Any]) -> None:
        if row is None:  # a wrapper or another foreign call: it may return any of its operands
            for operand in node.all_input_nodes:
                self._join(node, operand)
            return
        if row.getitem:
            self._join(node, node.args[0])
            return
        shared = row.shared_operand(node)
        if shared is None:
            return
        self._join(node, shared)
        now = self._position[node]
        if row.mutates:
            tensor = self._tensor[node] = self._tensor_of(shared)
            if row.changes_shape:
                self._wholes.setdefault(tensor, self._wholes_of(tensor)).append((now, node))
            elif not row.writes_nothing(node):
                writing.append(node)
        elif row.is_whole(node, shared):
            self._wholes[node] = [(-1, self._whole_at(shared, now))]

    def _whole_at(self, node: Any, now: int) -> Any:
        changes = self._wholes_of(self._tensor_of(node))
        return changes[bisect_right(changes, now, key=lambda change: change[0]) - 1][1]

    def _tensor_of(self, node: Any) -> Any:
        return self._tensor.get(node, node)

    def _wholes_of(self, tensor: Any) -> list[tuple[int, Any]]:
        return self._wholes.get(tensor) or [(-1, tensor)]

    def _members_of(self, root: Any) -> list[Any]:
        return self._members.get(root) or [root]

    def _join(self, a: Any, b: Any) -> None:
        root_a, root_b = self._root(a), self._root(b)
        if root_a is not root_b:
            self._parent[root_a] = root_b

    def _root(self, node: Any) -> Any:
        parent = self._parent
        while node in parent:
            node = parent[node]
        return node

    def reaches_placeholder(self, node: Any) -> bool:
        """True if this node shares memory with an input."""
        return any(member.op == "placeholder" for member in self._members_of(self._root(node)))

    def update(
        self,
        node: Any,
        operand: Any,
        env: dict[Any, Any],
        fresh: Any,
        refuse: Callable[[Any, Any], Exception],
    ) -> None:
        """Assigns `fresh`, which call `node` wrote to `operand`, to every node that is the same whole tensor.

        Raises
        ------
        UnsupportedOp
            By ``refuse(operand, other)``: `other` shares only a part of the written memory, and is used or
            seen later.
        """
        now = self._position[node]
        kept = []
        for other in self._before(self._root(operand), now):
            if not self._is_seen_after(other, now):
                continue
            kept.append(other)
            if other not in env:
                continue
            if self._whole_at(other, now) is self._whole_at(operand, now):
                env[other] = fresh
            else:
                raise refuse(operand, other)
        self._seen_again[self._root(operand)] = kept

    def is_placeholder(self, node: Any) -> bool:
        """True if this node is an input itself, or the result of an in-place call on an input."""
        return bool(self._tensor_of(node).op == "placeholder")

    def shaped_by(self, node: Any, reader: Any) -> Any:
        """Returns the node whose recorded shape and strides `node` has at the time when `reader` reads it."""
        changes = self._wholes_of(self._tensor_of(node))
        last = bisect_right(changes, self._position[reader] - 1, key=lambda change: change[0]) - 1
        return node if last == 0 else changes[last][1]

    def reshape(self, node: Any, operand: Any, env: dict[Any, Any], fresh: Any) -> None:
        """Assigns `fresh`, the `operand` that call `node` reshaped, to nodes of the same tensor object."""
        now = self._position[node]
        kept = [other for other in self._before(self._root(operand), now) if self._is_seen_after(other, now)]
        for other in kept:
            if other in env and self._tensor_of(other) is self._tensor_of(operand):
                env[other] = fresh
        self._seen_again[self._root(operand)] = kept

    def _is_seen_after(self, node: Any, position: int) -> bool:
        return node.op == "placeholder" or self._used_after(node, position)

    def _before(self, root: Any, now: int) -> list[Any]:
        """Returns the members before a position, without those that earlier updates found unread."""
        members, alive = self._members_of(root), self._seen_again.get(root, [])
        passed = self._passed.get(root, 0)
        while passed < len(members) and self._position[members[passed]] < now:
            alive.append(members[passed])
            passed += 1
        self._passed[root] = passed
        return alive

    def _used_after(self, node: Any, position: int) -> bool:
        return any(self._position[user] > position and self._counts(user) for user in node.users)
