"""Draws points and lines over two linear axes, as SVG that needs no other file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 16, 48
_COLOURS = ("#3367d6", "#c5221f", "#188038", "#9334e6")
_TICKS = 6


@dataclass(frozen=True)
class Line:
    """Points that a line connects.

    Attributes
    ----------
    name : str
        For the legend; empty: without a legend.
    points : sequence of (float, float)
    dashed : bool
    """

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def curve_svg(lines: Sequence[Line], *, x_label: str, y_label: str) -> str:
    """Returns the lines, with axes that contain all finite points."""
    points = [point for line in lines for point in line.points if all(map(math.isfinite, point))]
    x_ticks = _ticks([x for x, _ in points])
    y_ticks = _ticks([y for _, y in points])

    def x_of(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])

    def y_of(value: float) -> float:
        return (
            _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for tick in y_ticks:
        y = y_of(tick)
        ends = f'x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
        parts.append(f'<line class="grid" {ends} stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        parts.append(
            f'<text x="{x_of(tick):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{tick:g}</text>'
        )
    for line, colour in zip(lines, _COLOURS * len(lines), strict=False):
        parts += _line(line, colour, [(x_of(x), y_of(y)) for x, y in line.points if math.isfinite(y)])
    parts += _legend(lines)
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    centre = (_LEFT + _WIDTH - _RIGHT) / 2
    turned = f'transform="rotate(-90 14 {middle})"'
    parts += [
        f'<text x="{centre}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="14" y="{middle}" text-anchor="middle" {turned}>{escape(y_label)}</text>',
        "</svg>",
    ]
    return "\n".join(parts)


def _line(line: Line, colour: str, at: Sequence[tuple[float, float]]) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>']
    if not line.dashed:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in at]
    return parts


def _legend(lines: Sequence[Line]) -> list[str]:
    named = [
        (line.name, colour) for line, colour in zip(lines, _COLOURS * len(lines), strict=False) if line.name
    ]
    x, y = _WIDTH - _RIGHT - 8, _HEIGHT - _BOTTOM - 10
    return [
        f'<text x="{x}" y="{y - 14 * i}" text-anchor="end" fill="{colour}">{escape(name)}</text>'
        for i, (name, colour) in enumerate(reversed(named))
    ]


def _ticks(values: Sequence[float]) -> list[float]:
    """Returns round numbers that contain the values."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / (_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(step * i, 10) for i in range(first, last + 1)]
