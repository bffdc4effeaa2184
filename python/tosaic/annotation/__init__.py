"""Annotation plans: what a quantizer says about a graph, as data, and rules that change it. Without torch."""

from __future__ import annotations

from tosaic.annotation.call_graph import Call, CallGraph, GraphPort, Operand
from tosaic.annotation.plan import Change, Conflict, Group, Plan, RuleRecord
from tosaic.annotation.rules import (
    Clear,
    Custom,
    ExcludeFeeding,
    Fix,
    Inputs,
    Operator,
    Outputs,
    Rule,
    Set,
    Share,
)
from tosaic.annotation.select import Select
from tosaic.annotation.specs import (
    FLOAT,
    Derived,
    Edge,
    Fixed,
    Float,
    Foreign,
    Observed,
    Output,
    Shared,
    Slot,
    Spec,
    q_format,
)

__all__ = [
    "Call",
    "CallGraph",
    "GraphPort",
    "Operand",
    "Change",
    "Conflict",
    "Group",
    "Plan",
    "RuleRecord",
    "Clear",
    "Custom",
    "ExcludeFeeding",
    "Fix",
    "Inputs",
    "Operator",
    "Outputs",
    "Rule",
    "Select",
    "Set",
    "Share",
    "FLOAT",
    "Derived",
    "Edge",
    "Fixed",
    "Float",
    "Foreign",
    "Observed",
    "Output",
    "Shared",
    "Slot",
    "Spec",
    "q_format",
]
