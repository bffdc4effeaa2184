"""Reports of comparisons: outputs, the first wrong node, and the worst local errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tosaic.report.document import Report
from tosaic.report.node_errors import error_sections
from tosaic.report.numbers import count, decibels, small, ulps
from tosaic.report.parts import Section, Table, table

if TYPE_CHECKING:
    from tosaic.program.comparison import CompareRow, Comparison, Metrics, ModelRow

_SHOWN_ROWS = 12
_METRIC_COLUMNS = ("SQNR dB", "cosine", "max abs", "relative", "max ulp", "p99 ulp")
_READING = """A node is right if its local error is within its bound: "of bound" is at most 1. The local error
is what the node makes of the values that it reads, so what came in from earlier nodes does not count.
The bound of floats is the tolerance of the operators since the last value that both programs have; that of
integers is one unit in 8 bits, the column int16 of docs/reference/operators.md in 16 bits, and half a unit
in the mean. An output is right if it is so, and if its SQNR is at least the threshold. Where the reference
quantizes on the way, the second does not count: equal arithmetic may round some values otherwise, and later
nodes make more of it. "rounding dB" is then the distance of the reference to the same network without
rounding. If b is quantized and the reference is not, or if b has other qparams, nodes have no bounds. An
output is then right if its SQNR is at least the threshold."""


def describe_comparison(comparison: Comparison) -> Report:
    """Makes a report of the outputs, the first wrong node, and the nodes with the worst local errors."""
    wrong, first = comparison.first_wrong, comparison.first_divergence
    judged = sum(row.local_share is not None for row in comparison.rows)
    number = sum(not row.ok for row in comparison.rows)
    facts = [
        ("samples", f"{comparison.samples:,}"),
        ("matched", f"{count(len(comparison.rows), 'node')}, {len(comparison.unmatched):,} unmatched"),
        *_judgement(comparison),
        ("wrong", "none" if wrong is None else f"{count(number, 'node')}, first {_share_of(wrong)}"),
        (
            "first below " + decibels(comparison.threshold_db) + " dB",
            "none" if first is None else _place(first),
        ),
    ]
    outputs = [
        (
            row.path,
            "ok" if row.ok else "wrong",
            _share(row.local_share),
            _rounding(row.rounding_db),
            *metrics_row(row.metrics),
        )
        for row in comparison.outputs
    ]
    marked = [i for i, row in enumerate(comparison.outputs) if not row.ok]
    worst = comparison.worst_rows(_SHOWN_ROWS)
    unmatched = [(item.fx_name, item.reason) for item in comparison.unmatched]
    columns = ("output", "", "of bound", "rounding dB", *_METRIC_COLUMNS)
    sections = [
        Section("outputs", table(columns, outputs, marked)),
        Section("nodes by the error they make themselves", _compare_table(worst)),
        *error_sections(comparison),
        Section("all nodes, in order", _compare_table(comparison.rows), folded=True),
        Section("how to read this", _READING, folded=True),
    ]
    if comparison.notes:
        sections.insert(0, Section("notes", "\n".join(f"{note}." for note in comparison.notes)))
    if comparison.models:
        sections.insert(1, Section("models against tosaic's kernels", _model_table(comparison.models)))
    if unmatched:
        sections.append(Section("unmatched", table(("node", "reason"), unmatched), folded=True))
    return Report(
        title=f"{comparison.name_b} against {comparison.name_a}",
        ok=comparison.ok,
        facts=tuple(facts),
        sections=tuple(sections),
        data={
            "ok": comparison.ok,
            "a": comparison.name_a,
            "b": comparison.name_b,
            "samples": comparison.samples,
            "threshold_db": comparison.threshold_db,
            "judged": judged,
            "against_floats": comparison.against_floats,
            "other_qparams": comparison.other_qparams,
            "first_wrong": None if wrong is None else wrong.fx_name,
            "first_divergence": None if first is None else first.fx_name,
            "outputs": list(comparison.outputs),
            "rows": list(comparison.rows),
            "unmatched": list(comparison.unmatched),
            "models": list(comparison.models),
            "notes": list(comparison.notes),
        },
    )


def describe_diff(name_a: str, name_b: str, difference: str) -> Report:
    """Makes a report of how two graphs differ. `difference` is the text of `Graph.diff`."""
    same = not difference
    title = f"{name_a} and {name_b} are the same graph" if same else f"{name_a} and {name_b} differ"
    sections = () if same else (Section("", difference),)
    return Report(title, same, sections=sections, data={"equal": same, "difference": difference})


def metrics_row(metrics: Metrics) -> tuple[str, ...]:
    """Returns cells of `SQNR dB, cosine, max abs, relative, max ulp, p99 ulp`."""
    return (
        decibels(metrics.sqnr_db),
        f"{metrics.cosine:.6f}",
        small(metrics.max_abs),
        small(metrics.relative),
        ulps(metrics.max_ulp),
        ulps(metrics.p99_ulp),
    )


def _judgement(comparison: Comparison) -> list[tuple[str, str]]:
    if comparison.against_floats:
        return [("judged", "outputs by their SQNR: b is quantized and a is not")]
    if comparison.other_qparams:
        return [("judged", "outputs by their SQNR: b has other qparams than a")]
    return []


def _share(value: float | None) -> str:
    return "-" if value is None else small(value)


def _rounding(value: float | None) -> str:
    return "-" if value is None else decibels(value)


def _share_of(row: CompareRow) -> str:
    if row.local_share == math.inf and row.local is None:
        return f"'{row.fx_name}' with other qparams{_origin(row)}"
    return f"'{row.fx_name}' with {_share(row.local_share)} of its bound{_origin(row)}"


def _compare_table(rows: Sequence[CompareRow]) -> Table:
    columns = (
        "node",
        "a",
        "b",
        "of bound",
        "local dB",
        "inherited dB",
        "SQNR dB",
        "max abs",
        "max ulp",
        "from",
    )
    cells = [
        (
            row.fx_name,
            row.op_a,
            row.op_b,
            _share(row.local_share),
            "-" if row.local is None else decibels(row.local.sqnr_db),
            "-" if row.inherited is None else decibels(row.inherited.sqnr_db),
            decibels(row.total.sqnr_db),
            small(row.total.max_abs),
            ulps(row.total.max_ulp),
            " ".join(filter(None, (row.module_path, row.source))),
        )
        for row in rows
    ]
    return table(columns, cells, [i for i, row in enumerate(rows) if not row.ok])


def _place(row: CompareRow) -> str:
    return f"'{row.fx_name}' at {decibels(row.total.sqnr_db)} dB{_origin(row)}"


def _model_table(rows: Sequence[ModelRow]) -> Table:
    columns = (
        "node",
        "operator",
        "model",
        "calls",
        "elements",
        "differ",
        "SQNR dB",
        "max abs",
        "max ulp",
        "from",
    )
    cells = []
    for row in rows:
        found = row.metrics
        figures = ("-",) * 5
        if found is not None:
            figures = (
                f"{found.count:,}",
                f"{found.mismatches:,}",
                decibels(found.sqnr_db),
                small(found.max_abs),
                ulps(found.max_ulp),
            )
        place = " ".join(filter(None, (row.module_path, row.source)))
        cells.append((row.node, row.op, row.key, f"{row.calls:,}", *figures, place))
    return table(columns, cells)


def _origin(row: CompareRow) -> str:
    """Returns the module path and source line of a node in parentheses; empty if torch recorded neither."""
    place = ", ".join(filter(None, (row.module_path, row.source)))
    return f" ({place})" if place else ""
