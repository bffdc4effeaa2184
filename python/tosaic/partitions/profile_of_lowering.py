"""Makes the profiles of lowerings from the times that the lowered programs keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tosaic.profiling.lowering import LoweringProfile, LoweringStep

if TYPE_CHECKING:
    from tosaic.lowering.lowered import Lowered
    from tosaic.partitions.split_lowered import SplitLowered

__all__ = ["profile_of_lowered", "profile_of_split"]


def profile_of_lowered(lowered: Lowered) -> LoweringProfile:
    """Makes the profile of a program that was lowered as a whole."""
    steps = [*_import_of(lowered), *_steps_of(lowered, ""), *_bytes_of(lowered)]
    return LoweringProfile(lowered.graph.name, lowered.target, tuple(steps))


def profile_of_split(split: SplitLowered) -> LoweringProfile:
    """Makes the profile of a split program: that of each group, and the partitioning around it."""
    from tosaic.lowering.lowered import Lowered

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
    """Yields the passes of a lowering, and what it did in addition."""
    total = 0.0
    for timing in lowered.timings:
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
    yield LoweringStep("lay out file", part=part, seconds=lowered._file_seconds)
    yield LoweringStep("compute constants", part=part, seconds=lowered._constants_seconds)
    total += lowered._file_seconds + lowered._constants_seconds + lowered._check_seconds
    yield LoweringStep("other", part=part, seconds=max(lowered.seconds - total, 0.0))


def _bytes_of(lowered: Lowered) -> Iterator[LoweringStep]:
    if lowered._bytes_seconds is not None:
        seconds, size = lowered._bytes_seconds
        yield LoweringStep("bytes", seconds=seconds, bytes=size)
