"""The profile of a lowering as data: `LoweringProfile`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tosaic.options import checked
from tosaic.profiling.profile import save_profile
from tosaic.reportable import Reportable

if TYPE_CHECKING:
    from tosaic.lowered import Lowered
    from tosaic.partitions.split_lowered import SplitLowered

__all__ = ["LoweringProfile", "LoweringStep", "profile_of_lowered", "profile_of_split"]


@dataclass(frozen=True)
class LoweringStep:
    """A step of a lowering.

    Attributes
    ----------
    name : str
        ``import``, the name of a pass, ``verify``, ``copy constants``, ``check target``, ``partition``,
        ``bytes``, or ``other``.
    section : str
        The section of the pipeline that has the pass; empty for other steps.
    part : str
        The group that is lowered; empty for a program that is not split.
    seconds : float
        With the time of the verifier.
    verify_seconds : float
        The part of `seconds` that the verifier took.
    changed : bool
        True if the pass changed the graph.
    nodes_before, nodes_after : int
        Numbers of nodes; 0 for steps that are no passes.
    bytes : int
        What the step wrote: the size of the file for ``bytes``, else 0.
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
class LoweringProfile(Reportable):
    """Where the time of a lowering went. `Lowered.profile` and `SplitLowered.profile` are profiles.

    Printed, it is a table for a terminal of 80 columns; in a notebook it is HTML.

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

    def as_dict(self) -> dict[str, Any]:
        """Returns all numbers as plain data, which `to_json` writes."""
        return dict(self.report().data)

    def to_json(self) -> str:
        """Returns all numbers as JSON."""
        return self.report().json

    def trace_events(self) -> dict[str, Any]:
        """Returns the steps in the trace-event format; see `Profile.trace_events`."""
        from tosaic.profiling.trace import events_of_lowering

        return events_of_lowering(self)

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the profile, in a form that follows from the name of the file: see `Profile.save`.

        Raises
        ------
        WriteError
            The file cannot be written.
        """
        save_profile(self, path)

    __str__ = Reportable.__str__

    def __repr__(self) -> str:
        return f"<tosaic.LoweringProfile of {self.name} for {self.target}: {self.seconds * 1e3:.1f} ms>"


def profile_of_lowered(lowered: Lowered) -> LoweringProfile:
    """Makes the profile of a program that was lowered as a whole."""
    steps = [*_import_of(lowered), *_steps_of(lowered, ""), *_bytes_of(lowered)]
    return LoweringProfile(lowered.graph.name, lowered.target, tuple(steps))


def profile_of_split(split: SplitLowered) -> LoweringProfile:
    """Makes the profile of a split program: that of each group, and the partitioning around it."""
    from tosaic.lowered import Lowered

    inside: list[LoweringStep] = []
    for group, part in zip(split.partitions.groups, split.parts, strict=True):
        if isinstance(part, Lowered):
            inside += _steps_of(part, group.name)
    outside = max(split.seconds - sum(step.seconds for step in inside), 0.0)
    steps = [*_import_of(split), LoweringStep("partition", seconds=outside), *inside]
    return LoweringProfile(split.graph.name, ", ".join(split.claimants), tuple(steps))


def _import_of(lowered: Lowered | SplitLowered) -> Iterator[LoweringStep]:
    seconds = lowered.source._import_seconds
    if seconds is not None:
        yield LoweringStep("import", seconds=seconds, nodes_after=len(lowered.source.graph))


def _steps_of(lowered: Lowered, part: str) -> Iterator[LoweringStep]:
    """Yields the passes of a lowering, and what it did beside them."""
    total = 0.0
    copied = False
    for timing in lowered.timings:
        if timing.section not in ("", "simplify") and not copied:
            copied = True
            yield LoweringStep("copy constants", part=part, seconds=lowered._copy_seconds)
        seconds = timing.seconds + timing.verify_seconds
        total += seconds
        yield LoweringStep(
            timing.name,
            timing.section,
            part,
            seconds,
            timing.verify_seconds,
            timing.changed,
            timing.nodes_before,
            timing.nodes_after,
        )
    yield LoweringStep("check target", part=part, seconds=lowered._check_seconds)
    total += lowered._copy_seconds + lowered._check_seconds
    yield LoweringStep("other", part=part, seconds=max(lowered.seconds - total, 0.0))


def _bytes_of(lowered: Lowered) -> Iterator[LoweringStep]:
    if lowered._bytes_seconds is not None:
        seconds, size = lowered._bytes_seconds
        yield LoweringStep("bytes", seconds=seconds, bytes=size)
