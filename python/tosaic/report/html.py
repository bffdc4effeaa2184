"""Writes reports as self-contained HTML: no script, font, style sheet or picture is loaded."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tosaic.report.parts import Picture, Section, Table
from tosaic.report.text import numeric_columns

if TYPE_CHECKING:
    from tosaic.report.document import Report

_STYLE = """
.tosaic{font:14px/1.45 system-ui,sans-serif;color:#1c1e21;max-width:72rem}
.tosaic svg{max-width:100%;min-width:27rem;height:auto}
.tosaic td.t{white-space:normal;min-width:16rem}
.tosaic h1{font-size:1.25rem;margin:.2rem 0 .6rem}
.tosaic h2,.tosaic summary{font-size:1rem;font-weight:600;margin:1rem 0 .3rem;cursor:default}
.tosaic summary{cursor:pointer}
.tosaic dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:0}
.tosaic dt{color:#5b6169}.tosaic dd{margin:0;font-variant-numeric:tabular-nums}
.tosaic table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.tosaic .wide{overflow-x:auto}
.tosaic th,.tosaic td{padding:.15rem .7rem;text-align:left;border-bottom:1px solid #dfe2e6;white-space:nowrap}
.tosaic th{font-weight:600;color:#5b6169}.tosaic .n{text-align:right}
.tosaic tr.mark td{background:#fff1d6;color:#1c1e21}
.tosaic pre{overflow-x:auto;padding:.6rem;background:#8881;border-radius:4px;font-size:12px}
.tosaic .ok{color:#1a7f37}.tosaic .bad{color:#c1261b}
@media (prefers-color-scheme:dark){.tosaic-page{background:#16181b}.tosaic-page .tosaic{color:#e4e6e9}
.tosaic-page .tosaic th,.tosaic-page .tosaic dt{color:#9aa1a9}
.tosaic-page .tosaic th,.tosaic-page .tosaic td{border-color:#353a40}
.tosaic-page .tosaic .ok{color:#3fb950}.tosaic-page .tosaic .bad{color:#ff7b72}
.tosaic-page svg .back{fill:#16181b}.tosaic-page svg .grid{stroke:#353a40}
.tosaic-page svg text:not([fill]):not(.on){fill:#e4e6e9}}
"""

_LONGEST = 40
_LONG = ' class="t"'
"""The class of cells with more than `_LONGEST` characters, which wrap."""


def page(report: Report) -> str:
    """Returns the report as a whole HTML document."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(report.title)}</title><style>body{{margin:1.5rem}}</style></head>"
        f'<body class="tosaic-page">{fragment(report)}</body></html>'
    )


def fragment(report: Report) -> str:
    """Returns the report as a ``<div>`` with its style, for notebooks."""
    verdict = ""
    if report.ok is not None:
        verdict = f'<span class="{"ok" if report.ok else "bad"}">{"ok" if report.ok else "failed"}</span> '
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in report.facts)
    return (
        f'<div class="tosaic"><style>{_STYLE}</style><h1>{verdict}{escape(report.title)}</h1>'
        f"<dl>{facts}</dl>{''.join(map(_section, report.sections))}</div>"
    )


def _section(section: Section) -> str:
    title = escape(section.title)
    if isinstance(section.body, Table):
        body = f'<div class="wide">{_table(section.body)}</div>'
    elif isinstance(section.body, Picture):
        body = f'<div class="wide">{section.body.svg}</div>'
    else:
        body = f"<pre>{escape(section.body)}</pre>"
    if section.folded:
        return f"<details><summary>{title}</summary>{body}</details>"
    return f"<h2>{title}</h2>{body}" if title else body


def _table(table: Table) -> str:
    if not table.rows:
        return "<p>(none)</p>"
    classes = [' class="n"' if numeric else "" for numeric in numeric_columns(table)]
    head = "".join(f"<th{c}>{escape(name)}</th>" for name, c in zip(table.columns, classes, strict=True))
    rows = []
    for number, row in enumerate(table.rows):
        mark = ' class="mark"' if number in table.marked else ""
        cells = "".join(
            f"<td{_LONG if len(cell) > _LONGEST else c}>{escape(cell)}</td>"
            for cell, c in zip(row, classes, strict=True)
        )
        rows.append(f"<tr{mark}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
