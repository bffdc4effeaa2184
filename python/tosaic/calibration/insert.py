"""Writes the qparams of a plan into a graph, and brings the graph to stage ``quantized``."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tosaic import _core
from tosaic.annotation.specs import Edge, Output, Slot
from tosaic.calibration.plan_program import PlannedProgram
from tosaic.pipeline import Pipeline
from tosaic.quantization import QParams

__all__ = ["quantized_graph", "with_quantization"]

_LOG = logging.getLogger(__name__)
_LAST_PASS = "fold-qdq"


def with_quantization(planned: PlannedProgram, chosen: Mapping[Slot, QParams]) -> _core.Graph:
    """Returns the graph with quantize and dequantize nodes where the slots of the plan have qparams.

    Biases and weights with elements beyond their integers saturate, and a warning is logged.
    """
    placements: list[tuple[int, QParams, list[int] | None, bool]] = []
    for slot, qparams in chosen.items():
        value = planned.value_of(slot)
        if value < 0:
            continue
        if isinstance(slot, Output):
            placements.append((value, qparams, None, True))
        else:
            placements.append((value, qparams, *_readers(planned, slot, value)))
    graph, saturated = _core.insert_quantization(planned.graph, placements)
    for constant, beyond, nans in saturated:
        what = f"{beyond} elements beyond its integers" if beyond else f"{nans} NaN"
        _LOG.warning("constant '%s' has %s: they saturate", constant, what)
    return graph


def _readers(planned: PlannedProgram, slot: Edge, value: int) -> tuple[list[int], bool]:
    at = planned.call(slot.user)
    found = planned.graph.values[value].name
    nodes = planned.graph.nodes
    readers = [
        node
        for node in planned.nodes[at]
        if any(each is not None and each.name == found for each in nodes[node].operands)
    ]
    return readers, planned.plan.graph[slot.user].kind == "output"


def quantized_graph(graph: _core.Graph) -> _core.Graph:
    """Returns a graph with quantize and dequantize nodes at stage ``quantized``, as lowering makes it."""
    passes = Pipeline.default("TOSA-1.0+INT")
    for step in passes:
        graph = passes[step.id].run(graph)
        if step.name == _LAST_PASS:
            break
    return graph
