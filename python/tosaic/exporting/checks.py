"""The numerical checks of an export: each step against the one before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic.compare_programs import compare_programs
from tosaic.comparison import Comparison
from tosaic.defaults import THRESHOLD_DB
from tosaic.sample_forms import arrays_for, logical_arrays

if TYPE_CHECKING:
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.prepared import Prepared
    from tosaic.samples import Sample

__all__ = ["StageCheck", "check_floats", "check_groups", "check_runs", "check_step", "outputs_of"]

_Array = np.ndarray[Any, Any]
Runs = Sequence[Sequence[_Array]]
"""Arrays by sample and output."""


@dataclass(frozen=True)
class StageCheck:
    """A numerical check of an export.

    Attributes
    ----------
    name : str
        ``import``, ``quantize``, ``lower``, ``group0`` ..., or what ran: ``reference``, ``vgf``, ``pte``.
    what : str
        What was compared with what.
    ok : bool
    db : float
        The least signal to noise ratio of an output in dB; inf if all outputs are equal.
    comparison : Comparison, optional
        The comparison node by node; None for runs of the same program on something else.
    differing : int
        Elements of outputs that are not equal.
    elements : int
        Elements of outputs that were compared.
    """

    name: str
    what: str
    ok: bool
    db: float
    comparison: Comparison | None = None
    differing: int = 0
    elements: int = 0


def check_step(
    name: str, what: str, a: Any, b: Any, samples: Sequence[Any], *, least_db: float | None
) -> StageCheck:
    """Compares two programs that take the same inputs.

    Parameters
    ----------
    name, what : str
    a, b
        As `tosaic.compare` takes them.
    samples : sequence
        As in `tosaic.compare`.
    least_db : float, optional
        The least ratio of an output; None: every ratio is accepted, and only NaN and infinities are wrong.
    """
    found = compare_programs(
        a,
        b,
        list(samples),
        threshold_db=THRESHOLD_DB if least_db is None else least_db,
        local=False,
        bind=None,
    )
    nonfinite = any(row.metrics.nonfinite for row in found.outputs)
    return StageCheck(
        name,
        what,
        found.ok if least_db is not None else not nonfinite,
        min((row.metrics.sqnr_db for row in found.outputs), default=math.inf),
        found,
        sum(row.metrics.mismatches for row in found.outputs),
        sum(row.metrics.count for row in found.outputs),
    )


def check_groups(lowered: SplitLowered, samples: Sequence[Any]) -> Iterator[StageCheck]:
    """Compares each lowered group with its nodes before lowering."""
    for name, found in lowered.compare_groups(list(samples)).items():
        rows = found.outputs
        yield StageCheck(
            name,
            "the lowered group against its nodes",
            found.ok,
            min((row.metrics.sqnr_db for row in rows), default=math.inf),
            found,
            sum(row.metrics.mismatches for row in rows),
            sum(row.metrics.count for row in rows),
        )


def check_runs(name: str, what: str, expected: Runs, found: Runs) -> StageCheck:
    """Compares the outputs of two runs of one program, by sample and output. They have to be equal."""
    check = _check(name, what, expected, found)
    return replace(check, ok=check.differing == 0)


def check_floats(name: str, what: str, expected: Runs, found: Runs) -> StageCheck:
    """Compares outputs of floats, by sample and output. Every finite error is accepted."""
    check = _check(name, what, expected, found)
    return replace(check, ok=not math.isnan(check.db))


def _check(name: str, what: str, expected: Runs, found: Runs) -> StageCheck:
    pairs = [(a, b) for one, two in zip(expected, found, strict=True) for a, b in zip(one, two, strict=True)]
    return StageCheck(
        name,
        what,
        True,
        min((ratio_db(a, b) for a, b in pairs), default=math.inf),
        None,
        sum(_differing(a, b) for a, b in pairs),
        sum(a.size for a, _ in pairs),
    )


def outputs_of(
    lowered: SplitLowered, samples: Sequence[Sample], *, on: Prepared | None = None
) -> list[list[_Array]]:
    """Runs a lowered program on samples of its source; returns the outputs of each.

    Parameters
    ----------
    lowered : SplitLowered
    samples : sequence of Sample
    on : Prepared, optional
        What `lowered.prepare` returned, to run there.
    """
    source = lowered.source
    session = lowered.session if on is None else on.session
    found: list[list[_Array]] = []
    for sample in samples:
        session.reset_state()
        arrays = arrays_for(lowered.host, logical_arrays(sample, source, source))
        found.append([np.array(each) for each in session.run(arrays)])
    return found


def ratio_db(a: _Array, b: _Array) -> float:
    """Returns the signal to noise ratio of `b` against `a` in dB; NaN if only one has NaN or infinities."""
    one, two = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(two)):
        return math.nan
    noise = float(np.sum((two[finite] - one[finite]) ** 2))
    if noise == 0:
        return math.inf
    signal = float(np.sum(one[finite] ** 2))
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _differing(a: _Array, b: _Array) -> int:
    if a.shape != b.shape:
        return a.size
    both_nan = np.isnan(a) & np.isnan(b) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
    return int(np.count_nonzero((a != b) & ~both_nan))
