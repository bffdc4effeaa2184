"""Writes reports as plain text, and tables as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from tosaic.report.parts import Picture, Table

if TYPE_CHECKING:
    from tosaic.report.document import Report

WIDTH = 78  # 80 columns of a terminal, less the indentation of a section
GAP = "  "
_LEAST_WORDS = 16  # the least width of a column of words, in characters
_NUMBER = re.compile(r"[-+>]?[\d.,]+(e[-+]?\d+)?( ?(%|B|KiB|MiB|GiB|s|ms|dB|k|M|G))?|inf|-inf|nan|equal|-|")


def render(report: Report, *, folded: bool = False) -> str:
    """Returns the title, facts and sections as text; folded sections only if `folded`."""
    verdict = "" if report.ok is None else "ok: " if report.ok else "FAILED: "
    lines = [f"{verdict}{report.title}"]
    width = max((len(name) for name, _ in report.facts), default=0)
    for name, value in report.facts:
        parts = _wrapped(value, WIDTH - width - len(GAP))
        lines += [
            f"  {head:<{width}}  {part}".rstrip() for head, part in zip_longest([name], parts, fillvalue="")
        ]
    for section in report.sections:
        if (section.folded and not folded) or isinstance(section.body, Picture):
            continue
        lines += ["", section.title] if section.title else [""]
        # Folded sections are for looking up details: their cells are never wrapped.
        room = None if section.folded else WIDTH
        body = render_table(section.body, room) if isinstance(section.body, Table) else section.body
        lines += [f"  {line}".rstrip() for line in body.splitlines()]
    return "\n".join(lines)


def render_table(table: Table, room: int | None = None) -> str:
    """Returns the table as lines of text.

    Columns are as wide as their widest cell, and marked rows begin with ``>``. With `room`, columns without
    any text are left out, and if the lines would be longer than `room`, columns of words wrap. Names and
    numbers do not wrap. A table that has too many columns for this has longer lines.
    """
    if not table.rows:
        return "(none)"
    kept = [i for i in range(len(table.columns)) if room is None or any(row[i] for row in table.rows)]
    numeric = [right for i, right in enumerate(numeric_columns(table)) if i in kept]
    rows = [[row[i] for i in kept] for row in (table.columns, *table.rows)]
    widths = _column_widths(rows, None if room is None else room - (2 if table.marked else 0))
    lines = []
    for number, row in enumerate(rows, -1):
        wrapped = [_wrapped(c, w) for c, w in zip(row, widths, strict=True)]
        mark = "" if not table.marked else "> " if number in table.marked else "  "
        for line in zip_longest(*wrapped, fillvalue=""):
            cells = [
                c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, numeric, strict=True)
            ]
            lines.append((mark + GAP.join(cells)).rstrip())
            mark = " " * len(mark)
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    """Returns the text in lines; words stay whole."""
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False) or [text]


def _column_widths(rows: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """Returns the width of each column; columns of words are narrower if the table has not enough room."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, cells)) for cells in columns]
    if room is None:
        return widths
    # No column becomes narrower than its longest word, or than a readable width.
    least = [
        min(width, max(_LEAST_WORDS, *(len(word) for cell in cells for word in cell.split())))
        for cells, width in zip(columns, widths, strict=True)
    ]
    room -= len(GAP) * (len(widths) - 1)
    if sum(least) > room:
        return widths
    narrow = list(widths)
    while sum(narrow) > room:
        shrinkable = [i for i in range(len(narrow)) if narrow[i] > least[i]]
        narrow[max(shrinkable, key=narrow.__getitem__)] -= 1
    return narrow


def render_markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns the table as Markdown. Cells are Markdown already; only ``|`` is escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(columns), line(["---"] * len(columns)), *map(line, rows)])


def numeric_columns(table: Table) -> list[bool]:
    """Returns, for each column, True if all its cells are numbers (with units), ``equal``, ``-`` or empty."""
    return [all(_NUMBER.fullmatch(row[i]) for row in table.rows) for i in range(len(table.columns))]
