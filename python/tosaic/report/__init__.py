"""The only place where results become text, HTML or JSON.

A `Report` is a document as data: facts, then sections, of which the folded ones are for those who look
closer. Each ``describe_...`` builds one from a result.
"""

from __future__ import annotations

from tosaic.report.describe import (
    describe_check,
    describe_comparison,
    describe_diff,
    describe_graph,
    describe_io,
    describe_lowered,
    describe_ops,
    describe_pipeline,
    describe_program,
)
from tosaic.report.document import Report, Section, Table

__all__ = [
    "Report",
    "Section",
    "Table",
    "describe_check",
    "describe_comparison",
    "describe_diff",
    "describe_graph",
    "describe_io",
    "describe_lowered",
    "describe_ops",
    "describe_pipeline",
    "describe_program",
]
