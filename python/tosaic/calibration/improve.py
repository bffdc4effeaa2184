"""Applies the accuracy tools to a draft, one after the other, and measures what each gains.

graph --equalize, smooth--> graph with other weights; the samples run again
draft --gptq--> rounded weights                 --bias_correction--> graph with other biases
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.annotation.specs import Edge
from tosaic.base.quantization import QParams
from tosaic.calibration.accuracy import BiasCorrection, Equalize, Gain, Gptq, SmoothQuant, Tool
from tosaic.calibration.draft import Draft, Drafting
from tosaic.lowering.rewriter import Rewriter

_LOG = logging.getLogger(__name__)
_CORRECTED = ("conv", "linear")
_WIDE = 2**15 - 1


def improved(drafting: Drafting, graph: _core.Graph, tools: Sequence[Tool]) -> tuple[Draft, list[Gain]]:
    """Returns the draft of a graph after all tools, and the gain of each."""
    draft = drafting.draft(graph)
    gains: list[Gain] = []
    before = drafting.sqnr_db(draft, graph) if tools else 0.0
    for tool in tools:
        apply: Callable[..., tuple[Draft, int]] = _APPLY[type(tool)]
        draft, changed = apply(drafting, draft, tool)
        after = drafting.sqnr_db(draft, graph)
        gains.append(Gain(tool, before, after, changed))
        _LOG.info("%s: %.2f dB -> %.2f dB (%d changed)", tool.name, before, after, changed)
        before = after
    return draft, gains


# ---- tools that change the graph of floats ----


def _equalize(drafting: Drafting, draft: Draft, _: Equalize) -> tuple[Draft, int]:
    graph, pairs = _core.equalize(draft.planned.graph)
    return (drafting.draft(graph), len(pairs)) if pairs else (draft, 0)


def _smooth(drafting: Drafting, draft: Draft, tool: SmoothQuant) -> tuple[Draft, int]:
    graph = draft.planned.graph
    inputs: dict[str, tuple[Any, ...]] = {}
    for name in _core.contractions(graph):
        node = _node(graph, name)
        contraction = _core.Contraction(graph, name)
        value = node.operands[contraction.input]
        assert value is not None
        axis = _input_axis(node, contraction, len(value.shape))
        inputs.setdefault(value.name, ("channel_abs_max", axis, value.shape[axis]))
    watches = [(name, at) for at, name in enumerate(inputs)]
    found = drafting.observe(graph, watches, list(inputs.values()))
    magnitudes = {name: found[at] for name, at in watches if graph.value(name).kind != "constant"}
    smoothed, rows = _core.smooth(graph, magnitudes, tool.alpha)
    moved = sum(not row["skipped"] for row in rows)
    return (drafting.draft(smoothed), moved) if moved else (draft, 0)


def _input_axis(node: _core.Node, contraction: _core.Contraction, rank: int) -> int:
    """Returns the axis of the channels that a contraction sums over."""
    if node.op == "conv":
        return 1
    return rank - 1 if contraction.input < contraction.weight else rank - 2


# ---- GPTQ ----


def _gptq(drafting: Drafting, draft: Draft, tool: Gptq) -> tuple[Draft, int]:
    graph = draft.planned.graph
    weights = [each for each in map(_Weight(draft).of, _core.contractions(graph)) if each is not None]
    grids = _input_grids(drafting, draft, weights)
    kinds: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for weight, grid in zip(weights, grids, strict=True):
        kinds.setdefault(weight.reads(grid), ("second_moments", weight.node.name, *grid))
    order = list(kinds)
    moments = drafting.observe(graph, [(key[0], at) for at, key in enumerate(order)], list(kinds.values()))
    elements, qparams = dict(draft.elements), dict(draft.qparams)
    for weight, grid in zip(weights, grids, strict=True):
        found = _core.gptq(
            weight.contraction,
            moments[order.index(weight.reads(grid))],
            weight.array,
            weight.qparams,
            damping=tool.damping,
            activation_order=tool.activation_order,
            fit_groups=tool.fit_groups and weight.qparams.groups is not None,
        )
        elements[weight.slot] = _constant(weight.constant, found["weights"])
        qparams[weight.slot] = found["qparams"]
    return replace(draft, qparams=qparams, elements=elements), len(weights)


class _Weight:
    """The quantized weights of a draft, by contraction."""

    node: _core.Node
    contraction: _core.Contraction
    slot: Edge
    qparams: QParams
    constant: _core.Constant
    value: _core.Value

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def of(self, name: str) -> _Weight | None:
        """Returns the weight of a contraction; None if it is computed or has no qparams."""
        draft = self._draft
        planned = draft.planned
        found = _Weight(draft)
        found.node = _node(planned.graph, name)
        found.contraction = _core.Contraction(planned.graph, name)
        weight = found.node.operands[found.contraction.weight]
        value = found.node.operands[found.contraction.input]
        assert weight is not None
        assert value is not None
        call = planned.plan.graph.names[planned.call_of_node[found.node.id]]
        found.slot = Edge(_name_of(planned, weight), call)
        qparams = draft.qparams.get(found.slot)
        if qparams is None or weight.constant is None:
            return None
        found.qparams, found.constant, found.value = qparams, weight.constant, value
        return found

    @property
    def array(self) -> Any:
        """The float32 elements of the weight as the draft has them."""
        changed = self._draft.elements.get(self.slot)
        return np.asarray((self.constant if changed is None else changed).array, np.float32)

    def reads(self, grid: tuple[float, int, int, int]) -> tuple[Any, ...]:
        """Returns a key of the input's second moments: contractions with equal keys share them."""
        attrs = str(self.node.attrs) if self.node.op == "conv" else ""
        shape = (self.contraction.groups, self.contraction.columns)
        kernel = tuple(self.constant.shape[2:]) if self.node.op == "conv" else ()
        return (self.value.name, self.node.op == "conv", shape, kernel, attrs, grid)


def _input_grids(
    drafting: Drafting, draft: Draft, weights: Sequence[_Weight]
) -> list[tuple[float, int, int, int]]:
    """Returns the integer grids of the contractions' inputs: of the quantized input, else 16 bits."""
    quantized = draft.graph()
    grids: dict[str, tuple[float, int, int, int]] = {}
    unknown: list[str] = []
    for weight in weights:
        found = _grid_of(_node(quantized, weight.node.name).operands[weight.contraction.input])
        if found is not None:
            grids[weight.node.name] = found
        elif weight.value.name not in unknown:
            unknown.append(weight.value.name)
    if unknown:
        watches = [(name, at) for at, name in enumerate(unknown)]
        ranges = drafting.observe(draft.planned.graph, watches, [("range",)] * len(unknown))
        wide = {name: (_wide_scale(ranges[at]), 0, -_WIDE, _WIDE) for name, at in watches}
        grids |= {w.node.name: wide[w.value.name] for w in weights if w.node.name not in grids}
    return [grids[weight.node.name] for weight in weights]


def _grid_of(value: _core.Value | None) -> tuple[float, int, int, int] | None:
    """Returns the grid of the numbers that a contraction reads; None if unknown. Moves are followed."""
    while value is not None and value.producer is not None:
        node = value.producer
        if node.op == "dequantize":
            qparams = QParams.of({**node.attrs, "storage": node.operands[0].dtype})  # type: ignore[union-attr]
            if qparams.axis is not None or qparams.qmax - qparams.qmin > 2 * _WIDE:
                return None
            return qparams.scale, qparams.zero_point, qparams.qmin, qparams.qmax
        if node.op not in ("reshape", "permute", "clone", "slice", "expand"):
            return None
        value = node.operands[0]
    return None


def _wide_scale(found: Any) -> float:
    most = max(-found.least, found.greatest) if found.finite else 0.0
    return float(most) / _WIDE if most > 0 else 1.0


# ---- bias correction ----


def _correct_biases(drafting: Drafting, draft: Draft, _: BiasCorrection) -> tuple[Draft, int]:
    errors = _ErrorGraph(draft)
    if not errors.names:
        return draft, 0
    watches = [(error, at) for at, error in enumerate(errors.names.values())]
    ranges = drafting.observe(errors.graph, watches, [("range",)] * len(watches))
    kinds = []
    for error, bounds in zip(errors.names.values(), ranges, strict=True):
        value = errors.graph.value(error)
        axis = errors.axes[error]
        kinds.append(("channel_sums", axis, value.shape[axis], _core.sums_exponent(bounds)))
    sums = drafting.observe(errors.graph, watches, kinds)
    graph = draft.planned.graph
    for name, found in zip(errors.names, sums, strict=True):
        graph = _core.correct_bias(graph, name, found.means())
    return drafting.redrafted(draft, graph), len(errors.names)


class _ErrorGraph:
    """The float graph, extended by values with the error that the quantization of each contraction makes.

    %y = conv(%x, %w)    %y.error = conv(dequantize(quantize(%x)), rounded %w) - %y

    Attributes
    ----------
    graph : Graph
    names : dict of str to str
        By contraction: the name of the value with its error.
    axes : dict of str to int
        By name of such a value: the axis of the channels.
    """

    def __init__(self, draft: Draft) -> None:
        self.names: dict[str, str] = {}
        self.axes: dict[str, int] = {}
        float_graph = draft.planned.graph
        weights = {
            each.node.name: each for each in map(_Weight(draft).of, _core.contractions(float_graph)) if each
        }
        quantized = draft.graph()
        rewriter = Rewriter(float_graph)
        corrected = []
        for node in float_graph.nodes:
            weight = weights.get(node.name)
            if weight is not None and node.op in _CORRECTED:
                self._emit(rewriter, node, weight, quantized)
                corrected.append(node)
            rewriter.copy(node)
        finished = rewriter.finish()
        self.graph = float_graph if finished is None else finished
        known = {node.name for node in float_graph.nodes}
        errors = [each.name for each in self.graph.nodes if each.op == "sub" and each.name not in known]
        for node, error in zip(corrected, errors, strict=True):
            self.names[node.name] = error
            self.axes[error] = 1 if node.op == "conv" else len(node.results[0].shape) - 1

    def _emit(self, rewriter: Rewriter, node: _core.Node, weight: _Weight, quantized: _core.Graph) -> None:
        operands: list[Any] = list(node.operands)
        grid = _grid_of(_node(quantized, node.name).operands[weight.contraction.input])
        data = operands[weight.contraction.input]
        if grid is not None:
            scale, zero_point, qmin, qmax = grid
            bits = "i8" if qmin >= -128 and qmax <= 127 else "u8" if qmin >= 0 and qmax <= 255 else "i16"
            attrs = {"axis": None, "qmin": qmin, "qmax": qmax, "scales": [scale], "zero_points": [zero_point]}
            integers = rewriter.emit(node, "quantize", [data], {"dtype": bits, **attrs})
            operands[weight.contraction.input] = rewriter.emit(
                node, "dequantize", [integers], {"dtype": data.dtype, **attrs}
            )
        rounded = weight.qparams.dequantize(weight.qparams.quantize(weight.array))
        dtype = np.asarray(weight.constant.array).dtype
        operands[weight.contraction.weight] = rewriter.constant(node, np.asarray(rounded, dtype))
        result = rewriter.emit(node, node.op, operands, node.attrs)
        exact = rewriter.emit(node, node.op, list(node.operands), node.attrs)
        rewriter.emit(node, "sub", [result, exact], {"alpha": 1})


# ---- nodes and constants ----


def _node(graph: _core.Graph, name: str) -> _core.Node:
    found = graph.value(name).producer
    assert found is not None
    return found


def _name_of(planned: Any, value: _core.Value) -> str:
    """Returns the name of the call (a get_attr node) that represents a constant."""
    return str(planned.plan.graph.names[planned.values.index(value.id)])


def _constant(like: _core.Constant, array: Any) -> _core.Constant:
    owner = np.ascontiguousarray(array, np.asarray(like.array).dtype)
    return _core.Constant(
        like.name, like.kind, like.dtype, tuple(like.shape), owner.ctypes.data, owner.nbytes, owner
    )


_APPLY: dict[type[Tool], Callable[..., tuple[Draft, int]]] = {
    Equalize: _equalize,
    SmoothQuant: _smooth,
    Gptq: _gptq,
    BiasCorrection: _correct_biases,
}
