"""`PartitionPlan`: which claimant takes which node of a program, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.dtypes import bytes_of
from tosaic.base.options import invalid, shown
from tosaic.base.problems import Problem
from tosaic.base.reportable import Reportable
from tosaic.ports.port_names import near_names

if TYPE_CHECKING:
    from tosaic.base.quantization import QParams

HOST = "host"


def nodes_named(name: str, graph: _core.Graph) -> list[_core.Node]:
    """Returns the node that has this name, or a result of this name.

    If there is none, returns the nodes that come from the call of torch of this name.
    """
    nodes = graph.nodes
    found = [each for each in nodes if name in (each.name, *(result.name for result in each.results))]
    return found or [each for each in nodes if any(origin.fx_name == name for origin in each.origins)]


def place_of(node: _core.Node) -> dict[str, str]:
    """Returns the name, module path and source line of a node, as attributes of results have them."""
    origin = node.origin
    return {
        "node": node.name,
        "module_path": "" if origin is None else str(origin.module_path),
        "source": "" if origin is None else str(origin.source),
    }


@dataclass(frozen=True)
class Refusal:
    """One reason why a claimant does not take a node.

    Attributes
    ----------
    claimant : str
    rule : str
        The kind of reason: a rule of the claimant such as ``dtype``, or ``too_small`` (the group of the node
        would have too little work), ``split`` (the claimant refuses a node that has to stay with it) or
        ``rejected`` (the group could not be lowered because of this node).
    problem : Problem
        What the rule expects and what it found, with the node and its source.
    """

    claimant: str
    rule: str
    problem: Problem


@dataclass(frozen=True)
class Group:
    """Nodes that one claimant runs together.

    Attributes
    ----------
    index : int
    claimant : str
    nodes : tuple of str
        Names, in topological order.
    inputs, outputs : tuple of str
        Names of the values that enter and leave the group.
    macs : int
        Multiply-accumulates of one run.
    scratch_bytes : int
        The size of the temporary buffer that the kernels of the group share: the largest of a node, as
        `Claimant.scratch_bytes` returns it. 0 for claimants without kernels of their own.
    """

    index: int
    claimant: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    macs: int
    scratch_bytes: int = 0

    @property
    def name(self) -> str:
        """The name of the group: ``group0``."""
        return f"group{self.index}"


@dataclass(frozen=True)
class Border:
    """A value that crosses from one part of the program to another.

    Attributes
    ----------
    value : str
    dtype : str
    shape : tuple of int
    qparams : QParams or None
        The qparams of a quantized value.
    made_by : int or None
        The group that makes the value; None for the host, which also has the inputs of the program.
    read_by : tuple of (int or None)
        The groups that read the value; None for the host, which also has the outputs of the program.
    bytes : int
    """

    value: str
    dtype: str
    shape: tuple[int, ...]
    qparams: QParams | None
    made_by: int | None
    read_by: tuple[int | None, ...]
    bytes: int


@dataclass(frozen=True)
class QuantizationPlace:
    """Where a quantize or dequantize node of the program went.

    Attributes
    ----------
    node : str
        Name of the node.
    op : str
        ``quantize`` or ``dequantize``.
    group : int or None
        The group of the node. If the node became qparams of a value, the group that makes the value, or, for
        a constant, reads it. None for the host.
    why : str
    value : str
        The value whose qparams the node became. Empty if the planned graph still has the node, or if the
        value was folded into another one.
    """

    node: str
    op: str
    group: int | None
    why: str
    value: str = ""

    @property
    def is_folded(self) -> bool:
        """True if neither the node nor the value that it quantized is in the planned graph."""
        return self.why == _WHY_FOLDED


_WHY_SWALLOWED = {
    "quantize": "the operator before it makes integers",
    "dequantize": "the operators after it read integers",
}
_WHY_FOLDED = "its value was folded into another one"


@dataclass(frozen=True)
class NodePlace(Reportable):
    """Where one node goes, and why: the answer of `PartitionPlan.why`.

    Attributes
    ----------
    node, op, module_path, source : str
    claimant : str
        The claimant that takes it; ``host`` if no claimant does.
    group : int or None
    refusals : tuple of Refusal
        The reasons of all claimants that come before that claimant, or of all claimants for the host.
    """

    node: str
    op: str
    module_path: str
    source: str
    claimant: str
    group: int | None
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class PartitionPlan(Reportable):
    """Which nodes of a program go to which claimant, and why. `tosaic.partition` makes it.

    Attributes
    ----------
    graph : Graph
        The planned graph: the program after section simplify and, if it is quantized, with qparams on its
        values. Nodes and values in this plan are named as in this graph.
    claimants : tuple of str
        In order of priority.
    groups : tuple of Group
        The groups of the graph, then the groups of its regions.
    group_of : tuple of (int or None)
        By node of the graph, the index of its group; None for the host.
    refusals : tuple of tuple of Refusal
        By node of the graph.
    at_least : tuple of int
        By claimant: a proven lower bound of the number of its groups, given the groups of earlier claimants.
    gains : tuple of (str, int, int, int)
        For each operator that stays on the host, the result if all claimants took it: the operator, the
        number of its nodes, and the numbers of groups and of host nodes that the program would then have. The
        best come first.
    host_macs : int
        Multiply-accumulates of the host's nodes.
    imported : Graph, optional
        The program before its quantize and dequantize nodes became qparams of values.
    regions : mapping of str to PartitionPlan
        The plans of regions of the host's nodes: the branches of a cond, the condition and the body of a
        loop. A region is named after its node, such as ``cond.0``. Indices of groups are unique.
    """

    graph: _core.Graph = field(repr=False)
    claimants: tuple[str, ...]
    groups: tuple[Group, ...]
    group_of: tuple[int | None, ...] = field(repr=False)
    refusals: tuple[tuple[Refusal, ...], ...] = field(repr=False)
    at_least: tuple[int, ...]
    gains: tuple[tuple[str, int, int, int], ...] = ()
    host_macs: int = 0
    imported: _core.Graph | None = field(default=None, repr=False)
    regions: Mapping[str, PartitionPlan] = field(default_factory=dict, repr=False)

    @property
    def is_minimal(self) -> bool:
        """True if each claimant has as few groups as possible, given those of earlier ones; so do regions."""
        own = self.groups[: len(set(self.group_of) - {None})]
        counts = [sum(group.claimant == name for group in own) for name in self.claimants]
        return all(count == least for count, least in zip(counts, self.at_least, strict=True)) and all(
            each.is_minimal for each in self.regions.values()
        )

    @property
    def note(self) -> str:
        """Says that no claimant takes a node, with the most frequent reasons; empty if there are groups."""
        refused = [(node, why) for _, plan in self.all_plans() for node, why in plan._refused()]
        if self.groups or not refused:
            return ""
        reasons = Counter(each.problem.what for _, why in refused for each in why)
        most = "; ".join(f"{count} x {what}" for what, count in reasons.most_common(3))
        names = ", ".join(self.claimants)
        return f"no node goes to {names}: all {len(refused)} stay on the host" + (
            f" ({most})" if most else ""
        )

    def _refused(self) -> Iterator[tuple[_core.Node, tuple[Refusal, ...]]]:
        """Yields the host's nodes, without conversions, and the reasons why no claimant takes them."""
        for node, group, why in zip(self.graph.nodes, self.group_of, self.refusals, strict=True):
            if group is None and node.op not in ("quantize", "dequantize"):
                yield node, why

    def group(self, index: int) -> Group:
        """Returns the group that has this index."""
        return self.groups[index - self.groups[0].index]

    def all_plans(self) -> Iterator[tuple[str, PartitionPlan]]:
        """Yields this plan and the plans of all regions, nested ones included, with their names.

        The name of this plan is empty.
        """
        yield "", self
        for region, plan in self.regions.items():
            for name, each in plan.all_plans():
                yield f"{region}.{name}" if name else region, each

    @cached_property
    def borders(self) -> tuple[Border, ...]:
        """The values that pass from one part to another, in the order of the graph."""
        return tuple(filter(None, map(self._border, self.graph.values)))

    def _border(self, value: _core.Value) -> Border | None:
        if value.kind == "constant":
            return None
        made_by = None if value.producer is None else self.group_of[value.producer.id]
        readers = [self.group_of[user.id] for user in value.users] + [None] * value.is_output
        if all(reader == made_by for reader in readers):
            return None
        read_by = sorted({r for r in readers if r != made_by}, key=lambda r: -1 if r is None else r)
        return Border(
            value.name,
            value.dtype,
            tuple(value.shape),
            value.qparams,
            made_by,
            tuple(read_by),
            bytes_of(value),
        )

    @cached_property
    def edges(self) -> tuple[tuple[int | None, int | None, int], ...]:
        """The quotient graph: from a group to a group (None: the host), and the bytes that cross."""
        found: dict[tuple[int | None, int | None], int] = {}
        for border in self.borders:
            for reader in border.read_by:
                edge = (border.made_by, reader)
                found[edge] = found.get(edge, 0) + border.bytes
        return tuple((*edge, size) for edge, size in found.items())

    @cached_property
    def quantization(self) -> tuple[QuantizationPlace, ...]:
        """The quantize and dequantize nodes that the planned graph still has, and why."""
        found = []
        for node in self.graph.nodes:
            if node.op not in ("quantize", "dequantize"):
                continue
            group = self.group_of[node.id]
            side = node.operands[0] if node.op == "quantize" else node.results[0]
            ends = "an input" if node.op == "quantize" else "an output"
            at_boundary = side is not None and (side.kind == "input" or side.is_output)
            boundary = f"the caller has floats at {ends} of the program"
            why = boundary if at_boundary else "a float operator is next"
            found.append(QuantizationPlace(node.name, node.op, group, why))
        return tuple(found)

    @cached_property
    def swallowed(self) -> tuple[QuantizationPlace, ...]:
        """The quantize and dequantize nodes of the program that became qparams of values."""
        if self.imported is None:
            return ()
        stayed = {node.name for node in self.graph.nodes}
        values = {value.name: value for value in self.graph.values}
        found = []
        for node in self.imported.nodes:
            if node.op not in ("quantize", "dequantize") or node.name in stayed:
                continue
            value = self._quantized_by(node, values)
            if value is None:
                found.append(QuantizationPlace(node.name, node.op, None, _WHY_FOLDED))
            else:
                why = _WHY_SWALLOWED[node.op]
                found.append(QuantizationPlace(node.name, node.op, self._part_of(value), why, value.name))
        return tuple(found)

    @staticmethod
    def _quantized_by(node: _core.Node, values: Mapping[str, _core.Value]) -> _core.Value | None:
        """Returns the planned value that has the quantization of a node.

        It is the operand, or the nearest value before it that the planned graph still has: pads and reshapes
        may be folded into neighbouring nodes. Values with other qparams do not count.
        """
        operand = node.operands[0]
        while operand is not None:
            value = values.get(operand.name)
            if value is not None and value.qparams is not None:
                own = (node.attrs["scales"], node.attrs["zero_points"])
                return value if (value.qparams.scales, value.qparams.zero_points) == own else None
            producer = operand.producer
            operand = None if producer is None or not producer.operands else producer.operands[0]
        return None

    def _part_of(self, value: _core.Value) -> int | None:
        nodes = value.users if value.kind == "constant" else [value.producer]
        groups = [self.group_of[node.id] for node in nodes if node is not None]
        return groups[0] if groups else None

    def why(self, node: str | _core.Node) -> NodePlace:
        """Returns where a node goes, with all reasons of the claimants that do not take it.

        Parameters
        ----------
        node : str or Node
            The name of a node, the name of a value that the node makes, or the name of the call of torch that
            became the node. Nodes of regions are found by these names, too, if the graph has none.

        Raises
        ------
        InvalidGraph
            There is no such node.
        """
        plan, found = self._find(node)
        group = plan.group_of[found.id]
        return NodePlace(
            **place_of(found),
            op=found.op,
            claimant=HOST if group is None else plan.group(group).claimant,
            group=group,
            refusals=plan.refusals[found.id],
        )

    def _find(self, node: Any) -> tuple[PartitionPlan, _core.Node]:
        for _, plan in self.all_plans():
            nodes = plan.graph.nodes
            if isinstance(node, str):
                if named := nodes_named(node, plan.graph):
                    return plan, named[0]
            elif isinstance(node, _core.Node) and node.id < len(nodes) and nodes[node.id] == node:
                return plan, node
        if isinstance(node, _core.Node):  # possibly of an equal graph, such as of a copy of the program
            nodes = self.graph.nodes
            if node.id < len(nodes) and nodes[node.id].name == node.name:
                return self, nodes[node.id]
        raise invalid(
            "partition",
            "the plan has no such node",
            expected="the name of a node of `PartitionPlan.graph`, or the name of a call of torch",
            got=shown(node),
            hint=near_names(
                node, [(each.name, each.name) for _, plan in self.all_plans() for each in plan.graph.nodes]
            ),
        )

    @property
    def nodes_of_host(self) -> Sequence[_core.Node]:
        """The nodes of the host, without nodes of regions."""
        return [node for node in self.graph.nodes if self.group_of[node.id] is None]

    def nodes_of(self, group: int | None) -> Sequence[_core.Node]:
        """The nodes of a group, or of the host for None, in regions, too."""
        return [
            node
            for _, plan in self.all_plans()
            for node in plan.graph.nodes
            if plan.group_of[node.id] == group
        ]
