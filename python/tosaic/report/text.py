"""Writes reports as plain text, and tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tosaic.report.document import Report, Table

__all__ = ["numeric_columns", "render", "render_markdown_table", "render_table"]

_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?( ?(%|B|KiB|MiB|GiB|s|ms|dB))?|inf|-inf|nan|equal|-|")


def render(report: Report, *, folded: bool = False) -> str:
    """Returns the title, facts and sections as text; folded sections only if `folded`."""
    verdict = "" if report.ok is None else "ok: " if report.ok else "FAILED: "
    lines = [f"{verdict}{report.title}"]
    width = max((len(name) for name, _ in report.facts), default=0)
    lines += [f"  {name:<{width}}  {value}" for name, value in report.facts]
    for section in report.sections:
        if section.folded and not folded:
            continue
        lines += ["", section.title] if section.title else [""]
        body = render_table(section.body) if isinstance(section.body, Table) else section.body
        lines += [f"  {line}".rstrip() for line in body.splitlines()]
    return "\n".join(lines)


def render_table(table: Table) -> str:
    """Returns the table as lines of text.

    Columns are as wide as their widest cell, marked rows begin with ``>``.
    """
    if not table.rows:
        return "(none)"
    numeric = numeric_columns(table)
    rows = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    lines = []
    for number, row in enumerate(rows, -1):
        cells = [
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)
        ]
        mark = "" if not table.marked else "> " if number in table.marked else "  "
        lines.append((mark + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def render_markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns the table as Markdown. Cells are Markdown already; only ``|`` is escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(columns), line(["---"] * len(columns)), *map(line, rows)])


def numeric_columns(table: Table) -> list[bool]:
    """Returns, for each column, True if all its cells are numbers (with units), ``equal``, ``-`` or empty."""
    return [all(_NUMBER.fullmatch(row[i]) for row in table.rows) for i in range(len(table.columns))]
