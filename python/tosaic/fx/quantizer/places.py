"""Finds in a graph of torch the tensors of a plan: the results of calls, and the operands that they read.

our plan     Edge("relu", "conv2d_1"): the operand 0 of the only node of call conv2d_1
torch graph  conv2d_1 = aten.conv2d.default(dropout, w, b)      the place is `dropout`, as conv2d_1 reads it

Both graphs are imported from the same calls, so a place (call, node, operand) means the same tensor in both.
Names of tensors may differ: in torch, a tensor may pass through calls that compute nothing, and constants
have other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch.fx import GraphModule, Node

from tosaic import _core
from tosaic.base.options import invalid
from tosaic.calibration.plan_program import PlannedProgram, prepared_graph
from tosaic.fx.quantizer.complex_parts import ComplexParts
from tosaic.fx.quantizer.functional_parts import PART_OF
from tosaic.fx.quantizer.module_graph import read_module
from tosaic.fx.quantizer.moved_weights import Move
from tosaic.fx.quantizer.state_writes import state_writes

Place = tuple[str, int, int]  # call, its node, operand (or result)


class Read(NamedTuple):
    """A node that a call reads.

    Attributes
    ----------
    node : Node
    user : Node or None
        The call; None if only this call reads `node`.
    moves : tuple of Move
        How the plan's weight is made from the node's tensor.
    """

    node: Node
    user: Node | None
    moves: tuple[Move, ...] = ()


class Places:
    """The places of the calls of a graph of torch.

    Parameters
    ----------
    model : GraphModule
    names : dict of Node to str
        The names of calls in the plan, for nodes with another name there.
    sizes : mapping, optional
        As in `read_module`.
    states : mapping, optional
        The names of states in the graph, for states with another name in the plan.
    """

    def __init__(
        self,
        model: GraphModule,
        names: Mapping[Node, str],
        sizes: Mapping[tuple[int, int], int] | None = None,
        states: Mapping[str, str | None] | None = None,
    ) -> None:
        self._states = states or {}
        self._nodes = {names.get(node, node.name): node for node in model.graph.nodes}
        self._read_by = {node: frozenset(node.all_input_nodes) for node in model.graph.nodes}
        self._at = {node: at for at, node in enumerate(model.graph.nodes)}
        imported = read_module(model, sizes=sizes)
        self._moved = imported.graph
        self._values = {value.name: value for value in imported.graph.values}
        self._by_value: dict[str, list[Node]] = {}
        self._by_part: dict[str, list[tuple[Node, int]]] = {}  # with 0: real, 1: imaginary
        for node, value in zip(model.graph.nodes, imported.values, strict=True):
            if value >= 0:
                self._by_value.setdefault(imported.graph.values[value].name, []).append(node)
        for node, parts in imported.parts.items():
            for part, value in enumerate(parts):
                self._by_part.setdefault(imported.graph.values[value].name, []).append((node, part))
        self._parts = ComplexParts(model)
        self._graph = prepared_graph(imported.graph)
        self._prepared = {value.name: value for value in self._graph.values}
        core, _, _, nodes = _core.graph_calls(self._graph, {})
        self._calls = {name: list(each) for name, each in zip(core.names, nodes, strict=True)}
        for node in model.graph.nodes:
            if PART_OF in node.meta:
                self._calls[node.meta[PART_OF]] += self._calls.get(node.name, ())
        self._stores = list(state_writes(model))
        self._output = next(node for node in model.graph.nodes if node.op == "output")

    def _value(self, place: Place, results: bool) -> str | None:
        call, node_index, index = place
        user = self._nodes.get(call)
        nodes = self._calls.get(call if user is None else user.name, ())
        if node_index >= len(nodes):
            return None
        node = self._graph.nodes[nodes[node_index]]
        found = node.results if results else node.operands
        value = found[index] if index < len(found) else None
        return None if value is None else value.name

    def _is_made_by_import(self, name: str | None) -> bool:
        """True for a constant that the import added, such as the zeros to which a histogram adds."""
        if name is None or name in self._by_value or name in self._by_part:
            return False
        value = self._prepared.get(name)
        return value is not None and value.producer is None

    def reads(self, place: Place, *, required: bool = True) -> list[Read]:
        """Returns the nodes with the tensor that a call of torch reads at a place.

        There are several if the call also reads the tensor through a call that computes nothing. With
        `required`, they include parts of complex values. None has a constant that the import added.
        """
        user, name = self._nodes.get(place[0]), self._value(place, results=False)
        if user is not None and name is not None:
            found = [
                Read(node, user) for node in self._by_value.get(name, ()) if node in user.all_input_nodes
            ]
            if required:
                found += [
                    Read(self._parts.of_read(node, user, part), None)
                    for node, part in self._by_part.get(name, ())
                    if node in self._read_by[user]
                ]
            moved = None if found else self._moved_weight(name, user)
            if moved is not None:
                found.append(moved)
            if found:
                return found
        if required and not self._is_made_by_import(name):
            schema = getattr(user.target, "_schema", None) if user is not None else None
            raise _in_place(place) if schema is not None and schema.is_mutable else another_program(place)
        return []

    def _moved_weight(self, name: str, user: Node) -> Read | None:
        """Returns the weight that a call permutes or reshapes before use."""
        value, moves = self._values.get(name), list[Move]()
        while value is not None and value.producer is not None:
            producer = value.producer
            source = producer.operands[0] if producer.operands else None
            if source is None or producer.op not in ("permute", "reshape", "clone"):
                return None
            if producer.op != "clone":
                perm = tuple(producer.attrs["perm"]) if producer.op == "permute" else None
                moves.append(Move(tuple(source.shape), tuple(value.shape), perm))
            value = source
            for node in self._by_value.get(value.name, ()):
                if node in self._read_by[user]:
                    return Read(node, user, tuple(reversed(moves)))
        return None

    def producers(self, place: Place) -> list[Node]:
        """Returns the nodes that compute the result at a place; several nodes may extract a complex part."""
        name = self._value(place, results=True) or ""
        direct, holders = self._by_value.get(name, []), self._by_part.get(name, [])
        first = min((self._at[node] for node, _ in holders), default=len(self._at))
        if direct and self._at[direct[0]] < first:
            return direct[:1]
        if not holders:
            raise another_program(place)
        if all(self._is_taken_apart(node) for node, _ in holders):
            taken = [node for node in direct if any(holder in self._read_by[node] for holder, _ in holders)]
            if taken:
                return taken
        node, part = holders[0]
        return [self._parts.of_result(node, part)]

    def _is_taken_apart(self, node: Node) -> bool:
        """True if all readers of a complex node extract its parts, or have the same parts themselves."""
        return all(
            any(user in self._by_value.get(name, ()) for name in self._names_of_parts(node))
            or self._names_of_parts(user) == self._names_of_parts(node)
            for user in node.users
        )

    def _names_of_parts(self, node: Node) -> list[str]:
        return [name for name, holders in self._by_part.items() for each, _ in holders if each is node]

    def read_by_output(self, planned: PlannedProgram, value: int, place: Place | None) -> tuple[Node, Node]:
        """Returns the node that the graph returns for a value, and the output node.

        For the new value of a state: the stored node, and the last call that stores it.
        """
        paths = {
            self._states.get(each.path, each.path)
            for each in planned.graph.outputs
            if each.kind != "user" and each.value.id == value
        }
        for node, state, stored in reversed(self._stores):
            if state.target in paths:
                return stored, node
        name = planned.graph.values[value].name if place is None else self._value(place, results=True)
        for node in self._by_value.get(name or "", ()):
            if node in self._output.all_input_nodes:
                return node, self._output
        raise another_program(place or ("output", 0, 0))


def another_program(place: Place) -> Exception:
    """Returns the error for a place that a program does not have."""
    return invalid(
        "to_exported",
        f"the exported program has no such call '{place[0]}'",
        expected="the program that was quantized",
        got="another program",
    )


def _in_place(place: Place) -> Exception:
    return invalid(
        "to_exported",
        f"torch cannot write rounded numbers back into the tensor that '{place[0]}' changes in place",
        expected="a program that returns what it computes",
        got="a program that changes an input or a state",
    )
