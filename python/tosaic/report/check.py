"""The report of a check: all reasons why a program does not fit a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic.report.document import Report
from tosaic.report.numbers import count
from tosaic.report.parts import Section, table

if TYPE_CHECKING:
    from tosaic.base.problems import CheckResult


def describe_check(result: CheckResult) -> Report:
    """Makes a report of all reasons why a program does not fit a target."""
    title = f"{count(result.nodes, 'node')} against {result.target}"
    if not result.ok:
        title = f"{count(len(result.problems), 'problem')} between the program and {result.target}"
    rows = [
        (p.node, p.what, p.expected, p.got, " ".join(filter(None, (p.module_path, p.source))))
        for p in result.problems
    ]
    hints = sorted({problem.hint for problem in result.problems if problem.hint})
    sections = []
    if rows:
        sections.append(Section("", table(("node", "problem", "expected", "found", "from"), rows)))
    if hints:
        sections.append(Section("hints", "\n".join(f"{hint}." for hint in hints)))
    if result.notes:
        sections.append(Section("notes", "\n".join(f"{note}." for note in result.notes)))
    data = {
        "ok": result.ok,
        "target": result.target,
        "nodes": result.nodes,
        "notes": list(result.notes),
        "problems": list(result.problems),
    }
    return Report(title, result.ok, sections=tuple(sections), data=data)
