"""Makes the report of a program that `tosaic.quantize` made: integers, floats, and reasons for floats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np

from tosaic.base.defaults import INTEGER_TARGET, WIDE_INTEGER_TARGET
from tosaic.quantizing.explanation import explain_quantization
from tosaic.report.annotation import narrow_sections
from tosaic.report.document import Report
from tosaic.report.numbers import count, decibels, memory, time
from tosaic.report.parts import Section, Table, table
from tosaic.report.sensitivity import mix_data, mix_text

if TYPE_CHECKING:
    from tosaic import _core
    from tosaic.annotation.resolution import FloatTensor, Resolution
    from tosaic.base.quantization import QParams
    from tosaic.quantizing.explanation import QuantizationExplanation
    from tosaic.quantizing.quantized_program import QuantizedProgram

_SHOWN_ROWS = 12
_SHOWN_NAMES = 3
_CONVERSIONS = ("quantize", "dequantize")
_DTYPES = {"i": "int", "u": "uint"}


def describe_quantized(program: QuantizedProgram, *, seconds: float | None = None) -> Report:
    """Makes a report of the integers of a program, of results without a scale, and of floats."""
    explanation = explain_quantization(program, target=_target(program.graph))
    before, after = (_constant_bytes(each.graph) for each in (program.source, program))
    operators = _operator_rows(program.graph, explanation)
    activations = _activations(program.graph)
    weights, biases = (_constants(program.graph, is_bias=is_bias) for is_bias in (False, True))
    data = {
        "name": program.graph.name,
        "samples": program.samples,
        "seconds": seconds,
        "activations": activations,
        "weights": weights,
        "biases": biases,
        "constant_bytes": {"before": before, "after": after},
        "operators": {name: dict(kinds) for name, kinds in operators.items()},
        "gains": [
            {"tool": repr(gain.tool), **{k: v for k, v in asdict(gain).items() if k != "tool"}}
            for gain in program.gains
        ],
        "left_float": [asdict(row) for row in program.quantization.left_float],
        "not_rounded": [asdict(row) for row in program.quantization.not_rounded],
        "narrow": [asdict(row) for row in program.quantization.narrow],
        "target": _target(program.graph),
        "mix": None if program.mix is None else mix_data(program.mix),
        "floats": [asdict(each) for each in explanation.floats],
        "inputs": program.inputs,
        "outputs": program.outputs,
        "states": program.states,
    }
    facts = [
        ("samples", f"{program.samples:,}"),
        ("time", "" if seconds is None else time(seconds)),
        ("activations", _listed(activations)),
        ("weights", _listed(weights)),
        ("biases", _listed(biases)),
        ("constants", f"{memory(before)} -> {memory(after)}"),
        ("arithmetic", _arithmetic(explanation, program)),
        *_mix_facts(program),
    ]
    sections = [
        Section("boundary", _ports(program)),
        *_gains(program),
        *_layers_of_mix(program),
        Section("operators by the dtype of their results", _operator_table(operators)),
        *narrow_sections(program.quantization),
        *_not_rounded(program),
        *_floats(explanation),
        *(replace(section, folded=True) for section in _resolution(program).report().sections),
        Section("graph", program.graph.text(), folded=True),
    ]
    return Report(
        title=f"{program.graph.name} quantized",
        facts=tuple(fact for fact in facts if fact[1]),
        sections=tuple(sections),
        data=data,
    )


def _resolution(program: QuantizedProgram) -> Resolution:
    """Returns the resolution without the entries that the report already shows above."""
    return replace(program.quantization, narrow=())


def _gains(program: QuantizedProgram) -> list[Section]:
    rows = [
        (
            gain.tool.name,
            count(gain.changed, "contraction"),
            decibels(gain.before_db),
            decibels(gain.after_db),
            f"{gain.gain_db:+.2f}",
        )
        for gain in program.gains
    ]
    columns = ("tool", "changed", "SQNR before, dB", "after, dB", "gain, dB")
    return [Section("accuracy tools, on the first samples", table(columns, rows))] if rows else []


def _mix_facts(program: QuantizedProgram) -> list[tuple[str, str]]:
    mix = program.mix
    if mix is None:
        return []
    return [("mix", mix_text(mix)), ("cycles of", str(program.target)), ("form", mix.form)]


def _layers_of_mix(program: QuantizedProgram) -> list[Section]:
    levels = {} if program.mix is None else program.mix.levels
    rows = list(levels.items())
    return [Section("layers of the mix that are not int8", table(("layer", "level"), rows))] if rows else []


def with_calibration(report: Report, program: QuantizedProgram, seconds: float) -> Report:
    """Returns the report of a lowered program, extended by the report of its quantization."""
    quantized = describe_quantized(program, seconds=seconds)
    texts = dict(quantized.facts)
    names = ("activations", "weights", "biases", "arithmetic", "mix", "cycles of", "form")
    facts = [
        ("calibrated on", f"{count(program.samples, 'sample')} in {time(seconds)}"),
        *((name, texts[name]) for name in names if name in texts),
    ]
    data = {**report.data, "quantization": quantized.data}
    return replace(report, facts=(*report.facts, *facts), data=data)


# ---- facts ----


def _target(graph: _core.Graph) -> str:
    is_wide = any(value.qparams is not None and value.qparams.dtype == "i16" for value in graph.values)
    return WIDE_INTEGER_TARGET if is_wide else INTEGER_TARGET


def _arithmetic(explanation: QuantizationExplanation, program: QuantizedProgram) -> str:
    target = _target(program.graph)
    if explanation.is_integer:
        return f"integers only, with {target}"
    return f"{len(explanation.floats)} of {count(explanation.operators, 'operator')} in floats, with {target}"


def _dtype(qparams: QParams) -> str:
    return _DTYPES[qparams.dtype[0]] + qparams.dtype[1:]


def _activations(graph: _core.Graph) -> Counter[str]:
    """Counts the tensors that are stored as integers and are not constants, by their dtype."""
    return Counter(
        _dtype(value.qparams)
        for value in graph.values
        if value.qparams is not None and value.kind != "constant"
    )


def _constants(graph: _core.Graph, *, is_bias: bool) -> Counter[str]:
    """Counts constants that are stored as integers, by range and by granularity of their scales."""
    found: Counter[str] = Counter()
    for value in graph.values:
        qparams = value.qparams
        if value.kind != "constant" or qparams is None or (qparams.dtype == "i32") != is_bias:
            continue
        scales = "" if qparams.axis is None else " per channel"
        if qparams.groups is not None:
            scales += f" and group of {qparams.groups.size}"
        bounds = "" if is_bias else f" in {qparams.qmin}..{qparams.qmax}"
        found[_dtype(qparams) + bounds + ("" if is_bias else scales)] += 1
    return found


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items()))


def _constant_bytes(graph: _core.Graph) -> int:
    constants = [value.constant for value in graph.values if value.kind == "constant"]
    return sum(np.asarray(each.array).nbytes for each in constants if each is not None)


# ---- sections ----


def _ports(program: QuantizedProgram) -> Table:
    rows = []
    sides = (("input", program.inputs), ("output", program.outputs), ("state", program.states))
    for side, ports in sides:
        for port in ports:
            shape = "[" + ",".join(map(str, port.shape)) + "]"
            row = (side, port.path or port.name, port.dtype, shape)
            parts = [
                (_dtype(each), f"{each.scales[0]:.6g}", str(each.zero_points[0])) for each in port.quantized
            ]
            rows += [(*row, *part) for part in parts] or [(*row, "-", "-", "-")]
    return table(("", "name", "dtype", "shape", "integers", "scale", "zero point"), rows)


def _operator_rows(graph: _core.Graph, explanation: QuantizationExplanation) -> dict[str, Counter[str]]:
    """Counts the nodes of each operator by the arithmetic in which they compute."""
    floats = {each.node for each in explanation.floats}
    rows: dict[str, Counter[str]] = {}
    for node in graph.nodes:
        if node.op in _CONVERSIONS and node.name not in floats:
            continue
        qparams = node.results[0].qparams if node.results else None
        kind = "float" if node.name in floats else "not rounded" if qparams is None else _dtype(qparams)
        rows.setdefault(node.op, Counter())[kind] += 1
    return rows


def _operator_table(rows: dict[str, Counter[str]]) -> Table:
    seen = {kind for kinds in rows.values() for kind in kinds}
    last = ("not rounded", "float")
    kinds = (*sorted(seen.difference(last)), *(kind for kind in last if kind in seen))
    ordered = sorted(rows.items(), key=lambda item: (-item[1].total(), item[0]))
    cells = [
        (op, f"{found.total():,}", *(f"{found[kind]:,}" if found[kind] else "-" for kind in kinds))
        for op, found in ordered
    ]
    return table(("operator", "nodes", *kinds), cells)


def _not_rounded(program: QuantizedProgram) -> list[Section]:
    """Returns the reasons why tensors stay float, or have no scale of their own, with their counts."""
    found = program.quantization
    return [
        *_by_reason("left float", found.left_float),
        *_by_reason("results without a scale of their own", found.not_rounded),
    ]


def _by_reason(title: str, tensors: Sequence[FloatTensor]) -> list[Section]:
    calls: dict[str, list[str]] = {}
    for row in tensors:
        by = f", by {row.rule}" if row.rule else ""
        calls.setdefault(row.reason + by, []).append(row.node)
    rows = [(why, f"{len(names):,}", _first(names)) for why, names in calls.items()]
    rows.sort(key=lambda row: -len(calls[row[0]]))
    return [Section(title, table(("why", "calls", "which"), rows))] if rows else []


def _first(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES])
    return shown if len(names) <= _SHOWN_NAMES else f"{shown} ..."


def _floats(explanation: QuantizationExplanation) -> Iterable[Section]:
    rows = [
        (each.node, each.op, reason.what, each.module_path)
        for each in explanation.floats
        for reason in each.reasons
    ]
    columns = ("node", "operator", "why", "module")
    if 0 < len(rows) <= _SHOWN_ROWS:
        yield Section("operators that compute with floats", table(columns, rows))
    elif rows:
        title = f"operators that compute with floats, the first {_SHOWN_ROWS} of {len(rows)}"
        yield Section(title, table(columns, rows[:_SHOWN_ROWS]))
        yield Section("operators that compute with floats, all", table(columns, rows), folded=True)
