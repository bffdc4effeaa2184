"""Reports of programs, and of lowered ones: inputs and outputs, operators, memory and passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.dtypes import BITS, bytes_of
from tosaic.report.document import Report
from tosaic.report.layout import layout_data, layout_facts, layout_sections
from tosaic.report.numbers import memory, time
from tosaic.report.parts import Section, table

if TYPE_CHECKING:
    from tosaic.base.diagnostics import Diagnostic
    from tosaic.lowering.layout import Layout
    from tosaic.lowering.lowered import Lowered
    from tosaic.ports.ports import Io, Port
    from tosaic.program.program import Program

_MOST_OPERATORS = 24


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
    """Makes a report of a program, with a layout plan, dim orders of values, and optionally memory."""
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


def memory_facts(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the size of the arena, and its gap to the proven lower bound."""
    size, bound, gap = plan["arena_bytes"], plan["lower_bound"], plan["gap"]
    proof = "the least possible" if gap == 0 else f"at least {memory(bound)} needed, gap {memory(gap)}"
    return [("arena", f"{memory(size)}, {proof}; {memory(plan['unshared_bytes'])} without sharing")]


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

    The first cell has the range unless it is the full range of the dtype. If the port has several tensors,
    the first cell also names the tensor.
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
    return Section("operators", table(("operator", "nodes"), rows), folded=len(rows) > _MOST_OPERATORS)


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
