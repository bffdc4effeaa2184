"""Turns results into text, HTML or JSON; no other code of tosaic does so.

A `Report` is a document as data: facts, then sections. Folded sections have details that are hidden at first.
Each function ``describe_...`` makes a report from a result.
"""

from __future__ import annotations

from tosaic.report.annotation import describe_annotation
from tosaic.report.bars import Bar, bar_chart
from tosaic.report.describe import (
    describe,
    describe_check,
    describe_comparison,
    describe_diff,
    describe_graph,
    describe_io,
    describe_lowered,
    describe_ops,
    describe_pipeline,
    describe_program,
    describe_quantization,
)
from tosaic.report.document import Report, Section, Table

__all__ = [
    "Bar",
    "Report",
    "Section",
    "Table",
    "bar_chart",
    "describe",
    "describe_annotation",
    "describe_check",
    "describe_comparison",
    "describe_diff",
    "describe_graph",
    "describe_io",
    "describe_lowered",
    "describe_ops",
    "describe_pipeline",
    "describe_program",
    "describe_quantization",
]
