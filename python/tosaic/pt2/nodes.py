"""The graph of a file as nodes with the attributes of ``torch.fx.Node``, which `NodeReader` reads.

The core reads the nodes (``cpp/tosaic/pt2/nodes.h``) and makes objects of the classes in `Classes`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tosaic import _core
from tosaic.pt2.schemas import row_of
from tosaic.pt2.values import (
    DTYPES,
    LAYOUTS,
    MEMORY_FORMATS,
    Device,
    Named,
    Symbolic,
    TensorMeta,
)


class Node:
    """A node with the attributes of a ``torch.fx.Node``. The core makes nodes and sets their attributes."""

    __slots__ = ("args", "kwargs", "meta", "name", "op", "target", "users")

    op: str
    name: str
    target: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    meta: dict[str, Any]
    users: Sequence[Node]

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes in the arguments, each once."""
        found: dict[Node, None] = {}
        waiting: list[Any] = [[*self.args, *self.kwargs.values()]]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Node):
                found[value] = None
            elif isinstance(value, list | dict):
                waiting += reversed(list(value.values() if isinstance(value, dict) else value))
        return list(found)


class NestedGraph:
    """A graph that is an argument of a higher-order operator. Like a module of torch, it has a ``graph``."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @property
    def graph(self) -> NestedGraph:
        """The graph itself."""
        return self


class Classes:
    """The classes of which the core makes nodes and their arguments."""

    node = Node
    graph = NestedGraph
    tensor = TensorMeta
    symbolic = Symbolic
    device = Device
    named = Named
    getitem = operator.getitem
    dtypes = DTYPES
    memory_formats = MEMORY_FORMATS
    layouts = LAYOUTS


def nodes_of(
    graph: _core.Json, constant_names: Sequence[str]
) -> tuple[list[Node], list[dict[str, tuple[str, str]]]]:
    """Returns all nodes of a graph: placeholders, calls, and the output; and their distinct module stacks.

    Parameters
    ----------
    graph : Json
    constant_names : sequence of str
        For each input of the graph that is a constant, its name; for other inputs an empty one.

    Raises
    ------
    InvalidGraph
        The graph is damaged; the message names the entry.
    UnsupportedOp
        The graph has something that only torch can read.
    """
    return _core.pt2_nodes(graph, constant_names, _parameter_names, Classes)


def _parameter_names(target: str) -> Sequence[str]:
    return row_of(target).names if target.count(".") >= 2 else ()


def released(nodes: Sequence[Node]) -> None:
    """Breaks reference cycles of unneeded nodes: a node and its users refer to each other."""
    for node in nodes:
        node.users = ()
