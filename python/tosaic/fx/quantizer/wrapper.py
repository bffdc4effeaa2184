"""A quantizer around another: lets the inner one annotate, reads the annotations, and applies rules to them.

    inner.annotate(graph)      annotations -> plan
    rules                      plan -> plan, in order
    write                      plan -> the annotations that changed

Only annotations that the inner quantizer made are read. Earlier annotations of the graph, from other members
of a ComposableQuantizer, stay as they are; if a rule wants to change one, the report says so.

Bodies of control flow are graphs of their own. torchao prepares the bodies of ``while_loop`` and ``scan``
with the same quantizer after the graph that calls them; Arm's flow does so with branches of ``cond``. Rules
about inputs and outputs concern the caller's inputs and outputs, so they are not applied to bodies. The other
rules are applied to each graph; a rule must match in at least one of them.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from tosaic import _core
from tosaic.annotation.plan import Plan
from tosaic.annotation.resolution import Resolution, resolve
from tosaic.annotation.rules import Custom, Inputs, Outputs, Rule
from tosaic.annotation.specs import Output
from tosaic.fx.quantizer.folded_norms import refuse_shared_folds
from tosaic.fx.quantizer.graph import bodies_of, call_graph, check_model
from tosaic.fx.quantizer.held_annotations import restored_on_error, snapshot
from tosaic.fx.quantizer.modes import switch_modes_in_training
from tosaic.fx.quantizer.own_tensors import on_own_tensors
from tosaic.fx.quantizer.quantizers import (
    add_earlier,
    author_name,
    check_name,
    check_quantizer,
    check_references,
    check_rules,
    plan_of,
    state_without,
)
from tosaic.fx.quantizer.read import read
from tosaic.fx.quantizer.write import Refused, write

_MAIN = ""


class WrappedQuantizer(Quantizer):  # type: ignore[misc]
    """What `tosaic.wrap_quantizer` returns.

    Attributes
    ----------
    inner : Quantizer
    rules : tuple of rules
    name : str
        Who the inner quantizer is, in reports.
    """

    def __init__(self, inner: Quantizer, rules: Sequence[Rule], name: str | None) -> None:
        self.inner = check_quantizer(inner, "wrap_quantizer")
        self.rules = check_rules(rules, "wrap_quantizer")
        self.name = check_name(name, "wrap_quantizer") or author_name(inner)
        self._plans: dict[str, Plan] = {}
        self._refused: dict[str, tuple[Refused, ...]] = {}
        self._bodies: weakref.WeakKeyDictionary[GraphModule, str] = weakref.WeakKeyDictionary()

    @property
    def plan(self) -> Plan:
        """The plan of the last graph, as it was written.

        Raises
        ------
        InvalidGraph
            The quantizer has not annotated a graph yet.
        """
        return plan_of(self._plans.get(_MAIN), "wrap_quantizer")

    @property
    def report(self) -> Resolution:
        """What was annotated by whom, what rules changed, and what they could not change, in the last graph.

        Raises
        ------
        InvalidGraph
            The quantizer has not annotated a graph yet.
        """
        plan, reasons = self.plan, getattr(self.inner, "left_float", {})
        outputs = {name: Output(name) for name in reasons}
        by_rules = {name for name, slot in outputs.items() if slot in plan and plan.author(slot) != self.name}
        return resolve(plan, {name: reason for name, reason in reasons.items() if name not in by_rules})

    @property
    def body_plans(self) -> Mapping[str, Plan]:
        """The plans of bodies of control flow that were annotated, by path."""
        return MappingProxyType({path: plan for path, plan in self._plans.items() if path != _MAIN})

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The changes that rules wanted in annotations of earlier quantizers, in the last graph."""
        return self._refused.get(_MAIN, ())

    # ---- torchao's interface ----

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Transforms the graph as the inner quantizer does before it is annotated.

        Tensors that the inner quantizer writes are copied first: they belong to the caller's module.
        """
        refuse_shared_folds(model, "wrap_quantizer")
        path = self._bodies.get(model)
        made: GraphModule = on_own_tensors(self.inner.transform_for_annotation, model)
        if path is not None:
            self._bodies[made] = path
        return made

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotates the graph. Called by torchao; returns the same graph.

        After an error, the graph has the annotations and metadata that it had before.
        """
        check_model(model, "wrap_quantizer")
        with restored_on_error(model):
            self._annotate(model)
        return model

    def _annotate(self, model: GraphModule) -> None:
        path = self._bodies.get(model, _MAIN)
        if path == _MAIN:
            self._plans.clear()
            self._refused.clear()
        before = snapshot(model)
        self.inner.annotate(model)
        found = read(model, author=self.name, before=before)
        bodies = bodies_of(model)
        for place, body in bodies.items():
            self._bodies[body] = f"{path}.{place}" if path else place
        for rule in self.rules:
            concerns_caller = isinstance(rule, Inputs | Outputs)
            if path != _MAIN and concerns_caller:
                continue
            elsewhere = path != _MAIN or (not concerns_caller and _matches_in(bodies.values(), rule))
            found.plan = found.plan.apply(_allowing_no_match(rule) if elsewhere else rule)
        if any(conflict.kind == "later reference" for conflict in found.plan.conflicts()):
            with found.plan.authored_by("wrap_quantizer"):
                found.plan.refer_to_first()
        refused = tuple(write(found))
        add_earlier(found, refused)
        check_references(found, "wrap_quantizer")
        self._refused[path] = refused
        self._plans[path] = found.plan

    def validate(self, model: GraphModule) -> None:
        """Validates the graph as the inner quantizer does.

        For training, the calls of the graph get to know the mode that torchao moves them into.
        """
        self.inner.validate(model)
        switch_modes_in_training(model)

    def prepare_obs_or_fq_callback(
        self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]
    ) -> None:
        """Adjusts observers as the inner quantizer does."""
        self.inner.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)

    def __getstate__(self) -> dict[str, Any]:
        """Copies have the inner quantizer and the rules, but no plans, which belong to graphs."""
        return state_without(self, "_plans", "_refused", "_bodies")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy, which has not annotated a graph yet."""
        self.__dict__.update(state, _plans={}, _refused={}, _bodies=weakref.WeakKeyDictionary())

    def __repr__(self) -> str:
        return f"<WrappedQuantizer of {self.inner!r} with {len(self.rules)} rules>"


def _allowing_no_match(rule: Rule) -> Rule:
    """Returns the rule in a form that may match nothing."""
    if dataclasses.is_dataclass(rule) and not isinstance(rule, type) and hasattr(rule, "allow_unmatched"):
        return dataclasses.replace(rule, allow_unmatched=True)
    return Custom(rule, allow_unmatched=True)


def _matches_in(bodies: Iterable[GraphModule], rule: Rule) -> bool:
    """True if a rule matches in one of the bodies, which have no annotations yet."""
    for body in bodies:
        try:
            Plan(call_graph(body)).apply(rule)
        except _core.Error:
            continue
        return True
    return False
