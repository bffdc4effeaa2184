"""Checks one random graph: its layout plan against all choices, and its lowered graph against the plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from tosaic import _core

from layouts.brute_force import OBJECTIVES, cost_of, least_costs, number_of_choices
from layouts.graphs import random_graph

__all__ = ["CheckedLayout", "check_layout"]

_MOST_CHOICES = 20_000
_BYTES = 4


@dataclass
class CheckedLayout:
    """The outcome of one graph.

    Attributes
    ----------
    nodes, transposes : int
        The number of nodes, and of transposes in the plan for the objective "bytes".
    choices : int
        The number of choices that were tried; 0 if there are too many, so that none was tried.
    objectives : int
        The number of different plans that the objectives lead to.
    failures : list of str
    """

    nodes: int
    transposes: int = 0
    choices: int = 0
    objectives: int = 1
    failures: list[str] = field(default_factory=list)


def check_layout(seed: int) -> CheckedLayout:
    """Plans the graph of a seed for each objective, compares with all choices, and lowers and runs it."""
    graph = random_graph(seed)
    out = CheckedLayout(len(graph.nodes))
    number = number_of_choices(graph)
    out.choices = number if number <= _MOST_CHOICES else 0
    least = least_costs(graph) if out.choices else {}
    plans = [_core.plan_layout(graph, objective=objective) for objective in OBJECTIVES]
    for objective, plan in zip(OBJECTIVES, plans, strict=True):
        found = cost_of(graph, tuple(plan["ways"]))
        moved = plan["bytes"], len(plan["transposes"])
        if plan["cost"] != plan["bound"]:
            out.failures.append(f"{objective}: the certificate leaves {plan['cost'] - plan['bound']}")
        if found["bytes"] != moved:
            out.failures.append(f"{objective}: its ways move {found['bytes']}, not {moved}")
        if found[objective][0] != sum(row["cost"] for row in plan["transposes"]):
            out.failures.append(f"{objective}: its ways cost {found[objective]}, not what its transposes say")
        if least and found[objective] != least[objective]:
            out.failures.append(f"{objective}: {found[objective]}, and {least[objective]} by another choice")
    out.transposes = len(plans[0]["transposes"])
    out.objectives = len({str(plan["ways"]) for plan in plans})
    _check_lowered(graph, seed, out)
    return out


def _check_lowered(graph: _core.Graph, seed: int, out: CheckedLayout) -> None:
    lowered = _core.lower(graph, pipeline="TOSA-1.0+INT+FP")
    moved = [node.results[0] for node in lowered.tosa.nodes if node.op == "tosa.transpose"]
    planned = _core.plan_layout(lowered.decomposed)["bytes"]
    if sum(_BYTES * prod(value.shape) for value in moved) != planned:
        out.failures.append(f"{len(moved)} transposes in TOSA, which are not the {planned} bytes planned")
    rng = np.random.default_rng(seed)
    arrays = [_laid_out(port, rng.standard_normal(port.shape).astype(np.float32)) for port in graph.inputs]
    expected = _core.Session(graph, reference=True).run(arrays)
    for got, wanted in zip(_core.Session(lowered.tosa).run(arrays), expected, strict=True):
        if not np.allclose(got, wanted, rtol=1e-5, atol=1e-5):
            out.failures.append("other results")


def _laid_out(port: Any, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the array with the strides that the graph input declares."""
    order = port.dim_order
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
