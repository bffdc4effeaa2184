"""Measures one quantized network in integer arithmetic on all engines, and checks the measurement.

    module --quantizer, 4 samples--> q/dq graph       torch eager: what the integers represent
           --import, lower--> stages integer and tosa our executor, each instruction set
                          --> bytes --> the TOSA reference model, and back through our reader

All runs of the integer program must agree in every element. The inputs are eight samples that the quantizer
has not seen, and two that are beyond its range, one on either side. If the quantizer leaves some operators in
float (islands of floats), the target has both profiles, and the two parts are run on the values that they
read in a run of the whole graph. The operators over integers must agree in every element, those over floats
within tolerance.

Whole networks are compared by their signal-to-noise ratio, over the eight samples together: integers against
the q/dq graph, both against float32, and the result of Arm's lowering of the same converted graph.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tosaic
from tosaic import _core
from tosaic.comparing.compare_programs import fit_to_ports
from tosaic.lowering.reference_model import run_reference_model, to_file

from models import quantize
from models.delegates import (
    WithDelegates,
    delegates_of,
    lower_with_executorch,
    operators_of,
    run_file_on_reference_model,
)
from models.parts import Part, over_floats, part_of
from models.quantize import converted
from models.zoo import Network, build, one_thread, quiet

__all__ = [
    "QUANTIZERS",
    "Arm",
    "NotConverted",
    "Quantized",
    "convert",
    "laid_out",
    "leaves_out",
    "measure_arm",
    "measure_integers",
    "violations",
]

QUANTIZERS = ("xnnpack", "arm", "cortex-m")
_CALIBRATION = 4
_FIRST_UNSEEN = 100
_LEAST_DISTINCT = 10
_LEAST_VARIATION = 0.05
_ISLAND_TOLERANCE = 1e-5
_BESIDE_ARM_DB, _BESIDE_TORCH_DB, _LACKS_A_PART_DB = 1.0, 0.5, 10.0

Array = np.ndarray[Any, Any]
Sample = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Quantized:
    """The measurement of one network with one quantizer.

    Attributes
    ----------
    network, quantizer, target : str
    left : tuple of str
        Operators over quantized values that have no integer form, with the reason.
    tosa_ops, float_ops : int
        The number of TOSA operators, and the number of TOSA operators over floats.
    samples : int
        The number of samples that were run, on all engines.
    differing : dict of str to int
        By engine: the number of elements, over all samples, that differ from our executor at stage tosa with
        the widest instruction set. For islands of floats: from the run of the whole graph.
    status : str
        The status of the reference model; the worst one over all samples.
    distinct : int
        The number of distinct values in the outputs of the samples within the range.
    between_inputs : float
        The distance between the outputs of two samples, relative to the norm of the first.
    island_units, island_error : float
        For the operators over floats, our executor against the reference model: the largest distance of an
        integer result, and of a float result relative to the largest magnitude of its tensor.
    to_qdq, to_float, qdq_to_float : float
        Signal-to-noise ratio in dB: ours against the q/dq graph and against float32, and the q/dq graph
        against float32.
    not_converted : str
        The reason why the quantizer makes no graph of this network that torch itself can run, or empty. If
        there is a reason, all other fields are empty.
    """

    network: str
    quantizer: str
    target: str = ""
    left: tuple[str, ...] = ()
    tosa_ops: int = 0
    float_ops: int = 0
    samples: int = 0
    differing: dict[str, int] = field(default_factory=dict)
    status: str = ""
    distinct: int = 0
    between_inputs: float = 0.0
    island_units: float = 0.0
    island_error: float = 0.0
    to_qdq: float = 0.0
    to_float: float = 0.0
    qdq_to_float: float = 0.0
    not_converted: str = ""


@dataclass(frozen=True)
class Arm:
    """The result of ExecuTorch's Arm backend for the same converted graph.

    Attributes
    ----------
    network : str
    tosa_ops, graphs : int
        The number of TOSA operators and of files (delegates).
    to_qdq : float
        Signal-to-noise ratio in dB of its files, on the reference model, against the q/dq graph.
    failure : str
        The error, if the backend failed. Then the numbers are 0.
    """

    network: str
    tosa_ops: int
    graphs: int
    to_qdq: float
    failure: str = ""


class NotConverted(Exception):
    """There is no converted program. The message is the reason."""


def convert(
    network: Network, quantizer: str, folder: Path | None = None, *, calibration: int = _CALIBRATION
) -> torch.export.ExportedProgram:
    """Returns the program that is converted after `calibration` samples of calibration.

    With a `folder`, it is stored there and loaded the next time.

    Raises
    ------
    NotConverted
        The quantizer makes no graph of this network that torch itself can run.
    """
    samples = [network.sample(i) for i in range(calibration)]
    stem = network.name if calibration == _CALIBRATION else f"{network.name}.{calibration}"
    path = None if folder is None else folder / f"{stem}.{quantizer}.pt2"
    if path is not None and path.exists():
        quantize.QUANTIZERS[quantizer]()  # registers its operators with torch, which load() needs
        return torch.export.load(path)
    try:
        with one_thread(), quiet(), torch.no_grad():
            program = converted(network.module, samples, quantizer)
            program.module(check_guards=False)(*samples[0])
    except Exception as failed:  # any error: the code is torch's, torchao's and the quantizer's
        raise NotConverted(f"{type(failed).__name__}: {_first_line(failed)}") from failed
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{os.getpid()}.{path.name}")
        torch.export.save(program, part)
        part.replace(path)  # atomic: other processes never read a partial file
    return program


def measure_integers(
    name: str, quantizer: str, *, samples: int = 10, folder: Path | None = None
) -> Quantized:
    """Measures one network. The last two of the samples are beyond the quantizer's range."""
    network = build(name)
    with one_thread(), quiet():
        try:
            program = convert(network, quantizer, folder)
        except NotConverted as failed:
            return Quantized(name, quantizer, not_converted=str(failed))
        return _measure(network, quantizer, program, samples)


def leaves_out(arm: Arm, ours: Quantized) -> bool:
    """Returns whether Arm's file lacks a part of the network.

    This is assumed if it is much further from the q/dq graph than ours, for example because it lacks the
    bound of a ReLU whose zero point is not the smallest integer. Its number of operators is then not
    comparable.
    """
    return not arm.failure and arm.to_qdq < ours.to_qdq - _LACKS_A_PART_DB


def violations(m: Quantized, arm: Arm | None = None) -> list[str]:
    """Returns the conditions that a measurement violates, as texts."""
    if m.not_converted:
        return []
    found = [f"{engine}: {count} elements differ" for engine, count in m.differing.items() if count]
    if m.status != "VALID":
        found.append(f"the reference model's status is {m.status}")
    if m.distinct < _LEAST_DISTINCT:
        found.append(f"the outputs have {m.distinct} distinct values")
    if m.between_inputs < _LEAST_VARIATION:
        found.append(f"outputs hardly depend on the input: {m.between_inputs:.2g}")
    if m.island_units > 1 or m.island_error > _ISLAND_TOLERANCE:
        found.append(f"islands: {m.island_units:.0f} units, {m.island_error:.2g} of the largest")
    if m.to_float < m.qdq_to_float - _BESIDE_TORCH_DB:
        found.append(f"{m.to_float:.1f} dB against float32, the q/dq graph {m.qdq_to_float:.1f}")
    if m.quantizer == "arm" and (m.left or "FP" in m.target):
        found += ["there are floats in it", *m.left]
    if arm is not None and not arm.failure:
        if m.to_qdq < arm.to_qdq - _BESIDE_ARM_DB:
            found.append(f"{m.to_qdq:.1f} dB against the q/dq graph, Arm's lowering {arm.to_qdq:.1f}")
        if m.tosa_ops > arm.tosa_ops and not leaves_out(arm, m):
            found.append(f"{m.tosa_ops} TOSA operators, Arm's lowering {arm.tosa_ops}")
    return found


# ---- ours ----


def _measure(network: Network, quantizer: str, program: Any, count: int) -> Quantized:
    lowered = _lowered(program)
    samples = [laid_out(lowered.inputs, sample) for sample in _samples(network, count)]
    ordinary = samples[: max(1, count - 2)]
    differing, status, units, error = _engines(lowered, samples)
    ours = [lowered.run(*sample) for sample in samples]
    with torch.no_grad():
        floats = [network.module(*sample).numpy() for sample in ordinary]
        module = program.module(check_guards=False)
        qdq = [module(*sample).numpy() for sample in ordinary]
    same = ours[: len(ordinary)]
    return Quantized(
        network=network.name,
        quantizer=quantizer,
        target=lowered.target,
        left=_left(program),
        tosa_ops=len(lowered.graph),
        float_ops=sum(over_floats(node) for node in lowered.graph.nodes),
        samples=len(samples),
        differing=differing,
        status=status,
        distinct=len(np.unique(np.concatenate([array.ravel() for array in same]))),
        between_inputs=float(np.linalg.norm(ours[1] - ours[0]) / np.linalg.norm(ours[0])),
        island_units=units,
        island_error=error,
        to_qdq=signal_to_noise(qdq, same),
        to_float=signal_to_noise(floats, same),
        qdq_to_float=signal_to_noise(floats, qdq),
    )


def _lowered(program: Any) -> Any:
    """Lowers to integers only or, if some operators have no integer form, to integers and floats."""
    try:
        return tosaic.lower(program, target="TOSA-1.0+INT")
    except (tosaic.SpecViolation, tosaic.UnsupportedOp):
        return tosaic.lower(program, target="TOSA-1.0+INT+FP")


def _left(program: Any) -> tuple[str, ...]:
    graph = tosaic.from_exported(program).graph
    for name in ("fold-constants", "dead-code", "common-subexpressions", "simplify", "fold-qdq"):
        graph = _core.run_pass(name, graph)
    graph = _core.run_pass("fold-constants", graph)
    return tuple(f"{row['node']}: {row['what']}" for row in _core.explain_integers(graph))


def _samples(network: Network, count: int) -> list[Sample]:
    """Returns samples that the quantizer has not seen, and two beyond the range of the calibration samples.

    The last two are constant: 10 % of the range below its smallest value, and as much above its largest (for
    token numbers: the smallest and largest themselves).
    """
    seen = torch.cat([network.sample(i)[0] for i in range(_CALIBRATION)])
    least, largest = seen.min(), seen.max()
    if seen.is_floating_point():
        least, largest = least - 0.1 * (largest - least), largest + 0.1 * (largest - least)
    shape = network.sample()[0].shape
    beyond = [(torch.full(shape, bound.item(), dtype=seen.dtype),) for bound in (least, largest)]
    unseen = [network.sample(_FIRST_UNSEEN + i) for i in range(max(1, count - 2))]
    return [*unseen, *beyond][:count]


def signal_to_noise(expected: Sequence[Array], found: Sequence[Array]) -> float:
    """Returns the signal-to-noise ratio in dB, over all samples together."""
    signal = np.concatenate([np.asarray(array, np.float64).ravel() for array in expected])
    noise = np.concatenate([np.asarray(array, np.float64).ravel() for array in found]) - signal
    power = float(np.sum(noise**2))
    return math.inf if power == 0 else 10 * math.log10(float(np.sum(signal**2)) / power)


def laid_out(ports: Sequence[Any], sample: Sample) -> Sample:
    """Returns the sample with the strides with which the graph inputs were traced.

    The Cortex-M quantizer traces channels-last inputs.
    """
    placed = []
    for port, tensor in zip(ports, sample, strict=True):
        back = tuple(int(i) for i in np.argsort(port.dim_order))
        placed.append(tensor.permute(port.dim_order).contiguous().permute(back))
    return tuple(placed)


# ---- engines ----

_Found = tuple[dict[str, int], str, float, float]


def _engines(lowered: Any, samples: Sequence[Sample]) -> _Found:
    if "FP" in lowered.target:
        return _engines_by_part(lowered, samples)
    back = tosaic.program.from_graph(_core.deserialize(lowered.to_bytes()))
    runs: dict[str, Callable[[Sample], Array]] = {}
    for isa in reversed(_core.usable_isas()):  # the widest first: the others are compared with it
        for stage in ("tosa", "canonical"):
            session = _core.Session(lowered.stages[stage], isa=isa)
            name = f"{'integer' if stage == 'canonical' else stage}, {isa}"
            runs[name] = lambda sample, session=session: session.run(lowered.arrays(*sample))[0]
    first = next(iter(runs))
    runs["file, read back"] = lambda sample: _from_file(back, lowered, sample)
    differing, status = dict.fromkeys([*list(runs)[1:], "reference model"], 0), "VALID"
    for sample in samples:
        base = runs[first](sample)
        for name in list(runs)[1:]:
            differing[name] += _count(runs[name](sample), base)
        reference = run_reference_model(lowered, *sample)
        if not reference.ok or reference.outputs is None:
            return differing, reference.status, 0.0, 0.0
        differing["reference model"] += _count(reference.outputs, base)
    scalar = _core.Session(lowered.graph, reference=True)
    differing["tosa, scalar kernels"] = _count(
        scalar.run(lowered.arrays(*samples[-1]))[0], runs[first](samples[-1])
    )
    return differing, status, 0.0, 0.0


def _count(found: Array, base: Array) -> int:
    """Returns the number of elements that differ; all elements (at least 1) if dtype or shape differ."""
    if (found.dtype, found.shape) != (base.dtype, base.shape):
        return max(1, base.size)
    return int(np.count_nonzero(found != base))


def _from_file(back: Any, lowered: Any, sample: Sample) -> Array:
    """Runs the program that was read back from its bytes, with the arrays of the lowered program.

    A file has integers where the lowered program has floats at its inputs and outputs, so they are quantized
    before the run and dequantized after it. An output of another shape is permuted from NHWC to NCHW.
    """
    arrays = []
    for array, port in zip(lowered.arrays(*sample), lowered.graph.inputs, strict=True):
        arrays.append(_stored(np.asarray(array), port.qparams) if port.dtype != port.value.dtype else array)
    (found,) = back.run_arrays(fit_to_ports(arrays, back.inputs))
    (port,) = lowered.graph.outputs
    if port.dtype != port.value.dtype:
        scale, zero = port.qparams.scales[0], port.qparams.zero_points[0]
        found = (found.astype(np.float32) - np.float32(zero)) * np.float32(scale)
    return found if found.shape == port.shape else found.transpose(0, 3, 1, 2)


def _stored(array: Array, qparams: tosaic.ports.QParams | None) -> Array:
    if qparams is None:  # indices
        return array.astype(np.int32)
    dtype = {"i8": torch.int8, "i16": torch.int16}[qparams.dtype]
    return torch.ops.quantized_decomposed.quantize_per_tensor(
        torch.from_numpy(array),
        qparams.scales[0],
        qparams.zero_points[0],
        qparams.qmin,
        qparams.qmax,
        dtype,
    ).numpy()


def _engines_by_part(lowered: Any, samples: Sequence[Sample]) -> _Found:
    """Runs the operators over integers on every engine, and those over floats on the reference model.

    Both are compared with the values of a run of the whole graph on our executor.
    """
    graph = lowered.graph
    whole = _core.Session(graph)
    integers = part_of(graph, lambda node: not over_floats(node))
    floats = part_of(graph, over_floats)
    differing: dict[str, int] = {}
    status, units, error = "VALID", 0.0, 0.0
    for sample in samples:
        values = dict(whole.trace(lowered.arrays(*sample))["values"])
        for port, array in zip(graph.inputs, lowered.arrays(*sample), strict=True):
            values[port.value.name] = to_file(np.asarray(array), port)
        if integers is not None:
            status = max(status, _integer_part(integers, values, lowered.target, differing), key=_badness)
        if floats is not None:
            found, islands = _reference(floats, values, lowered.target)
            status = max(status, found, key=_badness)
            for name, array in islands.items():
                distance = np.abs(array.astype(np.float64) - values[name]).max(initial=0)
                if array.dtype.kind == "f":
                    error = max(error, float(distance / np.abs(values[name]).max(initial=1e-30)))
                else:
                    units = max(units, float(distance))
    return differing, status, units, error


def _badness(status: str) -> int:
    return int(status != "VALID")


def _integer_part(part: Part, values: dict[str, Array], target: str, differing: dict[str, int]) -> str:
    given = [values[name] for name in part.inputs]
    expected = [values[name] for name in part.outputs]

    def note(engine: str, found: Sequence[Array]) -> None:
        count = sum(_count(a, b) for a, b in zip(found, expected, strict=True))
        differing[engine] = differing.get(engine, 0) + count

    for isa in _core.usable_isas():
        note(f"tosa, {isa}, integer islands", _core.Session(part.graph, isa=isa).run(given))
    status, found = _reference(part, values, target)
    if found:
        note("reference model, integer islands", [found[name] for name in part.outputs])
    return status


def _reference(part: Part, values: dict[str, Array], target: str) -> tuple[str, dict[str, Array]]:
    lowered = tosaic.lower(tosaic.program.from_graph(part.graph), target=target)
    result = run_reference_model(lowered, *(values[name] for name in part.inputs))
    if not result.ok or result.outputs is None:
        return result.status, {}
    outputs = result.outputs if isinstance(result.outputs, tuple | list) else (result.outputs,)
    return "VALID", {name: np.asarray(a) for name, a in zip(part.outputs, outputs, strict=True)}


def _first_line(failed: Exception) -> str:
    return (str(failed).splitlines() or [""])[0][:200]


# ---- Arm's ----


def measure_arm(name: str, *, samples: int = 10, folder: Path | None = None) -> Arm:
    """Lowers the network with ExecuTorch's Arm backend and runs its files on the reference model."""
    network = build(name)
    with one_thread(), quiet(), torch.no_grad():
        program = convert(network, "arm", folder)
        ordinary = _samples(network, samples)[: max(1, samples - 2)]
        module = program.module(check_guards=False)
        expected = [module(*sample).numpy() for sample in ordinary]
        try:
            edge = lower_with_executorch(program, "TOSA-1.0+INT")
            files = delegates_of(edge)
            runner = WithDelegates(edge, run_file_on_reference_model)
            found = [runner.run(*sample)[0] for sample in ordinary]
        except Exception as failed:  # any error of the backend is a result of the measurement
            return Arm(name, 0, 0, 0.0, f"{type(failed).__name__}: {_first_line(failed)}")
        ops = sum(operators_of(file) for file in files)
        shaped = [array.reshape(truth.shape) for array, truth in zip(found, expected, strict=True)]
        return Arm(name, ops, len(files), signal_to_noise(expected, shaped))
