"""Draws named numbers as bars, as SVG that needs no other file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tosaic.report.document import Report
from tosaic.report.parts import Picture, Section, table

_WIDTH, _ROW, _TOP, _BOTTOM = 560, 18, 6, 24
_MOST_NAME, _LETTER, _TEXT = 34, 6.3, 64
_COLOUR, _LIGHT = "#3367d6", "#a9c1f5"


@dataclass(frozen=True)
class Bar:
    """A row of a picture.

    Attributes
    ----------
    name : str
    value : float
        The length of the bar. An infinite value makes a bar of the full width; a negative value or NaN has no
        bar.
    text : str
        The text after the bar, such as the number with its unit.
    light : float, optional
        The length of a second, lighter bar after the first one.
    """

    name: str
    value: float
    text: str
    light: float | None = None


def bar_chart(title: str, bars: Sequence[Bar], *, label: str) -> Report:
    """Returns a report with a bar chart for HTML and notebooks, and a folded table of the numbers.

    Parameters
    ----------
    title : str
    bars : sequence of Bar
        From the top down.
    label : str
        The meaning of the numbers.
    """
    rows = [(bar.name, bar.text) for bar in bars]
    return Report(
        title=title,
        sections=(
            Section("", Picture(bars_svg(bars, label=label))),
            Section("numbers", table(("", label), rows), folded=True),
        ),
        data={"label": label, "bars": {bar.name: bar.value for bar in bars}},
    )


def bars_svg(bars: Sequence[Bar], *, label: str) -> str:
    """Returns a picture with one bar in each row, from the top down.

    Parameters
    ----------
    bars : sequence of Bar
    label : str
        The meaning of the lengths, shown below the bars.
    """
    height = _TOP + _ROW * len(bars) + _BOTTOM
    left = 12 + _LETTER * max((len(_name(bar)) for bar in bars), default=0)
    wide = _WIDTH - left - _TEXT
    lengths = [each for bar in bars for each in (bar.value, bar.light or 0.0) if math.isfinite(each)]
    greatest = max(lengths, default=0.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect class="back" width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for row, bar in enumerate(bars):
        y = _TOP + _ROW * row
        parts.append(f"<g><title>{escape(f'{bar.name}: {bar.text}')}</title>")
        parts.append(f'<text x="{left - 6:.1f}" y="{y + 12}" text-anchor="end">{escape(_name(bar))}</text>')
        ends = [left]
        for value, colour, inset in ((bar.light, _LIGHT, 0), (bar.value, _COLOUR, 3)):
            if value is None:
                continue
            width = wide * _share(value, greatest)
            ends.append(left + width)
            box = f'x="{left:.1f}" y="{y + 1 + inset}" width="{width:.1f}" height="{_ROW - 4 - 2 * inset}"'
            parts.append(f'<rect {box} fill="{colour}"/>')
        parts.append(f'<text x="{max(ends) + 5:.1f}" y="{y + 12}">{escape(bar.text)}</text></g>')
    middle = left + wide / 2
    parts.append(f'<text x="{middle:.1f}" y="{height - 7}" text-anchor="middle">{escape(label)}</text></svg>')
    return "\n".join(parts)


def _name(bar: Bar) -> str:
    return bar.name if len(bar.name) <= _MOST_NAME else f"...{bar.name[3 - _MOST_NAME :]}"


def _share(value: float, greatest: float) -> float:
    """Returns the length of a bar as a share of the longest one."""
    if math.isnan(value) or value <= 0:
        return 0.0
    if math.isinf(value):
        return 1.0
    return value / greatest
