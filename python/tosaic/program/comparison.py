"""The result of comparing two programs on the same inputs, as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tosaic.base.options import checked
from tosaic.base.reportable import Reportable


@dataclass(frozen=True)
class Metrics:
    """How far values v are from a reference r; over several samples, the worst of each figure.

    Attributes
    ----------
    count : int
        Elements compared.
    mismatches : int
        Elements that are not equal.
    nonfinite : int
        Mismatches with a NaN on one side only, or with an infinity that the other side does not have.
    sqnr_db : float
        Signal to noise ratio in dB, ``10 log10(sum r^2 / sum (v - r)^2)``; inf when equal.
    cosine : float
        Cosine of the angle between v and r.
    max_abs : float
        Greatest ``|v - r|``.
    relative : float
        Frobenius norm of ``v - r`` over that of ``r``.
    max_ulp, p99_ulp : float
        ``|v - r|`` in units in the last place of r: the greatest, and the 99th percentile over the
        elements.
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
        """Converts the core's dict of figures."""
        return cls(**source)


def worst(metrics: Sequence[Metrics]) -> Metrics:
    """Returns the worst of each figure over several metrics; counts are added."""
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
    """The values of one FX node in both programs.

    For the local and inherited errors, a's nodes run on b's values: from the nearest earlier values that both
    programs have, up to this value. Their result is the local reference.

    Attributes
    ----------
    fx_name : str
        The FX node that both values come from.
    op_a, op_b, value_a, value_b : str
        Operators that compute the values, and names of the values.
    module_path, source : str
        Origin of the node, such as ``layer1.0.conv1`` and ``model.py:41``.
    total : Metrics
        b's value against a's value.
    local : Metrics or None
        b's value against the local reference: the error that b makes at this node. None if it is not known.
    inherited : Metrics or None
        The local reference against a's value: the error that comes from earlier nodes. None if this error is
        not known.
    local_share : float or None
        The greatest local error of an element, as a share of the error bound that is derived for the
        operators. The node is right if the share is at most 1. None if the local error or its bound is not
        known. Infinite if the qparams of b's value differ from those of a's, see `Comparison.other_qparams`.
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
        """True if the local error is within its bound or is not known."""
        return self.local_share is None or self.local_share <= 1

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> CompareRow:
        """Converts the core's dict of one row."""
        errors = {name: source[name] and Metrics.of(source[name]) for name in ("total", "local", "inherited")}
        return cls(**{**source, **errors})

    @staticmethod
    def worst_of(rows: Sequence[CompareRow]) -> CompareRow:
        """Merges the rows of one node over several samples: the worst of each figure."""
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
        b's output against a's. Integers with qparams are dequantized first.
    local_share : float or None
        The local error as a share of its bound, as in `CompareRow`.
    rounding_db : float or None
        The signal to noise ratio in dB between a quantized reference and the same reference without rounding,
        both in torch. It shows the loss by quantization alone, for comparison with `metrics`. None if the
        reference is not a quantized program of torch.
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
        """Merges the rows of one output over several samples: the worst of each figure."""
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
    """A value of a that cannot be compared, and the reason, such as that b has no value of the FX node."""

    fx_name: str
    reason: str


@dataclass(frozen=True)
class ModelRow:
    """How far a model's results are from the results of tosaic's kernels on the same operands.

    Attributes
    ----------
    node, op : str
        Name of the modelled node in b, and its operator. For the model of a whole graph, the name of the
        graph and ``graph``.
    key : str
        The key of the model.
    module_path, source : str
        Origin of the node, such as ``layer1.0.conv1`` and ``model.py:41``.
    calls : int
        Number of calls over all samples.
    metrics : Metrics or None
        The model's results against the kernels' results, the worst of each figure over all calls. For
        integers, `Metrics.mismatches` is the number of elements that differ and `Metrics.max_ulp` the
        greatest difference. None if tosaic has no kernel for the node.
    """

    node: str
    op: str
    key: str
    module_path: str
    source: str
    calls: int
    metrics: Metrics | None


@dataclass(frozen=True)
class Comparison(Reportable):
    """The result of running two programs on the same inputs and comparing them node by node.

    A comparison is true in a condition if b computes what a does: see `ok`.

    Attributes
    ----------
    name_a, name_b : str
        Names of the programs; a is the reference.
    outputs : tuple of OutputRow
    rows : tuple of CompareRow
        Rows in the order of a's nodes.
    unmatched : tuple of Unmatched
    threshold_db : float
        The least SQNR of an output of floats, in dB. If a rounds (it has quantize or rescale nodes), outputs
        are judged by their local errors instead.
    samples : int
        Number of samples that were run.
    models : tuple of ModelRow
        A row for each modelled node of b that ran.
    against_floats : bool
        True if b is quantized and a is not. Errors then show the loss by quantization. Nodes have no bounds,
        and outputs are judged by their SQNR alone.
    other_qparams : bool
        True if values of b have other qparams than values of a, for example after another calibration. Errors
        then have no bounds, and outputs are judged by their SQNR alone. A value is wrong if the range of
        numbers that its integers represent differs by more than a unit and 0.1 %.
    notes : tuple of str
        Losses of the programs before the comparison: saturated biases, and operands that lost all
        bits.
    """

    name_a: str
    name_b: str
    outputs: tuple[OutputRow, ...]
    rows: tuple[CompareRow, ...]
    unmatched: tuple[Unmatched, ...]
    threshold_db: float
    samples: int
    models: tuple[ModelRow, ...] = ()
    against_floats: bool = False
    other_qparams: bool = False
    notes: tuple[str, ...] = ()

    @property
    def first_divergence(self) -> CompareRow | None:
        """The first row whose total SQNR is below the threshold, whatever causes the error; or None."""
        return next((row for row in self.rows if not row.total.sqnr_db >= self.threshold_db), None)

    @property
    def first_wrong(self) -> CompareRow | None:
        """The first row whose local error exceeds its bound: the place to look for a fault; or None."""
        return next((row for row in self.rows if not row.ok), None)

    @property
    def ok(self) -> bool:
        """True if every output is right, and every node whose local error is known.

        A node is right if its local error is within the bound of its operators. An output is near if its SQNR
        is at least `threshold_db`. A float output is also near if float rounding errors at all nodes from the
        inputs on can cause its whole error, unless `threshold_db` is above the default. An output is right if
        one of these holds:

        - Its local error is not known, and it is near.
        - Its local error is within its bound, and a rounds (see `threshold_db`).
        - Its local error is within its bound, it is a float, and it is near.
        - Its local error is within its bound, it is an integer, and it is near or no value is below the
          threshold.
        - It is a float that a computes without rounding and b with integers, and it has 80 dB, or is near and
          within one unit of b's integers of 32 bits.

        If b is quantized and a is not (`against_floats`), or if b has other qparams than a (`other_qparams`),
        local errors are reported without bounds. An output is then right if its SQNR is at least
        `threshold_db`. Against floats, an output that is a decision between numbers, such as argmax, is also
        right if b's decision equals that of a on b's numbers, and no number is below the threshold.
        """
        return all(row.ok for row in self.outputs) and self.first_wrong is None

    @property
    def output(self) -> Metrics:
        """The worst of each figure over all outputs."""
        return worst([row.metrics for row in self.outputs])

    @checked
    def worst_rows(self, count: int = 10) -> tuple[CompareRow, ...]:
        """Returns the `count` rows with the worst local errors, worst first.

        Rows that exceed their bound come first, ordered by `CompareRow.local_share`. The others follow,
        ordered by the SQNR of the local error, or of the total error if the local error is not known.
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

    __repr__ = Reportable.__str__
