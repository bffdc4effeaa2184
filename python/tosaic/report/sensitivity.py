"""The report of a sensitivity analysis: the loss of each layer, and the curve of measured mixes."""

from __future__ import annotations

from typing import Any

from tosaic.quantizing.sensitivities import Mix, Sensitivity
from tosaic.report.bars import Bar, bars_svg
from tosaic.report.curve import Line, curve_svg
from tosaic.report.document import Report
from tosaic.report.numbers import decibels
from tosaic.report.parts import Picture, Section, table

_SHOWN_LAYERS = 12


def describe_sensitivity(found: Sensitivity) -> Report:
    """Makes a report of the loss of each layer, and of the mixes."""
    first, last = _ends(found)
    facts = [
        ("levels", " < ".join(found.levels)),
        ("layers", str(len(found.layers))),
        *([("costs", f"cycles of {found.device}")] if found.device else []),
        ("samples", f"{found.samples} calibrated, {found.measured_on} measured"),
        (f"all {found.levels[0]}", decibels(first.db) + " dB"),
        (f"all {found.levels[-1]}", decibels(last.db) + " dB"),
    ]
    if found.least_db is not None:
        good = [each for each in found.curve if each.db >= found.least_db]
        text = "no mix reaches it" if not good else mix_text(min(good, key=lambda each: each.cost))
        facts.append((f"{found.least_db:g} dB wanted", text))
    return Report(
        title="sensitivity to precision",
        facts=tuple(facts),
        sections=tuple(_sections(found)),
        data={
            "levels": found.levels,
            "least_db": found.least_db,
            "samples": found.samples,
            "measured_on": found.measured_on,
            "layers": list(found.layers),
            "curve": [mix_data(mix) for mix in found.curve],
        },
    )


def _ends(found: Sensitivity) -> tuple[Mix, Mix]:
    """Returns the mixes with the first level in all layers and with the last one, in the same form."""
    plan = next((mix for mix in found.curve if not mix.levels and mix.cost == 1.0), found.curve[0])
    last = [found.levels[-1]] * len(found.layers)
    ends = [mix for mix in found.curve if mix.form == plan.form and list(mix.levels.values()) == last]
    return plan, ends[0] if ends else found.curve[-1]


def mix_data(mix: Mix) -> dict[str, Any]:
    """Returns the numbers of a mix for JSON."""
    data = {"db": mix.db, "cost": mix.cost, "shares": dict(mix.shares), "levels": dict(mix.levels)}
    return data if mix.cycles is None else {**data, "cycles": mix.cycles, "form": mix.form}


def mix_text(mix: Mix) -> str:
    """Returns what a mix costs and loses in one line."""
    shares = ", ".join(f"{share:.1%} {level}" for level, share in mix.shares.items() if share > 0)
    cost = f"cost {mix.cost:.2f}" if mix.cycles is None else f"{mix.cycles:,} cycles"
    return f"{decibels(mix.db)} dB at {cost}: {shares} of the MACs"


def _sections(found: Sensitivity) -> list[Section]:
    steps = list(zip(found.levels, found.levels[1:], strict=False))
    columns = ("layer", "MACs", *(f"{low} loses dB" for low, _ in steps), "from", "module")
    ranked = sorted(found.layers, key=lambda layer: -layer.lost_db[0])
    rows = [
        (
            layer.name,
            f"{layer.macs:,}",
            *(f"{lost:.2f}" for lost in layer.lost_db),
            layer.source,
            layer.module_path,
        )
        for layer in ranked
    ]
    curve_columns = ("cost", *(f"% {level}" for level in found.levels), "SQNR dB")
    curve_rows: list[tuple[str, ...]] = [
        (f"{m.cost:.2f}", *(f"{100 * m.shares[level]:.1f}" for level in found.levels), decibels(m.db))
        for m in found.curve
    ]
    if found.device:
        curve_columns = ("cycles", *curve_columns, "form")
        curve_rows = [(f"{m.cycles:,}", *row, m.form) for m, row in zip(found.curve, curve_rows, strict=True)]
    short = [row[:-1] for row in rows[:_SHOWN_LAYERS]]
    sections = [
        Section("layers by what they lose", table(columns[:-1], short)),
        Section(f"dB that layers lose as {found.levels[0]}", Picture(_lost(found))),
        Section("all layers", table(columns, rows), folded=True),
    ]
    sections.append(Section("mixes, by share of the MACs", table(curve_columns, curve_rows)))
    sections.append(Section("SQNR by cost", Picture(curve_of(found))))
    return sections


def _lost(found: Sensitivity) -> str:
    bars = [Bar(layer.name, layer.lost_db[0], f"{layer.lost_db[0]:.2f}") for layer in found.layers]
    return bars_svg(
        bars, label=f"dB lost as {found.levels[0]} next to {found.levels[1]}, in the order of the program"
    )


def curve_of(found: Sensitivity) -> str:
    """Returns the curve of SQNR over cost as SVG."""
    points = [(mix.cost, mix.db) for mix in found.curve]
    lines = [Line("measured mixes", points)]
    if found.least_db is not None:
        lines.append(
            Line("wanted", [(points[0][0], found.least_db), (points[-1][0], found.least_db)], dashed=True)
        )
    what = f"cycles of {found.device}" if found.device else "cost"
    return curve_svg(lines, x_label=f"{what} (1: all {found.levels[0]})", y_label="SQNR, dB")
