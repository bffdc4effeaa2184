"""Makes the report of a layout plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tosaic.report.bars import Bar, bars_svg
from tosaic.report.document import Report
from tosaic.report.numbers import count, memory
from tosaic.report.parts import Picture, Section, table

if TYPE_CHECKING:
    from tosaic.lowering.layout import Demand, Layout


def describe_layout(layout: Layout) -> Report:
    """Makes a report of the transposes with their reasons, and of the proven bound of their cost."""
    return Report(
        title=_title(layout),
        ok=layout.is_minimal,
        facts=layout_facts(layout)[1:],
        sections=layout_sections(layout),
        data=layout_data(layout),
    )


def layout_facts(layout: Layout) -> tuple[tuple[str, str], ...]:
    """Returns the number of transposes, their bytes or cost, and the proven bound."""
    return (
        ("layout", _title(layout)),
        ("transposed", memory(layout.bytes)),
        *_own_cost(layout),
        ("proof", _proof(layout)),
        *_ambiguous(layout),
    )


def layout_data(layout: Layout) -> dict[str, Any]:
    """Returns the plan as a dict, for JSON."""
    return {**asdict(layout), "is_minimal": layout.is_minimal}


def _has_own_cost(layout: Layout) -> bool:
    return layout.objective not in ("bytes", "count")


def _own_cost(layout: Layout) -> tuple[tuple[str, str], ...]:
    if not _has_own_cost(layout):
        return ()
    return ((layout.objective, f"{sum(t.cost for t in layout.transposes):,}"),)


def _ambiguous(layout: Layout) -> tuple[tuple[str, str], ...]:
    if not layout.ambiguous:
        return ()
    return (("ambiguous", f"{', '.join(layout.ambiguous)}: row-major and channels last are one"),)


def _title(layout: Layout) -> str:
    return count(len(layout.transposes), "transpose") if layout.transposes else "no transposes"


def _proof(layout: Layout) -> str:
    if layout.is_minimal:
        return "no choice of dim orders has less"
    return f"at least {layout.bound / max(layout.cost, 1):.1%} of it is needed"


def layout_sections(layout: Layout) -> tuple[Section, ...]:
    """Returns a table with a row for each transpose, and the remedies, if there are any.

    A row has the value, both orders, the size and cost, and the nearest demand for each order.
    """
    own = (layout.objective,) if _has_own_cost(layout) else ()
    rows = []
    for t in layout.transposes:
        orders = (_axes(t.from_order), _axes(t.to_order))
        cost = (f"{t.cost:,}",) if own else ()
        rows.append((t.value, *orders, memory(t.bytes), *cost, _nearest(t.made_by), _nearest(t.read_by)))
    sections = []
    if rows:
        columns = ("value", "from", "to", "bytes", *own, "made so by", "read so by")
        sections.append(Section("transposes", table(columns, rows)))
        bars = [Bar(t.value, t.bytes, memory(t.bytes)) for t in layout.transposes]
        sections.append(Section("", Picture(bars_svg(bars, label="transposed bytes"))))
    remedies = sorted({d.remedy for t in layout.transposes for d in (*t.made_by, *t.read_by) if d.remedy})
    if remedies:
        sections.append(Section("what would remove them", "\n".join(remedies)))
    return tuple(sections)


def _nearest(demands: Sequence[Demand]) -> str:
    return str(demands[0]) if demands else "nobody"


def _axes(order: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, order))})"
