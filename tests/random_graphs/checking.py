"""Runs one random program at all stages and on all engines, and reports where results disagree with torch.

The bound for each float element is 4 times torch's own error in float32, plus twice the largest distance of a
noisy float64 variant from float64 (programs.py). Integers and bools must equal torch's, and so must shapes
and dtypes. The reference model adds float32 terms one after the other, so its error grows with the square
root of the number of terms. That number is at most the number of elements of the program's largest value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tosaic
from tosaic import _core
from tosaic.lowering.reference_model import from_file, run_reference_model, to_file

from random_graphs.programs import F32, F64, NEAR, RandomProgram, evaluate

TARGETS = ("TOSA-1.0+FP", "TOSA-1.0+FP+INT", "TOSA-1.0+FP+INT+int16")
_SMALLEST = 1e-37  # float32 numbers below about this are subnormal and may be flushed to zero


@dataclass(frozen=True)
class Failure:
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class Result:
    failures: list[Failure] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    ops: set[str] = field(default_factory=set)
    nodes: int = 0
    target: str = ""
    checks: int = 0


@dataclass(frozen=True)
class Expected:
    """torch's result, and how far a result may be from it.

    Attributes
    ----------
    exact : array
        torch's result in float32, or its integers or bools.
    value, bound : array
        The float64 result, and the allowed distance from it.
    in_sequence : float
        The factor of the bound for engines that add the terms of a sum one after the other.
    """

    exact: np.ndarray[Any, Any]
    value: np.ndarray[Any, Any]
    bound: np.ndarray[Any, Any]
    in_sequence: float = 1.0

    def disagreement(self, got: Any, *, in_sequence: bool = False) -> str:
        """Returns the number of wrong elements and the first one, as text; empty if the result is right."""
        bound = self.bound * (self.in_sequence if in_sequence else 1.0)
        array = np.asarray(got)
        if array.shape != self.exact.shape:
            return f"shape {array.shape}, expected {self.exact.shape}"
        if array.dtype != self.exact.dtype:
            return f"dtype {array.dtype}, expected {self.exact.dtype}"
        if self.exact.dtype.kind != "f":
            wrong = array != self.exact
        else:
            wrong = ~(np.abs(array.astype(np.float64) - self.value) <= bound)
        if not wrong.any():
            return ""
        at = tuple(int(i[0]) for i in np.nonzero(wrong)) if array.ndim else ()
        count = f"{int(wrong.sum())} of {array.size} elements"
        text = f"{count}, first at {at}: {array[at]!r}, expected {self.exact[at]!r}"
        return text if self.exact.dtype.kind != "f" else f"{text} within {bound[at]:.3g}"


def expected_outputs(program: RandomProgram) -> list[Expected]:
    values = evaluate(program, (F32, F64, *NEAR)).values
    terms = max(variants[0].numel() for variants in values.values())
    in_sequence = max(1.0, terms**0.5 / 4)
    result = []
    for name in program.outputs:
        f32, f64, *noisy = (value.numpy() for value in values[name])
        if f32.dtype.kind != "f":
            result.append(Expected(f32, f32, np.zeros(f32.shape)))
            continue
        noise = np.max([np.abs(value - f64) for value in noisy], axis=0)
        result.append(Expected(f32, f64, 4 * np.abs(f32 - f64) + 2 * noise + _SMALLEST, in_sequence))
    return result


def reparsed(graph: _core.Graph) -> str:
    """Returns what differs after printing, parsing and printing again, as text; else empty."""
    text = graph.text()
    try:
        again = _core.Graph.parse(text, dict(graph.constants))
    except tosaic.Error as error:
        return f"own text is not read back: {error}"
    if again.text() != text:
        pairs = zip(text.splitlines(), again.text().splitlines(), strict=False)
        return "text changes: " + next((f"{a!r} became {b!r}" for a, b in pairs if a != b), "length")
    return graph.diff(again)


def lowered(program: Any) -> tuple[tosaic.Lowered | None, str, list[str]]:
    """Returns the lowered program, its target, and the reasons for a refusal.

    The target is the first of TARGETS that supports the program. If none does, there is no lowered program.
    """
    reasons: list[str] = []
    for target in TARGETS:
        try:
            return tosaic.lower(program, target=target), target, []
        except (tosaic.SpecViolation, tosaic.UnsupportedOp) as error:
            reasons = [problem.what for problem in error.problems]
    return None, "", reasons


def _stages(program: tosaic.Program, low: tosaic.Lowered | None) -> Iterator[tuple[str, _core.Graph]]:
    yield "imported", program.graph
    if low is not None:
        yield from [(name, graph) for name, graph in low.stages.items() if name != "imported"]
        return
    graph = program.graph
    for name in ("fold-constants", "dead-code", "common-subexpressions", "simplify", "fold-batch-norm"):
        graph = _core.run_pass(name, graph)
    yield "exported", graph
    for name in ("decompose", "fold-constants", "simplify", "common-subexpressions", "assign-dim-order"):
        graph = _core.run_pass(name, graph)
    yield "canonical", graph


def check(program: RandomProgram, *, reference_model: bool = True) -> Result:
    """Checks one program. All errors become failures of the result; nothing is raised."""
    result = Result()

    def compare(where: str, outputs: Any) -> None:
        for name, expectation, got in zip(program.outputs, expected, outputs, strict=True):
            result.checks += 1
            text = expectation.disagreement(got, in_sequence=where == "reference model")
            if text:
                result.failures.append(Failure(where, f"output {name}: {text}"))

    expected = expected_outputs(program)
    arguments = program.arguments()
    try:
        exported = torch.export.export(program.module(), arguments)
        imported = tosaic.from_exported(exported)
    except Exception as error:
        result.failures.append(Failure("import", f"{type(error).__name__}: {error}"))
        return result
    result.ops = {node.op for node in imported.graph.nodes}
    result.nodes = len(imported.graph)
    if "opaque" in result.ops:
        opaque = [node.attrs["target"] for node in imported.graph.nodes if node.op == "opaque"]
        result.failures.append(Failure("import", f"opaque nodes {opaque}"))
        return result
    try:
        low, result.target, result.refusals = lowered(imported)
    except Exception as error:
        result.failures.append(Failure("lower", f"{type(error).__name__}: {error}"))
        low = None
    try:
        for stage, graph in _stages(imported, low):
            difference = reparsed(graph)
            if difference:
                result.failures.append(Failure(f"text of {stage}", difference))
            arrays = imported.arrays(*arguments)
            for kernels in ("reference", "fast"):
                reference = kernels == "reference"
                found = _core.Session(graph, reference=reference).run(arrays)
                compare(f"{stage}, {kernels} kernels", found)
                shared = _core.Session(
                    graph, reference=reference, threads=3, share_all=True, least_group_bytes=0
                ).run(arrays)
                if [array.tobytes() for array in shared] != [array.tobytes() for array in found]:
                    result.failures.append(
                        Failure(
                            f"{stage}, {kernels} kernels", "other results by 3 threads in groups of steps"
                        )
                    )
        if low is not None:
            _check_read_back(low, arguments, compare)
        if low is not None and reference_model:
            _check_reference_model(low, arguments, compare, result)
    except Exception as error:
        result.failures.append(Failure("run", f"{type(error).__name__}: {error}"))
    return result


def _check_reference_model(low: tosaic.Lowered, arguments: Any, compare: Any, result: Result) -> None:
    run = run_reference_model(low, *arguments, level="EIGHTK")
    if not run.ok:
        result.failures.append(Failure("reference model", f"status {run.status}: {run.log[-500:]}"))
    if run.outputs is not None:
        compare("reference model", run.outputs)


def _check_read_back(low: tosaic.Lowered, arguments: Any, compare: Any) -> None:
    """Reads the bytes back and runs them on our executor, with inputs and outputs in physical shapes."""
    ports = zip(low.arrays(*arguments), low.graph.inputs, strict=True)
    session = _core.Session(_core.deserialize(low.to_bytes()))
    raw = session.run([to_file(array, port) for array, port in ports])
    compare("read back", [from_file(array, port) for array, port in zip(raw, low.graph.outputs, strict=True)])
