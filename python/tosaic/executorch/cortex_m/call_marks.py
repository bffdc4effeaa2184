"""Marks on the calls of an exported program, which ExecuTorch's passes copy along.

A mark is an entry of ``node.meta["custom"]``, which torch and ExecuTorch copy to all nodes that replace a
call. The mark has the name of the call, and whether Cortex-M is to compute it. A second entry is the mark of
ExecuTorch's quantizers; without it, ExecuTorch's passes do not fold quantize and dequantize calls.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from torch.fx import Graph, Node

from tosaic.fx.quantizer.write import note_for_arm

_KEY = "tosaic"


def mark_calls(graph: Graph) -> None:
    """Marks each call with its name, and as not claimed."""
    for node in graph.nodes:
        if node.op == "call_function":
            _set(node, node.name, False, False)


def remark(graph: Graph, claimed: Container[str], conversions: Container[str]) -> None:
    """Updates the marks: which parts of calls Cortex-M computes.

    Parameters
    ----------
    graph : Graph
    claimed : container of str
        Names of calls that compute with integers, so that the conversions around them are folded.
    conversions : container of str
        Names of quantize and dequantize calls that Cortex-M computes.
    """
    for node in graph.nodes:
        call = call_of(node.meta)
        if call is not None:
            _set(node, call, call in claimed or call in conversions, call in claimed)


def add_mark(node: Node, call: str) -> None:
    """Marks a node that was added, as a claimed part of a call."""
    _set(node, call, True, False)


def unmark(graph: Graph) -> None:
    """Removes the names of calls again."""
    for node in graph.nodes:
        custom = node.meta.get("custom")
        if custom and _KEY in custom:
            node.meta["custom"] = {key: value for key, value in custom.items() if key != _KEY}


def call_of(meta: Any) -> str | None:
    """Returns the name of the call that a node is a part of; None without a mark."""
    mark = meta.get("custom", {}).get(_KEY)
    return None if mark is None else str(mark["call"])


def is_claimed(meta: Any) -> bool:
    """True for a node that Cortex-M is to compute."""
    mark = meta.get("custom", {}).get(_KEY)
    return mark is not None and bool(mark["claimed"])


def marked_nodes(values: Iterable[object]) -> list[Node]:
    """Returns the nodes with a mark among values of any types."""
    return [each for each in values if isinstance(each, Node) and call_of(each.meta) is not None]


def nodes_by_call(graph: Graph) -> dict[str, list[Node]]:
    """Returns the nodes of each call, by name of the call."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        call = call_of(node.meta)
        if node.op == "call_function" and call is not None:
            found.setdefault(call, []).append(node)
    return found


def _set(node: Node, call: str, claimed: bool, folded: bool) -> None:
    node.meta["custom"] = {**node.meta.get("custom", {}), _KEY: {"call": call, "claimed": claimed}}
    note_for_arm(node, quantized=folded)
