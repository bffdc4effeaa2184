"""Runs each integer operator, for each dtype and target, and compares with torch and the reference model.

The values are the extremes of the dtype and their neighbours, powers of two and their neighbours, and random
values of every magnitude. An operator whose results do not overflow must accept all values of its dtype. If a
result may overflow i32 (torch wraps, in TOSA it is undefined), the lowered program checks its inputs against
a range. This range must be as wide as possible: the next integer beyond either end must overflow. No other
input may be refused.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import tosaic
from function_module import FunctionModule
from tosaic.lowering.reference_model import run_reference_model

__all__ = ["CASES", "DTYPES", "TARGETS", "Case", "Outcome", "cells", "check"]

DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64)
TARGETS = ("TOSA-1.0+FP", "TOSA-1.0+INT", "TOSA-1.0+INT+FP", "TOSA-1.0+INT+int16")
SHAPE = (4, 40)
_I32 = (-(2**31), 2**31 - 1)

T = torch.Tensor


@dataclass(frozen=True)
class Case:
    """An operator.

    Attributes
    ----------
    name : str
    function : callable
        A function of one or two tensors.
    arity : int
        The number of tensors.
    second : str
        The values of the second tensor: ``any``, ``divisor`` (no 0, and no -1 for the smallest integer),
        ``count`` (of a shift, within the bits of the dtype or not) or ``index``.
    overflow : callable, optional
        For an elementwise operator whose results may overflow i32: the same function on Python's integers,
        with one integer for each tensor.
    by_range : bool
        The program may check inputs against a narrower range, whose width is not verified.
    dtypes : tuple of torch.dtype
    needs : str
        The profile that the result needs, if any.
    """

    name: str
    function: Callable[..., Any]
    arity: int = 1
    second: str = "any"
    overflow: Callable[..., int] | None = None
    by_range: bool = False
    dtypes: tuple[torch.dtype, ...] = DTYPES
    needs: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case: the number of elements that were compared, and what is wrong, if anything."""

    elements: int = 0
    failure: str = ""


def _shifts() -> Iterator[Case]:
    for count in (0, 1, 3, 7, 8, 15, 24, 31, 32, 63, -1):
        left = Case(f"x << {count}", lambda x, n=count: torch.bitwise_left_shift(x, n))
        yield replace(left, dtypes=DTYPES[:3])
        if count < 24:  # with larger counts, not even int64 values of 9 bits stay within i32
            yield replace(left, dtypes=DTYPES[3:], overflow=lambda x, n=count: _left(x, n))
        yield Case(f"x >> {count}", lambda x, n=count: torch.bitwise_right_shift(x, n))
    yield Case("x >> y", torch.bitwise_right_shift, 2, "count")
    yield Case("x << y", torch.bitwise_left_shift, 2, "count", dtypes=DTYPES[:3])


def _left(x: int, count: int) -> int:
    return x << count if 0 <= count < 64 else 0


def _divisions() -> Iterator[Case]:
    for rounding in ("floor", "trunc"):
        yield Case(
            f"div {rounding} tensor",
            lambda x, y, r=rounding: torch.div(x, y, rounding_mode=r),
            2,
            "divisor",
            by_range=True,
        )
        for divisor in (1, 2, 7, -1, -3, 100):
            yield Case(
                f"div {rounding} {divisor}",
                lambda x, d=divisor, r=rounding: torch.div(x, d, rounding_mode=r),
                overflow=lambda x, d=divisor: -x if d == -1 else 0,
            )
    for name, function in {"remainder": torch.remainder, "fmod": torch.fmod}.items():
        yield Case(f"{name} tensor", function, 2, "divisor", by_range=True)
        for divisor in (1, 2, 7, -3, 100):
            yield Case(f"{name} {divisor}", lambda x, d=divisor, f=function: f(x, d))


def _bits() -> Iterator[Case]:
    names = {"and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor}
    for name, function in names.items():
        yield Case(f"bitwise {name}", function, 2)
        for mask in (0, 1, 15, 0x5A, -1, -16, 127):
            yield Case(f"bitwise {name} {mask}", lambda x, m=mask, f=function: f(x, m))
    yield Case("bitwise not", torch.bitwise_not)


def _orders() -> Iterator[Case]:
    comparisons = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
    for function in comparisons:
        yield Case(f"{function.__name__} tensor", lambda x, y, f=function: f(x, y), 2)
        yield Case(f"{function.__name__} 5", lambda x, f=function: f(x, 5))
        yield Case(f"{function.__name__} 2**24 + 1", lambda x, f=function: f(x, 2**24 + 1), dtypes=DTYPES[2:])
    yield Case("maximum", torch.maximum, 2)
    yield Case("minimum", torch.minimum, 2)
    yield Case("clamp -5 9", lambda x: x.clamp(-5, 9))
    yield Case("clamp 2**25 + 3", lambda x: x.clamp(-(2**25) - 3, 2**25 + 3), dtypes=DTYPES[2:])
    yield Case("relu", torch.relu)
    yield Case("sign", torch.sign)
    yield Case("where", lambda x, y: torch.where(x > y, x, y), 2)
    yield Case("where number", lambda x: torch.where(x > 3, x, -7))


def _casts() -> Iterator[Case]:
    for dtype in (*DTYPES, torch.bool):
        yield Case(f"to {dtype}", lambda x, d=dtype: x.to(d))
    for dtype in (torch.float32, torch.float16):
        yield Case(f"to {dtype}", lambda x, d=dtype: x.to(d), needs="FP")


def _arithmetic() -> Iterator[Case]:
    yield Case("add", torch.add, 2, overflow=lambda x, y: x + y)
    yield Case("add 1", lambda x: x + 1, overflow=lambda x: x + 1)
    yield Case("add alpha", lambda x, y: torch.add(x, y, alpha=3), 2, by_range=True)
    yield Case("sub", torch.sub, 2, overflow=lambda x, y: x - y)
    yield Case("rsub 100", lambda x: 100 - x, overflow=lambda x: 100 - x)
    yield Case("mul", torch.mul, 2, dtypes=DTYPES[:3])
    yield Case("mul of int64", torch.mul, 2, by_range=True, dtypes=DTYPES[3:])
    yield Case("mul 3", lambda x: x * 3, overflow=lambda x: 3 * x)
    yield Case("square", torch.square, dtypes=DTYPES[:3])
    for exponent in (0, 1, 2, 3, 5):
        yield Case(f"pow {exponent}", lambda x, e=exponent: x**e, dtypes=DTYPES[:3])
    for name, function, exact in (("neg", torch.neg, lambda x: -x), ("abs", torch.abs, abs)):
        yield Case(name, function, dtypes=DTYPES[:3])
        yield Case(name, function, dtypes=DTYPES[3:], overflow=exact)
    yield Case("logical not", torch.logical_not)
    yield Case("logical and", torch.logical_and, 2)


def _movement() -> Iterator[Case]:
    yield Case("same", lambda x: x.clone())
    yield Case("view", lambda x: x.view(2, -1, 4))
    yield Case("transpose", lambda x: x.t().contiguous())
    yield Case("cat", lambda x, y: torch.cat([x, y, x], 1), 2)
    yield Case("flip", lambda x: x.flip(1))
    yield Case("slice", lambda x: x[1:3, ::3])
    yield Case("pad", lambda x: torch.nn.functional.pad(x, (1, 2), value=-77))
    yield Case("expand", lambda x: x[:, None].expand(4, 3, 40))
    yield Case("repeat", lambda x: x.repeat(2, 1))
    yield Case("roll", lambda x: x.roll(3, 1))
    yield Case("index_select", lambda x: x.index_select(1, torch.tensor([3, 0, 39, 3])))
    yield Case("gather", lambda x, i: x.gather(1, i), 2, "index")
    yield Case("tril", torch.tril)


def _reductions() -> Iterator[Case]:
    yield Case("amax", lambda x: x.amax(1))
    yield Case("amin", lambda x: x.amin(0))
    yield Case("argmax", lambda x: x.argmax(1))
    yield Case("any", lambda x: x.any(1))
    yield Case("all", lambda x: x.all(1))
    yield Case("sum", lambda x: x.sum(1), by_range=True)


CASES = tuple(
    itertools.chain(
        _arithmetic(), _shifts(), _divisions(), _bits(), _orders(), _casts(), _movement(), _reductions()
    )
)


def cells() -> Iterator[tuple[Case, torch.dtype, str]]:
    """Yields all combinations of an operator, a target that has it, and a dtype."""
    for case, target in itertools.product(CASES, TARGETS):
        if case.needs in target:
            for dtype in case.dtypes:
                yield case, dtype, target


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    if dtype == torch.int64:  # becomes i32 in TOSA
        return _I32
    info = torch.iinfo(dtype)
    return info.min, info.max


def _values(rng: np.random.Generator, low: int, high: int, dtype: torch.dtype) -> T:
    count = int(np.prod(SHAPE))
    chosen = [low, low + 1, high - 1, high, -1, 0, 1, 2, -2, 3, 5, 7, -7]
    for bits in (7, 8, 15, 16, 23, 24, 25, 30):
        chosen += [sign * 2**bits + d for sign in (-1, 1) for d in (-1, 0, 1)]
    chosen = [v for v in chosen if low <= v <= high]
    while len(chosen) < count:
        size = int(rng.integers(1, 33))
        value = int(rng.integers(-(2 ** (size - 1)), 2 ** (size - 1)))
        if low <= value <= high:
            chosen.append(value)
    rng.shuffle(chosen)
    return torch.tensor(chosen[:count], dtype=dtype).reshape(SHAPE)


def _arguments(case: Case, dtype: torch.dtype, ranges: list[tuple[int, int]], seed: int) -> list[T]:
    rng = np.random.default_rng(seed)
    first = _values(rng, *ranges[0], dtype)
    if case.arity == 1:
        return [first]
    if case.second == "index":
        return [first, torch.from_numpy(rng.integers(0, SHAPE[1], SHAPE))]
    second = _values(rng, *ranges[1], dtype)
    if case.second == "count":
        second = torch.from_numpy(rng.integers(-2, torch.iinfo(dtype).bits + 3, SHAPE)).to(dtype)
    elif case.second == "divisor":
        least = torch.iinfo(torch.int32 if dtype == torch.int64 else dtype).min
        second = torch.where(second == 0, 3, second).to(dtype)
        second = torch.where((first == least) & (second == -1), 2, second).to(dtype)
    return [first, second]


_INPUT = re.compile(r"^  input .*$", re.M)
_RANGE = re.compile(r"range=(-?\d+)\.\.(-?\d+)")


def _ranges(lowered: tosaic.Lowered, dtype: torch.dtype, count: int) -> list[tuple[int, int]]:
    """Returns, for each of the first `count` inputs, the range against which a run checks it."""
    limits = _limits(dtype)
    found = []
    for line in _INPUT.findall(lowered.graph.text())[:count]:
        narrowed = _RANGE.search(line)
        low, high = (int(narrowed[1]), int(narrowed[2])) if narrowed else limits
        found.append((max(low, limits[0]), min(high, limits[1])))
    return found


def _range_failure(case: Case, dtype: torch.dtype, ranges: list[tuple[int, int]]) -> str:
    """Returns as text one value that the ranges exclude though it does not overflow; else empty."""
    limits = _limits(dtype)
    if case.by_range or all(r == limits for r in ranges):
        return ""
    if case.overflow is None or torch.iinfo(dtype).bits < 32:
        return f"inputs are held to {ranges}"
    for i, bounds in enumerate(ranges):
        for end, step in ((0, -1), (1, 1)):
            if bounds[end] == limits[end]:
                continue
            wider = [*ranges]
            beyond = bounds[end] + step
            wider[i] = (beyond, beyond)
            results = [case.overflow(*corner) for corner in itertools.product(*wider)]
            if all(_I32[0] <= r <= _I32[1] for r in results):
                return f"input {i} is held to {bounds}, and {beyond} overflows nothing"
    return ""


def check(case: Case, dtype: torch.dtype, target: str, seed: int = 0) -> Outcome:
    """Lowers the operator, runs it and compares. Errors become failures of the outcome; nothing is raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _check(case, dtype, target, seed)
        except (tosaic.UnsupportedOp, tosaic.SpecViolation, tosaic.InvalidGraph) as error:
            return Outcome(failure=f"refused: {error}")
        except Exception as error:
            return Outcome(failure=f"{type(error).__name__}: {error}")


def _check(case: Case, dtype: torch.dtype, target: str, seed: int) -> Outcome:
    whole = [_limits(dtype)] * 2
    program = torch.export.export(FunctionModule(case.function), tuple(_arguments(case, dtype, whole, seed)))
    lowered = tosaic.lower(program, target=target)
    checked = 1 if case.second in ("index", "count") else case.arity
    ranges = _ranges(lowered, dtype, checked)
    failure = _range_failure(case, dtype, ranges)
    if failure:
        return Outcome(failure=failure)
    arguments = _arguments(case, dtype, [*ranges, *whole], seed)
    expected = case.function(*arguments)
    found = lowered.run(*arguments)
    reference = run_reference_model(lowered, *arguments)
    if not reference.ok:
        return Outcome(failure=f"the reference model says {reference.status}: {reference.log[:300]}")
    for who, result in (("ours", found), ("the reference model's", reference.outputs)):
        wrong = np.asarray(result) != expected.numpy()
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            given = [int(a[at]) for a in arguments if a.shape == expected.shape]
            return Outcome(
                failure=f"{who} differs in {int(wrong.sum())} of {wrong.size} elements, first at {at}: "
                f"expected {expected.numpy()[at]}, got {np.asarray(result)[at]}, given {given}"
            )
    return Outcome(elements=expected.numel())
