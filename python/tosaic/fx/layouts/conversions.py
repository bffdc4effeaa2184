"""The conversions that a layout inserts: one for each value and order, shared by all calls that read it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch.fx import Node

from tosaic.fx.dialects import dialect_of
from tosaic.fx.io.quantize_calls import is_dequantize
from tosaic.fx.layouts.applied import Conversion
from tosaic.fx.layouts.program_copy import Order, ProgramCopy
from tosaic.fx.reading.memory_order import format_of, order_name, set_value
from tosaic.torch_operators.value import Ref


class Conversions:
    """Adds conversions to a copy of a program.

    Attributes
    ----------
    made : dict of Node to (Node, order, order)
        By conversion: the node that it converts, the order of that node, and the order of the conversion.
    replaced : list of Node
        Dequantize calls that were replaced, because another call dequantizes the same integers.
    """

    def __init__(self, program: ProgramCopy) -> None:
        self._copy = program
        self._dialect = dialect_of(program.program)
        self._first = next((node for node in program.graph.nodes if node.op != "placeholder"), None)
        self._root = self._root_of_modules()
        self._known: dict[tuple[Any, str], Node] = {}
        self.made: dict[Node, tuple[Node, Order, Order]] = {}
        self.replaced: list[Node] = []

    def converted(self, node: Node, order: Order) -> Node | None:
        """Returns the node of this value in this order, added if needed; None if no conversion exists."""
        val = node.meta["val"]
        ref = self._copy.values.get(node)
        name = order_name(val.shape, order)
        key = (ref.id if isinstance(ref, Ref) else node, name)
        if key in self._known:
            return self._known[key]
        if is_dequantize(node) and isinstance(node.args[0], Node) and node not in self._copy.constant:
            return self._dequantized_in(node, order, key)
        calls = self._dialect.conversion(self._copy.program, format_of(val.shape, order), order)
        if calls is None:
            return None
        before = self._copy.order_of_tensor(val)
        last = node
        place = self._first if node.op == "placeholder" else node.next
        assert place is not None
        for target, args, kwargs in calls:
            with self._copy.graph.inserting_before(place):
                made = self._copy.graph.create_node(
                    "call_function", target, (last, *args), kwargs, f"{node.name}_{name}"
                )
            made.meta = {
                name: held
                for name, held in {**self._root, **node.meta}.items()
                if name in ("stack_trace", "nn_module_stack")
            }
            made.meta["val"] = self._copy.result_of(made)
            last = made
        if ref is not None:
            self._copy.values[last] = ref
        if "tensor_meta" in node.meta:
            last.meta["tensor_meta"] = node.meta["tensor_meta"]
            set_value(last.meta, last.meta["val"])
        if node in self._copy.moved:
            self._copy.moved.add(last)
        self._known[key] = last
        self._known.setdefault((key[0], order_name(val.shape, before)), node)
        self.made[last] = (node, before, order)
        return last

    def _dequantized_in(self, node: Node, order: Order, key: tuple[Any, str]) -> Node | None:
        """Returns a dequantize call like `node`, of the same integers in this order."""
        source: Any = node.args[0]
        integers = self.converted(source, order)
        if integers is None:
            return None
        target: Any = node.target
        with self._copy.graph.inserting_after(node):
            made = self._copy.graph.create_node(
                "call_function",
                target,
                (integers, *node.args[1:]),
                dict(node.kwargs),
                f"{node.name}_{key[1]}",
            )
        made.meta = copy.copy(node.meta)
        set_value(made.meta, self._copy.result_of(made))
        if node in self._copy.values:
            self._copy.values[made] = self._copy.values[node]
        if node in self._copy.moved:
            self._copy.moved.add(made)
        self._known[key] = made
        before = self._copy.order_of_tensor(node.meta["val"])
        self._known.setdefault((key[0], order_name(node.meta["val"].shape, before)), node)
        self.replaced.append(node)
        return made

    def chain(self, last: Node) -> set[Node]:
        """Returns the nodes of a conversion."""
        source, nodes = self.made[last][0], {last}
        while last.args[0] is not source:
            last = last.args[0]  # type: ignore[assignment]
            nodes.add(last)
        return nodes

    def report(self) -> Iterator[Conversion]:
        """Yields the conversions that were added, in the order of the graph."""
        for node in self._copy.graph.nodes:
            if node in self.made:
                source, before, order = self.made[node]
                yield Conversion(
                    node.name, source.name, before, order, tuple(user.name for user in node.users)
                )

    def _root_of_modules(self) -> dict[str, Any]:
        """Returns metadata with the root module, which `torch.export.unflatten` expects in every node."""
        stacks = (node.meta.get("nn_module_stack") for node in self._copy.graph.nodes)
        stack = next(filter(None, stacks), None)
        return {} if stack is None else {"nn_module_stack": dict(list(stack.items())[:1])}
