"""Which programs of a comparison are quantized, and which graph has the qparams of their values."""

from __future__ import annotations

from tosaic import _core
from tosaic.lowering.lowered import Lowered
from tosaic.program.overrides import all_nodes
from tosaic.program.program import Program

_QUANTIZATION = frozenset({"quantize", "dequantize"})


def is_quantized(program: Program | Lowered, source: Program) -> bool:
    """Tells whether a program, or the program that it was lowered from, computes with quantized values.

    A graph at stage ``tosa`` without a source is quantized if it has a rescale with another factor than 1.
    """
    graph = source.graph
    if graph.stage == "tosa" and program is source:
        return any(node.op == "tosa.rescale" and _scales(node) for node in all_nodes(graph))
    return any(node.op in _QUANTIZATION for node in all_nodes(graph)) or any(
        value.qparams is not None for value in graph.values
    )


def canonical_graph(program: Program | Lowered) -> _core.Graph | None:
    """Returns the graph at stage ``integer`` that a lowered program was legalized from, or None."""
    graph = program.stages.get("canonical") if isinstance(program, Lowered) else None
    return graph if graph is not None and graph.stage == "integer" else None


def _scales(rescale: _core.Node) -> bool:
    multiplier, shift = rescale.attrs["multiplier"], rescale.attrs["shift"]
    return any(m != 1 << s for m, s in zip(multiplier, shift, strict=True))


def quantizers_of_one(a: _core.Graph, b: _core.Graph) -> set[str]:
    """Returns the FX nodes of `a` that only quantize or dequantize, and of which `b` has no node.

    Their result is then compared under the name of the value that they quantize: the quantized result of
    ``conv2d`` as ``conv2d``, not as ``quantize_per_tensor``. `tosaic.quantize` records such nodes next to the
    FX nodes that compute their operands. The latter are not returned, even if `b` merged them into others.
    """
    found: set[str] = set()
    computing: set[str] = set()
    for node in a.nodes:
        names = {origin.fx_name for origin in node.origins}
        if node.op in _QUANTIZATION:
            found |= names
        elif len(names) == 1:
            computing |= names
    return found - computing - {origin.fx_name for node in b.nodes for origin in node.origins}
