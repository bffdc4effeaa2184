"""The rules of a claimant over a program that ExecuTorch decomposes on the way.

A rule names an operator, a call, a module or a function. ExecuTorch shows a partitioner the program twice:
before it decomposes calls, and in the edge dialect, where calls have other names and some are split into
several. ``meta["from_node"]`` leads from these calls to the original calls. So a rule that matched an
original call also matches all its parts in the edge dialect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from torch.fx import Graph, Node

from tosaic import _core
from tosaic.fx.io.quantize_calls import is_conversion
from tosaic.partitions.claimant import Claimant, ClaimantRule
from tosaic.partitions.plan import nodes_named
from tosaic.torch_operators.origins import sources_of

Call: TypeAlias = tuple[int, str]
"""A call of the user's program: the program's number, and the name of the call."""


class ClaimantRules:
    """The rules of a claimant, and the calls that they matched before the edge dialect.

    Attributes
    ----------
    claimant : Claimant
    """

    def __init__(self, claimant: Claimant) -> None:
        self.claimant = claimant
        self._matched: list[set[Call]] = [set() for _ in claimant.rules]
        self._graphs: list[Graph] = []  # kept alive: torch records their ids, which could be reused
        self._programs: dict[int, int] = {}  # id of a graph -> number of the program

    def forget(self) -> None:
        """Forgets the programs of a lowering."""
        self._graphs.clear()
        self._programs.clear()
        for calls in self._matched:
            calls.clear()

    def remember(self, *forms: Any) -> None:
        """Records one program of the user, given in several forms whose calls have the same names."""
        number = len(self._programs)
        for program in forms:
            self._graphs.append(program.graph)
            self._programs[id(program.graph)] = number

    def in_program(self, program: Any, graph: _core.Graph) -> Claimant:
        """Returns the claimant with rules for one program.

        A rule that matches nothing in this program is left out, since it may match in another program. The
        edge dialect comes last: there, a rule that never matched stays, and the verdicts refuse it.

        Parameters
        ----------
        program : torch.export.ExportedProgram
        graph : Graph
            The planned graph of the program.
        """
        if not self.claimant.rules:
            return self.claimant
        is_last = str(program.dialect) == "EDGE"
        # A conversion may be an origin of another node that absorbed it; rules for that node ignore it.
        calls = {node.name: self._call_of(node) for node in program.graph.nodes if not is_conversion(node)}
        all_calls = {node.name: self._call_of(node) for node in program.graph.nodes}
        made_of = {
            node.id: {
                found
                for origin in node.origins
                if (found := (all_calls if _converts(node) else calls).get(origin.fx_name)) is not None
            }
            for node in graph.nodes
        }
        rules: list[ClaimantRule] = []
        for rule, matched in zip(self.claimant.rules, self._matched, strict=True):
            direct = {node.id for node in _matching(rule, graph)}
            if rule.kind == "name":
                named = {node for node, each in made_of.items() if rule.value in {name for _, name in each}}
                matched.update(call for node in named for call in made_of[node] if call[1] == rule.value)
            matched.update(call for node in direct for call in (made_of[node] if not is_last else ()))
            parts = [n.name for n in graph.nodes if n.id not in direct and made_of[n.id] & matched]
            if direct or (is_last and not parts and not matched):
                rules.append(rule)
            if parts:
                rules += _for_nodes(rule, parts)
        return replace(self.claimant, rules=tuple(rules))

    def _call_of(self, node: Node) -> Call:
        """Returns the original call in a user's program; if unknown, (-1, the first name on record)."""
        last = (-1, node.name)
        for source in sources_of(node):
            if source.graph_id in self._programs:
                return self._programs[source.graph_id], str(source.name)
            last = (-1, str(source.name))
        return last


def _matching(rule: ClaimantRule, graph: _core.Graph) -> Iterator[_core.Node]:
    named = {node.id for node in nodes_named(rule.value, graph)} if rule.kind == "name" else set()
    for node in graph.nodes:
        if rule.kind == "name":
            found = node.id in named
        elif rule.kind == "op":
            found = rule.value in (node.op, node.attrs.get("target") if node.op == "opaque" else None)
        elif rule.kind == "module":
            paths = (f"{origin.module_path}." for origin in node.origins)
            found = any(path.startswith(f"{rule.value}.") for path in paths)
        else:
            found = bool(rule.where is not None and rule.where(node))
        if found:
            yield node


def _converts(node: _core.Node) -> bool:
    return node.op in ("quantize", "dequantize")


def _for_nodes(rule: ClaimantRule, names: Sequence[str]) -> list[ClaimantRule]:
    """Returns rules that match nodes of these names, of the given rule's kind if it is ``name``."""
    if rule.kind == "name":
        return [replace(rule, value=name) for name in names]
    chosen = frozenset(names)
    return [replace(rule, kind="where", value=f"parts of {rule.value}", where=lambda n: n.name in chosen)]
