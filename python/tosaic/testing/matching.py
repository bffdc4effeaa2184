"""Assertions about programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosaic.api import calls as api
from tosaic.base.defaults import THRESHOLD_DB
from tosaic.base.options import checked

if TYPE_CHECKING:
    from tosaic.lowering.lowered import Lowered
    from tosaic.program.comparison import Comparison
    from tosaic.report.document import Report


class MismatchError(AssertionError):
    """An assertion of this package failed; `report` shows why."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


@checked
def assert_matches(
    actual: Any,
    expected: Any,
    samples: Any,
    *,
    sqnr_db: float | None = 60.0,
    max_abs: float | None = None,
    max_ulp: float | None = None,
    nodes: bool = False,
    bind: Any = None,
) -> Comparison:
    """Asserts that two programs compute the same outputs within limits.

    Parameters
    ----------
    actual, expected
        Programs in any form that `tosaic.compare` accepts; `expected` is the reference.
    samples
        Inputs in any form that `tosaic.compare` accepts.
    sqnr_db : float or None
        The least signal to noise ratio of each output, in dB. None means no limit.
    max_abs, max_ulp : float, optional
        The greatest absolute error of each output, and the greatest error in units in the last place.
    nodes : bool
        Require `sqnr_db` of each node too (30 dB if `sqnr_db` is None).
    bind : optional
        Sizes of symbolic dimensions, as in `tosaic.from_exported`.

    Returns
    -------
    Comparison

    Raises
    ------
    MismatchError
        An output or node exceeds a limit. The error is an ``AssertionError`` that names the outputs and
        limits, with the comparison as its report.
    """
    threshold = THRESHOLD_DB if sqnr_db is None else sqnr_db
    comparison = api.compare(expected, actual, samples, threshold_db=threshold, bind=bind)
    broken = []
    for row in comparison.outputs:
        m = row.metrics
        limits = (
            ("SQNR", m.sqnr_db, sqnr_db, sqnr_db is not None and not m.sqnr_db >= sqnr_db, " dB, at least "),
            ("max abs", m.max_abs, max_abs, max_abs is not None and not m.max_abs <= max_abs, ", at most "),
            ("max ulp", m.max_ulp, max_ulp, max_ulp is not None and not m.max_ulp <= max_ulp, ", at most "),
        )
        broken += [
            f"{row.path}: {name} {value:.6g}{relation}{limit:g}"
            for name, value, limit, bad, relation in limits
            if bad
        ]
    first = comparison.first_divergence
    if nodes and first is not None:
        broken.append(f"node '{first.fx_name}': SQNR {first.total.sqnr_db:.6g} dB, at least {threshold:g}")
    if broken:
        raise MismatchError(
            f"{comparison.name_b} does not match {comparison.name_a}: " + "; ".join(broken),
            comparison.report(),
        )
    return comparison


@checked
def assert_lowers(program: Any, *, target: str | None = None, bind: Any = None) -> Lowered:
    """Asserts that a program lowers to a target, and returns the lowered program.

    Raises
    ------
    MismatchError
        The program does not lower; the message has all reasons.
    """
    result = api.check(program, target=target, bind=bind)
    if not result.ok:
        reasons = "; ".join(problem.message for problem in result.problems)
        raise MismatchError(f"the program does not lower to {result.target}: {reasons}", result.report())
    return api.lower(program, target=target, bind=bind)
