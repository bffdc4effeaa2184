"""Several quantizers over one program, with a policy for nodes that more than one of them annotates.

Each quantizer annotates the graph as if it were alone. Then each node gets one annotation:

    first    that of the first quantizer that annotated the node
    last     that of the last one
    error    QuantMismatch, with all nodes that have different annotations

torchao's ComposableQuantizer shows each quantizer the annotations of the quantizers before it. Most
quantizers then skip nodes without a trace, and one that does not raises an error. It also does not call their
`validate` and `prepare_obs_or_fq_callback`; this class calls both.

An annotation may share with, or be derived from, a slot of a node whose annotation comes from another
quantizer. If that annotation has a spec for the slot, the reference stays. If not, the sharing slot gets the
spec that it would have shared, and a derived spec is dropped. The plan's history records both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from tosaic.annotation.plan import Plan
from tosaic.annotation.resolution import Resolution, resolve
from tosaic.annotation.specs import FLOAT, Derived, Shared, Slot, Spec
from tosaic.base.options import quant_mismatch
from tosaic.fx.quantizer.folded_norms import refuse_shared_folds
from tosaic.fx.quantizer.graph import call_graph, check_model
from tosaic.fx.quantizer.held_annotations import KEY, restored_on_error, snapshot
from tosaic.fx.quantizer.modes import switch_modes_in_training
from tosaic.fx.quantizer.own_tensors import on_own_tensors
from tosaic.fx.quantizer.quantizers import (
    add_earlier,
    author_names,
    check_quantizer,
    check_references,
    check_sequence,
    plan_of,
    state_without,
)
from tosaic.fx.quantizer.read import Annotations, read
from tosaic.fx.quantizer.write import write

Policy = Literal["first", "last", "error"]
_LISTED = 5


@dataclass(frozen=True)
class NodeConflict:
    """A node that several quantizers annotated in different ways.

    Attributes
    ----------
    node : str
    quantizers : tuple of str
        Who annotated it, in order.
    winner : str
        The quantizer whose annotation the node has.
    """

    node: str
    quantizers: tuple[str, ...]
    winner: str


class ComposedQuantizer(Quantizer):  # type: ignore[misc]
    """What `tosaic.fx.compose_quantizers` returns.

    Attributes
    ----------
    quantizers : tuple of Quantizer
    conflict : {"first", "last", "error"}
    """

    def __init__(self, quantizers: Sequence[Quantizer], conflict: Policy) -> None:
        self.quantizers = tuple(
            check_quantizer(each, "compose_quantizers")
            for each in check_sequence(
                quantizers, "compose_quantizers", "quantizers", "a list of quantizers of torchao's PT2E flow"
            )
        )
        self.conflict = conflict
        self._plan: Plan | None = None
        self._conflicts: tuple[NodeConflict, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan of the last graph, as it was written.

        Raises
        ------
        InvalidGraph
            The quantizer has not annotated a graph yet.
        """
        return plan_of(self._plan, "compose_quantizers")

    @property
    def report(self) -> Resolution:
        """What was annotated by whom, and what was replaced.

        Raises
        ------
        InvalidGraph
            The quantizer has not annotated a graph yet.
        """
        return resolve(self.plan)

    @property
    def conflicts(self) -> tuple[NodeConflict, ...]:
        """The nodes of the last graph that had different annotations, in order."""
        return self._conflicts

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Transforms the graph as all quantizers do, in order before it is annotated.

        Tensors that they write are copied first: they belong to the caller's module.
        """
        refuse_shared_folds(model, "compose_quantizers")

        def transformed(graph: GraphModule) -> GraphModule:
            for quantizer in self.quantizers:
                graph = quantizer.transform_for_annotation(graph)
            return graph

        made: GraphModule = on_own_tensors(transformed, model)
        return made

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotates the graph. Called by torchao; returns the same graph.

        After an error, the graph has the annotations and metadata that it had before.
        """
        check_model(model, "compose_quantizers")
        with restored_on_error(model):
            self._annotate(model)
        return model

    def _annotate(self, model: GraphModule) -> None:
        names = author_names(self.quantizers)
        outside = snapshot(model)
        readings = []
        for name, quantizer in zip(names, self.quantizers, strict=True):
            quantizer.annotate(model)
            found = read(model, author=name, before=outside)
            readings.append(found)
            for node, annotation in found.found.items():
                if annotation.complete:
                    del found.nodes[node].meta[KEY]
        merged = _Merge(model, names, readings, self.conflict)
        self._conflicts = merged.conflicts
        if self.conflict == "error" and merged.conflicts:
            raise _refusal(merged)
        merged.place()
        add_earlier(merged.result, write(merged.result))
        check_references(merged.result, "compose_quantizers")
        self._plan = merged.result.plan

    def validate(self, model: GraphModule) -> None:
        """Validates the graph as all quantizers do, in order.

        For training, the calls of the graph get to know the mode that torchao moves them into.
        """
        for quantizer in self.quantizers:
            quantizer.validate(model)
        switch_modes_in_training(model)

    def prepare_obs_or_fq_callback(
        self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]
    ) -> None:
        """Adjusts observers as all quantizers do, in order."""
        for quantizer in self.quantizers:
            quantizer.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have the quantizers, but no plan: it belongs to a graph."""
        return state_without(self, "_plan", "_conflicts")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy, which has not annotated a graph yet."""
        self.__dict__.update(state, _plan=None, _conflicts=())


class _Merge:
    """Chooses an annotation for each node, and records in one plan which quantizer annotated what."""

    def __init__(
        self, model: GraphModule, names: Sequence[str], readings: Sequence[Annotations], policy: Policy
    ) -> None:
        self.names, self.readings, self.policy = names, readings, policy
        nodes = {node.name: node for node in model.graph.nodes}
        self.result = Annotations(Plan(call_graph(model), author="compose_quantizers"), model, nodes)
        self.winners: dict[str, int] = {}
        found = []
        for node in nodes:
            claimants = [i for i, reading in enumerate(readings) if node in reading.found]
            if not claimants:
                continue
            self.winners[node] = winner = claimants[-1 if policy == "last" else 0]
            said = [_said(readings[i], node) for i in claimants]
            if any(each != said[0] for each in said):
                found.append(NodeConflict(node, tuple(names[i] for i in claimants), names[winner]))
        self.conflicts = tuple(found)

    def place(self) -> None:
        """Puts the winners' annotations on the nodes and into the plan, then repairs references."""
        plan = self.result.plan
        in_conflict = {each.node for each in self.conflicts}
        for node, winner in self.winners.items():
            if node in in_conflict:
                self._record_losers(node, winner)
            reading = self.readings[winner]
            found = reading.found[node]
            if found.complete:
                self.result.nodes[node].meta[KEY] = found.annotation
            self.result.found[node] = found
            with plan.authored_by(self.names[winner]):
                for slot, spec in reading.plan.entries(node).items():
                    plan.set(slot, spec, stale=True)
                    self.result.specs[slot] = reading.specs[slot]
            _copy_flags(reading.plan, plan, node)
        for reading in self.readings:
            self.result.taken |= reading.taken
        for node, winner in self.winners.items():
            self._mend(node, winner)
        plan.refer_to_first()

    def _record_losers(self, node: str, winner: int) -> None:
        plan = self.result.plan
        reason = f"{self.names[winner]} annotates the node too; the policy is {self.policy!r}"
        for i, reading in enumerate(self.readings):
            if i == winner or node not in reading.found:
                continue
            with plan.authored_by(self.names[i]):
                for slot, spec in reading.plan.entries(node).items():
                    plan.set(slot, spec, stale=True)
            plan.clear(node, reason=reason)

    def _mend(self, node: str, winner: int) -> None:
        plan, own = self.result.plan, self.readings[winner].plan
        for slot in plan.entries(node):
            spec = plan[slot]  # an earlier iteration may have changed it
            missing = [each for each in _references(spec) if each in own and each not in plan]
            if not missing:
                continue
            if isinstance(spec, Derived):
                plan.set(
                    slot,
                    FLOAT,
                    stale=True,
                    reason=f"it was derived from {missing[0]!r}, which has no spec now",
                )
                continue
            reason = f"it shared with {missing[0]!r}, which has no spec now"
            peers = [each for each in plan if each != slot and plan[each] == spec]
            plan.set(slot, _root(own, spec), stale=True, reason=reason)
            for peer in peers:
                plan.set(peer, Shared(slot), stale=True, reason=reason)


def _said(reading: Annotations, node: str) -> tuple[dict[Slot, Spec], bool, bool]:
    plan = reading.plan
    return plan.entries(node), plan.annotated(node), plan.allow_implicit_sharing(node)


def _copy_flags(source: Plan, target: Plan, node: str) -> None:
    target.set_flags(
        node,
        annotated=source.annotated(node),
        allow_implicit_sharing=source.allow_implicit_sharing(node),
    )


def _references(spec: Spec) -> Iterator[Slot]:
    if isinstance(spec, Shared):
        yield spec.slot
    elif isinstance(spec, Derived):
        yield from spec.slots


def _root(plan: Plan, spec: Spec) -> Spec:
    """Returns the spec at the end of a chain of references; float if the chain has no end."""
    seen: set[Slot] = set()
    while isinstance(spec, Shared):
        if spec.slot in seen or spec.slot not in plan:
            return FLOAT
        seen.add(spec.slot)
        spec = plan[spec.slot]
    return spec


def _refusal(merged: _Merge) -> Exception:
    conflicts = merged.conflicts
    listed = "; ".join(f"'{each.node}' by {' and '.join(each.quantizers)}" for each in conflicts[:_LISTED])
    more = f"; and {len(conflicts) - _LISTED} more" if len(conflicts) > _LISTED else ""
    return quant_mismatch(
        "compose_quantizers",
        f"{len(conflicts)} node{'s are' if len(conflicts) > 1 else ' is'} annotated in different ways",
        expected="one annotation for each node",
        got=listed + more,
        hint="Choose conflict='first' or conflict='last'",
    )
