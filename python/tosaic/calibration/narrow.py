"""Operands of joins that use few of the integers of the result.

A concatenation has one scale. Boxes in pixels beside scores in 0..1 leave the scores one or two integers,
whatever scales the operands have on their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.annotation.resolution import NarrowOperand
from tosaic.annotation.specs import Output, Slot
from tosaic.calibration.plan_program import PlannedProgram
from tosaic.dtypes import is_float
from tosaic.quantization import QParams

if TYPE_CHECKING:
    from tosaic.program import Program
    from tosaic.samples import Sample

__all__ = ["joined_values", "narrow_by_ranges", "narrow_by_runs"]

_JOINS = ("cat", "stack")
_FEW = 16


def joined_values(graph: _core.Graph) -> dict[str, list[str]]:
    """Returns, by node that joins several tensors, the names of those that are no constants."""
    found = {}
    for node in graph.nodes:
        names = [each.name for each in node.operands if each is not None and each.kind != "constant"]
        is_float_join = node.op in _JOINS and is_float(node.results[0].dtype)
        if is_float_join and len(node.operands) > 1 and names:
            found[node.name] = list(dict.fromkeys(names))
    return found


def narrow_by_ranges(
    planned: PlannedProgram, chosen: Mapping[Slot, QParams], ranges: Mapping[str, Any]
) -> tuple[NarrowOperand, ...]:
    """Returns the operands that use few integers over all samples.

    Parameters
    ----------
    planned : PlannedProgram
    chosen : mapping of Slot to QParams
    ranges : mapping of str to ObservedRange
        Those of operands of joins, by name of the value.
    """
    graph, names = planned.graph, planned.plan.graph.names
    found: list[NarrowOperand] = []
    for node in graph.nodes:
        slot = Output(names[planned.call_of_node[node.id]]) if node.op in _JOINS else None
        if slot is None or slot not in chosen:
            continue
        found += _narrow(node, chosen[slot], {name: _bounds(each) for name, each in ranges.items()})
    return tuple(found)


def narrow_by_runs(program: Program, samples: Sequence[Sample]) -> tuple[NarrowOperand, ...]:
    """Returns the operands of a quantized program that use few integers in runs of samples.

    Parameters
    ----------
    program : Program
        At stage ``quantized``, or one that `quantized_graph` brings there.
    samples : sequence of Sample
    """
    from tosaic.calibration.insert import quantized_graph

    graph = program.graph if program.graph.stage == "quantized" else quantized_graph(program.graph)
    joins = [node for node in graph.nodes if node.op in _JOINS and node.results[0].qparams is not None]
    read = {each.name for node in joins for each in node.operands if each is not None}
    wanted = {name for name in read if graph.value(name).qparams is not None}
    if not wanted:
        return ()
    session = program._prepared(graph)
    producers = {graph.value(name).producer for name in wanted}
    nodes = [node.name for node in producers if node is not None]
    bounds: dict[str, tuple[float, float]] = {}
    for sample in samples:
        session.reset_state()
        arrays = program.graph_arrays(program.arrays(*sample.args, **sample.kwargs))
        for name, array in session.trace(arrays, nodes=nodes)["values"].items():
            qparams = graph.value(name).qparams
            if name in wanted and qparams is not None and array.size:
                _widen(bounds, name, qparams.dequantize(np.asarray(array)))
    found: list[NarrowOperand] = []
    for node in joins:
        found += _narrow(node, node.results[0].qparams, bounds)
    return tuple(found)


def _widen(bounds: dict[str, tuple[float, float]], name: str, numbers: np.ndarray[Any, Any]) -> None:
    least, greatest = bounds.get(name, (np.inf, -np.inf))
    bounds[name] = min(least, float(numbers.min())), max(greatest, float(numbers.max()))


def _bounds(found: Any) -> tuple[float, float]:
    return (found.least, found.greatest) if found.finite else (0.0, 0.0)


def _narrow(
    node: _core.Node, result: Any, bounds: Mapping[str, tuple[float, float]]
) -> Iterator[NarrowOperand]:
    if result.axis is not None:
        return
    scale, zero_point = result.scales[0], result.zero_points[0]
    for name in dict.fromkeys(each.name for each in node.operands if each is not None):
        least, greatest = bounds.get(name, (0.0, 0.0))
        first, last = (
            int(np.clip(np.rint(each / scale) + zero_point, result.qmin, result.qmax))
            for each in (least, greatest)
        )
        if greatest > least and last - first + 1 < _FEW:
            origin = node.origin
            yield NarrowOperand(
                node=node.name,
                operand=name,
                integers=last - first + 1,
                of=result.qmax - result.qmin + 1,
                least=least,
                greatest=greatest,
                module_path=origin.module_path if origin else "",
                source=origin.source if origin else "",
            )
