"""A copy of a program while its layout is applied: its nodes, and the strides that they have."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch._guards import detect_fake_mode
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten

from tosaic.base.dim_order import dim_order_of, has_order
from tosaic.fx.io.graph_copy import copied_graph
from tosaic.fx.reading.exported_program import ImportRecord
from tosaic.fx.reading.targets import row_for

Order: TypeAlias = tuple[int, ...]
"""A dim order."""

WHERE = "apply layout"
"""The name of the function in its errors."""


class ProgramCopy:
    """The graph of a program, copied.

    Attributes
    ----------
    program : torch.export.ExportedProgram
        The given program, which is not changed.
    read : ImportRecord
        What each of its nodes became.
    graph : torch.fx.Graph
    old : dict of Node to Node
        By node of the copy, the node of the program. Added nodes have none.
    values : dict of Node to object
        By node of the copy, what it became.
    constant : set of Node
        Weights, and what is computed from weights alone.
    moved : set of Node
        Nodes whose order a declared input or output changed.
    is_written : bool
        True if a call writes an operand.
    """

    def __init__(self, program: Any, read: ImportRecord) -> None:
        self.program = program
        self.read = read
        self.graph, self.old = copied_graph(program.graph)
        self.values: dict[Node, Any] = {
            node: read.values[old] for node, old in self.old.items() if old in read.values
        }
        self.constant: set[Node] = set()
        self.moved: set[Node] = set()
        self.is_written = any(map(writes, self.graph.nodes))
        self._fake = detect_fake_mode([node.meta.get("val") for node in self.graph.nodes])

    def numbers(self, sizes: Any) -> tuple[int, ...]:
        """Returns the numbers of sizes or strides, some of which may be symbols."""
        return tuple(self.read.sizes.shape(sizes))

    def tensor_has_order(self, tensor: Any, order: Order) -> bool:
        """True if a recorded tensor is dense in the order."""
        return has_order(tensor.shape, self.numbers(tensor.stride()), order)

    def has_order(self, node: Node, order: Order) -> bool:
        """True if a node's value is dense in the order."""
        return self.tensor_has_order(node.meta["val"], order)

    def order_of_tensor(self, val: Any) -> Order:
        """Returns the order in which a recorded tensor is stored."""
        return dim_order_of(self.numbers(val.shape), self.numbers(val.stride()))[0]

    def as_traced(self, node: Node) -> Any:
        """Returns what the given program records for a node; for a conversion, its own record."""
        return self.old.get(node, node).meta["val"]

    def traced_order(self, node: Node) -> Order:
        """Returns the order of a node's value in the given program."""
        return self.order_of_tensor(self.as_traced(node))

    def is_in_another_order(self, node: Node) -> bool:
        """True if the node's strides differ from the traced ones, or if it is a conversion."""
        return node not in self.old or self.has_changed(node)

    def has_changed(self, node: Node) -> bool:
        """True if the strides of a node's value differ from those in the given program."""
        now = tree_flatten(node.meta.get("val"))[0]
        before = tree_flatten(self.old[node].meta.get("val"))[0]
        return any(
            isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.stride() != b.stride()
            for a, b in zip(now, before, strict=True)
            if a is not b
        )

    def result_of(self, node: Node) -> Any:
        """Returns torch's result of a call for the operands' current strides."""
        args, kwargs = map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
        with torch.no_grad():
            if self._fake is None:
                return node.target(*args, **kwargs)  # type: ignore[operator]
            with self._fake:
                if self._fake.shape_env is None:
                    return node.target(*args, **kwargs)  # type: ignore[operator]
                with self._fake.shape_env.suppress_guards():
                    return node.target(*args, **kwargs)  # type: ignore[operator]


def can_compute(node: Node) -> bool:
    """True for torch operators and getitem, but not for nested graphs or data-dependent sizes."""
    is_operator = hasattr(node.target, "_schema") or getattr(node.target, "__name__", "") == "getitem"
    return (
        is_operator
        and "unbacked_bindings" not in node.meta
        and all("val" in arg.meta for arg in node.all_input_nodes)
    )


def has_tensors(node: Node) -> bool:
    """True if a result of a call is a tensor."""
    return any(isinstance(item, torch.Tensor) for item in tree_flatten(node.meta.get("val"))[0])


def writes(node: Node) -> bool:
    """True for a call that writes an operand."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return False
    row = row_for(node.target)
    return row is None or not row.writes_nothing(node)
