"""The calls of an exported program that its plan assigns to Cortex-M, and what became of them.

A node of the plan represents one or several calls. Quantize and dequantize calls are nodes only where floats
become integers or back; the others became qparams, and ExecuTorch folds them into neighbouring calls. Calls
that compute nothing (a clone, a pad of no elements) are not nodes at all: Cortex-M gets such a call if it
gets all calls around it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from torch.fx import Graph, Node

from tosaic import _core
from tosaic.base.quantization import QParams
from tosaic.executorch.cortex_m.call_marks import nodes_by_call
from tosaic.executorch.cortex_m.claimed_forms import Factor
from tosaic.executorch.cortex_m.own_conversions import conversion_of
from tosaic.fx.io.quantize_calls import is_conversion, schema_of
from tosaic.partitions.kernel_plan import KernelNode
from tosaic.partitions.plan import HOST, PartitionPlan, place_of

_CONVERSIONS = ("quantize", "dequantize")


class PlannedCalls:
    """The calls of a program, by the claimant that computes them.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        With quantize and dequantize calls.
    plan : PartitionPlan
        The plan of this program.
    claimant : str
        The name of the claimant that is a Cortex-M.

    Attributes
    ----------
    conversions : set of str
        The quantize and dequantize calls that Cortex-M computes, if no pass folds them.
    factors : dict of str to Factor
        The calls that multiply or divide by a number.
    """

    def __init__(self, program: Any, plan: PartitionPlan, claimant: str) -> None:
        self._plan, self._claimant = plan, claimant
        self._places = _places_of(plan)
        nodes = [node for node in program.graph.nodes if node.op == "call_function"]
        self._named = {node.name for node in nodes}
        conversions = {node.name for node in nodes if is_conversion(node)}
        computing = {node.name for node in nodes} - conversions
        self._calls = {
            node.id: _origins(node, conversions if node.op in _CONVERSIONS else computing)
            for node, _ in self._places
        }
        planned = {call for calls in self._calls.values() for call in calls}
        self._unplanned = {
            node.name: frozenset(_neighbours(node)) for node in nodes if node.name in computing - planned
        }
        self.conversions = {
            call
            for node, owner in self._places
            if node.op in _CONVERSIONS and owner == claimant
            for call in self._calls[node.id]
        }
        known = _core.constant_factors(plan.graph)
        self.factors = {
            self._calls[node.id][0]: Factor(*found)
            for node, _ in self._places
            if (found := known[node.id]) is not None and len(self._calls[node.id]) == 1
        }

    def computed(self, refused: Container[str]) -> set[str]:
        """Returns the calls that Cortex-M computes: all calls of each of its nodes that has no refused call.

        A call that is also part of another claimant's node is not returned.
        """
        mine: set[str] = set()
        others: set[str] = set()
        for node, owner in self._places:
            calls = self._calls[node.id]
            if node.op not in _CONVERSIONS:
                is_mine = owner == self._claimant and not any(call in refused for call in calls)
                (mine if is_mine else others).update(calls)
        mine -= others
        free = {call for call in self._unplanned if call not in refused}
        while not all(self._unplanned[call] <= mine | free for call in free):
            free = {call for call in free if self._unplanned[call] <= mine | free}
        return mine | free

    def results(self, refused: Container[str]) -> dict[str, QParams]:
        """Returns the qparams of the results of Cortex-M's calls that are exactly one node of the plan."""
        mine = self.computed(refused)
        found: dict[str, list[QParams | None]] = {}
        for node, _ in self._places:
            for call in self._calls[node.id]:
                is_alone = len(self._calls[node.id]) == 1 and len(node.results) == 1
                found.setdefault(call, []).append(node.results[0].qparams if is_alone else None)
        return {
            call: qparams[0]
            for call, qparams in found.items()
            if call in mine and len(qparams) == 1 and qparams[0] is not None
        }

    def outcome(
        self, graph: Graph, merged: Mapping[str, str], refused: Mapping[str, str]
    ) -> tuple[KernelNode, ...]:
        """Returns what became of each node of the plan.

        Parameters
        ----------
        graph : Graph
            After the passes, with marks.
        merged, refused : mapping of str to str
            By name of a call: the pass that merged it, and why it was refused.
        """
        parts = nodes_by_call(graph)
        claimed = self.computed(refused) | self.conversions | (parts.keys() - self._named)
        return tuple(self._node(*place, parts, claimed, merged, refused) for place in self._places)

    def _node(
        self,
        node: _core.Node,
        owner: str,
        parts: Mapping[str, list[Node]],
        claimed: set[str],
        merged: Mapping[str, str],
        refused: Mapping[str, str],
    ) -> KernelNode:
        calls = self._calls[node.id] or self._added(node, parts)
        found = [part for call in calls for part in parts.get(call, ()) if schema_of(part) is not None]
        kernels = tuple(dict.fromkeys(filter(None, map(kernel_of, found))))
        status, reason = "kernel", ""
        if owner != self._claimant:
            status, kernels, reason = "left", (), self._why_left(node, owner)
        elif not calls or not claimed.issuperset(calls):
            status, kernels = "refused", ()
            reasons = [refused[call] for call in calls if call in refused]
            reason = "; ".join(reasons) or "the program has no call that is this node alone"
        elif not found:
            status, reason = "merged", ", ".join(dict.fromkeys(merged[c] for c in calls if c in merged))
        elif not kernels:
            status, kernels = "integers", tuple(dict.fromkeys(str(schema_of(part).name) for part in found))
        place = place_of(node)
        return KernelNode(
            place["node"],
            node.op,
            place["module_path"],
            place["source"],
            calls,
            owner,
            status,
            kernels,
            reason,
        )

    def _added(self, node: _core.Node, parts: Mapping[str, list[Node]]) -> tuple[str, ...]:
        """Returns the name of an added dequantize call, for a node that is no call of the program."""
        operand = node.operands[0] if node.op == "dequantize" else None
        producer = None if operand is None else operand.producer
        calls = () if producer is None else self._calls[producer.id]
        return tuple(name for name in map(conversion_of, calls) if name in parts)

    def _why_left(self, node: _core.Node, owner: str) -> str:
        refusals = self._plan.refusals[node.id]
        mine = [each.problem.what for each in refusals if each.claimant == self._claimant]
        return "; ".join(mine) or f"it is for {owner}"


def kernel_of(node: Node) -> str:
    """Returns the name of the operator of Cortex-M that a node calls; empty for other nodes."""
    name = str(getattr(schema_of(node), "name", ""))
    return name if name.startswith("cortex_m::") else ""


def _places_of(plan: PartitionPlan) -> list[tuple[_core.Node, str]]:
    """Returns each node of a plan, without nodes of regions, with the name of its claimant."""
    groups = zip(plan.graph.nodes, plan.group_of, strict=True)
    return [(node, HOST if group is None else plan.group(group).claimant) for node, group in groups]


def _origins(node: _core.Node, names: Container[str]) -> tuple[str, ...]:
    """Returns the calls among `names` that a node comes from."""
    return tuple(dict.fromkeys(each.fx_name for each in node.origins if each.fx_name in names))


def _neighbours(node: Node) -> Iterator[str]:
    """Yields the calls before and after a call, through the conversions between them."""
    pending = [(each, "all_input_nodes") for each in node.all_input_nodes]
    pending += [(each, "users") for each in node.users]
    while pending:
        found, side = pending.pop()
        if found.op == "call_function" and is_conversion(found):
            pending += [(each, side) for each in getattr(found, side)]
        elif found.op == "call_function":
            yield found.name
