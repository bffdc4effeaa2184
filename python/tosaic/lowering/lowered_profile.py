"""Makes the profile of a lowering from the times that the lowered program keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tosaic.profiling.lowering import LoweringProfile, LoweringStep

if TYPE_CHECKING:
    from tosaic.lowering.lowered import Lowered
    from tosaic.program.program import Program


def profile_of_lowered(lowered: Lowered) -> LoweringProfile:
    """Makes the profile of a program that was lowered as a whole."""
    steps = [*import_of(lowered.source), *steps_of(lowered, ""), *_bytes_of(lowered)]
    return LoweringProfile(lowered.graph.name, lowered.target, tuple(steps))


def import_of(source: Program) -> Iterator[LoweringStep]:
    """Yields the import of the program that was lowered, if its time is known."""
    seconds = source.import_seconds
    if seconds is not None:
        yield LoweringStep("import", seconds=seconds, nodes_after=len(source.graph))


def steps_of(lowered: Lowered, part: str) -> Iterator[LoweringStep]:
    """Yields the passes of a lowering, and what else it did."""
    total, other = 0.0, lowered.other_seconds
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
    yield LoweringStep("check target", part=part, seconds=other.check)
    yield LoweringStep("lay out file", part=part, seconds=other.file)
    yield LoweringStep("compute constants", part=part, seconds=other.constants)
    total += other.file + other.constants + other.check
    yield LoweringStep("other", part=part, seconds=max(lowered.seconds - total, 0.0))


def _bytes_of(lowered: Lowered) -> Iterator[LoweringStep]:
    if lowered.other_seconds.bytes is not None:
        seconds, size = lowered.other_seconds.bytes
        yield LoweringStep("bytes", seconds=seconds, bytes=size)
