"""Higher-order operators that only wrap a nested graph: its calls are read as calls of the outer graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Place(NamedTuple):
    """The nested graph of a node: the prefix of its names, and the module that has its attributes."""

    prefix: str
    owner: Any


@dataclass(frozen=True)
class Wrapped:
    """The nodes of nested graphs that are read as nodes of the outer graph, so that in-place calls work.

    Attributes
    ----------
    operands : dict
        By input node of a nested graph: the operand of the wrapper.
    results : dict
        By wrapper: the results of its nested graph.
    places : dict of node to Place
    modules : set of int
        The ids of the nested graphs.
    """

    operands: dict[Any, Any] = field(default_factory=dict)
    results: dict[Any, Any] = field(default_factory=dict)
    places: dict[Any, Place] = field(default_factory=dict)
    modules: set[int] = field(default_factory=set)


WRAPPERS: dict[str, tuple[int, Callable[[list[Any]], Sequence[Any]]]] = {
    "wrap_with_set_grad_enabled": (1, lambda values: values[2:]),
    "wrap_with_autocast": (4, lambda values: values[5:]),
    "wrap": (0, lambda values: values[1:]),
    "strict_mode": (0, lambda values: values[1]),
    "hints_wrapper": (0, lambda values: values[1]),
    "invoke_subgraph": (0, lambda values: values[2:]),
}
"""By wrapper: the index of the argument that is the nested graph, and the slice of its operands."""


def wrapper_name(node: Any) -> str:
    """Returns the name of the operator that a node calls; a wrapper's name is a key of `WRAPPERS`."""
    return str(getattr(node.target, "__name__", node.target)).removeprefix("higher_order.")


def changes_dtypes(args: Sequence[Any]) -> bool:
    """True if ``wrap_with_autocast`` with these arguments computes with other dtypes on a CPU."""
    return bool(args[2]) and args[0] == "cpu"
