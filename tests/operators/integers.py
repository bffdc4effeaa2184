"""Runs one call between dequantize and quantize nodes, lowered to integers, and compares it with torch.

Each float tensor of the case becomes an input of 8-bit or 16-bit integers that represent about the same
numbers. The integers are signed or not, use the whole range or a part of it, have a zero point or not, and
have a finer or coarser scale than the numbers need; a hash of the case chooses among these. Weights of
contractions are 8-bit constants, other parameters are float constants. Results are quantized with the range
that torch's float results have. For the same integers, two comparisons are made: our executor at stage tosa
with torch's q/dq graph (the distance is in units of the result, "LSB"), and the reference model with our
executor (which must be equal).

Results that are not quantized have some freedom. Sorts and selections may return any of the positions of
equal elements, unless they are stable: torch leaves them open, and quantized numbers are often equal. Numbers
that differ by less than f32 distinguishes count as equal, so truth values and counts may be those of an input
that is larger or smaller by that much.

Calls that no quantizer annotates are skipped: floats other than float32, numbers that are not finite, results
whose range needs a scale outside 1e-9 to 1e6, and calls without a quantized input or without a result.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import tosaic
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

from operators.grid import Grid
from operators.table import ROWS
from operators.values import Case, call, tensors_of

__all__ = ["MOST_LSB", "IntegerOutcome", "check_integers"]

MOST_LSB = 1
"""The bound for 8 bits. For 16 bits, the operator table (ops.def, `int16`) has a bound for each operator."""
_INT16_UNITS = {op.name: op.int16_units for op in _core.ops()}
_LEAST_SCALE, _LARGEST_SCALE = 1e-9, 1e6
_WEIGHTED = ("conv", "linear")  # the second tensor is a weight
_LARGEST = 20_000
_BOUNDARIES = ("quantize", "dequantize")
_UNSTABLE = {
    "sort": 1,
    "argsort": 1,
    "topk": 2,
    "kthvalue": 2,
    "median.dim": 1,
    "nanmedian.dim": 1,
    "mode": 1,
}
"""The overloads that may return any of the positions of equal elements, and the place of their axis."""
_NUDGE = 2.0**-22
"""A relative difference of numbers that count as equal: a scale and a product are rounded to f32."""
_NARROW = (torch.int8, torch.uint8, torch.int16)


@dataclass
class IntegerOutcome:
    """The outcome of one call.

    Attributes
    ----------
    case : Case
    bits : int
    skipped : str
        The reason why the call was not tried; empty if it was tried.
    refused : str
        The reason why the call has no integer form; empty if it has one.
    elements, off_by_one, worst : int
        Over all results: the number of elements, the number of elements that differ from torch's by one unit,
        and the largest difference.
    operators : int
        The number of operators in the lowered graph.
    by_double : bool
        True if a result was compared with torch's f64 result, because it is within the bound of that result
        but not of torch's f32 result.
    failure : str
        What is wrong, if our code is wrong.
    """

    case: Case
    bits: int
    skipped: str = ""
    refused: str = ""
    elements: int = 0
    off_by_one: int = 0
    worst: int = 0
    operators: int = 0
    by_double: bool = False
    failure: str = ""


@dataclass(frozen=True)
class _Style:
    """How quantization parameters are chosen for a range of numbers.

    `factor` multiplies the scale that the range needs. `inputs`, if set, is the scale of the quantized
    inputs, regardless of their numbers.
    """

    low: int
    high: int
    storage: torch.dtype
    symmetric: bool = False
    factor: float = 1.0
    inputs: float | None = None

    def grid(self, low: float, high: float) -> Grid | None:
        """Returns the parameters that an observer would choose for this range.

        The result is None if the scale is out of bounds.
        """
        low, high = min(low, 0.0), max(high, 0.0)
        if not np.isfinite(low) or not np.isfinite(high):
            return None
        if self.symmetric:
            scale, zero = max(-low, high) / max(-self.low, self.high), 0
        else:
            scale = (high - low) / (self.high - self.low)
            zero = 0 if scale == 0 else self.low - round(low / scale)
        scale = 1.0 if scale == 0 else scale * self.factor
        zero = int(np.clip(zero, self.low, self.high))
        if not _LEAST_SCALE <= scale <= _LARGEST_SCALE:
            return None
        return Grid(scale, zero, self.low, self.high, self.storage)


_STYLES = {
    8: (
        _Style(-128, 127, torch.int8),
        _Style(-127, 127, torch.int8, symmetric=True),
        _Style(0, 255, torch.uint8),
        _Style(-128, 127, torch.int8, factor=0.5),  # the ends saturate
        _Style(-100, 90, torch.int8),
        _Style(-128, 127, torch.int8, symmetric=True, factor=3.0),
        _Style(-128, 127, torch.int8, inputs=1e-6),
        _Style(0, 255, torch.uint8, inputs=1e3),
    ),
    16: (
        _Style(-32768, 32767, torch.int16, symmetric=True),
        _Style(-32767, 32767, torch.int16, symmetric=True),
        _Style(-32768, 32767, torch.int16, symmetric=True, factor=0.5),
        _Style(-20000, 30000, torch.int16, symmetric=True, factor=3.0),
        _Style(-32768, 32767, torch.int16, symmetric=True, inputs=1e-6),
        _Style(-32768, 32767, torch.int16, symmetric=True, inputs=1e3),
    ),
}


def _grid(values: torch.Tensor, style: _Style) -> Grid | None:
    return style.grid(float(values.min()), float(values.max()))


class _Between(torch.nn.Module):
    """The call on dequantized inputs, with its float results quantized.

    With `double`, all floats are f64. Without `results`, the float results are not quantized.
    """

    def __init__(
        self, case: Case, leaves: Sequence[Any], results: Sequence[Grid | None], *, double: bool = False
    ) -> None:
        super().__init__()
        self.case, self.leaves, self.results, self.in_f64 = case, leaves, results, double
        self.function = ROWS[case.name].function(case.name)
        for i, (kind, value, _) in enumerate(leaves):
            if kind != "input":
                self.register_buffer(f"constant_{i}", value)

    def forward(self, *inputs: torch.Tensor) -> Any:
        given = iter(inputs)
        tensors = []
        for i, (kind, _, grid) in enumerate(self.leaves):
            value = next(given) if kind == "input" else getattr(self, f"constant_{i}")
            if grid is not None:
                value = grid.dequantize(value)
            tensors.append(value.double() if self.in_f64 and value.is_floating_point() else value)
        found = call(self.case, self.function, tensors)
        if not self.results:
            return tuple(found)
        pairs = zip(found, self.results, strict=True)
        if self.in_f64:
            return tuple(r if grid is None else grid.quantize_double(r) for r, grid in pairs)
        return tuple(r if grid is None else grid.quantize(r) for r, grid in pairs)


def _leaves(case: Case, style: _Style) -> list[Any] | str:
    """Returns (kind, tensor, grid) for each tensor of the case, or the reason why the case is skipped.

    The kind is "input" or "buffer"; the grid is None for tensors that are not quantized.
    """
    leaves = []
    weighted = any(part in case.name for part in _WEIGHTED)
    for i, t in enumerate(tensors_of(case)):
        value = t.tensor()
        if not value.is_floating_point():
            leaves.append(("buffer" if t.const else "input", value, None))
            continue
        if value.dtype != torch.float32:
            return "another float"
        if not bool(torch.isfinite(value).all()):
            return "not finite"
        weight = weighted and i == 1
        if (t.const or (weighted and i > 1)) and not weight:
            leaves.append(("buffer", value, None))
            continue
        if value.numel() == 0:
            return "empty"
        grid = _grid(value, _STYLES[8][1] if weight else style)
        if grid is None:
            return "extreme range"
        stored = grid.quantize(value)
        if style.inputs is not None and not weight:
            grid = replace(grid, scale=style.inputs)
        leaves.append(("buffer" if weight else "input", stored, grid))
    if not any(kind == "input" and grid is not None for kind, _, grid in leaves):
        return "nothing quantized goes in"
    return leaves


def check_integers(case: Case, bits: int) -> IntegerOutcome:
    """Checks one call. Exceptions become failures of the outcome."""
    out = IntegerOutcome(case, bits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _check(case, bits, out)
        except Exception as error:
            out.failure = f"{type(error).__name__}: {error}"
    return out


def _check(case: Case, bits: int, out: IntegerOutcome) -> None:
    style = _STYLES[bits][zlib.crc32(repr(case).encode()) % len(_STYLES[bits])]
    leaves = _leaves(case, style)
    if isinstance(leaves, str):
        out.skipped = leaves
        return
    inputs = [value for kind, value, _ in leaves if kind == "input"]
    try:
        with torch.no_grad():
            floats = _Between(case, leaves, ()).eval()(*inputs)
    except Exception as error:
        out.skipped = f"refused by torch: {type(error).__name__}"
        return
    if sum(r.numel() for r in floats) > _LARGEST or any(r.numel() == 0 for r in floats):
        out.skipped = "large or empty"
        return
    results: list[Grid | None] = []
    for r in floats:
        grid = _grid(r, style) if r.dtype == torch.float32 and bool(torch.isfinite(r).all()) else None
        if grid is not None:
            results.append(grid)
        elif r.is_floating_point():
            out.skipped = "a result that no scale fits"
            return
        else:
            results.append(None)
    if not results:
        out.skipped = "no results"
        return
    if style.inputs is not None and any(r.dtype in _NARROW for r in floats):
        out.skipped = "casts of numbers beyond the range are undefined"
        return
    module = _Between(case, leaves, results).eval()
    try:
        with torch.no_grad():
            program = torch.export.export(module, tuple(inputs), strict=False)
    except Exception as error:
        out.skipped = f"refused by torch.export: {type(error).__name__}"
        return
    with torch.no_grad():
        expected = [r.numpy() for r in module(*inputs)]
    try:
        lowered = tosaic.lower(program, target="TOSA-1.0+INT+int16" if bits == 16 else "TOSA-1.0+INT")
    except (tosaic.UnsupportedOp, tosaic.SpecViolation) as error:
        out.refused = _reason(error)
        return
    units = MOST_LSB if bits == 8 else _int16_units(program)
    in_double = _Between(case, leaves, results, double=True).eval()
    _compare(lowered, inputs, expected, results, units, in_double, out)


def _reason(error: Exception) -> str:
    """Returns the first problem. Foreign operators, whose names are targets with dots, count as one."""
    problems = getattr(error, "problems", ())
    return re.sub(
        r"^'\w+\.[\w.]+' computes",
        "a foreign operator computes",
        str(problems[0].what if problems else error),
    )


def _compare(
    lowered: tosaic.Lowered,
    inputs: Sequence[torch.Tensor],
    expected: Sequence[np.ndarray[Any, Any]],
    results: Sequence[Grid | None],
    units: int,
    in_double: _Between,
    out: IntegerOutcome,
) -> None:
    arrays = [x.numpy() for x in inputs]
    ours = _several(lowered.run(*arrays))
    out.operators = len(lowered.graph.nodes)
    for r, (found, wanted, grid) in enumerate(zip(ours, expected, results, strict=True)):
        if found.dtype != wanted.dtype or found.shape != wanted.shape:
            out.failure = f"{found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}"
            return
        distance = _distance(found, wanted)
        most = _most(out, units, grid)
        if grid is None and distance.any() and out.case.name in _UNSTABLE:
            distance[_points_to_equal(out.case, arrays[0], found, wanted)] = 0
        if grid is None and distance.any():
            distance[_is_between(found, wanted, _results_nearby(in_double, inputs, r))] = 0
            out.by_double = out.by_double or not distance.any()
        if distance.max(initial=0) > most:
            exact = _run_in_double(in_double, inputs)
            if exact is not None and _distance(found, exact[r]).max(initial=0) <= most:
                distance = _distance(found, exact[r])
                out.by_double = True
        out.elements += distance.size
        out.off_by_one += int((distance == 1).sum())
        out.worst = max(out.worst, int(distance.max(initial=0)))
        if distance.max(initial=0) > most:
            where = np.unravel_index(int(distance.argmax()), distance.shape)
            out.failure = f"{distance.max()} units off at {where}: {found[where]} instead of {wanted[where]}"
    run = run_reference_model(lowered, *arrays)
    if not run.ok:
        out.failure = out.failure or f"the reference model says {run.status}"
        return
    for found, theirs in zip(ours, _several(run.outputs), strict=True):
        if not np.array_equal(found, theirs):
            out.failure = (
                out.failure or f"the reference model differs in {int((found != theirs).sum())} elements"
            )


def _distance(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.abs(found.astype(np.int64) - wanted.astype(np.int64))


def _points_to_equal(
    case: Case, x: np.ndarray[Any, Any], found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Returns where two positions along the axis of an order point to equal elements of `x`.

    Positions that occur twice in a row of several are wrong: the result is false everywhere.
    """
    if not x.ndim:
        return np.asarray(found == wanted)
    axis = case.args[_UNSTABLE[case.name]] % x.ndim
    rows = [a if a.ndim == x.ndim else np.expand_dims(a, axis) for a in (found, wanted)]
    if (np.diff(np.sort(rows[0], axis), axis=axis) == 0).any() or rows[0].min() < 0:
        return np.zeros(found.shape, bool)
    equal = np.equal(*(np.take_along_axis(x, row, axis) for row in rows))
    return np.asarray(equal.reshape(found.shape))


def _is_between(
    found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], others: Sequence[np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    """Returns where `found` is not less and not more than all of the other results."""
    every = np.stack([np.asarray(wanted, np.int64), *(np.asarray(other, np.int64) for other in others)])
    return np.asarray((every.min(0) <= found) & (found <= every.max(0)))


def _results_nearby(module: _Between, inputs: Sequence[torch.Tensor], r: int) -> list[np.ndarray[Any, Any]]:
    """Returns result r in f64, with each input as it is, a little larger and a little smaller."""
    found = []
    for i, (kind, value, grid) in enumerate(module.leaves):
        for factor in (1 - _NUDGE, 1, 1 + _NUDGE) if grid is not None else ():
            leaves = list(module.leaves)
            leaves[i] = (kind, value, replace(grid, scale=grid.scale * factor))
            nudged = _Between(module.case, leaves, module.results, double=True).eval()
            results = _run_in_double(nudged, inputs)
            found += [] if results is None else [results[r]]
    return found


def _int16_units(program: Any) -> int:
    """Returns the largest `int16` bound in the operator table among the program's operators."""
    between = [n.op for n in tosaic.from_exported(program).graph.nodes if n.op not in _BOUNDARIES]
    units = [_INT16_UNITS[op] for op in between]
    missing = [op for op, bound in zip(between, units, strict=True) if bound is None]
    if missing:
        raise AssertionError(f"ops.def says that {missing} have no form in 16 bits")
    return max((bound for bound in units if bound is not None), default=1)


def _most(out: IntegerOutcome, units: int, grid: Grid | None) -> int:
    """Returns the allowed distance, in units of the result; 0 for results that are not quantized.

    A fake_quantize in the call may be off by one unit of its own scale, which may be several units of the
    result.
    """
    if grid is None:
        return 0
    most = max(units, 1)
    if "fake_quantize" in out.case.name and isinstance(scale := out.case.args[1], float):
        most = max(most, int(np.ceil(scale / grid.scale)))
    return most


def _run_in_double(module: _Between, inputs: Sequence[torch.Tensor]) -> list[np.ndarray[Any, Any]] | None:
    """Returns the results in f64, or None if torch does not have the call in f64."""
    try:
        with torch.no_grad():
            return [r.numpy() for r in module(*inputs)]
    except Exception:
        return None


def _several(outputs: Any) -> list[np.ndarray[Any, Any]]:
    found: Callable[[Any], Any] = np.asarray
    return [found(a) for a in outputs] if isinstance(outputs, tuple | list) else [found(outputs)]
