"""Models of nodes inside of groups: these nodes move to the host, where the models compute them.

::

    group0: conv ─▶ relu ─▶ conv          models={Nodes(kind="conv"): f}
    conv (f) ─▶ group0: relu ─▶ conv (f)  the program is split again; the rest stays with its claimant

A lowered group has TOSA operators instead of the nodes. On the host, a node is as in the program: a model
gets its integers, in torch's axis order. The other nodes are lowered for their claimants as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.options import invalid, shown
from tosaic.program.model_keys import NodeIndex, Nodes
from tosaic.program.overrides import all_nodes

if TYPE_CHECKING:
    from tosaic.partitions.claimant import Claimant
    from tosaic.partitions.plan import Group, PartitionPlan


@dataclass(frozen=True)
class ModelledNodes:
    """A condition for `Claimant.deny`: true for nodes that a model computes, by name."""

    names: frozenset[str]

    def __call__(self, node: _core.Node) -> bool:
        """Returns whether a model computes the node."""
        return node.name in self.names

    def denied_to(self, claimant: Claimant) -> Claimant:
        """Returns the claimant with a rule that denies these nodes."""
        return claimant.deny(where=self, why="a model computes it")


def reaching_inside(
    models: Mapping[Any, Any],
    plan: PartitionPlan,
    split_without: Callable[[ModelledNodes], PartitionPlan],
) -> Mapping[Any, Any]:
    """Splits a program again if models select nodes inside of groups, and returns the models for its host.

    A key that is the name of a group, ``group0``, or all nodes (``"*"``) needs no new split.
    Keys that select nothing stay, and the host's graph refuses them.

    Parameters
    ----------
    models : mapping
    plan : PartitionPlan
    split_without : callable
        Splits the program so that the given nodes are on the host, and returns the plan.

    Raises
    ------
    InvalidGraph
        A key has several meanings; or it selects a group, and another key a node inside of it.
    """
    groups = {group.name: group for group in plan.groups}
    whole = {key: name for key in models if (name := _group_named(key, groups)) is not None}
    claimed = list(_claimed(plan))
    names: dict[str, int] = {}
    for key in models:
        if key not in whole and not _is_all(key):
            for index, group_of in claimed:
                names |= {each: group for node in index.found(key) for each, group in group_of(node)}
    if not names:
        return models
    for key, name in whole.items():
        inside = [node for node, group in names.items() if group == groups[name].index]
        if inside:
            raise invalid(
                "models",
                "a key selects a group, and another key a node inside of it",
                expected="models of groups, or of their nodes",
                got=f"{shown(key)}, and a key of '{inside[0]}'",
                node=inside[0],
            )
    after = split_without(ModelledNodes(frozenset(names)))
    renamed = {each.nodes: each.name for each in after.groups}
    return {
        renamed.get(groups[whole[key]].nodes, key) if key in whole else key: model
        for key, model in models.items()
    }


def _is_all(key: Any) -> bool:
    return key == "*" or (isinstance(key, Nodes) and not key.conditions)


def _group_named(key: Any, groups: Mapping[str, Group]) -> str | None:
    """Returns the name of the group that a key names, or None."""
    names = [key] if isinstance(key, str) else [key.kind, key.name]
    return next((name for name in names if name in groups), None)


_GroupOf = Callable[[_core.Node], "list[tuple[str, int]]"]


def _claimed(plan: PartitionPlan) -> Iterator[tuple[NodeIndex, _GroupOf]]:
    """Yields, for each graph, an index of its nodes, and a function from nodes to claimed nodes and groups.

    For a node of a region of a claimed node, it also returns that node, which leaves its group with it.
    """
    for _, each in plan.all_plans():
        group_by_name: dict[str, list[tuple[str, int]]] = {}
        for node, group in zip(each.graph.nodes, each.group_of, strict=True):
            if group is not None:
                group_by_name[node.name] = [(node.name, group)]
                for region in node.regions:
                    for inner in all_nodes(region):
                        group_by_name[inner.name] = [(inner.name, group), (node.name, group)]
        yield NodeIndex(each.graph), partial(_look_up, group_by_name)


def _look_up(groups: Mapping[str, list[tuple[str, int]]], node: _core.Node) -> list[tuple[str, int]]:
    return groups.get(node.name, [])
