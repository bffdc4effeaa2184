"""The common part of wrapped and composed quantizers: names of authors, checks, the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torchao.quantization.pt2e.quantizer import Quantizer

from tosaic import _core
from tosaic.annotation.plan import Plan
from tosaic.annotation.rules import Rule
from tosaic.annotation.specs import Output
from tosaic.base.options import invalid, refusal
from tosaic.fx.quantizer.held_annotations import annotation_of
from tosaic.fx.quantizer.read import Annotations, SpecReader
from tosaic.fx.quantizer.write import Refused
from tosaic.torch_operators.origins import Where


def check_quantizer(quantizer: Any, where: str) -> Quantizer:
    """Returns the quantizer.

    Raises
    ------
    InvalidGraph
        It has no `annotate`, such as a configuration or a class.
    """
    if not isinstance(quantizer, type) and callable(getattr(quantizer, "annotate", None)):
        return quantizer
    raise invalid(
        where,
        "not a quantizer",
        expected="a quantizer of torchao's PT2E flow, with a method 'annotate'",
        got=quantizer.__name__ if isinstance(quantizer, type) else type(quantizer).__name__,
    )


def check_sequence(values: Any, where: str, option: str, expected: str) -> tuple[Any, ...]:
    """Returns a list or tuple as a tuple.

    Raises
    ------
    InvalidGraph
        It is something else.
    """
    if isinstance(values, list | tuple):
        return tuple(values)
    raise refusal(where, option, expected, values)


def check_rules(rules: Any, where: str) -> tuple[Rule, ...]:
    """Returns the rules.

    Raises
    ------
    InvalidGraph
        They are not a list or tuple, or one of them cannot be called.
    """
    expected = "a list of rules of tosaic.annotation, or of functions of a plan"
    found = check_sequence(rules, where, "rules", expected)
    for rule in found:
        if isinstance(rule, type) or not callable(rule):
            raise refusal(where, "rules", expected, rule)
    return found


def check_name(name: Any, where: str) -> str | None:
    """Returns the name, or None.

    Raises
    ------
    InvalidGraph
        It is something else than a name or None.
    """
    if name is None or (isinstance(name, str) and name and name.isprintable()):
        return name
    raise refusal(where, "name", "a name, or None", name)


def author_name(quantizer: Any) -> str:
    """Returns the name of a quantizer in plans and reports: its own name, or the name of its class."""
    name = getattr(quantizer, "name", None)
    return name if isinstance(name, str) and name else type(quantizer).__name__


def author_names(quantizers: Iterable[Any]) -> list[str]:
    """Returns the names of several quantizers; repeated names get a suffix such as ``#2``."""
    seen: Counter[str] = Counter()
    names = []
    for quantizer in quantizers:
        name = author_name(quantizer)
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def plan_of(plan: Plan | None, where: str) -> Plan:
    """Returns the plan.

    Raises
    ------
    InvalidGraph
        There is none yet.
    """
    if plan is None:
        raise invalid(
            where,
            "the quantizer has not annotated a graph yet",
            hint="Call prepare_pt2e or prepare_qat_pt2e first",
        )
    return plan


def add_earlier(reading: Annotations, refused: Iterable[Refused]) -> None:
    """Adds the annotations of quantizers that ran before, so that the plan has all annotations of the graph.

    An entry that a rule could not change gets the annotation of the graph, and the history says why.
    """
    if not reading.taken:
        return
    plan, reader = reading.plan, SpecReader(reading.nodes)
    reasons = {each.slot: each.reason for each in refused}
    with plan.authored_by("earlier quantizers"):
        for slot in reasons:
            if slot in plan:
                del plan[slot]
        for name in reading.taken:
            annotation = annotation_of(reading.nodes[name])
            if annotation is None:
                continue
            own = reading.found[name].own if name in reading.found else frozenset()
            for slot, spec in reader.entries(reading.nodes[name], annotation):
                if slot not in own:
                    plan.set(slot, reader.spec(spec), stale=True, reason=reasons.get(slot, ""))


def check_references(reading: Annotations, where: str) -> None:
    """Refuses shared and derived specs that lead to no spec; torchao's prepare would fail without a reason.

    Raises
    ------
    QuantMismatch
        References lead in a circle, or to a slot that has no spec. The message has the first of them.
    """
    plan = reading.plan
    wrong = [each for each in plan.conflicts() if each.kind in ("cycle of references", "missing reference")]
    if not wrong:
        return
    slot = wrong[0].slot
    at = reading.nodes[slot.node if isinstance(slot, Output) else slot.user]
    others = f" ({len(wrong) - 1} more)" if len(wrong) > 1 else ""
    raise Where.of(at, where).error(
        _core.QuantMismatch,
        f"a reference leads to no spec: {wrong[0].text}{others}",
        expected="a slot with a spec of its own",
        got=f"{plan[slot]!r} set by {plan.author(slot)}",
    )


def state_without(quantizer: Any, *names: str) -> dict[str, Any]:
    """Returns the attributes of a quantizer for copies and pickles, without those in `names`."""
    return {name: value for name, value in vars(quantizer).items() if name not in names}
