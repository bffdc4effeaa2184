"""Annotation plans: slot -> spec, who set it, and what was replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tosaic import _core
from tosaic.annotation.call_graph import CallGraph
from tosaic.annotation.observers import Short, meets_scores
from tosaic.annotation.select import Select
from tosaic.annotation.specs import UNSET, Edge, Slot, Spec
from tosaic.base.exception_notes import add_note
from tosaic.base.options import invalid


@dataclass(frozen=True)
class Group:
    """Slots that have one scale and zero point.

    Attributes
    ----------
    slots : tuple of Edge or Output
        In the order of the plan.
    root : Edge or Output
        The root of the union-find tree of torchao's prepare.
    decided_by : Edge or Output, optional
        The slot whose own spec applies to the group: the first slot, unless there is a conflict.
    spec : spec, optional
        The spec of `decided_by`. None: references lead to no spec, which is a conflict.
    """

    slots: tuple[Slot, ...]
    root: Slot
    decided_by: Slot | None
    spec: Spec | None


@dataclass(frozen=True)
class Conflict:
    """Specs that contradict each other.

    Attributes
    ----------
    kind : str
        ``"unequal observers"``: `other` shares with `slot`, so that its own observer has no effect.
        ``"missing reference"``, ``"cycle of references"``, ``"later reference"``: torchao's prepare raises
        an error or recurses forever. ``"float reference"``: `slot` is derived from a float slot.
    slot, other : Edge or Output
    text : str
        The conflict as a sentence.
    """

    kind: str
    slot: Slot
    other: Slot
    text: str


@dataclass(frozen=True)
class Change:
    """A spec that was replaced or removed.

    Attributes
    ----------
    slot : Edge or Output
    before : spec
    set_by : str
        The author of `before`.
    after : spec, optional
        None: the spec was removed.
    changed_by : str
    reason : str
        Why a rule changed a slot that it does not name; empty for slots that it names.
    """

    slot: Slot
    before: Spec
    set_by: str
    after: Spec | None
    changed_by: str
    reason: str = ""


@dataclass(frozen=True)
class RuleRecord:
    """A quantizer or rule that worked on a plan.

    Attributes
    ----------
    name : str
    matches : int, optional
        The number of places that a rule matched; None for quantizers.
    notes : tuple of str
        Additional changes by the rule.
    """

    name: str
    matches: int | None = None
    notes: tuple[str, ...] = ()


class CoreRule(Short):
    """A rule that the core applies: the base of the rules in `tosaic.annotation.rules`."""

    allow_unmatched: bool

    def __call__(self, plan: Plan) -> None:
        """Applies the rule to a plan, in place.

        Raises
        ------
        InvalidGraph
            The rule matches nothing, or names something that the graph does not have.
        """
        plan.apply(self)

    def core_rule(self) -> tuple[str, dict[str, Any]]:
        """Returns the kind and the fields of the rule for the core."""
        raise NotImplementedError


class Plan:
    """The annotations of a graph: a mapping from slots to specs.

    The order of slots is the order in which torch reads annotations: nodes in the order of the graph;
    within a node, first its edges in the order in which they were first set, then its output.

    Parameters
    ----------
    graph : CallGraph
    author : str
        The author of specs set outside of a `with` block of `authored_by`, for the history and the report.

    Examples
    --------
    >>> from tosaic.annotation import *
    >>> relu = Call("relu", "call", operands=(Operand("args[0]", "x"),))
    >>> graph = CallGraph([Call("x", "placeholder"), relu])
    >>> plan = Plan(graph, author="an example")
    >>> plan[Output("relu")] = Observed("int8")
    >>> plan[Output("relu")] = q_format("Q0.7")
    >>> plan.history[0].before
    Observed()
    """

    __slots__ = ("_author", "_core", "_graph")

    def __init__(self, graph: CallGraph, *, author: str = "user") -> None:
        self._graph = graph
        self._core = _core.AnnotationPlan(graph.core)
        self._author = self._core.add_rule(author)

    # ---- slots ----

    @property
    def core(self) -> _core.AnnotationPlan:
        """The plan as the C++ package has it."""
        return self._core

    @property
    def graph(self) -> CallGraph:
        """The graph of the plan."""
        return self._graph

    def __len__(self) -> int:
        return len(self._core)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._core.slots())

    def __contains__(self, slot: Slot) -> bool:
        return self._core.get(slot) is not None

    def __getitem__(self, slot: Slot) -> Spec:
        """Returns the spec of a slot.

        Raises
        ------
        KeyError
            The slot has no spec.
        InvalidGraph
            The graph has no node of this name; the message has near names.
        """
        found = self._core.get(slot)
        if found is None:
            raise KeyError(slot)
        return found[0]

    def meets_scores(self, slot: Slot) -> bool:
        """True for a mask that its reader adds to scores: see `tosaic.annotation.observers.meets_scores`."""
        if not isinstance(slot, Edge):
            return False
        behind = [each for each in self.graph if any(o.producer == slot.user for o in each.operands)]
        return meets_scores(self.graph[slot.user].target, [each.target for each in behind])

    def get(self, slot: Slot) -> Spec | None:
        """Returns the spec of a slot, or None."""
        found = self._core.get(slot)
        return None if found is None else found[0]

    def __setitem__(self, slot: Slot, spec: Spec) -> None:
        self.set(slot, spec)

    def __delitem__(self, slot: Slot) -> None:
        if not self._core.erase(slot, self._author):
            raise KeyError(slot)

    def set(self, slot: Slot, spec: Spec, *, stale: bool = False, reason: str = "") -> None:
        """Sets or replaces the spec of a slot. An equal spec changes nothing.

        Parameters
        ----------
        slot : Edge or Output
        spec : spec
        stale : bool
            Accepts an edge that the graph does not have; annotations may have one after the graph changed.
        reason : str
            For the history.

        Raises
        ------
        InvalidGraph
            The graph has no such node, or no such edge.
        """
        self._core.set(slot, spec, self._author, stale, reason)

    def slots(self) -> tuple[Slot, ...]:
        """Returns all slots that have specs, in order."""
        return tuple(self._core.slots())

    def entries(self, node: str) -> dict[Slot, Spec]:
        """Returns the specs of a node's edges from its producers, and of its output, in order."""
        return {slot: spec for slot, spec, _ in self._core.entries(node)}

    def groups(self) -> tuple[Group, ...]:
        """Returns the groups of slots that share one scale and zero point, in the order of their first slots.

        Torchao's prepare forms the same groups: by shared specs, and by equal specs of the same tensor if a
        node allows implicit sharing.
        """
        return tuple(Group(*group) for group in self._core.groups()[0])

    def conflicts(self) -> tuple[Conflict, ...]:
        """Returns the specs that contradict each other."""
        return tuple(Conflict(*conflict) for conflict in self._core.groups()[1])

    # ---- nodes ----

    def clear(self, node: str, *, reason: str = "") -> None:
        """Removes the annotation of a node: its specs and its flags."""
        self._core.clear(node, self._author, reason)

    def has_annotation(self, node: str) -> bool:
        """True if the node has an annotation, possibly without specs."""
        return self._core.has_annotation(node)

    def annotated(self, node: str) -> bool:
        """Returns torch's flag: other quantizers pass over nodes that have it. Setting a spec sets it."""
        return self._core.flags(node)[0]

    def allow_implicit_sharing(self, node: str) -> bool:
        """Returns torch's flag: edges of the node share the qparams of equal specs of the same tensor."""
        return self._core.flags(node)[1]

    def set_flags(
        self, node: str, *, annotated: bool | None = None, allow_implicit_sharing: bool | None = None
    ) -> None:
        """Sets torch's flags of a node; None leaves a flag. A node without annotation gets one."""
        self._core.set_flags(node, annotated, allow_implicit_sharing)

    # ---- rules ----

    def select(self, where: Select) -> tuple[str, ...]:
        """Returns the names of the selected nodes, in the order of the graph.

        Raises
        ------
        InvalidGraph
            The regular expression is malformed, or `nodes` has a name that the graph does not have.
        """
        return self._core.select(where)

    def apply(self, *rules: Callable[[Plan], Plan | None]) -> Plan:
        """Applies rules in order.

        Parameters
        ----------
        *rules : rule or callable
            Rules of `tosaic.annotation`, or functions that take the plan, and change it in place or return a
            changed copy.

        Returns
        -------
        Plan
            This plan, or the copy that a function returned.

        Raises
        ------
        InvalidGraph
            A rule matches nothing, or a function changes nothing, and ``allow_unmatched`` is not set.
        """
        plan = self
        for rule in rules:
            if isinstance(rule, CoreRule):
                plan._apply_core(rule)
            else:
                plan = plan._apply_function(rule)
        return plan

    def _apply_core(self, rule: CoreRule) -> None:
        """Applies a rule of the core, without its `UNSET` entries."""
        kind, fields = rule.core_rule()
        changed = dict(fields)
        for name in ("specs", "operands"):
            if UNSET in fields.get(name, {}).values():
                changed[name] = {key: spec for key, spec in fields[name].items() if spec is not UNSET}
                fields[name] = {key: None if spec is UNSET else spec for key, spec in fields[name].items()}
        is_less = changed != fields
        if is_less:  # checks all entries, also those without a spec, for names that do not exist
            self.copy()._core.apply(kind, fields, repr(rule), rule.allow_unmatched)
        self._core.apply(kind, changed, repr(rule), rule.allow_unmatched or is_less)

    def _apply_function(self, rule: Callable[[Plan], Plan | None]) -> Plan:
        name = str(getattr(rule, "name", getattr(rule, "__name__", type(rule).__name__)))
        before = self._core.edits
        with self.authored_by(name):
            author = self._author
            try:
                returned = rule(self)
            except Exception as error:
                add_note(error, f"in the rule '{name}'")
                raise
        plan: Any = self if returned is None else returned
        if not isinstance(plan, Plan) or plan.graph is not self.graph:
            raise invalid(
                name,
                "the rule returned something else than a plan of this graph",
                expected="None or a Plan",
                got=repr(returned),
            )
        if plan is not self:
            plan._author = self._author
        matches = plan._core.edits - before
        if matches == 0 and not getattr(rule, "allow_unmatched", False):
            raise invalid(
                name, "the rule changes nothing", hint="Custom(function, allow_unmatched=True) allows that"
            )
        plan._core.record_matches(author, matches)
        return plan

    def refer_to_first(self) -> None:
        """Makes the plan acceptable to torch if shared specs refer to later slots or form a cycle.

        Torch needs the spec of a sharing group at its first slot. In groups that torch would refuse, the
        first slot gets the spec, and the other slots refer to it. Other groups do not change, and cycles in
        which no slot has its own spec remain.
        """
        self._core.refer_to_first(self._author)

    # ---- who ----

    @contextmanager
    def authored_by(self, name: str) -> Iterator[None]:
        """Sets the author of specs that are set inside the ``with`` block, such as a quantizer or a rule."""
        before, self._author = self._author, self._core.add_rule(name)
        try:
            yield
        finally:
            self._author = before

    def author(self, slot: Slot) -> str:
        """Returns who set the spec of a slot.

        Raises
        ------
        KeyError
            The slot has no spec.
        """
        found = self._core.get(slot)
        if found is None:
            raise KeyError(slot)
        return self._core.rules[found[1]][0]

    @property
    def authors(self) -> tuple[RuleRecord, ...]:
        """Everybody who worked on the plan, in order."""
        return tuple(RuleRecord(name, matches, tuple(notes)) for name, matches, notes in self._core.rules)

    @property
    def history(self) -> tuple[Change, ...]:
        """Everything that was replaced or removed, in order."""
        names = [rule[0] for rule in self._core.rules]
        return tuple(
            Change(slot, before, names[set_by], after, names[changed_by], reason)
            for slot, before, set_by, after, changed_by, reason in self._core.history()
        )

    def copy(self) -> Plan:
        """Returns a plan that changes independently of this one."""
        made = object.__new__(Plan)
        made._graph, made._core, made._author = self._graph, self._core.copy(), self._author
        return made

    def __repr__(self) -> str:
        return f"<Plan of {len(self)} slots, {len(self._graph)} nodes>"
