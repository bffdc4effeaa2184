"""Writes the qparams of a plan into a graph, and brings the graph to stage ``quantized``."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping

from tosaic import _core
from tosaic.annotation.observers import LeastError
from tosaic.annotation.specs import Edge, Observed, Output, Slot
from tosaic.base.quantization import QParams
from tosaic.base.visible import one_line
from tosaic.calibration.plan_program import PlannedProgram
from tosaic.lowering.pipeline import Pipeline

_LOG = logging.getLogger(__name__)
_TARGET, _LAST_PASS = "TOSA-1.0+INT", "fold-qdq"


def with_quantization(
    planned: PlannedProgram,
    chosen: Mapping[Slot, QParams],
    elements: Mapping[Edge, _core.Constant] | None = None,
    infinite: Mapping[Slot, float] | None = None,
    ended: Collection[int] = (),
) -> _core.Graph:
    """Returns the graph with quantize and dequantize nodes where the slots of the plan have qparams.

    Parameters
    ----------
    planned : PlannedProgram
    chosen : mapping of Slot to QParams
    elements : mapping of Edge to Constant, optional
        Weights that accuracy tools have changed, by the edge on which a call reads them. Weights of slots
        without qparams stay floats.
    infinite : mapping of Slot to float, optional
        For masks: a number at and below which dequantized numbers become minus infinity again.
    ended : collection of int
        Positions of sharing groups whose range was limited to the numbers that readers distinguish.

    Notes
    -----
    Elements of biases and weights that are beyond their integers saturate. This causes a warning, unless the
    range is that of `LeastError` or the group is in `ended`: these ranges clip by
    design.
    """
    placements: list[
        tuple[int, QParams | None, list[int] | None, bool, _core.Constant | None, float | None]
    ] = []
    given, bounds = elements or {}, infinite or {}
    for slot in (*chosen, *(each for each in given if each not in chosen)):
        value = planned.value_of(slot)
        if value < 0:
            continue
        if isinstance(slot, Output):
            placements.append((value, chosen[slot], None, True, None, bounds.get(slot)))
        else:
            readers, is_output = _readers(planned, slot, value)
            own = given.get(slot)
            placements.append((value, chosen.get(slot), readers, is_output, own, bounds.get(slot)))
    graph, saturated = _core.insert_quantization(planned.graph, placements)
    clipped = set(_clipped_by_design(planned, ended))
    for constant, beyond, nans in saturated:
        if nans or constant not in clipped:
            kind = "beyond its integers" if beyond else "that are NaN"
            what = f"{beyond or nans} element{'s' if (beyond or nans) != 1 else ''} {kind}"
            _LOG.warning("constant '%s' has %s, which saturate", one_line(constant), what)
    return graph


def _clipped_by_design(planned: PlannedProgram, ended: Collection[int]) -> Iterator[str]:
    for at, group in enumerate(planned.groups):
        is_least_error = isinstance(group.spec, Observed) and isinstance(group.spec.observer, LeastError)
        if is_least_error or at in ended:
            for slot in group.slots:
                value = planned.value_of(slot)
                if value >= 0 and planned.graph.values[value].kind == "constant":
                    yield planned.graph.values[value].name


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
    passes = Pipeline.default(_TARGET)
    for step in passes:
        graph = passes[step.id].run(graph, target=_TARGET)
        if step.name == _LAST_PASS:
            break
    return graph
