"""Selections: the nodes that a rule applies to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tosaic.annotation.observers import Short
from tosaic.base.options import invalid, shown

__all__ = ["Select"]


@dataclass(frozen=True, repr=False)
class Select(Short):
    """Nodes that fulfil all conditions that are set.

    Without conditions, or with conditions only on modules or operators, it selects only calls. A name, an
    expression or a list of nodes may also select placeholders and parameters.

    Attributes
    ----------
    name : str, optional
        Name of a node.
    regex : str, optional
        A regular expression, in the syntax of ECMAScript, that matches a part of the name of the node.
    module : str, optional
        Path of a module, with ``*`` and ``?``; selects all calls inside of it.
    type : str, optional
        Type of a module that contains the call: ``"Conv2d"`` or ``"torch.nn.modules.conv.Conv2d"``.
    op : str, optional
        ``"conv2d"``, ``"aten.conv2d"`` or ``"aten.conv2d.default"``.
    nodes : tuple of str, optional
        Names of nodes. A name that the graph does not have is an error.

    Raises
    ------
    InvalidGraph
        A condition is not a string, such as an operator of torch in place of its name.
    """

    name: str | None = None
    regex: str | None = None
    module: str | None = None
    type: str | None = None
    op: str | None = None
    nodes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("name", "regex", "module", "type", "op"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise _refusal(name, "a string", value, f"Write {str(value)!r}" if name == "op" else "")
        nodes: Any = self.nodes
        if nodes is None:
            return
        if not isinstance(nodes, list | tuple) or not all(isinstance(each, str) for each in nodes):
            raise _refusal("nodes", "a list of names", nodes)
        object.__setattr__(self, "nodes", tuple(nodes))


def _refusal(option: str, expected: str, got: object, hint: str = "") -> Exception:
    return invalid(
        "Select", f"the condition '{option}' is wrong", expected=expected, got=shown(got), hint=hint
    )
