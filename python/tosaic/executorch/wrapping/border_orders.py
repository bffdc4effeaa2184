"""Inserts conversions of memory orders for tensors that enter and leave delegates.

::

    x ─▶ [convert] ─▶ ┌ a ─▶ b ┐ ─▶ [convert back] ─▶ host       an order that the delegate does not have
    x ──────────────▶ └────────┘ ───────────────────▶ host       an order that it has: no node

A conversion is outside of the delegate, where the value's order differs from the declared order. After the
delegate, readers on the host get the order that they had before. Two delegates with the same declared order
pass a value without a conversion. Inside of a delegate, the order of each value follows from its operator and
the new orders of its operands. If a result of the delegate still has another order, a conversion
inside of the delegate makes the declared order. A delegate with order "any" gets values unconverted.

Two orders agree if they place the elements of a value at the same addresses: axes of extent 1 do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tosaic.executorch.wrapping.declared_orders import ANY, GRID, Borders, Order, grids_of
from tosaic.fx.io.quantize_calls import operator_of

CONVERSION = "tosaic_order_conversion"
"""Key of the metadata of a conversion that stays outside of delegates."""

Orders: TypeAlias = Mapping[Hashable, Borders]


def lies_in(value: Any, order: Order) -> bool:
    """True if the elements of a tensor are dense in memory, in this order."""
    return bool(value.permute(order).is_contiguous())


def converted_at_borders(
    graph: Graph,
    group: Mapping[Node, Hashable],
    orders: Orders,
    held: Collection[Node],
    convert: Callable[[Node, Order], tuple[Any, dict[str, Any]]],
) -> bool:
    """Inserts the conversions into a graph, and marks grids; returns whether it changed anything.

    Parameters
    ----------
    graph : torch.fx.Graph
        It is changed.
    group : mapping
        The delegate of each node that belongs to one.
    orders : mapping
        The declared orders of delegates. A delegate without an entry gets each value in the order that the
        program gives it.
    held : collection of Node
        Placeholders that become part of the delegates that read them.
    convert : callable
        Returns the operator, and its keyword arguments, that converts the value of a node to an order.
    """
    return _Conversions(graph, group, orders, frozenset(held), convert).run()


@dataclass
class _Conversions:
    graph: Graph
    group: Mapping[Node, Hashable]
    orders: Orders
    held: frozenset[Node]
    convert: Callable[[Node, Order], tuple[Any, dict[str, Any]]]
    _changed: set[Node] = field(default_factory=set)  # nodes whose value has another order than before

    def run(self) -> bool:
        count = len(self.graph.nodes)
        grids = grids_of(self.graph)
        for node in grids:
            node.meta[GRID] = True
        for node in list(self.graph.nodes):
            if node.op == "output" or node in self.held:
                continue
            before = node.meta.get("val")
            if self.group.get(node) is not None and not self._changed.isdisjoint(node.all_input_nodes):
                self._compute_again(node)
            if isinstance(before, torch.Tensor):
                self._pass_on(node, tuple(before.dim_order()))
        return len(self.graph.nodes) != count or bool(grids)

    def _compute_again(self, node: Node) -> None:
        """Sets a delegate node's value to its operator's result for the changed operands."""
        operator = operator_of(node) or node.target
        if isinstance(operator, torch._ops.HigherOrderOperator) or not callable(operator):
            return  # the bodies of control flow keep their orders
        args, kwargs = map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        node.meta["val"] = operator(*args, **kwargs)
        self._changed.add(node)

    def _pass_on(self, node: Node, before: Order) -> None:
        """Converts a value for readers outside of its delegate into the order that each of them needs."""
        own = self.group.get(node)
        source = self._declared_output(node, own)
        if source is node and lies_in(node.meta["val"], before):
            self._changed.discard(node)
        is_changed = source is not node or node in self._changed
        made: dict[Order, Node] = {}
        for reader in [each for each in node.users if each is not source]:
            other = self.group.get(reader)
            if own is not None and other == own:
                continue
            asked = self.orders[other].of("input", node) if other in self.orders else None
            needed = None if asked == ANY else before if asked is None and is_changed else asked
            result = source
            if needed is not None and not lies_in(source.meta["val"], needed):
                if needed not in made:
                    made[needed] = self._insert(source, needed)
                    made[needed].meta[CONVERSION] = True
                result = made[needed]
            if result is not node:
                reader.replace_input_with(node, result)
                if not lies_in(result.meta["val"], before):
                    self._changed.add(result)

    def _declared_output(self, node: Node, own: Hashable) -> Node:
        """Returns an output in its declared order: the node itself, or a new conversion in the delegate."""
        leaves = own is not None and any(self.group.get(reader) != own for reader in node.users)
        if not leaves or own not in self.orders:
            return node
        declared = self.orders[own].of("output", node)
        if declared is None or declared == ANY or lies_in(node.meta["val"], declared):
            return node
        return self._insert(node, declared)

    def _insert(self, source: Node, order: Order) -> Node:
        operator, kwargs = self.convert(source, order)
        with self.graph.inserting_after(source):
            made = self.graph.call_function(operator, (source,), kwargs)
        made.meta = {key: value for key, value in source.meta.items() if key != CONVERSION}
        made.meta["val"] = operator_of(made)(source.meta["val"], **kwargs)
        return made


@dataclass(frozen=True)
class WrongBorder:
    """A tensor that enters or leaves a delegate in another order than declared.

    Attributes
    ----------
    side : str
        ``"input"`` or ``"output"``.
    node : torch.fx.Node
    declared : tuple of int
    """

    side: str
    node: Node
    declared: Order


def wrong_borders(
    graph: Graph, group: Mapping[Node, Hashable], orders: Orders, held: Collection[Node]
) -> Iterator[WrongBorder]:
    """Yields the tensors at borders of delegates that are not in their declared orders."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or node in held:
            continue
        own = group.get(node)
        for other in dict.fromkeys(group.get(reader) for reader in node.users):
            if other is not None and other == own:
                continue
            for side, delegate in (("output", own), ("input", other)):
                declared = orders[delegate].of(side, node) if delegate in orders else None
                if declared is not None and declared != ANY and not lies_in(value, declared):
                    yield WrongBorder(side, node, declared)
