"""The result of comparing two programs on the same inputs, as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tosaic.options import checked

if TYPE_CHECKING:
    from tosaic.report import Report

__all__ = ["CompareRow", "Comparison", "Metrics", "OutputRow", "Unmatched", "worst"]


@dataclass(frozen=True)
class Metrics:
    """How far values are from a reference r; over several samples the worst of each.

    Attributes
    ----------
    count : int
        Elements compared.
    mismatches : int
        Elements that are not equal.
    nonfinite : int
        Of these, the ones with a NaN or an unmatched infinity.
    sqnr_db : float
        Signal to noise ratio, ``10 log10(sum r^2 / sum (v - r)^2)``; inf when equal.
    cosine : float
    max_abs : float
        Greatest ``|v - r|``.
    relative : float
        Frobenius norm of ``v - r`` over that of ``r``.
    max_ulp, p99_ulp : float
        ``|v - r|`` in units in the last place of r; p99: 99 % of the elements are this near.
    """

    count: int
    mismatches: int
    nonfinite: int
    sqnr_db: float
    cosine: float
    max_abs: float
    relative: float
    max_ulp: float
    p99_ulp: float

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> Metrics:
        """From the core's figures."""
        return cls(**source)


def worst(metrics: Sequence[Metrics]) -> Metrics:
    """The worst of each figure; counts are added."""
    if len(metrics) == 1:
        return metrics[0]
    return Metrics(
        count=sum(m.count for m in metrics),
        mismatches=sum(m.mismatches for m in metrics),
        nonfinite=sum(m.nonfinite for m in metrics),
        sqnr_db=min(m.sqnr_db for m in metrics),
        cosine=min(m.cosine for m in metrics),
        max_abs=max(m.max_abs for m in metrics),
        relative=max(m.relative for m in metrics),
        max_ulp=max(m.max_ulp for m in metrics),
        p99_ulp=max(m.p99_ulp for m in metrics),
    )


def _worst_known(metrics: Iterable[Metrics | None]) -> Metrics | None:
    known = [m for m in metrics if m is not None]
    return worst(known) if known else None


def _largest_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None


@dataclass(frozen=True)
class CompareRow:
    """One FX node in both programs.

    Attributes
    ----------
    fx_name : str
        The node both values stem from.
    op_a, op_b, value_a, value_b : str
        Operators and names of the values.
    module_path, source : str
    total : Metrics
        b's value against a's.
    local : Metrics or None
        b's value against what a's nodes make of b's values, from the last ones that both have: the error made
        here.
    inherited : Metrics or None
        What a's nodes make of b's values against a's value: the error that came in.
    local_share : float or None
        The greatest local error of an element as a share of the bound that is derived for the operators: at
        most 1 where the node is right.
    """

    fx_name: str
    op_a: str
    op_b: str
    value_a: str
    value_b: str
    module_path: str
    source: str
    total: Metrics
    local: Metrics | None = None
    inherited: Metrics | None = None
    local_share: float | None = None

    @property
    def ok(self) -> bool:
        """The local error is within its bound, or not known."""
        return self.local_share is None or self.local_share <= 1

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> CompareRow:
        """From the core's row."""
        errors = {name: source[name] and Metrics.of(source[name]) for name in ("total", "local", "inherited")}
        return cls(**{**source, **errors})

    @staticmethod
    def worst_of(rows: Sequence[CompareRow]) -> CompareRow:
        """One row for the same node in several samples."""
        return replace(
            rows[0],
            total=worst([row.total for row in rows]),
            local=_worst_known(row.local for row in rows),
            inherited=_worst_known(row.inherited for row in rows),
            local_share=_largest_known(row.local_share for row in rows),
        )


@dataclass(frozen=True)
class OutputRow:
    """One output of the programs, as the caller sees it.

    Attributes
    ----------
    path : str
    metrics : Metrics
        b's against a's, as real numbers.
    local_share : float or None
        As of a row: b's output against what a's nodes make of b's values.
    rounding_db : float or None
        Of a quantized reference in torch: its signal to noise ratio to itself with nothing rounded. What
        quantization costs, beside which `metrics` can be read.
    ok : bool
        See `Comparison.ok`.
    """

    path: str
    metrics: Metrics
    local_share: float | None = None
    rounding_db: float | None = None
    ok: bool = True

    @staticmethod
    def worst_of(rows: Sequence[OutputRow]) -> OutputRow:
        """One row for the same output in several samples."""
        known = [row.rounding_db for row in rows if row.rounding_db is not None]
        return replace(
            rows[0],
            metrics=worst([row.metrics for row in rows]),
            local_share=_largest_known(row.local_share for row in rows),
            rounding_db=min(known) if known else None,
            ok=all(row.ok for row in rows),
        )


@dataclass(frozen=True)
class Unmatched:
    """A value of a that has nothing to be compared with, and why."""

    fx_name: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Two programs on the same inputs, node by node.

    True in a condition if b computes what a does: `ok`.

    Attributes
    ----------
    name_a, name_b : str
        What was compared; a is the reference.
    outputs : tuple of OutputRow
    rows : tuple of CompareRow
        In the order of a.
    unmatched : tuple of Unmatched
    threshold_db : float
        The least SQNR of an output of floats. Where a rounds on the way (it has quantize nodes), outputs
        are held to their local errors instead.
    samples : int
    """

    name_a: str
    name_b: str
    outputs: tuple[OutputRow, ...]
    rows: tuple[CompareRow, ...]
    unmatched: tuple[Unmatched, ...]
    threshold_db: float
    samples: int

    @property
    def first_divergence(self) -> CompareRow | None:
        """The first row whose total is below the threshold, whoever made the error."""
        return next((row for row in self.rows if not row.total.sqnr_db >= self.threshold_db), None)

    @property
    def first_wrong(self) -> CompareRow | None:
        """The first row whose local error is beyond its bound: where to look."""
        return next((row for row in self.rows if not row.ok), None)

    @property
    def ok(self) -> bool:
        """Every output is right, and every node whose local error is known.

        A node is right if its local error is within the bound of its operators. So is an output, and one of
        floats has at least `threshold_db` besides, unless a rounds on the way, or is off by no more than the
        rounding of floats from the inputs on comes to (which is not asked where the threshold is above the
        default). An output whose local error is
        not known is held to the threshold alone.
        """
        return all(row.ok for row in self.outputs) and self.first_wrong is None

    @property
    def output(self) -> Metrics:
        """The worst of all outputs."""
        return worst([row.metrics for row in self.outputs])

    @checked
    def worst_rows(self, count: int = 10) -> tuple[CompareRow, ...]:
        """Rows by the error they make themselves: those beyond their bound, the rest by SQNR, worst first.

        Where the local error is not known the total stands for it.
        """

        def rank(row: CompareRow) -> tuple[float, float]:
            value = (row.local or row.total).sqnr_db
            excess = 0.0 if row.ok or row.local_share is None else -row.local_share
            return excess, -math.inf if math.isnan(value) else value

        return tuple(sorted(self.rows, key=rank)[:count])

    def __bool__(self) -> bool:
        return self.ok

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[CompareRow]:
        return iter(self.rows)

    def __getitem__(self, fx_name: str) -> CompareRow:
        for row in self.rows:
            if row.fx_name == fx_name:
                return row
        raise KeyError(fx_name)

    def report(self) -> Report:
        """Outputs first, then the nodes."""
        from tosaic.report import describe_comparison

        return describe_comparison(self)

    def __str__(self) -> str:
        return self.report().text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.report().html_fragment
