"""Regroups the nodes of a partitioner's tags after some nodes lost their tags.

::

    tag A: a ─▶ b ─▶ c      b has to stay outside ─▶ {a} and {c}: A would have to run before b and after it

These statements hold afterwards, in each graph:

- The delegates of all tags can run one after another, and no group has more disconnected parts than its tag
  had.
- A delegate of an integer-only backend reads no float tensor and returns none. Nodes lose their tags to
  ensure this.
- A tuple and the elements taken from it are in one group, or all of them are outside.
- No group that changed consists only of quantize and dequantize nodes and of layout operators that move
  nothing: such a group loses its tag.

The step for one statement can break another one, so all steps are repeated until no node loses its tag. The
solver in ``partition/`` makes groups of the remaining nodes of each tag: as few as possible.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, Node

from tosaic import _core
from tosaic.fx.io.quantize_calls import is_conversion, is_dequantize, is_move, is_quantize, operator_of

TAG = "delegation_tag"
_LARGEST = 1 << 22  # the most elements with which a layout operator is tried

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tag:
    """A tag of a partitioner.

    Attributes
    ----------
    name : str
    integer_only : bool
        The backend has no floats.
    """

    name: str
    integer_only: bool


def regrouped(
    graph: Graph,
    tags: Iterable[Tag],
    outside: Collection[Node],
    is_constant: Callable[[Node], bool],
) -> dict[str, list[list[Node]]]:
    """Returns the groups of each tag, in topological order. Placeholders are in no group.

    Parameters
    ----------
    graph : torch.fx.Graph
        Nodes have tags in ``meta["delegation_tag"]``. Nothing is changed.
    tags : iterable of Tag
        Other tags of nodes are ignored.
    outside : collection of Node
        Nodes that lose their tags.
    is_constant : callable
        Whether a placeholder becomes part of each delegate that reads it.
    """
    return _Regrouping(graph, {tag.name: tag for tag in tags}, is_constant).run(outside)


class _Regrouping:
    def __init__(self, graph: Graph, tags: Mapping[str, Tag], is_constant: Callable[[Node], bool]) -> None:
        self._tags = tags
        self._is_constant = is_constant
        self._nodes = list(graph.nodes)
        self._index = {node: i for i, node in enumerate(self._nodes)}
        self._edges = [
            (self._index[each], i) for i, n in enumerate(self._nodes) for each in n.all_input_nodes
        ]
        self._dag = _core.Dag(len(self._nodes), np.array(self._edges, np.uint32).reshape(-1))
        self._given = {
            node: tag
            for node in self._nodes
            if node.op not in ("placeholder", "output") and (tag := node.meta.get(TAG)) in tags
        }
        self._tag = dict(self._given)
        self._given_members = _members(self._given)
        self._is_connected = {tag: self._connected(nodes) for tag, nodes in self._given_members.items()}

    def run(self, outside: Collection[Node]) -> dict[str, list[list[Node]]]:
        self._remove(outside)
        self._remove_exposed(dict(self._tag))
        while True:
            group = self._groups()
            before = len(self._tag)
            self._remove_exposed(group)
            self._remove(self._without_work(group))
            if len(self._tag) == before:
                return self._checked(group)

    def _checked(self, group: Mapping[Node, Any]) -> dict[str, list[list[Node]]]:
        """Returns the groups by tag; raises an internal error if delegates would wait for each other."""
        found = _members(group)
        labels = self._labels({node: i for i, nodes in enumerate(found.values()) for node in nodes})
        if self._dag.path_back(labels) is not None:
            raise _core.make_error(
                _core.InternalError, where="wrap_partitioner", what="delegates wait for each other"
            )
        out: dict[str, list[list[Node]]] = {}
        for nodes in found.values():
            out.setdefault(self._tag[nodes[0]], []).append(nodes)
        return out

    # ---- nodes that lose their tags ----

    def _remove(self, nodes: Iterable[Node]) -> None:
        """Removes the tags of nodes, and of the tuples or tuple elements that belong to them."""
        waiting = [node for node in nodes if node in self._tag]
        while waiting:
            node = waiting.pop()
            if self._tag.pop(node, None) is None:
                continue
            waiting += [user for user in node.users if is_taken(user)]
            if is_taken(node):
                waiting += node.all_input_nodes

    def _remove_exposed(self, group: Mapping[Node, Any]) -> None:
        """Removes the tags of nodes that would read floats from outside of their group, or return floats."""
        waiting = [node for node in self._nodes if node in self._tag]
        while waiting:
            node = waiting.pop()
            if node not in self._tag:
                continue
            untied = is_taken(node) and self._tag.get(node.all_input_nodes[0]) != self._tag[node]
            untied = untied or any(is_taken(user) and user not in self._tag for user in node.users)
            if untied or (self._tags[self._tag[node]].integer_only and self._exposes(node, group)):
                near = {*node.all_input_nodes, *node.users}
                before = set(self._tag)
                self._remove([node])
                has_taken = is_taken(node) or any(map(is_taken, node.users))
                for removed in before - set(self._tag) if has_taken else ():
                    near |= {*removed.all_input_nodes, *removed.users}
                waiting += [each for each in near if each in self._tag]

    def _exposes(self, node: Node, group: Mapping[Node, Any]) -> bool:
        own = group[node]

        def is_inside(other: Node) -> bool:
            return other in self._tag and group[other] == own

        reads = (each for each in node.all_input_nodes if not is_inside(each) and not self._is_constant(each))
        if any(map(_is_float, reads)):
            return True
        return _is_float(node) and any(not is_inside(user) for user in node.users)

    def _without_work(self, group: Mapping[Node, Any]) -> list[Node]:
        """Returns the nodes of changed groups that compute nothing."""
        given = {frozenset(nodes) for nodes in self._given_members.values()}
        found: list[Node] = []
        for nodes in _members({node: group[node] for node in group if node in self._tag}).values():
            if frozenset(nodes) not in given and not any(map(_has_work, nodes)):
                found += nodes
        return found

    # ---- groups ----

    def _groups(self) -> dict[Node, int]:
        """Returns the group of each node that has a tag."""
        together = self._units()
        members = _members(self._tag)
        changed = {tag: len(nodes) != len(self._given_members[tag]) for tag, nodes in members.items()}
        order = sorted(members, key=lambda tag: (changed[tag], self._index[members[tag][0]]))
        claims: list[tuple[Any, bool, None, int, None]] = []
        for tag in order:
            flags = np.zeros(len(self._nodes), bool)
            flags[[self._index[node] for node in members[tag]]] = True
            claims.append((flags, self._is_connected[tag], None, 0, None))
        found, *_ = self._dag.claim(claims, [[self._index[node] for node in unit] for unit in together])
        return {node: int(found[self._index[node]]) for node in self._nodes if node in self._tag}

    def _units(self) -> list[list[Node]]:
        """Returns sets of nodes that have to be in one group.

        The nodes of a unit exchange floats. If a unit would wait for itself through other nodes, it is joined
        with them if they have the same tag. Otherwise, its nodes lose their tags if the backend is
        integer-only; for other backends, the unit is divided.
        """
        divided: set[Node] = set()
        paths: list[list[Node]] = []
        while True:
            sets = _Sets()
            for path in paths:
                for each in path if all(each in self._tag for each in path) else ():
                    sets.join(path[0], each)
            for node in self._nodes:
                for each in node.all_input_nodes if node in self._tag else ():
                    if self._tag.get(each) == self._tag[node] and self._is_tied(each, node, divided):
                        sets.join(each, node)
            units = sets.found()
            of = {node: i for i, unit in enumerate(units) for node in unit}
            found = self._dag.path_back(self._labels(of))
            if found is None:
                return units
            back = [self._nodes[index] for index in found]
            unit = units[of[back[0]]]
            if all(self._tag.get(each) == self._tag[unit[0]] for each in back):
                paths.append(back)
            elif self._tags[self._tag[unit[0]]].integer_only:
                self._remove(unit)
            else:
                divided.update(unit)

    def _is_tied(self, source: Node, node: Node, divided: Collection[Node]) -> bool:
        if is_taken(node):
            return True
        if not _is_float(source):
            return False
        if self._tags[self._tag[node]].integer_only:
            return True
        return (is_dequantize(source) or is_quantize(node)) and source not in divided

    def _labels(self, of: Mapping[Node, int]) -> Array:
        labels = np.full(len(self._nodes), -1, np.int64)
        for node, i in of.items():
            labels[self._index[node]] = i
        return labels

    def _connected(self, nodes: Collection[Node]) -> bool:
        sets = _Sets()
        inside = set(nodes)
        for node in nodes:
            sets.join(node, node)
            for each in node.all_input_nodes:
                if each in inside:
                    sets.join(each, node)
        return len(sets.found()) == 1


@dataclass
class _Sets:
    """Disjoint sets of nodes."""

    _parent: dict[Node, Node] = field(default_factory=dict)

    def join(self, a: Node, b: Node) -> None:
        self._parent[self._root(a)] = self._root(b)

    def found(self) -> list[list[Node]]:
        return list(_members({node: self._root(node) for node in self._parent}).values())

    def _root(self, node: Node) -> Node:
        while (parent := self._parent.setdefault(node, node)) is not node:
            self._parent[node] = self._parent[parent]
            node = parent
        return node


def _members(label: Mapping[Node, Any]) -> dict[Any, list[Node]]:
    out: dict[Any, list[Node]] = {}
    for node, each in label.items():
        out.setdefault(each, []).append(node)
    return out


# ---- nodes ----


def is_taken(node: Node) -> bool:
    """True for a getitem node, which takes an element of a tuple."""
    return node.op == "call_function" and node.target is operator.getitem


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    tensors = [each for each in values if isinstance(each, torch.Tensor)]
    return any(each.dtype.is_floating_point or each.dtype.is_complex for each in tensors)


def _has_work(node: Node) -> bool:
    """False for quantize and dequantize nodes, and for layout operators that move nothing."""
    if node.op != "call_function":
        return node.op != "get_attr"
    if is_taken(node) or is_conversion(node):
        return False
    return not (is_move(node) and _moves_nothing(node))


def _moves_nothing(node: Node) -> bool:
    """True for a layout operator whose result has the elements of its operand, in the same order.

    True also if that cannot be tried, because sizes are symbolic or large: a group without work is left to
    the host, which is always right.
    """
    value = node.all_input_nodes[0].meta["val"]
    if value.numel() != node.meta["val"].numel():
        return False
    if not all(type(size) is int for size in value.shape) or value.numel() > _LARGEST:
        return True
    places = torch.arange(value.numel()).reshape(tuple(value.shape))
    moved = operator_of(node)(places, *node.args[1:], **node.kwargs)
    return bool(torch.equal(moved.reshape(-1), places.reshape(-1)))
