"""The report of a pipeline: its passes in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic.report.document import Report
from tosaic.report.parts import Section, table

if TYPE_CHECKING:
    from tosaic.lowering.pipeline import Pipeline


def describe_pipeline(pipeline: Pipeline) -> Report:
    """Makes a report of the passes of a pipeline, in order."""
    steps = list(pipeline)
    rows = [
        (step.section, step.name, ", ".join(step.pass_.takes), step.pass_.makes or "", step.pass_.summary)
        for step in steps
    ]
    data = [
        {
            "section": step.section,
            "name": step.name,
            "takes": list(step.pass_.takes),
            "makes": step.pass_.makes,
            "needs": list(step.pass_.needs),
            "serves_as": list(step.pass_.serves_as),
            "summary": step.pass_.summary,
        }
        for step in steps
    ]
    section = Section("", table(("section", "pass", "takes", "makes", "what it does"), rows))
    return Report(
        f"{len(rows)} passes for {pipeline.target}",
        sections=(section,),
        data={"target": pipeline.target, "passes": data},
    )
