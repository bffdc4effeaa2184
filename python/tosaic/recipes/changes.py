"""A change of the pipelines that lower groups, as data: `PassChange`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tosaic.base.options import invalid, refusal
from tosaic.lowering.pipeline import Pass, Pipeline
from tosaic.partitions.claimant import Claimant

Action = Literal["insert_before", "insert_after", "replace", "remove"]
_ACTIONS = ("insert_before", "insert_after", "replace", "remove")


@dataclass(frozen=True)
class PassChange:
    """A change of a pipeline; see the method of `tosaic.Pipeline` that `action` names.

    Attributes
    ----------
    action : {"insert_before", "insert_after", "replace", "remove"}
    anchor : str
        The name of a pass, ``decompose``, or ``section/name``.
    pass_ : Pass or callable, optional
        The new pass, or a function of a graph. Not for ``remove``.
    claimants : sequence of str
        Names of the claimants whose pipelines change. Empty: all whose pipeline has the anchor.
    """

    action: Action
    anchor: str
    pass_: Pass | Callable[..., Any] | None = None
    claimants: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise refusal("PassChange", "action", f"one of {', '.join(_ACTIONS)}", self.action)
        anchor: Any = self.anchor
        if not isinstance(anchor, str) or not anchor:
            raise refusal("PassChange", "anchor", "the name of a pass, such as 'decompose'", anchor)
        is_pass = callable(self.pass_) or isinstance(self.pass_, Pass)
        if is_pass == (self.action == "remove"):
            expected = "None for 'remove', else a Pass or a function of a graph"
            raise refusal("PassChange", "pass_", expected, self.pass_)
        names: Any = self.claimants
        if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
            raise refusal("PassChange", "claimants", "a sequence of names", names)
        object.__setattr__(self, "claimants", tuple(names))

    def apply(self, pipeline: Pipeline) -> None:
        """Changes a pipeline in place.

        Raises
        ------
        InvalidGraph
            The pipeline has no such anchor, or several.
        """
        if self.action == "remove":
            pipeline.remove(self.anchor)
        else:
            getattr(pipeline, self.action)(self.anchor, self.pass_)


def changed_pipelines(changes: Sequence[PassChange], claimants: Sequence[Claimant]) -> dict[str, Pipeline]:
    """Returns the pipelines that the changes apply to, changed, by name of the claimant.

    Raises
    ------
    InvalidGraph
        A change names a claimant that is not among `claimants`, or no pipeline has its anchor.
    """
    pipelines = {each.name: Pipeline.default(each.arithmetic) for each in claimants if each.arithmetic}
    changed: dict[str, Pipeline] = {}
    for change in changes:
        unknown = [name for name in change.claimants if name not in pipelines]
        named = change.claimants or [name for name, each in pipelines.items() if change.anchor in each]
        if unknown or not named:
            raise invalid(
                "Recipe",
                f"the change {change.action!r} at '{change.anchor}' concerns no pipeline",
                expected=f"claimants with pipelines: {', '.join(pipelines) or 'none'}",
                got=", ".join(unknown) or f"no pass '{change.anchor}' in any of them",
            )
        for name in named:
            change.apply(pipelines[name])
            changed[name] = pipelines[name]
    return changed
