"""Whether the operators that a group became are within the limits of its device, and whose they are.

A verdict is about a node alone. In a group the node may become other operators: with another dim order of its
operands, or merged with its neighbours. So each lowered group is judged before it becomes a file, and nodes
whose operators exceed a limit leave the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tosaic import _core
from tosaic.base.problems import Problem
from tosaic.devices.registry import core_claimant
from tosaic.partitions.claimant import Claimant
from tosaic.partitions.plan import place_of

Barred: TypeAlias = Mapping[tuple[str, str], tuple[Problem, ...]]
"""By claimant and name of a node: why the node may not be in a group of the claimant."""


@dataclass(frozen=True)
class Exceeded:
    """An operator of a lowered group that exceeds a limit of its device.

    Attributes
    ----------
    operator : str
        Its name in the lowered graph.
    problem : Problem
        The limit, what it expects and what it found; its node is the call from which the operator comes.
    """

    operator: str
    problem: Problem


def exceeded_limits(tosa: _core.Graph, claimant: Claimant, *, planned: bool = True) -> tuple[Exceeded, ...]:
    """Returns the limits of a claimant that a lowered graph exceeds, in the order of the graph.

    `planned` says whether the graph has the dim orders of the file at its inputs and outputs. Without it,
    transposes of inputs and outputs are not judged.
    """
    found = _core.exceeded_limits(tosa, core_claimant(claimant.kind), planned)
    return tuple(Exceeded(operator, Problem.from_parts(parts)) for operator, _, parts in found)


def unfit_nodes(
    found: Iterable[Exceeded], nodes: Sequence[_core.Node], allowed: Sequence[bool] | None
) -> dict[int, tuple[Problem, ...]]:
    """Returns, by id of a node that has to leave a group, the limits that its operators exceed.

    Parameters
    ----------
    found : iterable of Exceeded
    nodes : sequence of Node
        The nodes of the group.
    allowed : sequence of bool, optional
        By id, whether a rule of the user allows a node to exceed limits. None: no rule does.
    """
    unfit: dict[int, list[Problem]] = {}
    for each in found:
        for node in _makers(each, nodes):
            problem = replace(each.problem, **place_of(node))
            if not (allowed and allowed[node.id]) and problem not in unfit.setdefault(node.id, []):
                unfit[node.id].append(problem)
    return {node: tuple(problems) for node, problems in unfit.items() if problems}


def _makers(found: Exceeded, nodes: Sequence[_core.Node]) -> Sequence[_core.Node]:
    """Returns the nodes that became an operator: by its name, else by its call, else all of them."""

    def names(node: _core.Node) -> list[str]:
        own = (node.name, *(result.name for result in node.results))
        return [name for name in own if found.operator == name or found.operator.startswith(f"{name}.")]

    named = [(max(map(len, own)), node) for node in nodes if (own := names(node))]
    if named:
        return [max(named, key=lambda each: each[0])[1]]
    call = found.problem.node
    return [n for n in nodes if any(origin.fx_name == call for origin in n.origins)] or nodes
