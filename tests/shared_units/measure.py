"""Measures a program: quantized and lowered, and next to it the same network with a nearer number.

    ratio of                   has to be within 6 dB of
    the lowered program        the quantized program
    the quantized program      the reference: quantized with the nearest number of the same effect

The number of the reference has the least magnitude such that, with it or any larger one, the float network
computes the same, up to -60 dB, on all inputs of calibration and measurement. If there is none below a
quarter of the number, a reader notices the number itself: 8 bits cannot hold both, and only the lowered
program is compared with the quantized one, or refused by node. A ratio is taken over all outputs for two
inputs that calibration has not seen, and counts up to 50 dB. Outputs beyond the outputs of calibration
saturate in every quantized program, so all programs are compared as if they saturated there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tosaic

from shared_units.networks import Program, samples_of

__all__ = ["FLOOR_DB", "STATES", "Measured", "measure"]

FLOOR_DB = 6.0
MOST_DB = 50.0
STATES = ("ok", "noticed", "refused", "lost", "wrong", "error")
"""`lost`: the lowered program is worse than the quantized one. `wrong`: that is worse than the reference."""

_SAME_DB = 60.0
_ORDINARY = 4.0  # numbers of the size of activations are their own reference
_CALIBRATION, _TESTS = 12, 2
_NEARER = (0.0, 1e-3, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 48.0, 100.0, 300.0, 1e3)

Arrays = list[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Measured:
    """What became of a program. Ratios are in dB; None if there is none."""

    seed: int
    text: str
    place: str
    reader: str
    magnitude: float
    is_input: bool
    state: str
    quantized: float | None = None
    lowered: float | None = None
    reference: float | None = None
    nearer: float | None = None
    refusal: str = ""


def decibels(found: Arrays, exact: Arrays) -> float:
    """The ratio of the power of `exact` to that of the difference."""
    power = sum(float(np.square(each.astype(np.float64)).sum()) for each in exact)
    noise = sum(
        float(np.square(a.astype(np.float64) - b.astype(np.float64)).sum())
        for a, b in zip(found, exact, strict=True)
    )
    if noise == 0:
        return float("inf")
    return float(10 * np.log10(power / noise)) if power > 0 else float("-inf")


def measure(program: Program) -> Measured:
    """Measures one program. Errors of other classes than refusals are recorded, too."""
    about = {
        "seed": program.seed,
        "text": str(program),
        "place": program.place,
        "reader": program.reader,
        "magnitude": program.magnitude,
        "is_input": program.is_input,
    }
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            return Measured(**about, **_measured(program))  # type: ignore[arg-type]
        except Exception as error:
            return Measured(**about, state="error", refusal=f"{type(error).__name__}: {error}")  # type: ignore[arg-type]


def _measured(program: Program) -> dict[str, Any]:
    seen = _of_torch(program, program.number, _samples)
    floats = _of_torch(program, program.number, _tests)
    if not all(np.isfinite(each).all() for each in seen + floats):
        return {"state": "noticed", "refusal": "the floats are not finite"}
    exact = Exact(floats, min(float(each.min()) for each in seen), max(float(each.max()) for each in seen))
    quantized = _quantized(program, program.number)
    found: dict[str, Any] = {"quantized": exact.ratio(_runs(quantized, program, program.number))}
    found |= _lowered(quantized, program, exact)
    found["nearer"] = nearer = _nearer(program, seen, floats)
    lost = found["lowered"] < min(found["quantized"], MOST_DB) - FLOOR_DB
    if nearer is None:
        return found | {"state": "lost" if lost else "noticed"}
    reference = _quantized(program, nearer)
    found["reference"] = exact.ratio(_runs(reference, program, nearer))
    wrong = found["quantized"] < min(found["reference"], MOST_DB) - FLOOR_DB
    return found | {
        "state": "wrong" if wrong else "lost" if lost else "refused" if found["refusal"] else "ok"
    }


@dataclass(frozen=True)
class Exact:
    """The outputs of the float network, and the least and the greatest output of calibration."""

    outputs: Arrays
    least: float
    greatest: float

    def ratio(self, found: Arrays) -> float:
        return decibels(self._saturated(found), self._saturated(self.outputs))

    def _saturated(self, each: Arrays) -> Arrays:
        return [np.clip(array, self.least, self.greatest) for array in each]


def _lowered(quantized: Any, program: Program, exact: Exact) -> dict[str, Any]:
    refusal = ""
    try:
        lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    except (tosaic.UnsupportedOp, tosaic.SpecViolation) as error:
        refusal = str(error)
        if "(node '" not in refusal:
            raise
        lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+FP")
    return {"refusal": refusal, "lowered": exact.ratio(_runs(lowered, program, program.number))}


def _nearer(program: Program, seen: Arrays, floats: Arrays) -> float | None:
    """The number of least magnitude, up to a quarter, such that no larger one changes the floats."""
    if program.magnitude <= _ORDINARY:
        return program.number
    sign, found = np.sign(program.number), None
    for magnitude in reversed(_NEARER):
        if magnitude > program.magnitude / 4:
            continue
        number = float(sign * magnitude)
        if decibels(_of_torch(program, number, _tests), floats) <= _SAME_DB:
            break
        each = zip(_of_torch(program, number, _samples), seen, strict=True)
        if any(decibels([nearer], [exact]) <= _SAME_DB for nearer, exact in each):
            break
        found = number
    return found


def _samples(program: Program, number: float) -> list[tuple[Any, ...]]:
    return samples_of(program, _CALIBRATION, number=number)


def _tests(program: Program, number: float) -> list[tuple[Any, ...]]:
    return samples_of(program, _TESTS, first=100, number=number)


def _of_torch(program: Program, number: float, inputs: Callable[..., Any]) -> Arrays:
    network = program.network(number)
    return [network(*each).numpy() for each in inputs(program, number)]


def _quantized(program: Program, number: float) -> Any:
    samples = _samples(program, number)
    exported = torch.export.export(program.network(number), samples[0])
    return tosaic.quantize(exported, samples, progress=False)


def _runs(runnable: Any, program: Program, number: float) -> Arrays:
    return [np.asarray(_only(runnable.run(*each))) for each in _tests(program, number)]


def _only(outputs: Any) -> Any:
    return outputs[0] if isinstance(outputs, Sequence) else outputs
