"""Makes the profile of a lowering that split a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic.lowering.lowered import Lowered
from tosaic.lowering.lowered_profile import import_of, steps_of
from tosaic.profiling.lowering import LoweringProfile, LoweringStep

if TYPE_CHECKING:
    from tosaic.partitions.split_lowered import SplitLowered


def profile_of_split(split: SplitLowered) -> LoweringProfile:
    """Makes the profile of a split program: the profile of each group, and the partitioning around them."""
    inside: list[LoweringStep] = []
    for group, part in zip(split.partitions.groups, split.parts, strict=True):
        if isinstance(part, Lowered):
            inside += steps_of(part, group.name)
    outside = max(split.seconds - sum(step.seconds for step in inside), 0.0)
    steps = [*import_of(split.source), LoweringStep("partition", seconds=outside), *inside]
    return LoweringProfile(split.graph.name, ", ".join(split.claimants), tuple(steps))
