"""Programs with values in parts, such as the heads of an attention, and the same programs before."""

from __future__ import annotations

from collections.abc import Sequence

from tosaic.program.program import Program
from tosaic.program.runnable import Runnable
from tosaic.program.sample_forms import arrays_for, logical_arrays
from tosaic.program.samples import Sample


def is_same_program(
    a: Runnable, b: Runnable, caller: Runnable, source: Program, samples: Sequence[Sample]
) -> bool:
    """Returns whether two programs with equal inputs compute the same bits from all samples.

    Parameters
    ----------
    a, b : Runnable
        The programs. Their overrides are run.
    caller, source : Runnable, Program
        The program for which the samples are, and its source.
    samples : sequence of Sample
        One sample each.
    """
    sessions = [each.overrides.session(each.graph) for each in (a, b)]
    for sample in samples:
        logical = logical_arrays(sample, caller, source)
        ours, theirs = (
            session.run(arrays_for(each, logical)) for session, each in zip(sessions, (a, b), strict=True)
        )
        if any(x.tobytes() != y.tobytes() for x, y in zip(ours, theirs, strict=True)):
            return False
    return True
