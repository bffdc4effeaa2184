"""A report on quantization: operators that compute with floats, and values stored as integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from tosaic.report.document import Report
from tosaic.report.numbers import count
from tosaic.report.parts import Section, table

if TYPE_CHECKING:
    from tosaic.base.quantization import QParams
    from tosaic.quantizing.explanation import QuantizationExplanation, QuantizedValue

_SHOWN_ROWS = 12


def describe_quantization(explanation: QuantizationExplanation) -> Report:
    """Makes a report of the operators that compute with floats, and of the values stored as integers."""
    floats, values = explanation.floats, explanation.values
    title = f"every one of {count(explanation.operators, 'operator')} computes with integers"
    if floats:
        title = f"{len(floats)} of {count(explanation.operators, 'operator')} compute with floats"
    sections = []
    rows = [
        (f.node, f.op, reason.what, " ".join(filter(None, (f.module_path, f.source))))
        for f in floats
        for reason in f.reasons
    ]
    if rows:
        sections.append(Section("floats", table(("node", "operator", "why", "from"), rows)))
    hints = sorted({reason.hint for f in floats for reason in f.reasons if reason.hint})
    if hints:
        sections.append(Section("hints", "\n".join(f"{hint}." for hint in hints)))
    stored = [
        (
            v.name,
            v.op or v.kind,
            v.qparams.dtype,
            _scale_text(v.qparams),
            _zero_point_text(v.qparams),
            v.module_path,
        )
        for v in values
    ]
    header = ("value", "made by", "dtype", "scale", "zero point", "module")
    sections.append(Section("quantized values", table(header, stored), folded=len(stored) > _SHOWN_ROWS))
    return Report(
        title,
        facts=tuple(_quantization_facts(values)),
        sections=tuple(sections),
        data={
            "is_integer": explanation.is_integer,
            "operators": explanation.operators,
            "floats": [asdict(f) for f in floats],
            "unquantized": [asdict(p) for p in explanation.unquantized],
            "values": [asdict(v) for v in values],
        },
    )


def _quantization_facts(values: Sequence[QuantizedValue]) -> list[tuple[str, str]]:
    """Returns the numbers of values, and of constants, that are stored with each dtype."""
    facts = []
    for heading, kinds in (("activations", ("input", "result")), ("constants", ("constant",))):
        counts = Counter(v.qparams.dtype for v in values if v.kind in kinds)
        if counts:
            facts.append(
                (heading, ", ".join(f"{number:,} {dtype}" for dtype, number in sorted(counts.items())))
            )
    return facts


def _scale_text(qparams: QParams) -> str:
    """Returns the scale, or the number of scales and their range."""
    if qparams.axis is None:
        return f"{qparams.scale:.6g}"
    least, greatest = min(qparams.scales), max(qparams.scales)
    groups = "" if qparams.groups is None else f" in groups of {qparams.groups.size}"
    return f"{len(qparams.scales)} on axis {qparams.axis}{groups}: {least:.3g} to {greatest:.3g}"


def _zero_point_text(qparams: QParams) -> str:
    points = sorted(set(qparams.zero_points))
    return str(points[0]) if len(points) == 1 else f"{points[0]} to {points[-1]}"
