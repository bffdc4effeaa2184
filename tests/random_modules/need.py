"""Which refusals of random modules the target forces, and by which rule.

A refusal is needed if one of its problems is in the table: the program then has no form on the target,
whatever tosaic does. A node without an integer form is no such problem: profile INT has no floats, but
`tosaic.quantize` made the program, and could have quantized the node. Those refusals are counted as *without
need*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["FORCED", "forced_by"]

FORCED: tuple[tuple[str, str], ...] = (
    (r"has no elements", "TOSA has no tensors without elements"),
    (r"no unit of \S+ bits represents both", "one tensor of integers has one unit for all its numbers"),
    (r"an i64 result may not fit", "TOSA has no i64"),
    (r"numbers that are not finite", "no scale follows from infinities or NaN in the samples"),
    (r"one unit for all operands leaves", "one tensor of integers has one unit for all its numbers"),
    (r"their unit leaves nearly nothing", "one tensor of integers has one unit for all its numbers"),
    (r"may be (minus infinity|NaN)", "no integer represents infinities or NaN"),
    (r"outside its range", "TOSA has no integers of more than 32 bits at a boundary"),
)
"""A part of a problem's text, and what about the target forces it."""


def forced_by(rules: Iterable[str]) -> str:
    """Returns what about the target forces a refusal with these problems; empty if nothing does."""
    for rule in rules:
        for pattern, reason in FORCED:
            if re.search(pattern, rule):
                return reason
    return ""
