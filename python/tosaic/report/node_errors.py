"""The picture of a comparison: the signal to noise ratio of each node, in the order of the program."""

from __future__ import annotations

import math

from tosaic.program.comparison import Comparison
from tosaic.report.bars import Bar, bars_svg
from tosaic.report.numbers import decibels
from tosaic.report.parts import Picture, Section

_MOST_BARS = 48


def error_sections(comparison: Comparison) -> tuple[Section, ...]:
    """Returns a section with a bar for each node that is not equal; nothing if all nodes are equal.

    For a long program, only every second node, or every third, and so on, has a bar.
    """
    rows = [row for row in comparison.rows if not math.isinf(row.total.sqnr_db)]
    if not rows:
        return ()
    shown = rows[:: math.ceil(len(rows) / _MOST_BARS)]
    bars = [
        Bar(
            row.fx_name,
            row.total.sqnr_db,
            decibels(row.total.sqnr_db),
            None if row.local is None else row.local.sqnr_db,
        )
        for row in shown
    ]
    more = "" if len(shown) == len(rows) else f" ({len(shown)} of {len(rows)})"
    label = "SQNR in dB; light: the ratio that the node would have alone"
    return (Section(f"nodes in the order of the program{more}", Picture(bars_svg(bars, label=label))),)
