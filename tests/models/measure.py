"""Measures one float network at every stage and on the reference model, and checks the measurement.

    module --float64--> the truth
           --float32--> torch's error            torch eager, one thread
           --export, import, lower--> four stages, each on our executor
                                  --> bytes --> the TOSA reference model, and back through our reader

Errors are measured against float64, over all samples together. They are compared with the error of torch in
float32: ours may be up to twice as large, both in norm and in largest difference. The error of the reference
model may be as large as the sum of ours and torch's, in norm. Its largest difference is recorded but not
checked: the reference model adds the products of a contraction one after the other, which for 3072 products
has four times the error of blocked sums. The largest differences are due to that, not to the file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
import tosaic
from tosaic import _core
from tosaic.comparing.compare_programs import fit_to_ports
from tosaic.lowering.reference_model import run_reference_model

from models.zoo import Network, one_thread, run_in_float64

__all__ = ["STAGES", "Error", "Measurement", "measure", "violations"]

STAGES = ("imported", "exported", "canonical", "tosa")
_LEAST_SAMPLES = 2
_LEAST_NUMBERS = 1000
_PATIENCE_SECONDS = 180.0
_LEAST_VARIATION = 0.05

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Error:
    """The distance from float64: its Frobenius norm relative to that of the truth, and its maximum."""

    relative: float
    max_abs: float

    @classmethod
    def of(cls, truth: Sequence[Array], found: Sequence[Array]) -> Error:
        """Returns the error over all samples together. It is infinite if some element is not finite."""
        exact = np.concatenate([t.ravel() for t in truth])
        off = np.concatenate([np.asarray(f, np.float64).ravel() for f in found]) - exact
        if not np.isfinite(off).all():
            return cls(math.inf, math.inf)
        return cls(float(np.linalg.norm(off) / np.linalg.norm(exact)), float(np.abs(off).max()))


@dataclass(frozen=True)
class Measurement:
    """The measurement of one network.

    Attributes
    ----------
    network : str
    parameters, fx_nodes, canonical_nodes, tosa_ops, transposes : int
    opaque : tuple of str
        Nodes that the importer did not translate, since no row of its table matches.
    leftovers : tuple of str
        What the TOSA graph should not contain: operators other than tosa.*, nodes that depend on no input,
        and int64 values.
    text_changes : tuple of str
        Stages whose text form changes when it is parsed and printed again.
    samples, reference_samples : int
        The number of samples that were run, and that were run on the reference model.
    between_inputs, within_output : float
        The distance between the outputs of two samples, relative to the norm of the first; the standard
        deviation of the elements of one output, relative to their root mean square.
    errors : dict of str to Error
        By engine: ``torch`` and the four stages.
    errors_beside_reference : dict of str to Error
        The errors of the reference model, of torch and of stage tosa on the same samples.
    status : str
        The status of the reference model.
    file_is_same : bool
        The bytes, read back and run on our executor, have the same results as the graph.
    run_ms, reference_s : float
        The time of one run on our executor at stage tosa (ms), and on the reference model (s).
    """

    network: str
    parameters: int
    fx_nodes: int
    canonical_nodes: int
    tosa_ops: int
    transposes: int
    opaque: tuple[str, ...]
    leftovers: tuple[str, ...]
    text_changes: tuple[str, ...]
    samples: int
    reference_samples: int
    between_inputs: float
    within_output: float
    errors: dict[str, Error]
    errors_beside_reference: dict[str, Error]
    status: str
    file_is_same: bool
    run_ms: float
    reference_s: float


def measure(network: Network) -> Measurement:
    """Measures the network. Its module is float64 afterwards."""
    with one_thread():
        return _measure(network)


def _measure(network: Network) -> Measurement:
    exported = network.export()
    program = tosaic.from_exported(exported)
    lowered = tosaic.lower(program)
    samples = _samples(network)
    eager = _eager(network, samples)
    ours = {stage: _run_stage(lowered, stage, samples) for stage in STAGES}
    run_ms = _run_ms(lowered, samples[0])
    reference = _reference(lowered, samples)
    text_changes = tuple(stage for stage, graph in lowered.stages.items() if _text_changes(graph))
    file_is_same = _file_is_same(lowered, samples[0], ours["tosa"][0])
    # This run must come last: it converts the module in place, and our constants share the module's memory.
    truth = [run_in_float64(network.module, sample).numpy() for sample in samples]
    same = truth[: len(reference.outputs)]
    beside = {
        "reference": Error.of(same, reference.outputs) if same else Error(math.inf, math.inf),
        "torch": Error.of(same, eager[: len(same)]) if same else Error(0, 0),
        "tosa": Error.of(same, ours["tosa"][: len(same)]) if same else Error(0, 0),
    }
    graph = lowered.graph
    return Measurement(
        network=network.name,
        parameters=network.parameters,
        fx_nodes=len(exported.graph.nodes),
        canonical_nodes=len(lowered.stages["canonical"]),
        tosa_ops=len(graph),
        transposes=sum(node.op == "tosa.transpose" for node in graph.nodes),
        opaque=tuple(node.name for node in program.graph.nodes if node.op == "opaque"),
        leftovers=tuple(_leftovers(graph)),
        text_changes=text_changes,
        samples=len(samples),
        reference_samples=len(reference.outputs),
        between_inputs=float(np.linalg.norm(truth[1] - truth[0]) / np.linalg.norm(truth[0])),
        within_output=float(truth[0].std() / np.sqrt(np.mean(truth[0] ** 2))),
        errors={"torch": Error.of(truth, eager)} | {s: Error.of(truth, ours[s]) for s in STAGES},
        errors_beside_reference=beside,
        status=reference.status,
        file_is_same=file_is_same,
        run_ms=run_ms,
        reference_s=reference.seconds,
    )


def violations(m: Measurement) -> list[str]:
    """Returns the conditions that a measurement violates, as texts."""
    found = [f"opaque node '{name}'" for name in m.opaque]
    found += [f"left over in the TOSA graph: {what}" for what in m.leftovers]
    found += [f"text of stage {stage} changes when parsed and printed" for stage in m.text_changes]
    if m.between_inputs < _LEAST_VARIATION:
        found.append(f"outputs hardly depend on the input: {m.between_inputs:.2g}")
    if m.within_output < _LEAST_VARIATION:
        found.append(f"the numbers of an output hardly differ: {m.within_output:.2g}")
    for stage in STAGES:
        for figure in ("relative", "max_abs"):
            error, allowed = (getattr(m.errors[engine], figure) for engine in (stage, "torch"))
            if not error <= 2 * allowed:
                found.append(
                    f"stage {stage}: {figure} error {error:.3g} is beyond twice torch's {allowed:.3g}"
                )
    if m.status != "VALID":
        found.append(f"the reference model's status is {m.status}")
    beside = m.errors_beside_reference
    error, ours, torchs = (beside[engine].relative for engine in ("reference", "tosa", "torch"))
    if not error <= ours + torchs:
        found.append(
            f"reference model: error {error:.3g} is beyond {ours:.3g} (ours) + {torchs:.3g} (torch's)"
        )
    if not m.file_is_same:
        found.append("the file, read back, gives other results than the graph")
    return found


# ---- runs ----


@dataclass(frozen=True)
class _Reference:
    outputs: list[Array]
    status: str
    seconds: float


def _samples(network: Network) -> list[tuple[torch.Tensor, ...]]:
    """Returns samples whose outputs together have at least _LEAST_NUMBERS elements."""
    with torch.no_grad():
        numbers = network.module(*network.sample()).numel()
    return [network.sample(i) for i in range(max(_LEAST_SAMPLES, math.ceil(_LEAST_NUMBERS / numbers)))]


def _eager(network: Network, samples: Sequence[tuple[torch.Tensor, ...]]) -> list[Array]:
    """Returns the outputs of torch in float32."""
    with torch.no_grad():
        return [network.module(*sample).numpy() for sample in samples]


def _run_stage(lowered: Any, stage: str, samples: Sequence[Any]) -> list[Array]:
    program = lowered.at(stage)
    return [program.run(*sample) for sample in samples]


def _run_ms(lowered: Any, sample: Any) -> float:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        lowered.run(*sample)
        times.append(time.perf_counter() - start)
    return 1e3 * median(times[1:])


def _reference(lowered: Any, samples: Sequence[Any]) -> _Reference:
    """Runs the reference model on as many samples as take about _PATIENCE_SECONDS, but at least on one."""
    outputs, start = [], time.perf_counter()
    for done, sample in enumerate(samples):
        spent = time.perf_counter() - start
        if done and spent * (done + 1) / done > _PATIENCE_SECONDS:
            break
        result = run_reference_model(lowered, *sample)
        if not result.ok or result.outputs is None:
            return _Reference(outputs, result.status, 0.0)
        outputs.append(result.outputs)
    return _Reference(outputs, "VALID", (time.perf_counter() - start) / len(outputs))


def _file_is_same(lowered: Any, sample: Any, expected: Array) -> bool:
    program = tosaic.program.from_graph(_core.deserialize(lowered.to_bytes()))
    (found,) = program.run_arrays(fit_to_ports(lowered.arrays(*sample), program.inputs))
    if found.shape != expected.shape:
        found = found.transpose(0, 3, 1, 2)
    return np.array_equal(found, expected)


# ---- structure ----


def _leftovers(graph: _core.Graph) -> list[str]:
    live = {port.value.name for port in graph.inputs}
    found = [f"input '{p.value.name}' is int64" for p in graph.inputs if p.value.dtype == "i64"]
    for node in graph.nodes:
        if not node.op.startswith("tosa."):
            found.append(f"'{node.name}' is {node.op}")
        is_other_shape = node.op == "tosa.reshape"  # the shape of a constant that is stored once
        if not is_other_shape and not any(
            value is not None and value.name in live for value in node.operands
        ):
            found.append(f"'{node.name}' ({node.op}) depends on no input")
        found += [f"'{value.name}' is int64" for value in node.results if value.dtype == "i64"]
        live.update(value.name for value in node.results)
    return found


def _text_changes(graph: _core.Graph) -> bool:
    text = graph.text()
    return _core.Graph.parse(text).text() != text
