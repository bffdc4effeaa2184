"""The profile of a lowering as data: `LoweringProfile`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tosaic.base.reportable import Reportable
from tosaic.base.visible import one_line
from tosaic.profiling.profile import SavedProfile


@dataclass(frozen=True)
class LoweringStep:
    """A step of a lowering.

    Attributes
    ----------
    name : str
        ``import``, the name of a pass, ``verify``, ``check target``, ``lay out file``,
        ``compute constants``, ``partition``, ``bytes``, or ``other``.
    section : str
        The section of the pipeline that has the pass; empty for other steps.
    part : str
        The group that is lowered; empty for a program that is not split.
    seconds : float
        The time of the step, including the verifier.
    verify_seconds : float
        The part of `seconds` that the verifier took.
    changed : bool
        True if the pass changed the graph.
    nodes_before, nodes_after : int
        Numbers of nodes; 0 for steps that are not passes.
    bytes : int
        The bytes that the step wrote: the size of the file for ``bytes``, else 0.
    """

    name: str
    section: str = ""
    part: str = ""
    seconds: float = 0.0
    verify_seconds: float = 0.0
    changed: bool = False
    nodes_before: int = 0
    nodes_after: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class LoweringProfile(SavedProfile):
    """The times of the steps of a lowering. `Lowered.profile` and `SplitLowered.profile` are profiles.

    In a terminal, it prints as a table of 80 columns; in a notebook, it is shown as HTML.

    Attributes
    ----------
    name : str
        The name of the graph.
    target : str
        The target, or the claimants of a split program.
    steps : tuple of LoweringStep
        In the order in which they ran. Their times add up to `seconds`.
    """

    name: str
    target: str
    steps: tuple[LoweringStep, ...]

    @property
    def seconds(self) -> float:
        """The time of all steps."""
        return sum(step.seconds for step in self.steps)

    def trace_events(self) -> dict[str, Any]:
        """Returns the steps in the trace-event format; see `Profile.trace_events`."""
        from tosaic.profiling.trace import events_of_lowering

        return events_of_lowering(self)

    __str__ = Reportable.__str__

    def __repr__(self) -> str:
        name, milliseconds = one_line(self.name), self.seconds * 1e3
        return f"<tosaic.profiling.LoweringProfile of {name} for {self.target}: {milliseconds:.1f} ms>"
