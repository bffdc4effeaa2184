"""Which refusals of random modules the target forces, and by which rule.

A refusal is needed if each of its problems is in the table: the program then has no form on the target,
whatever tosaic does. Problems that follow from others, such as "its operand is a float", do not count. A node
without an integer form is not such a problem: profile INT has no floats, but `tosaic.quantize` made the
program, and could have quantized the node. Those refusals are counted as *without need*.

That one unit does not represent the numbers of a tensor is forced if the numbers are returned, as they are
or after arithmetic that tells both of them. A softmax, a comparison, or a quantize node that saturates does
not: the larger number could be bounded. `returns` finds out; `checking` adds RETURNED to those problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["FORCED", "RETURNED", "forced_by", "returns"]

RETURNED = "; it is returned"
"""What is added to a problem of a node of which the numbers reach an output."""

_ONE_UNIT = "one tensor of integers has one unit for all its numbers"
_LIMITING = frozenset(
    [
        "quantize",
        "softmax",
        "safe_softmax",
        "log_softmax",
        "argmax",
        "argmin",
        "argsort",
        "cumargmax",
        "cumargmin",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "sigmoid",
        "tanh",
        "hardsigmoid",
        "erf",
        "sign",
        "exp",
        "expm1",
        "exp2",
        "silu",
        "gelu",
        "mish",
        "hardswish",
        "elu",
        "selu",
        "celu",
        "log_sigmoid",
        "softplus",
        "sin",
        "cos",
        "sdpa",
        "round",
        "floor",
        "ceil",
        "trunc",
        "cast",
        "var",
        "std",
    ]
)
"""Operators that do not tell how far a number is beyond the others, or of which the result saturates."""

FORCED: tuple[tuple[str, str], ...] = (
    (r"has no elements", "TOSA has no tensors without elements"),
    (r"no unit of \S+ bits represents both", _ONE_UNIT),
    (r"an i64 result may not fit", "TOSA has no i64"),
    (r"numbers that are not finite", "no scale follows from infinities or NaN in the samples"),
    (rf"one unit for all operands leaves.*{RETURNED}", _ONE_UNIT),
    (rf"their unit leaves nearly nothing.*{RETURNED}", _ONE_UNIT),
    (r"may be (minus infinity|NaN)", "no integer represents infinities or NaN"),
    (r"no unit of \S+ bits holds all its numbers", "TOSA has no i64"),
    (r"outside its range", "TOSA has no integers of more than 32 bits at a boundary"),
)
"""A part of a problem's text, and what about the target forces it."""


_FOLLOWS = re.compile(r"is a float|computes with floats|needs? floats")


def forced_by(rules: Iterable[str]) -> str:
    """Returns what about the target forces a refusal with these problems; empty if something else is one."""
    found = ""
    for rule in rules:
        reason = next((reason for pattern, reason in FORCED if re.search(pattern, rule)), "")
        if not reason and not _FOLLOWS.search(rule):
            return ""
        found = found or reason
    return found


def returns(graph: Any, name: str) -> bool:
    """True if numbers of a node reach an output through operators that tell how large they are.

    Parameters
    ----------
    graph : tosaic.program.Graph
    name : str
        The node of the exported program.
    """
    reached: set[int] = set()
    for node in graph.nodes:
        if any(result.qparams is not None for result in node.results):
            continue  # it has a unit of its own, in which it saturates
        is_it = node.origin is not None and node.origin.fx_name == name
        reads = any(each.id in reached for each in node.operands if each is not None)
        if is_it or (reads and node.op not in _LIMITING):
            reached.update(result.id for result in node.results)
    return any(output.value.id in reached for output in graph.outputs)
