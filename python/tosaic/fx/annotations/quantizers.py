"""What wrapped and composed quantizers have in common: names of authors, checks, the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torchao.quantization.pt2e.quantizer import Quantizer

from tosaic import _core
from tosaic.annotation import Plan

__all__ = ["author_name", "author_names", "check_quantizer", "plan_of"]


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
