"""Turns results into text, HTML or JSON; no other code of tosaic does so.

A `Report` is a document as data: facts, then sections. Folded sections have details that are hidden at first.
Each function ``describe_...`` makes a report from a result. Importing the package loads none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tosaic.report.annotation import describe_annotation
    from tosaic.report.bars import Bar, bar_chart
    from tosaic.report.check import describe_check
    from tosaic.report.comparison import describe_comparison, describe_diff
    from tosaic.report.document import Report
    from tosaic.report.explanation import describe_quantization
    from tosaic.report.operators import describe_ops
    from tosaic.report.parts import Section, Table
    from tosaic.report.pipeline import describe_pipeline
    from tosaic.report.program import describe_graph, describe_io, describe_lowered, describe_program
    from tosaic.report.registry import describe

_HOME = {
    "Bar": "tosaic.report.bars",
    "Report": "tosaic.report.document",
    "Section": "tosaic.report.parts",
    "Table": "tosaic.report.parts",
    "bar_chart": "tosaic.report.bars",
    "describe": "tosaic.report.registry",
    "describe_annotation": "tosaic.report.annotation",
    "describe_check": "tosaic.report.check",
    "describe_comparison": "tosaic.report.comparison",
    "describe_diff": "tosaic.report.comparison",
    "describe_graph": "tosaic.report.program",
    "describe_io": "tosaic.report.program",
    "describe_lowered": "tosaic.report.program",
    "describe_ops": "tosaic.report.operators",
    "describe_pipeline": "tosaic.report.pipeline",
    "describe_program": "tosaic.report.program",
    "describe_quantization": "tosaic.report.explanation",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tosaic.report' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found
