"""Which FX nodes share memory, from the annotations of torch's schemas, so that in-place calls are rules.

An in-place call gives its operand a new value. Every node that stands for that same whole tensor (detach,
alias, earlier in-place results, views of the same shape) sees it. A node that shares only part of the memory
would need the value written through the view: it is refused if it is still used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tosaic.fx.targets import Row

__all__ = ["Aliases"]


class Aliases:
    """Memory shared between the nodes of one FX graph."""

    def __init__(
        self, nodes: Sequence[Any], row_of: Callable[[Any], Row | None], counts: Callable[[Any], bool]
    ) -> None:
        self._counts = counts
        self._position = {node: i for i, node in enumerate(nodes)}
        self._parent: dict[Any, Any] = {node: node for node in nodes}
        self._whole: dict[Any, Any] = {node: node for node in nodes}
        self._members: dict[Any, list[Any]] = {}
        self._mutated: set[Any] = set()
        for node in nodes:
            if node.op == "call_function":
                self._add(node, row_of(node))
        for node in nodes:
            self._members.setdefault(self._root(node), []).append(node)
        self._mutated = {self._root(node) for node in self._mutated}
        # Per root: the members that were passed and may be seen again, and how many were passed.
        self._seen_again: dict[Any, list[Any]] = {}
        self._passed: dict[Any, int] = {}

    def _add(self, node: Any, row: Row | None) -> None:
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
        if row.mutates and not row.writes_nothing(node):
            self._mutated.add(node)
        if row.mutates or row.is_whole(node, shared):
            self._whole[node] = self._whole[shared]

    def _join(self, a: Any, b: Any) -> None:
        root_a, root_b = self._root(a), self._root(b)
        if root_a is not root_b:
            self._parent[root_a] = root_b

    def _root(self, node: Any) -> Any:
        while self._parent[node] is not node:
            node = self._parent[node]
        return node

    def is_mutated(self, node: Any) -> bool:
        """True if some call writes into memory of this node."""
        return self._root(node) in self._mutated

    def reaches_placeholder(self, node: Any) -> bool:
        """True if memory of an input is shared with this node."""
        return any(member.op == "placeholder" for member in self._members[self._root(node)])

    def update(
        self,
        node: Any,
        operand: Any,
        env: dict[Any, Any],
        fresh: Any,
        refuse: Callable[[Any, Any], Exception],
    ) -> None:
        """Call `node` gave `operand` the value `fresh`: all that stands for the operand sees it.

        Raises
        ------
        UnsupportedOp
            By ``refuse(operand, other)``: memory of `other` is written too, and it is used or seen later.
        """
        now = self._position[node]
        kept = []
        for other in self._before(self._root(operand), now):
            is_input = other.op == "placeholder"
            if not is_input and not self._used_after(other, now):
                continue
            kept.append(other)
            if other not in env:
                continue
            if self._whole[other] is self._whole[operand]:
                env[other] = fresh
            else:
                raise refuse(operand, other)
        self._seen_again[self._root(operand)] = kept

    def _before(self, root: Any, now: int) -> list[Any]:
        """Members before a position; those that nothing reads any more were left out by earlier updates."""
        members, alive = self._members[root], self._seen_again.get(root, [])
        passed = self._passed.get(root, 0)
        while passed < len(members) and self._position[members[passed]] < now:
            alive.append(members[passed])
            passed += 1
        self._passed[root] = passed
        return alive

    def _used_after(self, node: Any, position: int) -> bool:
        users: Mapping[Any, None] = node.users
        return any(self._position[user] > position and self._counts(user) for user in users)
