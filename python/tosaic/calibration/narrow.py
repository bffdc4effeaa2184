"""Numbers that use few of the integers of a result.

A concatenation has one scale. If boxes in pixels are joined with scores in 0..1, the scores get one or two
integers, whatever scales the operands have on their own. The same holds for numbers that mask others in a
selection, an extremum or a sum, if a reader distinguishes them from other large numbers::

    masked = torch.where(hidden, -300, x)               x is in -2..2, and has 4 integers
    torch.where(masked < -100, 0, masked).sum(1)        the range ends at -101, and x has 11
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.annotation.crowded import FEW_INTEGERS, crowded_numbers
from tosaic.annotation.resolution import NarrowOperand
from tosaic.annotation.specs import Output, Slot
from tosaic.base.dtypes import is_float
from tosaic.base.quantization import QParams
from tosaic.calibration.plan_program import PlannedProgram

if TYPE_CHECKING:
    from tosaic.program.program import Program
    from tosaic.program.samples import Sample

_JOINS = ("cat", "stack")
_SHARING = (
    "add",
    "index_put",
    "maximum",
    "minimum",
    "nan_to_num",
    "pad",
    "scatter",
    "slice_scatter",
    "sub",
    "where",
)


def joined_values(graph: _core.Graph) -> dict[str, list[str]]:
    """Returns, by node that joins several tensors, the names of the tensors that are not constants."""
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
        The ranges of operands of joins, by name of the value.
    """
    graph, names = planned.graph, planned.plan.graph.names
    found: list[NarrowOperand] = []
    for node in graph.nodes:
        slot = Output(names[planned.call_of_node[node.id]]) if node.op in _JOINS else None
        if slot is None or slot not in chosen:
            continue
        found += _narrow(node, chosen[slot], {name: _bounds(each) for name, each in ranges.items()})
    return tuple(found)


def narrow_by_histograms(
    planned: PlannedProgram,
    chosen: Mapping[Slot, QParams],
    statistics_of: Mapping[int, Sequence[int]],
    statistics: Sequence[Any],
) -> tuple[NarrowOperand, ...]:
    """Returns the results whose largest numbers leave few integers to the others.

    Parameters
    ----------
    planned : PlannedProgram
    chosen : mapping of Slot to QParams
    statistics_of : mapping of int to sequence of int
        By position of the group in the plan: the indices of its statistics.
    statistics : sequence of Histogram or ObservedRange
        Statistics of all samples. Groups without a histogram are left out.
    """
    makers = {result.name: node for node in planned.graph.nodes for result in node.results}
    found = []
    for at, group in enumerate(planned.groups):
        of_group = [statistics[i] for i in statistics_of.get(at, ())]
        if len(of_group) != 1 or not isinstance(of_group[0], _core.Histogram):
            continue
        for slot in group.slots:
            value = planned.value_of(slot) if isinstance(slot, Output) and slot in chosen else -1
            node = makers.get(planned.graph.values[value].name) if value >= 0 else None
            if node is None or node.op not in _SHARING:
                continue
            narrow = _crowded(node, of_group[0], chosen[slot])
            if narrow is not None:
                found.append(narrow)
                break
    return tuple(found)


def _crowded(node: _core.Node, histogram: _core.Histogram, qparams: QParams) -> NarrowOperand | None:
    if qparams.axis is not None:
        return None
    qmin, qmax = qparams.qmin, qparams.qmax
    found = crowded_numbers(histogram, qparams.scales[0], qparams.zero_points[0], qmin, qmax)
    if found is None:
        return None
    data = {
        each.name
        for each in node.operands
        if each is not None and each.kind != "constant" and is_float(each.dtype)
    }
    origin = node.origin
    return NarrowOperand(
        node=node.name,
        operand=data.pop() if len(data) == 1 else "",
        integers=found.integers,
        of=qmax - qmin + 1,
        least=found.least,
        greatest=found.greatest,
        module_path=origin.module_path if origin else "",
        source=origin.source if origin else "",
        beside=found.beside,
    )


def narrow_by_runs(program: Program, samples: Sequence[Sample]) -> tuple[NarrowOperand, ...]:
    """Returns the numbers that use few integers of a quantized program in runs of samples.

    Parameters
    ----------
    program : Program
        At stage ``quantized``, or one that `quantized_graph` brings there. Only in the second case, the
        unrounded numbers of results are known.
    samples : sequence of Sample
    """
    from tosaic.calibration.insert import quantized_graph

    graph = program.graph if program.graph.stage == "quantized" else quantized_graph(program.graph)
    joins = [node for node in graph.nodes if node.op in _JOINS and node.results[0].qparams is not None]
    read = {each.name for node in joins for each in node.operands if each is not None}
    wanted = {name for name in read if graph.value(name).qparams is not None}
    bounds: dict[str, tuple[float, float]] = {}
    for name, array in _traced(program, graph, samples, wanted):
        qparams = graph.value(name).qparams
        if qparams is not None and array.size:
            _widen(bounds, name, qparams.dequantize(np.asarray(array)))
    found: list[NarrowOperand] = []
    for node in joins:
        found += _narrow(node, node.results[0].qparams, bounds)
    candidates = _candidates(program.graph)
    histograms = {name: _core.Histogram() for name in candidates}
    for name, array in _traced(program, program.graph, samples, candidates):
        histograms[name].observe(np.asarray(array, np.float32))
    for name, (node, qparams) in candidates.items():
        narrow = _crowded(node, histograms[name], qparams)
        if narrow is not None:
            found.append(narrow)
    return tuple(found)


def _traced(
    program: Program, graph: _core.Graph, samples: Sequence[Sample], names: Collection[str]
) -> Iterator[tuple[str, Any]]:
    """Yields the values of these names in runs of samples."""
    if not names:
        return
    session = program.overrides.session(graph)
    producers = {graph.value(name).producer for name in names}
    nodes = [node.name for node in producers if node is not None]
    for sample in samples:
        session.reset_state()
        arrays = program.graph_arrays(program.arrays(*sample.args, **sample.kwargs))
        for name, array in session.trace(arrays, nodes=nodes)["values"].items():
            if name in names:
                yield name, array


def _candidates(graph: _core.Graph) -> dict[str, tuple[_core.Node, QParams]]:
    """Returns results whose scale may leave few integers to an operand, with their qparams.

    Other results need no run.
    """
    makers = {result.name: node for node in graph.nodes for result in node.results}
    found = {}
    for each in graph.nodes:
        read = each.operands[0] if each.op == "quantize" else None
        node = makers.get(read.name) if read is not None else None
        if node is None or node.op not in _SHARING or len(each.attrs["scales"]) != 1:
            continue
        qparams = _qparams(each)
        extents = [_extent(operand, makers) for operand in node.operands if operand is not None]
        if any(0 < extent < 2 * FEW_INTEGERS * qparams.scales[0] for extent in extents):
            found[node.results[0].name] = node, qparams
    return found


def _extent(operand: Any, makers: Mapping[str, _core.Node]) -> float:
    """Returns the width of a quantized operand's range of numbers; 0 for other operands."""
    maker = makers.get(operand.name)
    integers = maker.operands[0] if maker is not None and maker.op == "dequantize" else None
    if maker is None or integers is None or integers.kind == "constant":
        return 0.0
    return float(max(maker.attrs["scales"], default=0.0) * (maker.attrs["qmax"] - maker.attrs["qmin"]))


def _qparams(node: _core.Node) -> QParams:
    attrs = node.attrs
    return QParams(
        attrs["dtype"], tuple(attrs["scales"]), tuple(attrs["zero_points"]), attrs["qmin"], attrs["qmax"]
    )


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
        if greatest > least and last - first + 1 < FEW_INTEGERS:
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
