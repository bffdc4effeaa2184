"""Annotation plans: what a quantizer says about a graph, as data, and rules that change it. Without torch."""

from __future__ import annotations

from tosaic.annotation.call_graph import Call, CallGraph, GraphPort, Operand
from tosaic.annotation.plan import Change, Conflict, Group, Plan, RuleRecord
from tosaic.annotation.resolution import FloatTensor, Requantized, Resolution, ResolvedSlot, resolve
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
    Unset,
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
    "FloatTensor",
    "Requantized",
    "Resolution",
    "ResolvedSlot",
    "resolve",
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
    "Unset",
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
