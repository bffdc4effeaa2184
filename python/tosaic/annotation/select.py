"""Which nodes a rule is about."""

from __future__ import annotations

from dataclasses import dataclass

from tosaic.annotation.specs import Short

__all__ = ["Select"]


@dataclass(frozen=True, repr=False)
class Select(Short):
    """Nodes that fulfil all conditions that are set.

    Without any condition, and with conditions on modules or operators only, it selects calls only. A name, an
    expression or a list of nodes may select placeholders and parameters, too.

    Attributes
    ----------
    name : str, optional
        Name of a node.
    regex : str, optional
        An expression that is found in the name of the node; its syntax is that of ECMAScript.
    module : str, optional
        Path of a module, with ``*`` and ``?``; selects all calls inside of it.
    type : str, optional
        Type of a module that contains the call: ``"Conv2d"`` or ``"torch.nn.modules.conv.Conv2d"``.
    op : str, optional
        ``"conv2d"``, ``"aten.conv2d"`` or ``"aten.conv2d.default"``.
    nodes : tuple of str, optional
        Names of nodes. A name that the graph does not have is an error.
    """

    name: str | None = None
    regex: str | None = None
    module: str | None = None
    type: str | None = None
    op: str | None = None
    nodes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.nodes is not None:
            object.__setattr__(self, "nodes", tuple(self.nodes))
