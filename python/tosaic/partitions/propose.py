"""Makes the plan of a partition: verdicts of the claimants, groups, and the reasons of the host's nodes.

1. Each claimant judges each node.
2. The nodes that it takes become groups, one claimant after the other.
3. Each group is lowered alone. Nodes because of which it does not lower are barred, nodes whose operators
   exceed limits of the device, and nodes that read integers of another part which the lowered group may
   represent differently. Step 2 is repeated.
4. The same is done in the regions of the host's nodes: the branches of a cond, the body of a loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.base.options import invalid, refusal, shown
from tosaic.base.problems import Problem
from tosaic.devices.engines import EXAMPLES
from tosaic.devices.registry import core_claimant
from tosaic.lowering.macs import macs_by_node
from tosaic.lowering.pipeline import Pipeline
from tosaic.partitions.claimant import Claimant, planned_graph
from tosaic.partitions.emitted import Barred, exceeded_limits, unfit_nodes
from tosaic.partitions.payload_kinds import has_kernels
from tosaic.partitions.plan import Group, PartitionPlan, Refusal, place_of

_log = logging.getLogger("tosaic.partition")
_MOVES = frozenset(("reshape", "permute", "clone", "expand", "slice", "split", "cat", "stack", "cast"))
_NO_WORK = _MOVES | {"quantize", "dequantize"}
"""Operators that only move or convert elements: they do not count for the least size of a group.

A claimant with kernels has some that quantize and dequantize; for it, only moves do not count.
"""


def require_claimants(where: str, claimants: Any) -> tuple[Claimant, ...]:
    """Returns the claimants that an option names.

    Raises
    ------
    InvalidGraph
        `claimants` is not a sequence of names and claimants, is empty, or has a claimant twice.
    """
    given = None if isinstance(claimants, str) or not np.iterable(claimants) else list(claimants)
    if not given:
        raise invalid(
            where,
            "unknown value of 'claimants'",
            expected=f"a list of names and of tosaic.Claimant, such as {list(EXAMPLES)}",
            got=shown(claimants),
        )
    found = tuple(each if isinstance(each, Claimant) else Claimant.named(each) for each in given)
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise invalid(
                where,
                f"claimant '{name}' is listed {names.count(name)} times",
                expected="claimants with different names",
                got=", ".join(names),
                hint="The first claimant takes all nodes that it can, so the second one would get none",
            )
    return found


def require_pipelines(where: str, pipelines: Any, claimants: Sequence[Claimant]) -> None:
    """Checks the pipelines of claimants.

    Raises
    ------
    InvalidGraph
        `pipelines` is not a mapping from claimants to pipelines, names a claimant that is not used, or has a
        pipeline for another target.
    """
    targets = {each.name: each.arithmetic for each in claimants if each.arithmetic}
    expected = f"pipelines by claimant ({', '.join(targets) or 'none has one'})"
    if not isinstance(pipelines, Mapping):
        raise refusal(where, "pipelines", expected, pipelines)
    for name, pipeline in pipelines.items():
        if name not in targets or not isinstance(pipeline, Pipeline):
            raise refusal(where, "pipelines", expected, {name: pipeline})
        if pipeline.target != targets[name]:
            raise refusal(
                where,
                "pipelines",
                f"a pipeline for {targets[name]}, the target of '{name}'",
                f"one for {pipeline.target}",
            )


@dataclass(frozen=True)
class Proposal:
    """A plan with the graphs of its parts.

    Attributes
    ----------
    plan : PartitionPlan
    host : Graph
        The nodes of the host, and a call of each group. Regions of the host's nodes are hosts likewise.
    parts : tuple of Graph
        The graphs of the plan's own groups, without groups of regions.
    regions : tuple of Proposal
        The plans of regions, in the order of `PartitionPlan.regions`.
    """

    plan: PartitionPlan
    host: _core.Graph
    parts: tuple[_core.Graph, ...]
    regions: tuple[Proposal, ...] = ()

    def all(self) -> Iterator[Proposal]:
        """Yields this proposal and the proposals of all regions, in the order of the groups."""
        yield self
        for region in self.regions:
            yield from region.all()


def propose(
    imported: _core.Graph,
    claimants: Sequence[Claimant],
    *,
    connected: bool = True,
    gains: bool = True,
    pipelines: Mapping[str, Pipeline] | None = None,
    barred: Barred | None = None,
) -> Proposal:
    """Plans which claimant takes which nodes.

    Parameters
    ----------
    imported : Graph
        The graph of the program, which is not lowered.
    claimants : sequence of Claimant
        In order of priority.
    connected : bool
        Whether all nodes of a group have to be connected.
    gains : bool
        Whether to compute `PartitionPlan.gains`.
    pipelines : mapping of str to Pipeline, optional
        By claimant, the pipelines that differ from the default.
    barred : mapping, optional
        Nodes that may not be in a group of a claimant, with the reasons.
    """
    options = _Options(claimants, connected, gains, pipelines or {}, barred or {})
    proposal = _propose(imported, planned_graph(imported), options)
    if note := proposal.plan.note:
        _log.warning("%s", note)
    return proposal


@dataclass(frozen=True)
class _Options:
    claimants: Sequence[Claimant]
    connected: bool
    gains: bool
    pipelines: Mapping[str, Pipeline]
    barred: Barred


def _propose(
    imported: _core.Graph, graph: _core.Graph, options: _Options, *, first: int = 0, is_region: bool = False
) -> Proposal:
    """Plans a graph with its regions. `first` is the index of its first group."""
    claimants = options.claimants
    maker = _Maker(graph, options, whole=not is_region)
    groups, owners, at_least, refused = maker.claim(maker.supported, maker.rejections())
    host, parts = _core.split(graph, groups, first)
    of = tuple(None if group < 0 else first + int(group) for group in groups)
    macs = macs_by_node(graph)
    takers = [claimants[owner] for owner in owners]
    scratch = _scratch_bytes(graph, groups, takers)
    members: list[list[_core.Node]] = [[] for _ in takers]
    for node in graph.nodes:
        if groups[node.id] >= 0:
            members[groups[node.id]].append(node)
    own = tuple(
        Group(
            index=first + i,
            claimant=taker.name,
            nodes=tuple(node.name for node in members[i]),
            inputs=tuple(parts[i][1]),
            outputs=tuple(parts[i][2]),
            macs=sum(macs[node.id] for node in members[i]),
            scratch_bytes=scratch[i],
        )
        for i, taker in enumerate(takers)
    )
    regions = _regions(graph, of, options, first + len(own))
    plan = PartitionPlan(
        graph=graph,
        claimants=tuple(each.name for each in claimants),
        groups=(*own, *(group for each in regions.values() for group in each.plan.groups)),
        group_of=of,
        refusals=maker.refusals(
            of, {group.index: owner for group, owner in zip(own, owners, strict=True)}, refused
        ),
        at_least=tuple(at_least),
        gains=maker.gains(of) if options.gains else (),
        imported=imported,
        host_macs=sum(macs[node.id] for node in graph.nodes if of[node.id] is None),
        regions={name: each.plan for name, each in regions.items()},
    )
    hosts = {
        node.name: [regions[_region_name(node, i)].host for i in range(len(node.regions))]
        for node in graph.nodes
        if of[node.id] is None and node.regions
    }
    return Proposal(
        plan,
        _core.with_regions(host, hosts) if hosts else host,
        tuple(_for_claimant(part, taker) for (part, _, _), taker in zip(parts, takers, strict=True)),
        tuple(regions.values()),
    )


def _region_name(node: _core.Node, index: int) -> str:
    return f"{node.name}.{index}"


def _regions(
    graph: _core.Graph, of: Sequence[int | None], options: _Options, first: int
) -> dict[str, Proposal]:
    """Plans the regions of the host's nodes, by name."""
    found: dict[str, Proposal] = {}
    for node in graph.nodes:
        if of[node.id] is not None:
            continue
        for index in range(len(node.regions)):
            region = _core.region_with_constants(graph, node.id, index)
            planned = planned_graph(region)
            if planned.stage != graph.stage:  # a region must have the stage of its graph
                planned = _core.with_own_dequantize(region)
            each = _propose(region, planned, options, first=first, is_region=True)
            first += len(each.plan.groups)
            found[_region_name(node, index)] = each
    return found


def _scratch_bytes(graph: _core.Graph, groups: Any, takers: Sequence[Claimant]) -> list[int]:
    """Returns, by group, the bytes of the largest temporary buffer of its nodes.

    `groups` has by node the index of its group, or -1. `takers` has by group its claimant.
    """
    by_kind = {taker.kind: _core.scratch_bytes(graph, core_claimant(taker.kind)) for taker in takers}
    found = [0] * len(takers)
    for node, group in enumerate(groups):
        if group >= 0 and (sizes := by_kind[takers[group].kind]):
            found[group] = max(found[group], sizes[node])
    return found


def _for_claimant(part: _core.Graph, claimant: Claimant) -> _core.Graph:
    """Returns the graph of a group; for a float target, with quantize nodes in place of stage quantized."""
    if claimant.spec is not None and not claimant.spec.has_integers:
        return _core.unfold_qdq(part)
    return part


class _Maker:
    """The verdicts of all claimants over one graph."""

    def __init__(self, graph: _core.Graph, options: _Options, *, whole: bool) -> None:
        claimants = options.claimants
        self._graph = graph
        self._nodes = graph.nodes
        self._claimants = claimants
        self._connected = options.connected
        self._pipelines = options.pipelines
        self._dag = _core.Dag.of(graph)
        self._values = _core.border_values(graph)
        self._reasons = [
            [verdict.reasons for verdict in claimant.verdicts(graph, whole=whole)] for claimant in claimants
        ]
        self._found: dict[tuple[int, int], tuple[Problem, ...]] = {}  # (claimant, node) -> problems
        self.supported = [np.array([not reasons for reasons in each], dtype=bool) for each in self._reasons]
        self._barred = self._bar(options.barred)
        # Float nodes between integers become integer arithmetic only if one claimant takes all of them.
        regions = _core.float_regions(graph)
        self._together = [r for r in regions if any(flags[r].all() for flags in self.supported)]
        self._parted = self._take_parts_away([np.array(region) for region in regions])

    def _bar(self, barred: Barred) -> set[tuple[int, int]]:
        """Removes barred nodes from claimants. Returns them, as pairs of claimant and node."""
        found: set[tuple[int, int]] = set()
        for index, claimant in enumerate(self._claimants):
            for node in self._nodes:
                problems = barred.get((claimant.name, node.name))
                if problems and self.supported[index][node.id]:
                    self.supported[index][node.id] = False
                    self._found[index, node.id] = problems
                    found.add((index, node.id))
        return found

    def _take_parts_away(self, regions: Sequence[Any]) -> set[tuple[int, int]]:
        """Removes float regions from integer-only claimants that cannot take the whole region.

        Returns the removed nodes, as pairs of claimant and node.
        """
        found: set[tuple[int, int]] = set()
        for index, claimant in enumerate(self._claimants):
            if claimant.spec is None or claimant.spec.has_floats:
                continue
            flags = self.supported[index]
            for region in regions:
                if not flags[region].all():
                    found.update((index, int(node)) for node in region[flags[region]])
                    flags[region] = False
        return found

    def claim(self, supported: Sequence[Any], rejections: Sequence[Callable[..., Any] | None]) -> Any:
        """Returns groups by node, claimants by group, the proven least counts, and refused nodes."""
        sizes = [int(node.op not in _NO_WORK) for node in self._nodes]
        with_kernels = [int(node.op not in _MOVES) for node in self._nodes]
        claims = [
            (
                flags,
                self._connected and each.connected,
                with_kernels if has_kernels(each) else sizes,
                each.least_size,
                rejection,
            )
            for flags, each, rejection in zip(supported, self._claimants, rejections, strict=True)
        ]
        return self._dag.claim(claims, self._together, self._values)

    def rejections(self) -> list[Callable[..., Any] | None]:
        """Returns, by claimant, a function that names the nodes because of which a group does not lower."""
        return [
            self._rejection(index, claimant) if claimant.arithmetic else None
            for index, claimant in enumerate(self._claimants)
        ]

    def _rejection(self, index: int, claimant: Claimant) -> Callable[[list[int], Any], list[int]]:
        chosen = self._pipelines.get(claimant.name) or Pipeline.default(claimant.arithmetic)
        pipeline = chosen.core
        allowed = claimant.allows(self._graph)

        def rejected(group: list[int], taken: Any) -> list[int]:
            part = _for_claimant(_core.group_part(self._graph, group), claimant)
            found, tosa = _core.try_to_lower(part, pipeline=pipeline)
            if tosa is not None:
                return unfit(group, taken, tosa)
            problems = [Problem.from_parts(parts) for parts in found]
            by_node = {node: [p for p in problems if self._is_about(p, node)] for node in group}
            named = [node for node, about in by_node.items() if about] or group
            for node in named:
                self._found[index, node] = tuple(by_node[node] or problems)
            return named

        def unfit(group: list[int], taken: Any, tosa: _core.Graph) -> list[int]:
            beyond = exceeded_limits(tosa, claimant, planned=False)
            if found := unfit_nodes(beyond, [self._nodes[node] for node in group], allowed):
                self._found.update(((index, node), problems) for node, problems in found.items())
                return list(found)
            readers = _core.unfit_readers(self._graph, group, taken, tosa)
            for node, parts in readers:
                self._found[index, node] = (Problem.from_parts(parts),)
            return [node for node, _ in readers]

        return rejected

    def _is_about(self, problem: Problem, node: int) -> bool:
        each = self._nodes[node]
        names = {each.name, *(result.name for result in each.results)}
        return problem.node in names or any(problem.node.startswith(name + ".") for name in names)

    def refusals(
        self, of: Sequence[int | None], owners: Mapping[int, int], refused: Sequence[tuple[int, int, str]]
    ) -> tuple[tuple[Refusal, ...], ...]:
        """Returns, by node, the reasons of all claimants before the one that took it.

        `owners` has the claimant of each group by the index of the group.
        """
        later = {(claimant, node): why for node, claimant, why in refused}
        found = []
        for node in self._nodes:
            group = of[node.id]
            asked = len(self._claimants) if group is None else owners[group]
            reasons: list[Refusal] = []
            for index in range(asked):
                name = self._claimants[index].name
                reasons += [Refusal(name, each.rule, each.problem) for each in self._reasons[index][node.id]]
                why = self._why_left(index, node.id, later)
                if why is not None:
                    problems = self._found.get((index, node.id)) or (self._problem(node, why, index),)
                    reasons += [Refusal(name, why, problem) for problem in problems]
            found.append(tuple(reasons))
        return tuple(found)

    def _why_left(self, index: int, node: int, later: Mapping[tuple[int, int], str]) -> str | None:
        if (index, node) in self._barred:
            return "rejected"
        return "split" if (index, node) in self._parted else later.get((index, node))

    def _problem(self, node: _core.Node, why: str, index: int) -> Problem:
        claimant = self._claimants[index]
        expected = f"at least {claimant.least_size} nodes that compute"
        what = {
            "too_small": (f"a group of '{claimant.name}' would be too small", expected),
            "split": (f"another node that stays with it is not taken by '{claimant.name}'", ""),
            "rejected": (f"'{claimant.name}' rejects the group", ""),
        }[why]
        return Problem(what=what[0], where="partition", expected=what[1], **place_of(node))

    def gains(self, of: Sequence[int | None]) -> tuple[tuple[str, int, int, int], ...]:
        """Returns, for each operator of the host, the result of the plan if all claimants supported it."""
        host: dict[str, list[int]] = {}
        for node in self._nodes:
            if of[node.id] is None and node.op not in ("quantize", "dequantize"):
                host.setdefault(node.op, []).append(node.id)
        none: list[Callable[..., Any] | None] = [None] * len(self._claimants)
        barred = [
            flags & ~np.isin(np.arange(len(flags)), [node for k, node in self._found if k == index])
            for index, flags in enumerate(self.supported)
        ]
        found = []
        for op, nodes in host.items():
            flags = [each.copy() for each in barred]
            for each in flags:
                each[nodes] = True
            groups, *_ = self.claim(flags, none)
            found.append((op, len(nodes), int(groups.max(initial=-1)) + 1, int((groups < 0).sum())))
        return tuple(sorted(found, key=lambda row: (row[2], row[3], row[0])))
