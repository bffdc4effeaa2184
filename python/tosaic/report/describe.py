"""Makes a report from each kind of result: facts first, one screen of sections, details folded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.annotation.resolution import Resolution
from tosaic.base.diagnostics import Diagnostic
from tosaic.base.dtypes import BITS, bytes_of
from tosaic.base.problems import CheckResult
from tosaic.base.reportable import Reportable
from tosaic.exporting.result import ExportResult
from tosaic.lowering.layout import Layout
from tosaic.lowering.lowered import Lowered
from tosaic.lowering.pipeline import Pipeline
from tosaic.lowering.support import COLUMNS, cells_of, support_of
from tosaic.memory.plan import MemoryComparison, MemoryPlan
from tosaic.partitions.kernel_plan import KernelProgram
from tosaic.partitions.plan import NodePlace, PartitionPlan
from tosaic.partitions.split_lowered import SplitLowered
from tosaic.ports.ports import Io
from tosaic.profiling.lowering import LoweringProfile
from tosaic.profiling.profile import Profile
from tosaic.program.comparison import Comparison
from tosaic.program.program import Program
from tosaic.pte.file import PteFile, PteMethod
from tosaic.pte.kernel_names import KernelList
from tosaic.quantizing.explanation import QuantizationExplanation
from tosaic.quantizing.quantized_program import QuantizedProgram
from tosaic.quantizing.sensitivities import Sensitivity
from tosaic.report.annotation import describe_annotation
from tosaic.report.document import Report, Section, Table, table
from tosaic.report.exporting import describe_export
from tosaic.report.kernel_program import describe_kernel_program
from tosaic.report.kernels import describe_kernels
from tosaic.report.layout import describe_layout, layout_data, layout_facts, layout_sections
from tosaic.report.memory import describe_memory_comparison, describe_memory_plan
from tosaic.report.node_errors import error_sections
from tosaic.report.numbers import count, decibels, memory, small, time, ulps
from tosaic.report.partition import describe_partition, describe_place, describe_split
from tosaic.report.profile import describe_lowering_profile, describe_profile
from tosaic.report.pte import describe_pte, describe_pte_method
from tosaic.report.quantized import describe_quantized
from tosaic.report.sensitivity import describe_sensitivity

if TYPE_CHECKING:
    from tosaic.base.quantization import QParams
    from tosaic.ports.ports import Port
    from tosaic.program.comparison import CompareRow, Metrics, ModelRow
    from tosaic.quantizing.explanation import QuantizedValue

__all__ = [
    "describe",
    "describe_check",
    "describe_comparison",
    "describe_diff",
    "describe_graph",
    "describe_io",
    "describe_lowered",
    "describe_ops",
    "describe_pipeline",
    "describe_program",
    "describe_quantization",
    "memory_facts",
    "metrics_row",
]

_SHOWN_ROWS = 12
_METRIC_COLUMNS = ("SQNR dB", "cosine", "max abs", "relative", "max ulp", "p99 ulp")


def describe_program(program: Program) -> Report:
    """Makes a report of the inputs, outputs and operators of a program."""
    graph = program.graph
    sections = [
        _boundary(program.inputs, program.outputs, program.states),
        _operators(graph),
        *_noticed(program.diagnostics, "import"),
    ]
    sections.append(Section("graph", graph.text(), folded=True))
    return Report(
        title=f"{graph.name} @{graph.stage}",
        facts=tuple(_graph_facts(graph)),
        sections=tuple(sections),
        data={**_graph_data(graph), "diagnostics": list(program.diagnostics), **_io_data(program)},
    )


def describe_graph(
    program: Program, *, layout: Layout | None = None, dim_orders: bool = False, with_memory: bool = False
) -> Report:
    """Makes a report of a program, with a layout plan, dim orders of values, and memory if asked for."""
    report = describe_program(program)
    facts, sections, data = list(report.facts), list(report.sections), dict(report.data)
    if layout is not None:
        facts += layout_facts(layout)
        shown = sum(not section.folded for section in sections)
        sections[shown:shown] = layout_sections(layout)
        data["layout"] = layout_data(layout)
    if dim_orders:
        rows = [(v.name, v.kind, v.dtype, _axes(v.shape), _axes(v.dim_order)) for v in program.graph.values]
        sections.insert(
            0, Section("dim orders", table(("value", "kind", "dtype", "shape", "dim order"), rows))
        )
        data["dim_orders"] = {v.name: tuple(v.dim_order) for v in program.graph.values}
    if with_memory:
        facts += memory_facts(program.session.memory)
        data["memory"] = _memory_data(program.session.memory)
    return Report(report.title, report.ok, tuple(facts), tuple(sections), data)


def describe_io(io: Io) -> Report:
    """Makes a report of inputs, outputs and states."""
    section = _boundary(io.inputs, io.outputs, io.states)
    return Report(
        "inputs and outputs",
        sections=(section,),
        data={"inputs": io.inputs, "outputs": io.outputs, "states": io.states},
    )


def describe_lowered(lowered: Lowered) -> Report:
    """Makes a report of the inputs and outputs, operators, memory and passes of a lowered program."""
    graph = lowered.graph
    plan = lowered.session.memory
    size = lowered.file_size()
    facts = [
        ("target", lowered.target),
        ("nodes", " -> ".join(f"{len(g):,} {name}" for name, g in lowered.stages.items())),
        *_graph_facts(graph)[1:],
        ("file", memory(size)),
        *memory_facts(plan),
        ("lowered in", time(lowered.seconds)),
    ]
    timings = [
        (t.name, time(t.seconds), time(t.verify_seconds), f"{t.nodes_before:,}", f"{t.nodes_after:,}")
        for t in lowered.timings
    ]
    columns = ("pass", "time", "verify", "nodes before", "after")
    return Report(
        title=f"{graph.name} lowered to {lowered.target}",
        facts=tuple(facts),
        sections=(
            _boundary(lowered.inputs, lowered.outputs, lowered.states),
            _operators(graph),
            *_layout_of(lowered),
            *_noticed(lowered.diagnostics, "lowering"),
            Section("passes", table(columns, timings), folded=True),
            *(Section(f"graph @{name}", _text_of(g), folded=True) for name, g in lowered.stages.items()),
        ),
        data={
            "target": lowered.target,
            "seconds": lowered.seconds,
            "file_bytes": size,
            "nodes": {name: len(g) for name, g in lowered.stages.items()},
            **_graph_data(graph),
            **_io_data(lowered),
            "memory": _memory_data(plan),
            "diagnostics": list(lowered.diagnostics),
            "passes": list(lowered.timings),
        },
    )


def _noticed(diagnostics: Sequence[Diagnostic], when: str) -> tuple[Section, ...]:
    """Returns a section of remarks, or nothing if there are none."""
    rows = [(item.rule, item.name, item.message) for item in diagnostics]
    text = table(("rule", "name", "message"), rows)
    return (Section(f"noticed at {when}", text, folded=True),) if rows else ()


def _text_of(graph: _core.Graph) -> str:
    """Returns the text of a graph, or the error message if its weights were changed since import."""
    try:
        return graph.text()
    except _core.InvalidGraph as error:
        return f"Not shown: {error}"


def _layout_of(lowered: Lowered) -> tuple[Section, ...]:
    if lowered.source.stage == "tosa":
        return ()
    return tuple(replace(section, folded=True) for section in layout_sections(lowered.layout))


def describe_check(result: CheckResult) -> Report:
    """Makes a report of all reasons why a program does not fit a target."""
    title = f"{count(result.nodes, 'node')} against {result.target}"
    if not result.ok:
        title = f"{count(len(result.problems), 'problem')} between the program and {result.target}"
    rows = [
        (p.node, p.what, p.expected, p.got, " ".join(filter(None, (p.module_path, p.source))))
        for p in result.problems
    ]
    hints = sorted({problem.hint for problem in result.problems if problem.hint})
    sections = []
    if rows:
        sections.append(Section("", table(("node", "problem", "expected", "found", "from"), rows)))
    if hints:
        sections.append(Section("hints", "\n".join(f"{hint}." for hint in hints)))
    if result.notes:
        sections.append(Section("notes", "\n".join(f"{note}." for note in result.notes)))
    data = {
        "ok": result.ok,
        "target": result.target,
        "nodes": result.nodes,
        "notes": list(result.notes),
        "problems": list(result.problems),
    }
    return Report(title, result.ok, sections=tuple(sections), data=data)


def describe_quantization(explanation: QuantizationExplanation) -> Report:
    """Makes a report of the operators that compute with floats, and of the values stored as integers."""
    floats, values = explanation.floats, explanation.values
    title = f"every one of {count(explanation.operators, 'operator')} computes with integers"
    if floats:
        title = f"{len(floats)} of {count(explanation.operators, 'operator')} compute with floats"
    sections = []
    rows = [
        (f.node, f.op, reason.what, " ".join(filter(None, (f.module_path, f.source))))
        for f in floats
        for reason in f.reasons
    ]
    if rows:
        sections.append(Section("floats", table(("node", "operator", "why", "from"), rows)))
    hints = sorted({reason.hint for f in floats for reason in f.reasons if reason.hint})
    if hints:
        sections.append(Section("hints", "\n".join(f"{hint}." for hint in hints)))
    stored = [
        (
            v.name,
            v.op or v.kind,
            v.qparams.dtype,
            _scale_text(v.qparams),
            _zero_point_text(v.qparams),
            v.module_path,
        )
        for v in values
    ]
    header = ("value", "made by", "dtype", "scale", "zero point", "module")
    sections.append(Section("quantized values", table(header, stored), folded=len(stored) > _SHOWN_ROWS))
    return Report(
        title,
        facts=tuple(_quantization_facts(values)),
        sections=tuple(sections),
        data={
            "is_integer": explanation.is_integer,
            "operators": explanation.operators,
            "floats": [asdict(f) for f in floats],
            "unquantized": [asdict(p) for p in explanation.unquantized],
            "values": [asdict(v) for v in values],
        },
    )


def _quantization_facts(values: Sequence[QuantizedValue]) -> list[tuple[str, str]]:
    """How many values, and how many constants, are stored with each dtype."""
    facts = []
    for heading, kinds in (("activations", ("input", "result")), ("constants", ("constant",))):
        counts = Counter(v.qparams.dtype for v in values if v.kind in kinds)
        if counts:
            facts.append(
                (heading, ", ".join(f"{number:,} {dtype}" for dtype, number in sorted(counts.items())))
            )
    return facts


def _scale_text(qparams: QParams) -> str:
    """The scale, or the number of scales and their range."""
    if qparams.axis is None:
        return f"{qparams.scale:.6g}"
    least, greatest = min(qparams.scales), max(qparams.scales)
    groups = "" if qparams.groups is None else f" in groups of {qparams.groups.size}"
    return f"{len(qparams.scales)} on axis {qparams.axis}{groups}: {least:.3g} to {greatest:.3g}"


def _zero_point_text(qparams: QParams) -> str:
    points = sorted(set(qparams.zero_points))
    return str(points[0]) if len(points) == 1 else f"{points[0]} to {points[-1]}"


def describe_comparison(comparison: Comparison) -> Report:
    """Makes a report of the outputs, the first wrong node, and the nodes with the worst local errors."""
    wrong, first = comparison.first_wrong, comparison.first_divergence
    judged = sum(row.local_share is not None for row in comparison.rows)
    number = sum(not row.ok for row in comparison.rows)
    facts = [
        ("samples", f"{comparison.samples:,}"),
        ("matched", f"{count(len(comparison.rows), 'node')}, {len(comparison.unmatched):,} unmatched"),
        *_judgement(comparison),
        ("wrong", "none" if wrong is None else f"{count(number, 'node')}, first {_share_of(wrong)}"),
        (
            "first below " + decibels(comparison.threshold_db) + " dB",
            "none" if first is None else _place(first),
        ),
    ]
    outputs = [
        (
            row.path,
            "ok" if row.ok else "wrong",
            _share(row.local_share),
            _rounding(row.rounding_db),
            *metrics_row(row.metrics),
        )
        for row in comparison.outputs
    ]
    marked = [i for i, row in enumerate(comparison.outputs) if not row.ok]
    worst = comparison.worst_rows(_SHOWN_ROWS)
    unmatched = [(item.fx_name, item.reason) for item in comparison.unmatched]
    columns = ("output", "", "of bound", "rounding dB", *_METRIC_COLUMNS)
    sections = [
        Section("outputs", table(columns, outputs, marked)),
        Section("nodes by the error they make themselves", _compare_table(worst)),
        *error_sections(comparison),
        Section("all nodes, in order", _compare_table(comparison.rows), folded=True),
        Section("how to read this", _READING, folded=True),
    ]
    if comparison.notes:
        sections.insert(0, Section("notes", "\n".join(f"{note}." for note in comparison.notes)))
    if comparison.models:
        sections.insert(1, Section("models against tosaic's kernels", _model_table(comparison.models)))
    if unmatched:
        sections.append(Section("unmatched", table(("node", "reason"), unmatched), folded=True))
    return Report(
        title=f"{comparison.name_b} against {comparison.name_a}",
        ok=comparison.ok,
        facts=tuple(facts),
        sections=tuple(sections),
        data={
            "ok": comparison.ok,
            "a": comparison.name_a,
            "b": comparison.name_b,
            "samples": comparison.samples,
            "threshold_db": comparison.threshold_db,
            "judged": judged,
            "against_floats": comparison.against_floats,
            "other_qparams": comparison.other_qparams,
            "first_wrong": None if wrong is None else wrong.fx_name,
            "first_divergence": None if first is None else first.fx_name,
            "outputs": list(comparison.outputs),
            "rows": list(comparison.rows),
            "unmatched": list(comparison.unmatched),
            "models": list(comparison.models),
            "notes": list(comparison.notes),
        },
    )


_READING = """A node is right if its local error is within its bound: "of bound" is at most 1. The local error
is what the node makes of the values that it reads, so what came in from earlier nodes does not count.
The bound of floats is the tolerance of the operators since the last value that both programs have; that of
integers is one unit in 8 bits, the column int16 of docs/reference/operators.md in 16 bits, and half a unit
in the mean. An output is right if it is so, and if its SQNR is at least the threshold. Where the reference
quantizes on the way, the second does not count: equal arithmetic may round some values otherwise, and later
nodes make more of it. "rounding dB" is then the distance of the reference to the same network without
rounding. If b is quantized and the reference is not, or if b has other qparams, nodes have no bounds. An
output is then right if its SQNR is at least the threshold."""


def _judgement(comparison: Comparison) -> list[tuple[str, str]]:
    if comparison.against_floats:
        return [("judged", "outputs by their SQNR: b is quantized and a is not")]
    if comparison.other_qparams:
        return [("judged", "outputs by their SQNR: b has other qparams than a")]
    return []


def _share(value: float | None) -> str:
    return "-" if value is None else small(value)


def _rounding(value: float | None) -> str:
    return "-" if value is None else decibels(value)


def _share_of(row: CompareRow) -> str:
    if row.local_share == math.inf and row.local is None:
        return f"'{row.fx_name}' with other qparams{_origin(row)}"
    return f"'{row.fx_name}' with {_share(row.local_share)} of its bound{_origin(row)}"


def describe_diff(name_a: str, name_b: str, difference: str) -> Report:
    """Makes a report of how two graphs differ. `difference` is the text of `Graph.diff`."""
    same = not difference
    title = f"{name_a} and {name_b} are the same graph" if same else f"{name_a} and {name_b} differ"
    sections = () if same else (Section("", difference),)
    return Report(title, same, sections=sections, data={"equal": same, "difference": difference})


def describe_pipeline(pipeline: Pipeline) -> Report:
    """Makes a report of the passes of a pipeline, in order."""
    steps = list(pipeline)
    rows = [
        (step.section, step.name, ", ".join(step.pass_.takes), step.pass_.makes or "", step.pass_.summary)
        for step in steps
    ]
    data = [
        {
            "section": step.section,
            "name": step.name,
            "takes": list(step.pass_.takes),
            "makes": step.pass_.makes,
            "needs": list(step.pass_.needs),
            "serves_as": list(step.pass_.serves_as),
            "summary": step.pass_.summary,
        }
        for step in steps
    ]
    section = Section("", table(("section", "pass", "takes", "makes", "what it does"), rows))
    return Report(
        f"{len(rows)} passes for {pipeline.target}",
        sections=(section,),
        data={"target": pipeline.target, "passes": data},
    )


def describe_ops(ops: Iterable[_core.OpInfo]) -> Report:
    """Makes a report of the operator table, with the dtypes that run and that lower to each profile."""
    rows = []
    data = []
    for op in ops:
        support = support_of(op)
        attributes = ", ".join(f"{name}={value!r}" for name, value in op.attributes.items())
        rows.append(
            (
                op.name,
                op.operands,
                str(op.results) if op.results >= 0 else "*",
                ", ".join(op.traits),
                attributes,
                *(" ".join(support[column]) for column in COLUMNS),
            )
        )
        data.append(
            {
                "name": op.name,
                "section": "tosa" if op.is_tosa else "canonical",
                "operands": op.operands,
                "results": op.results,
                "traits": list(op.traits),
                "int16_units": op.int16_units,
                "attributes": op.attributes,
                "support": [asdict(cell) for cell in cells_of(op)],
            }
        )
    section = Section("", table(("operator", "operands", "results", "traits", "attributes", *COLUMNS), rows))
    return Report(count(len(rows), "operator"), sections=(section,), data={"operators": data})


def memory_facts(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the size of the arena, and its gap to the proven lower bound."""
    size, bound, gap = plan["arena_bytes"], plan["lower_bound"], plan["gap"]
    proof = "the least possible" if gap == 0 else f"at least {memory(bound)} needed, gap {memory(gap)}"
    return [("arena", f"{memory(size)}, {proof}; {memory(plan['unshared_bytes'])} without sharing")]


def metrics_row(metrics: Metrics) -> tuple[str, ...]:
    """Returns cells of `SQNR dB, cosine, max abs, relative, max ulp, p99 ulp`."""
    return (
        decibels(metrics.sqnr_db),
        f"{metrics.cosine:.6f}",
        small(metrics.max_abs),
        small(metrics.relative),
        ulps(metrics.max_ulp),
        ulps(metrics.p99_ulp),
    )


def _compare_table(rows: Sequence[CompareRow]) -> Table:
    columns = (
        "node",
        "a",
        "b",
        "of bound",
        "local dB",
        "inherited dB",
        "SQNR dB",
        "max abs",
        "max ulp",
        "from",
    )
    cells = [
        (
            row.fx_name,
            row.op_a,
            row.op_b,
            _share(row.local_share),
            "-" if row.local is None else decibels(row.local.sqnr_db),
            "-" if row.inherited is None else decibels(row.inherited.sqnr_db),
            decibels(row.total.sqnr_db),
            small(row.total.max_abs),
            ulps(row.total.max_ulp),
            " ".join(filter(None, (row.module_path, row.source))),
        )
        for row in rows
    ]
    return table(columns, cells, [i for i, row in enumerate(rows) if not row.ok])


def _place(row: CompareRow) -> str:
    return f"'{row.fx_name}' at {decibels(row.total.sqnr_db)} dB{_origin(row)}"


def _model_table(rows: Sequence[ModelRow]) -> Table:
    columns = (
        "node",
        "operator",
        "model",
        "calls",
        "elements",
        "differ",
        "SQNR dB",
        "max abs",
        "max ulp",
        "from",
    )
    cells = []
    for row in rows:
        found = row.metrics
        figures = ("-",) * 5
        if found is not None:
            figures = (
                f"{found.count:,}",
                f"{found.mismatches:,}",
                decibels(found.sqnr_db),
                small(found.max_abs),
                ulps(found.max_ulp),
            )
        place = " ".join(filter(None, (row.module_path, row.source)))
        cells.append((row.node, row.op, row.key, f"{row.calls:,}", *figures, place))
    return table(columns, cells)


def _origin(row: CompareRow) -> str:
    """Returns the module path and source line of a node in parentheses; empty if torch recorded neither."""
    place = ", ".join(filter(None, (row.module_path, row.source)))
    return f" ({place})" if place else ""


def _boundary(inputs: Sequence[Port], outputs: Sequence[Port], states: Sequence[Port]) -> Section:
    columns = ["", "name", "dtype", "shape", "dim order"]
    every = [
        ("mutation" if port.kind == "mutation" else role, port)
        for role, ports in (("input", inputs), ("output", outputs), ("state", states))
        for port in ports
    ]
    every_qparams = [qparams for _, port in every for qparams in port.quantized]
    if every_qparams:
        columns += ["quantized to", "scale", "zero point"]
    has_axes = any(qparams.axis is not None for qparams in every_qparams)
    if has_axes:
        columns.append("axis")
    rows = []
    for role, port in every:
        own = (role, port.path or port.name, port.dtype, _axes(port.shape), _axes(port.dim_order))
        rows.append((*own, *_quantized(port, 0))[: len(columns)])
        rows += [
            (*("",) * len(own), *_quantized(port, i))[: len(columns)] for i in range(1, len(port.quantized))
        ]
    return Section("boundary", table(columns, rows))


def _quantized(port: Port, number: int) -> tuple[str, ...]:
    """Returns table cells for entry `number` of a port's qparams.

    The first cell has the range unless it is that of the dtype. If several tensors carry the port, it also
    names the tensor.
    """
    if number >= len(port.quantized):
        return ("-",) * 4
    qparams = port.quantized[number]
    least = 0 if qparams.dtype.startswith("u") else -(1 << (BITS[qparams.dtype] - 1))
    is_whole = (qparams.qmin, qparams.qmax) == (least, least + (1 << BITS[qparams.dtype]) - 1)
    extent = "" if is_whole else f" {qparams.qmin} to {qparams.qmax}"
    tensor = f" ({port.tensors[number].name})" if len(port.tensors) > 1 else ""
    return (
        qparams.dtype + extent + tensor,
        _extent([f"{scale:.6g}" for scale in sorted(qparams.scales)]),
        _extent([str(zero_point) for zero_point in sorted(qparams.zero_points)]),
        "-" if qparams.axis is None else str(qparams.axis),
    )


def _extent(sorted_numbers: Sequence[str]) -> str:
    """Returns the number if all are equal, or the first and the last of the sorted numbers."""
    least, greatest = sorted_numbers[0], sorted_numbers[-1]
    return least if least == greatest else f"{least} to {greatest}"


def _axes(numbers: Sequence[int]) -> str:
    return "[" + ",".join(map(str, numbers)) + "]"


def _operators(graph: _core.Graph) -> Section:
    counts = Counter(node.op for node in graph.nodes)
    rows = [
        (op, f"{number:,}") for op, number in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return Section("operators", table(("operator", "nodes"), rows), folded=len(rows) > 2 * _SHOWN_ROWS)


def _graph_facts(graph: _core.Graph) -> list[tuple[str, str]]:
    constants = [value for value in graph.values if value.kind == "constant"]
    facts = [
        ("nodes", f"{len(graph):,}"),
        ("constants", f"{len(constants):,}, {memory(sum(map(bytes_of, constants)))}"),
    ]
    if graph.stage == "tosa":
        moved = [node for node in graph.nodes if node.op == "tosa.transpose"]
        facts.append(
            ("transposes", f"{len(moved):,}, {memory(sum(bytes_of(n.results[0]) for n in moved))} moved")
        )
    return facts


def _graph_data(graph: _core.Graph) -> dict[str, Any]:
    constants = [value for value in graph.values if value.kind == "constant"]
    moved = [node for node in graph.nodes if node.op == "tosa.transpose"]
    return {
        "name": graph.name,
        "stage": graph.stage,
        "operators": dict(sorted(Counter(node.op for node in graph.nodes).items())),
        "constant_bytes": sum(map(bytes_of, constants)),
        "transposes": len(moved),
        "transposed_bytes": sum(bytes_of(node.results[0]) for node in moved),
    }


def _io_data(program: Program | Lowered) -> dict[str, Any]:
    return {"inputs": program.inputs, "outputs": program.outputs, "states": program.states}


def _memory_data(plan: Mapping[str, Any]) -> dict[str, int]:
    return {
        "arena_bytes": plan["arena_bytes"],
        "lower_bound": plan["lower_bound"],
        "unshared_bytes": plan["unshared_bytes"],
    }


_DESCRIPTIONS: dict[type[Reportable], Callable[[Any], Report]] = {
    CheckResult: describe_check,
    Resolution: describe_annotation,
    Comparison: describe_comparison,
    ExportResult: describe_export,
    Io: describe_io,
    KernelList: describe_kernels,
    KernelProgram: describe_kernel_program,
    Layout: describe_layout,
    Lowered: describe_lowered,
    LoweringProfile: describe_lowering_profile,
    MemoryComparison: describe_memory_comparison,
    MemoryPlan: describe_memory_plan,
    NodePlace: describe_place,
    PartitionPlan: describe_partition,
    Pipeline: describe_pipeline,
    Profile: describe_profile,
    Program: describe_program,
    PteFile: describe_pte,
    PteMethod: describe_pte_method,
    QuantizationExplanation: describe_quantization,
    QuantizedProgram: describe_quantized,
    Sensitivity: describe_sensitivity,
    SplitLowered: describe_split,
}


def describe(result: Reportable) -> Report:
    """Makes the report of a result; `Reportable.report` calls this function."""
    kind = next(kind for kind in type(result).__mro__ if kind in _DESCRIPTIONS)
    return _DESCRIPTIONS[kind](result)
