"""Measures the time of a layout plan by the number of nodes, and draws docs/measured/layout_time.svg.

    python tests/bench/layout.py [--rounds N]

The graphs of `layouts.networks` are residual blocks of images, with gates and rows between. The core measures
three steps: it states the problem (the layout options of each node, the costs), solves it, and checks the
certificate. The limits are for solving: 5 ms for 5,000 nodes, and 40 times its time for 20 times as many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.page import Section, milliseconds, options_of, table
from layouts.networks import network_graph
from models.results import ROOT
from tosaic import _core

PLOT = ROOT / "docs" / "measured" / "layout_time.svg"
SIZES = (500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
MOST_SECONDS, AT = 5e-3, 5000
MOST_GROWTH = 40.0


@dataclass(frozen=True)
class Measured:
    """One size: median seconds of stating, solving and checking."""

    nodes: int
    transposes: int
    gap: int
    state: float
    solve: float
    check: float


def run(rounds: int = 5) -> list[Measured]:
    """Measures all sizes, alternately."""
    graphs = [network_graph(size) for size in SIZES]
    laps: list[list[tuple[float, float, float]]] = [[] for _ in SIZES]
    plans = [_core.plan_layout(graph) for graph in graphs]
    for _ in range(rounds):
        for i, graph in enumerate(graphs):
            laps[i].append(_core.plan_layout(graph)["seconds"])
    out = []
    for graph, plan, each in zip(graphs, plans, laps, strict=True):
        state, solve, check = (median(lap[k] for lap in each) for k in range(3))
        gap = plan["cost"] - plan["bound"]
        out.append(Measured(len(graph.nodes), len(plan["transposes"]), gap, state, solve, check))
    return out


def ok(rows: Sequence[Measured]) -> bool:
    """True if the limits hold, and every plan is proven minimal."""
    at = rows[SIZES.index(AT)]
    growth = rows[-1].solve / at.solve
    return at.solve <= MOST_SECONDS and growth <= MOST_GROWTH and not any(r.gap for r in rows)


def section(rows: Sequence[Measured]) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    header = ("nodes", "transposes", "gap", "state, ms", "solve, ms", "check, ms", "solve, µs a node")
    lines = [
        (
            f"{r.nodes:,}",
            str(r.transposes),
            str(r.gap),
            *(milliseconds(t) for t in (r.state, r.solve, r.check)),
            f"{1e6 * r.solve / r.nodes:.2f}",
        )
        for r in rows
    ]
    PLOT.write_text(plot(rows))
    text = (
        "The time of a layout plan by the number of nodes, for the graphs of `tests/layouts/networks.py`.\n"
        "Column *gap* is the cost of the plan above the bound that the certificate proves.\n\n"
        f"{table(header, lines)}\n\n![Time by nodes, both logarithmic](layout_time.svg)\n\n"
        f"Solving {AT:,} nodes may take at most {1e3 * MOST_SECONDS:g} ms. "
        f"20 times as many nodes may take at most {MOST_GROWTH:g} times the measured time."
    )
    return Section("layout", "Layout plans", text, ok(rows))


def plot(rows: Sequence[Measured]) -> str:
    """Returns three lines over logarithmic axes, as SVG."""
    width, height, margin = 560, 360, 60
    low, high = 1e-5, 10.0

    def x(nodes: float) -> float:
        first, last = log10(SIZES[0]), log10(SIZES[-1])
        return margin + (width - 2 * margin) * (log10(nodes) - first) / (last - first)

    def y(seconds: float) -> float:
        return height - margin - (height - 2 * margin) * log10(max(seconds, low) / low) / log10(high / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for power in range(-5, 2):
        at, label = y(10.0**power), f"{10.0 ** (power + 3):g} ms"
        parts.append(f'<line x1="{margin}" x2="{width - margin}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{margin - 6}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    for size in SIZES:
        parts.append(
            f'<text x="{x(size):.1f}" y="{height - margin + 18}" text-anchor="middle">{size:,}</text>'
        )
    for i, (name, colour) in enumerate((("state", "#888"), ("solve", "#c33"), ("check", "#36c"))):
        points = " ".join(f"{x(r.nodes):.1f},{y(getattr(r, name)):.1f}" for r in rows)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{margin + 12}" y="{margin + 14 * i}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 12}" text-anchor="middle">nodes</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> int:
    return section(run(options_of(__doc__, rounds=5).rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
