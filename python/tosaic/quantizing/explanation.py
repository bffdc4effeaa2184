"""What a quantized program computes with integers, what it computes with floats, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tosaic import _core
from tosaic.base.defaults import INTEGER_TARGET
from tosaic.base.dtypes import is_float
from tosaic.base.options import checked, invalid
from tosaic.base.problems import Problem
from tosaic.base.quantization import QParams
from tosaic.base.reportable import Reportable
from tosaic.base.target import Target
from tosaic.lowering.pipeline import Pipeline
from tosaic.opening.sources import program_of, require_use
from tosaic.ports.foreign import ForeignOp

_LOWERING, _BOUNDARY = "lower-to-integer", "quantize-boundary"


@dataclass(frozen=True)
class QuantizedValue:
    """A value that a program stores as integers.

    Attributes
    ----------
    name : str
    kind : str
        ``input``, ``constant`` or ``result``.
    shape : tuple of int
        Logical shape.
    qparams : QParams
    op : str
        The operator that computes the value; empty for inputs and constants.
    module_path, source : str
        Origin of that operator, such as ``layer1.0.conv1`` and ``model.py:41``.
    is_output : bool
        Whether the program returns the value.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    qparams: QParams
    op: str = ""
    module_path: str = ""
    source: str = ""
    is_output: bool = False


@dataclass(frozen=True)
class FloatOperator:
    """An operator that computes with floats.

    Attributes
    ----------
    node, op : str
    module_path, source : str
        Origin of the node.
    reasons : tuple of Problem
        Why it does not compute with integers.
    """

    node: str
    op: str
    module_path: str
    source: str
    reasons: tuple[Problem, ...]


@dataclass(frozen=True)
class QuantizationExplanation(Reportable):
    """What a quantized program computes with integers, what it computes with floats, and why.

    Attributes
    ----------
    values : tuple of QuantizedValue
        The values that are stored as integers, in the order of the graph.
    floats : tuple of FloatOperator
        The operators that compute with floats when `lower` has made integer arithmetic explicit, in the
        order of the graph.
    unquantized : tuple of Problem
        Operands and results next to quantized values that no quantizer has quantized. Unless the operator is
        among `floats`, it is computed with integers of 32 bits.
    operators : int
        The number of all operators, after constants are folded.
    """

    values: tuple[QuantizedValue, ...]
    floats: tuple[FloatOperator, ...]
    unquantized: tuple[Problem, ...]
    operators: int

    @property
    def is_integer(self) -> bool:
        """True if every operator computes with integers."""
        return not self.floats


@checked
def explain_quantization(
    program: Any, *, target: str = INTEGER_TARGET, bind: Any = None, operators: Sequence[ForeignOp] = ()
) -> QuantizationExplanation:
    """Says which values of a quantized program are integers, and why operators compute with floats.

    The function runs the passes of `lower` up to `lower-to-integer`. Operators that still compute with floats
    are listed with the reasons.

    Parameters
    ----------
    program : Program, torch.export.ExportedProgram, Graph or path
        A program that a quantizer has converted, at stage ``exported`` or ``quantized``.
    target : str
        The target to lower for. If it supports no floats, values that no quantizer has quantized are computed
        with 32-bit integers, provided that their ranges follow from quantized values.
    bind : optional
        Sizes of symbolic dimensions, as in `from_exported`. Accepted only if `program` is an exported program
        or a ``.pt2`` file.
    operators : sequence of ForeignOp
        As `lower` takes them.

    Returns
    -------
    QuantizationExplanation
        Data, with a report as text, HTML and JSON.

    Raises
    ------
    InvalidGraph
        The program is malformed or is at a later stage, or the target is not understood.
    UnsupportedOp
        The program calls an operator that cannot be imported.
    """
    require_use("explain_quantization", bind, program, operators=operators)
    graph = program_of(program, bind=bind, operators=operators).graph
    if graph.stage not in ("exported", "quantized"):
        raise invalid(
            "explain_quantization",
            "the program is already lowered",
            expected="a program at stage exported or quantized",
            got=f"stage {graph.stage}",
            hint="Explain the program that was given to lower()",
        )
    pipeline = Pipeline.default(target)
    quantized = _quantized(pipeline, graph)
    unquantized = tuple(map(Problem.from_parts, _core.explain_qdq(quantized)))
    reasons = _by_node((*map(Problem.from_parts, _core.explain_integers(quantized, target)), *unquantized))
    names = _float_names(_integer(pipeline, quantized), pipeline.target)
    floats = tuple(
        _float_operator(node, reasons.get(node.name, ())) for node in quantized.nodes if _name(node) in names
    )
    return QuantizationExplanation(tuple(_quantized_values(quantized)), floats, unquantized, len(quantized))


def _quantized(pipeline: Pipeline, graph: _core.Graph) -> _core.Graph:
    """Runs the passes in front of `lower-to-integer`.

    A graph without quantize and dequantize nodes stays at stage exported.
    """
    for step in pipeline:
        if step.name == _LOWERING:
            break
        if graph.stage in step.pass_.takes:
            graph = step.pass_.run(graph, target=pipeline.target)
    return graph


def _integer(pipeline: Pipeline, graph: _core.Graph) -> _core.Graph:
    """Makes integer arithmetic explicit. Inputs and outputs become integers if the target requires it."""
    for name in (_LOWERING, _BOUNDARY):
        if graph.stage in pipeline[name].takes:
            graph = pipeline[name].run(graph, target=pipeline.target)
    return graph


def _by_node(problems: Sequence[Problem]) -> dict[str, tuple[Problem, ...]]:
    found: dict[str, tuple[Problem, ...]] = {}
    for problem in problems:
        found[problem.node] = (*found.get(problem.node, ()), problem)
    return found


def _float_names(graph: _core.Graph, target: str) -> set[str]:
    """Returns the FX names of the nodes that read or compute floats in the integer graph.

    If the target supports floats, nodes that only convert between floats and integers are left out.
    """
    may_convert = Target.parse(target).has_floats
    return {
        _name(node)
        for node in graph.nodes
        if any(value is not None and is_float(value.dtype) for value in (*node.operands, *node.results))
        and not (may_convert and node.op in ("quantize", "dequantize"))
    }


def _name(node: _core.Node) -> str:
    """Returns the name of the FX node that a node comes from; the node's own name if there is no FX node."""
    return node.origin.fx_name if node.origin is not None and node.origin.fx_name else node.name


def _float_operator(node: _core.Node, reasons: tuple[Problem, ...]) -> FloatOperator:
    module_path, source = _origin(node)
    if not reasons:
        what = "no operand or result is quantized"
        if node.op == "quantize":
            what = "its operand is a float that no integer operator computes"
        reasons = (
            Problem(what, "explain_quantization", node=node.name, module_path=module_path, source=source),
        )
    return FloatOperator(node.name, node.op, module_path, source, reasons)


def _quantized_values(graph: _core.Graph) -> list[QuantizedValue]:
    found = []
    for value in graph.values:
        if value.qparams is None:
            continue
        producer = value.producer
        module_path, source = _origin(producer)
        found.append(
            QuantizedValue(
                value.name,
                value.kind,
                tuple(value.shape),
                value.qparams,
                producer.op if producer is not None else "",
                module_path,
                source,
                value.is_output,
            )
        )
    return found


def _origin(node: _core.Node | None) -> tuple[str, str]:
    origin = node.origin if node is not None else None
    return (origin.module_path, origin.source) if origin is not None else ("", "")
