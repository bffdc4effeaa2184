"""Decides which calls of an exported program go into delegates of a claimant.

0. Calls that tosaic cannot import stay outside: control flow, delegates of others, symbolic shapes.
1. The claimant judges the program as tosaic's graph (`tosaic.partition`). Each node of that graph records as
   its origins the calls that it was made from, so groups of the plan become groups of calls.
2. Calls without a node in that graph (folded constants, elements of tuples), and calls with nodes in several
   groups, go into the group of their readers.
3. `regrouped` makes groups that can run one after another. If the claimant supports integers only, no float
   enters or leaves a group.
4. Each group is lowered on trial, as the program of its delegate. Calls that errors name are
   barred, and steps 3 and 4 are repeated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from tosaic import _core
from tosaic.base.problems import Problem
from tosaic.devices.registry import devices
from tosaic.executorch.delegates.claimant_rules import ClaimantRules
from tosaic.executorch.delegates.program import constant_placeholders, delegate_program
from tosaic.executorch.wrapping.regroup import TAG, Tag, is_taken, regrouped
from tosaic.fx.io.quantize_calls import operator_of
from tosaic.fx.reading.exported_program import read_program
from tosaic.fx.reading.weights import CODE_OF
from tosaic.partitions.claimant import Claimant, planned_graph
from tosaic.partitions.edge_plan import EdgeGroup, EdgePlan
from tosaic.partitions.plan import HOST, NodePlace, PartitionPlan, Refusal
from tosaic.partitions.propose import propose
from tosaic.torch_operators.origins import file_name, module_path, source_of

Trial = Callable[[Any, Claimant], Sequence[Problem]]
"""Returns why a program cannot be a delegate of a claimant; empty if it can."""


@dataclass(frozen=True)
class DelegateGroups:
    """The groups of calls of a program, and the plan with their names."""

    groups: Mapping[str, tuple[Node, ...]]
    plan: EdgePlan


def delegate_groups(
    program: Any,
    rules: ClaimantRules,
    trial: Trial,
    *,
    outside: Collection[Node] = (),
) -> DelegateGroups:
    """Returns the groups of calls that become delegates. The program is not changed.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Plain ATen or edge dialect, with real weights.
    rules : ClaimantRules
        The rules of the claimant, which has a target.
    trial : callable
    outside : collection of torch.fx.Node
        Calls that stay outside, whatever the claimant says.
    """
    return _Search(program, rules, trial, outside).run()


@dataclass
class _Search:
    program: Any
    rules: ClaimantRules
    trial: Trial
    outside: Collection[Node]
    reasons: dict[str, list[Refusal]] = field(default_factory=dict)

    def run(self) -> DelegateGroups:
        self.nodes = list(self.program.graph.nodes)
        imported = self._imported()
        self.claimant = self.rules.in_program(self.program, planned_graph(imported))
        self._has_floats = self.claimant.spec is not None and self.claimant.spec.has_floats
        plan = propose(imported, (self.claimant,), gains=False).plan
        wanted = self._wanted(plan)
        barred = set(self.outside)
        for node in barred & set(wanted):
            self._refuse(node, "outside", "an option of the partitioner has it outside of delegates")
        tried: dict[frozenset[Node], Sequence[Problem]] = {}
        while True:
            groups = self._groups(wanted, barred)
            found = set()
            for nodes in groups:
                key = frozenset(nodes)
                if key not in tried:
                    tried[key] = self.trial(delegate_program(self.program, nodes), self.claimant)
                found |= self._named(nodes, tried[key])
            if not found:
                return self._result(groups, wanted, plan)
            barred |= found

    # ---- from calls to tosaic's graph ----

    def _imported(self) -> _core.Graph:
        """Returns tosaic's graph of the calls that can be imported; records reasons for the other calls.

        Results of calls that are left out become inputs of the graph.
        """
        left_out: set[Node] = set()
        for node in self.nodes:
            if node.op == "call_function" and (why := _why_not_imported(node, left_out)):
                self._refuse(node, "import", *why)
                left_out.add(node)
        while True:
            calls = [node for node in self.nodes if node.op == "call_function" and node not in left_out]
            part = delegate_program(self.program, calls) if left_out else self.program
            try:
                return read_program(part).imported.graph
            except _core.UnsupportedOp as error:
                problem = Problem.from_parts(error.parts)
                named = {node for node in self.nodes if node.name == problem.node}
                found = {n for node in named for n in ((node,) if node in calls else node.users)} - left_out
                found = {node for node in found if node.op == "call_function"}
                if not found:
                    raise
            for node in found:
                self._add(node, Refusal(self.rules.claimant.name, "import", problem))
            left_out |= found

    # ---- from the plan to calls ----

    def _wanted(self, plan: PartitionPlan) -> dict[Node, int]:
        """Returns the group of each call that the plan claims."""
        places: dict[str, set[int | None]] = {}
        for node in plan.graph.nodes:
            for origin in node.origins:
                places.setdefault(origin.fx_name, set()).add(plan.group_of[node.id])
        wanted: dict[Node, int] = {}
        for node in self.nodes:
            if node.op != "call_function":
                continue
            group = places.get(node.name, set())
            if len(group) == 1 and None not in group:
                wanted[node] = next(each for each in group if each is not None)
        for node in self.nodes:
            if is_taken(node):
                source = wanted.get(node.all_input_nodes[0])
                if source is not None:
                    wanted[node] = source
        for node in reversed(self.nodes):
            # Elements of tuples and folded constants have no node. A dequantize call may have nodes in
            # several groups, since the graph merges equal calls, and each reader absorbs its dequantize.
            spread = len(places.get(node.name, ())) != 1
            if node.op == "call_function" and spread and node not in wanted and node.name not in self.reasons:
                readers = {wanted.get(user) for user in node.users}
                if len(readers) == 1 and None not in readers:
                    wanted[node] = next(each for each in readers if each is not None)
        return wanted

    def _groups(self, wanted: Mapping[Node, int], barred: Collection[Node]) -> list[list[Node]]:
        """Returns the remaining groups of calls, each in the order of the graph."""
        is_integer = not self._has_floats
        tags = [Tag(str(group), is_integer) for group in sorted(set(wanted.values()))]
        constants = constant_placeholders(self.program)
        before = {node: node.meta.pop(TAG) for node in self.nodes if TAG in node.meta}
        try:
            for node, group in wanted.items():
                node.meta[TAG] = str(group)
            found = regrouped(self.program.graph, tags, barred, lambda node: node.name in constants)
        finally:
            for node in wanted:
                del node.meta[TAG]
            for node, tag in before.items():
                node.meta[TAG] = tag
        place = {node: i for i, node in enumerate(self.nodes)}
        groups = [sorted(nodes, key=place.__getitem__) for each in found.values() for nodes in each]
        return sorted(groups, key=lambda nodes: place[nodes[0]])

    # ---- trials ----

    def _named(self, nodes: Sequence[Node], problems: Sequence[Problem]) -> set[Node]:
        """Bars the calls of a group that its problems name, or all its calls if they name none."""
        found: set[Node] = set()
        for problem in problems:
            named = [n for n in nodes if problem.node == n.name or problem.node.startswith(n.name + ".")]
            longest = max(named, key=lambda node: len(node.name), default=None)
            for node in nodes if longest is None else (longest,):
                self._add(node, Refusal(self.claimant.name, "rejected", problem))
                found.add(node)
        return found

    def _add(self, node: Node, refusal: Refusal) -> None:
        self.reasons.setdefault(node.name, []).append(refusal)

    def _refuse(self, node: Node, rule: str, what: str, expected: str = "", got: str = "") -> None:
        module, source = _place(node)
        problem = Problem(
            what=what,
            where="partition",
            expected=expected,
            got=got,
            node=node.name,
            module_path=module,
            source=source,
        )
        self._add(node, Refusal(self.rules.claimant.name, rule, problem))

    # ---- the plan ----

    def _result(
        self, groups: Sequence[Sequence[Node]], wanted: Mapping[Node, int], plan: PartitionPlan
    ) -> DelegateGroups:
        group_of = {node: i for i, nodes in enumerate(groups) for node in nodes}
        for node in wanted:
            if node not in group_of and node.name not in self.reasons:
                self._refuse(
                    node,
                    "border",
                    f"it cannot be in a delegate of '{self.claimant.name}' without its neighbours",
                    "neighbours in the same delegate, or integers between them"
                    if not self._has_floats
                    else "a delegate that computes something",
                )
        refusals = self._refusals(plan)
        calls = [node for node in self.nodes if node.op == "call_function"]
        places = {
            node.name: self._node_place(node, group_of.get(node), refusals.get(node.name, ()))
            for node in calls
        }
        constants = constant_placeholders(self.program)
        named = {f"tosaic{i}": tuple(nodes) for i, nodes in enumerate(groups)}
        described = tuple(_described(tag, nodes, self.nodes, constants) for tag, nodes in named.items())
        return DelegateGroups(named, EdgePlan(self.claimant.name, described, places, plan))

    def _refusals(self, plan: PartitionPlan) -> dict[str, tuple[Refusal, ...]]:
        """Returns the claimant's reasons against each call, by name."""
        found: dict[str, list[Refusal]] = {}
        for node in plan.graph.nodes:
            for origin in node.origins:
                found.setdefault(origin.fx_name, []).extend(plan.refusals[node.id])
        for node in self.nodes:
            if node.target is operator.getitem and node.name not in found:
                found[node.name] = found.get(node.all_input_nodes[0].name, [])
        return {name: tuple(dict.fromkeys(each)) for name, each in found.items()}

    def _node_place(self, node: Node, group: int | None, refusals: tuple[Refusal, ...]) -> NodePlace:
        own: tuple[Refusal, ...] = tuple(dict.fromkeys(self.reasons.get(node.name, ())))
        module, source = _place(node)
        called = operator_of(node)
        return NodePlace(
            node=node.name,
            op=str(node.target if called is None else called),
            module_path=module,
            source=source,
            claimant=HOST if group is None else self.claimant.name,
            group=group,
            refusals=() if group is not None else (*refusals, *own),
        )


def _described(
    tag: str, nodes: Sequence[Node], graph: Sequence[Node], constants: Collection[str]
) -> EdgeGroup:
    inside = set(nodes)
    inputs = (n for n in graph if n not in inside and any(user in inside for user in n.users))
    outputs = (n for n in nodes if any(user not in inside for user in n.users))
    return EdgeGroup(
        tag,
        tuple(node.name for node in nodes),
        tuple(node.name for node in inputs if node.name not in constants),
        tuple(node.name for node in outputs),
    )


def _why_not_imported(node: Node, left_out: Collection[Node]) -> tuple[str, ...]:
    """Returns why a call cannot be imported: problem, expected, got; empty if it can."""
    if is_taken(node):
        return ("it is taken from a call that stays outside",) if node.all_input_nodes[0] in left_out else ()
    library = _kernel_library(node)
    if library:
        return (f"a kernel of the library '{library}' computes it already",)
    if operator_of(node) is None:
        return ("control flow and delegates of others stay with ExecuTorch",)
    for each in (node, *node.all_input_nodes):
        value = each.meta.get("val")
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if isinstance(tensor, torch.SymInt | torch.SymFloat | torch.SymBool):
                return (f"node '{each.name}' is a symbolic number", "numbers")
            if not isinstance(tensor, torch.Tensor):
                continue
            if any(type(size) is not int for size in tensor.shape):
                return (
                    f"node '{each.name}' has symbolic dimensions",
                    "sizes that are known when the program is lowered",
                    str(list(tensor.shape)),
                )
            if tensor.dtype not in CODE_OF:
                return (f"node '{each.name}' has a dtype that tosaic does not have", "", str(tensor.dtype))
    return ()


def _kernel_library(node: Node) -> str:
    """Returns the library of a claimant's kernel, if a node calls one; else empty."""
    schema = getattr(operator_of(node), "_schema", None)
    library, _, _ = str(getattr(schema, "name", "")).partition("::")
    return library if library in {each.kernel_library for each in devices() if each.kernel_library} else ""


def _place(node: Node) -> tuple[str, str]:
    """Returns the module path and the source line of a call."""
    stack: Any = node.meta.get("nn_module_stack")
    file, line = source_of(node.meta.get("stack_trace") or "")
    path = module_path(next(reversed(stack.values()))[0]) if stack else ""
    return path, f"{file_name(file)}:{line}" if file else ""
