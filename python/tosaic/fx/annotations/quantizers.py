"""What wrapped and composed quantizers have in common: names of authors, checks, the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torchao.quantization.pt2e.quantizer import Quantizer

from tosaic import _core
from tosaic.annotation import Plan
from tosaic.fx.annotations.read import Annotations, SpecReader, annotation_of
from tosaic.fx.annotations.write import Refused

__all__ = ["add_earlier", "author_name", "author_names", "check_quantizer", "plan_of"]


def check_quantizer(quantizer: Any, where: str) -> Quantizer:
    """Returns the quantizer.

    Raises
    ------
    InvalidGraph
        It has no `annotate`, such as a configuration or a class.
    """
    if not isinstance(quantizer, type) and callable(getattr(quantizer, "annotate", None)):
        return quantizer
    raise _core.make_error(
        _core.InvalidGraph,
        where=where,
        what="not a quantizer",
        expected="a quantizer of torchao's PT2E flow, with a method 'annotate'",
        got=quantizer.__name__ if isinstance(quantizer, type) else type(quantizer).__name__,
    )


def author_name(quantizer: Any) -> str:
    """Returns the name of a quantizer in plans and reports: its own, or that of its class."""
    name = getattr(quantizer, "name", None)
    return name if isinstance(name, str) and name else type(quantizer).__name__


def author_names(quantizers: Iterable[Any]) -> list[str]:
    """Returns the names of several quantizers; ``#2`` follows a name that was there before."""
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
        raise _core.make_error(
            _core.InvalidGraph,
            where=where,
            what="the quantizer has not annotated a graph yet",
            hint="Call prepare_pt2e or prepare_qat_pt2e first",
        )
    return plan


def add_earlier(reading: Annotations, refused: Iterable[Refused]) -> None:
    """Adds what quantizers annotated that ran before, so that the plan says what the graph says.

    Entries that a rule could not change get what the graph has, and the history says why.
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
