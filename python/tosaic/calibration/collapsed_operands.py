"""Operands that lose all bits next to another operand: `where(hidden, -1e9, x)` with 8 bits for both.

All operands of a join, a selection or a sum become integers with one scale, that of the result. If one
operand has numbers far beyond another's range, one step of the scale is larger than all numbers of the other
operand, which then become the same integer. `tosaic.quantize` limits ranges to the numbers that readers
distinguish. This does not help if a reader distinguishes the large numbers, and other quantizers limit no
ranges. In a lowered program, such an operand has a rescale that maps all its integers to one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.visible import one_line
from tosaic.program.overrides import all_nodes

if TYPE_CHECKING:
    from tosaic.lowering.lowered import Lowered
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.program.program import Program

_SHARE_A_UNIT = frozenset(
    (
        "add",
        "cat",
        "index_put",
        "maximum",
        "minimum",
        "pad",
        "scatter",
        "slice_scatter",
        "stack",
        "sub",
        "where",
    )
)
_LEAST_SCALE = 2.0**-22  # tensors that were 0 in all samples get about half of this scale
_STEPS = {"i8": 255, "u8": 255, "i16": 65535, "u16": 65535, "i32": 2**32 - 1, "i48": 2**48 - 1}


@dataclass(frozen=True)
class CollapsedOperand:
    """An operand whose numbers all become one integer.

    Attributes
    ----------
    node, operand : str
        The node, and the operand that it reads.
    steps : int
        The number of the operand's integers minus one.
    module_path, source : str
        Origin of the node.
    extent, unit : float
        The range of the operand's numbers, and the scale of the result. Both are 0 in a
        lowered program.
    """

    node: str
    operand: str
    steps: int
    module_path: str = ""
    source: str = ""
    extent: float = 0.0
    unit: float = 0.0

    def __str__(self) -> str:
        """A sentence with a remedy."""
        places = [f"module '{self.module_path}'" if self.module_path else "", self.source]
        where = ", ".join(each for each in places if each)
        unit = f": all are within {self.extent:.3g}, and its unit is {self.unit:.3g}" if self.unit else ""
        place = f" ({where})" if where else ""
        lost = f"makes one integer of all {self.steps + 1:,} integers of operand '{self.operand}'{unit}"
        if self.steps > _STEPS["i16"]:
            lost = "has results that all become one integer, in the unit of what reads them"
        return one_line(
            f"'{self.node}'{place} {lost}. If huge numbers of another operand only hide others, make them "
            "about ten times the largest of the others. If they are results, return or read the operands "
            f"separately, or leave '{self.node}' to floats"
        )


def collapsed_operands(graph: _core.Graph, *lowered: _core.Graph) -> list[CollapsedOperand]:
    """Returns the operands that lose all bits, one for each node and operand.

    Parameters
    ----------
    graph : Graph
        At any stage. Only stages ``exported``, ``quantized`` and ``tosa`` have such operands.
    *lowered : Graph
        The TOSA graphs that `graph` was lowered to. If an operand shares its scale with the result, only its
        rescale in these graphs shows that it collapses. Nodes that were found in `graph` already are not
        repeated.

    Returns
    -------
    list of CollapsedOperand
        Constants are left out, since a number may be negligible compared with others, and so are tensors that
        were 0 in all samples.
    """
    nodes = list(all_nodes(graph))
    if graph.stage == "tosa":
        return list(_of_lowered(nodes))
    if graph.stage not in ("exported", "quantized"):
        return []
    makers = {result.name: node for node in nodes for result in node.results}
    found = list(_of_quantized(nodes, makers))
    rescales = [
        rescale for each in lowered if each.stage == "tosa" for rescale in _of_lowered(all_nodes(each))
    ]
    if rescales:
        values = [each for node in nodes for each in (*node.operands, *node.results) if each is not None]
        were_zero = {each.name for each in values if 0 < _integers(each, makers)[0] <= _LEAST_SCALE}
        nodes_found = {each.node for each in found}
        found += [each for each in rescales if each.operand not in were_zero and each.node not in nodes_found]
    return list(dict.fromkeys(found))


def tosa_graphs(program: Program | Lowered | SplitLowered) -> list[_core.Graph]:
    """Returns the graphs of TOSA of a program, or of its groups; nothing for other programs."""
    return [each.graph for each in getattr(program, "parts", (program,)) if each.graph.stage == "tosa"]


# ---- with quantize and dequantize nodes ----


def _of_quantized(nodes: list[Any], makers: dict[str, Any]) -> Iterator[CollapsedOperand]:
    units: dict[str, float] = {}
    for node in nodes:
        if node.op == "quantize" and node.operands[0] is not None:
            scale = max(node.attrs["scales"], default=0.0)
            name = node.operands[0].name
            units[name] = min(units.get(name, scale), scale)
    read_as_floats = {
        operand.name
        for node in nodes
        if node.op != "quantize"
        for operand in node.operands
        if operand is not None
    }
    for node in nodes:
        if node.op not in _SHARE_A_UNIT or len(node.results) != 1:
            continue
        result = node.results[0]
        unit = max(result.qparams.scales) if result.qparams is not None else units.get(result.name, 0.0)
        if unit <= 0 or (result.qparams is None and result.name in read_as_floats):
            continue
        for operand in node.operands:
            if operand is None or operand.kind == "constant":
                continue
            scale, steps = _integers(operand, makers)
            if scale > _LEAST_SCALE and steps * scale < unit:
                yield _collapsed(node, _quantized(operand.name, makers), steps, steps * scale, unit)


def _quantized(name: str, makers: dict[str, Any]) -> str:
    """Returns the name of the value from which quantize and dequantize nodes computed this value."""
    maker = makers.get(name)
    while maker is not None and maker.op in ("dequantize", "quantize"):
        name = maker.operands[0].name
        maker = makers.get(name)
    return name


def _integers(value: Any, makers: dict[str, Any]) -> tuple[float, int]:
    """Returns the scale and the number of steps of a value; zeros if it has no integers."""
    if value.qparams is not None:
        return max(value.qparams.scales), value.qparams.qmax - value.qparams.qmin
    maker = makers.get(value.name)
    if maker is None or maker.op != "dequantize" or maker.operands[0].kind == "constant":
        return 0.0, 0
    attrs = maker.attrs
    return max(attrs["scales"], default=0.0), attrs["qmax"] - attrs["qmin"]


# ---- lowered ----


def _of_lowered(nodes: Iterable[Any]) -> Iterator[CollapsedOperand]:
    for node in nodes:
        if node.op != "tosa.rescale" or node.operands[0].kind == "constant":
            continue
        steps = _STEPS[node.operands[0].dtype]
        attrs = node.attrs
        factors = (m * 2.0**-s for m, s in zip(attrs["multiplier"], attrs["shift"], strict=True))
        if not any(steps * factor >= 1 for factor in factors):
            yield _collapsed(node, node.operands[0].name, steps)


def _collapsed(
    node: Any, operand: str, steps: int, extent: float = 0.0, unit: float = 0.0
) -> CollapsedOperand:
    computing = [each for each in node.origins if not each.target.startswith("quantized_decomposed.")]
    origin = (computing or [None])[0]
    name = node.name if unit else (origin.fx_name if origin else "") or node.name
    return CollapsedOperand(
        name,
        operand,
        steps,
        origin.module_path if origin else "",
        origin.source if origin else "",
        extent,
        unit,
    )
