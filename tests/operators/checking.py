"""Runs one call, or several of one overload at once, through all stages and compares the results with torch.

    eager               torch on the same tensors, each call alone
    stage exported      torch.export, import, our executor          within the tolerance of the kernels
    stage tosa          lowered to TOSA-1.0+FP, our executor        within the bound of expansions
    reference model     the bytes of stage tosa                     within the same bound of our result

**Kernels.** `tosaic._core.tolerance(op, dtype)` returns (ulp, relative), and the bound is

    |ours - torch| <= ulp * spacing(torch) + relative * scale

For a program of several operators, the tolerances of all operators are added up. The scale depends on the row
(`Row.scale`). The "effect of one unit" is the largest change of the float64 result if the operands change by
one unit, a relative error of 2^-23.

- ``value``: |torch|.
- ``terms`` (sums): the sum of the absolute values of the terms, which is the result of the same call on
  absolute values, but at least |torch|.
- ``conditioned`` (e.g. normalisations, whose results are quotients or roots of sums): the effect of one unit,
  divided by 2^-23, but at least |torch| and at least 2^-23. So a difference that should be 0 may be a few
  units times 2^-23. If the program has several operators, the effect of one unit is also added to the bound.

For float64, which TOSA does not have, the scale is at least 10^4. torch's own functions have errors too: a
result is also right if it is within the same bound of torch's float64 result. Results of operators without
tolerance must equal torch's result (or its float64 result, rounded). NaN and the signs of infinities must be
equal too. The sign of zero is ignored.

**Expansions.** TOSA has no operator for most functions. Its precision rules allow each TOSA operator an error
of a few ulp of its result. So the error of an expansion into n operators is that of n roundings, plus the
amplified rounding errors of its operands. `tosaic._core.lowered_tolerance` returns (ulp, relative, units);
units times the effect of one unit is added to the bound. If the kernels have no tolerance, the expansion has
none either, except for rows with `expanded`. If operands are not finite, more elements of a sum may be NaN or
infinite, since a weight of zero times infinity is NaN. Float32 and bfloat16 results below the smallest normal
number may be zero instead.

**Reference model.** Its status must be VALID. Its results must be as close to ours as ours must be to
torch's, except for the following. It adds the terms of a sum one after the other, so for n terms sqrt(n) / 4
times the bound is allowed (n: the number of elements of the largest operand). TOSA's precision rules allow
ERF, LOG, SIGMOID and TANH an absolute error (half of 12 units of 1), so after one of them results may differ
by 16 units of the largest result, or of 1 if that is larger. They allow POW an error of 1 + |log r| units of
its result r; twice that is allowed here.

A call counts as refused if we raise UnsupportedOp or SpecViolation; the reason is recorded. Any other
exception is a failure. For a call that was made wrong on purpose (`hostile`), any error of tosaic but
InternalError counts as a refusal.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import torch
import tosaic
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

from operators.names import overload
from operators.values import FLOATS, TORCH, Case, T, call, tensors_of

__all__ = ["Outcome", "Row", "add_rows", "check"]

REFUSALS = (tosaic.UnsupportedOp, tosaic.SpecViolation)
_ABSOLUTE = frozenset({"tosa.erf", "tosa.log", "tosa.sigmoid", "tosa.tanh"})
_LARGEST_RESULT = 100_000
_CODES = {dtype: name for name, dtype in TORCH.items()}


@dataclass(frozen=True)
class Row:
    """How the calls of an overload are drawn and compared.

    Attributes
    ----------
    arguments : strategy
        Draws (args, kwargs) or (args, kwargs, keep).
    scale : str
        ``value``, ``terms`` or ``conditioned``: see above.
    call : callable, optional
        Called instead of the overload, if the results of the overload are not tensors or if its arguments are
        functions.
    unit : float
        The size of an intermediate result to whose errors the result is exposed: errors are relative to at
        least this size. 1 for logarithms.
    expanded : bool
        The kernels are exact, but TOSA has no such operator (square root, quotients): only the lowered
        program has a tolerance.
    fused : bool
        torch fuses a product into a sum. The lowered program does not, so its product may overflow: results
        that are not finite are accepted from it.
    extensions : str
        Extensions of the target in addition to bf16: ``+cf``.
    refused : str
        If every call of the overload is refused, a part of the reason that every refusal must contain.
    """

    arguments: Any
    scale: str = "value"
    call: Callable[..., Any] | None = None
    unit: float = 0.0
    expanded: bool = False
    fused: bool = False
    extensions: str = ""
    refused: str = ""

    def function(self, name: str) -> Callable[..., Any]:
        """Returns the function that is called: `call`, or the overload of this name."""
        return overload(name) if self.call is None else self.call


def add_rows(table: dict[str, Row], names: str, arguments: Any, **options: Any) -> None:
    """Adds equal rows for several overloads, whose names are separated by spaces."""
    table.update({name: Row(arguments, **options) for name in names.split()})


@dataclass
class Outcome:
    """The outcome of one case.

    Attributes
    ----------
    case : Case
    refused_by : str
        ``torch``, ``torch.export``, ``import``, ``run`` or a target; empty if the call was not refused.
    reason : str
        The message of the refusal, without names and numbers.
    exported, lowered : bool
        Whether the results at that stage agree with torch.
    target : str
        The target to which the call was lowered.
    failure : str
        What is wrong, if our code is wrong.
    """

    case: Case
    refused_by: str = ""
    reason: str = ""
    exported: bool = False
    lowered: bool = False
    target: str = ""
    failure: str = ""


def check(cases: Sequence[Case], row: Row) -> list[Outcome]:
    """Checks all cases, which are calls of the same row. Errors of ours are outcomes and are not raised.

    The cases are first checked together, as one module. If any of them fails or is refused, each is checked
    alone.
    """
    with _quiet():
        outcomes, valid = [], []
        for case in cases:
            refusal = _refused_by_torch(case, row)
            if refusal:
                outcomes.append(Outcome(case, "torch", refusal))
            else:
                valid.append(case)
        if len(valid) > 1:
            together = _check_together(valid, row)
            if not any(o.failure or o.refused_by for o in together):
                return outcomes + together
        for case in valid:
            outcomes += _check_together([case], row)
        return outcomes


# ---- torch ----


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _eager(case: Case, row: Row) -> list[torch.Tensor]:
    return call(case, row.function(case.name), [t.tensor() for t in tensors_of(case)])


def _refused_by_torch(case: Case, row: Row) -> str:
    """Returns why torch does not run the call; empty if it does.

    Hostile calls with huge results are not run.
    """
    try:
        if case.hostile and _size_of_results(case, row) > _LARGEST_RESULT:
            return "the result would be too large to try"
        _eager(case, row)
    except Exception as error:
        return _reason(str(error).partition("\n")[0])
    return ""


def _size_of_results(case: Case, row: Row) -> int:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(t.tensor()) for t in tensors_of(case)]
        results = call(case, row.function(case.name), fakes)
        return sum(math.prod(int(side) for side in r.shape) for r in results)


class _Module(torch.nn.Module):
    """A module of several calls. Tensors with `const` are buffers, the others are inputs."""

    def __init__(self, cases: Sequence[Case], row: Row) -> None:
        super().__init__()
        self.cases = cases
        self.functions = [row.function(case.name) for case in cases]
        self.places: list[list[str | int]] = []
        self.inputs: list[torch.Tensor] = []
        for case in cases:
            places: list[str | int] = []
            for t in tensors_of(case):
                if t.const:
                    name = f"constant_{sum(len(p) for p in self.places) + len(places)}"
                    self.register_buffer(name, t.tensor())
                    places.append(name)
                else:
                    places.append(len(self.inputs))
                    self.inputs.append(t.tensor())
            self.places.append(places)

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for case, function, places in zip(self.cases, self.functions, self.places, strict=True):
            given = [inputs[p] if isinstance(p, int) else getattr(self, p) for p in places]
            results += call(case, function, given)
        return results


# ---- ours ----


def _check_together(cases: Sequence[Case], row: Row) -> list[Outcome]:
    outcomes = [Outcome(case) for case in cases]

    def refuse(by: str, error: Exception) -> list[Outcome]:
        reason = _reason_of(error)
        return [replace(o, refused_by=by, reason=reason) for o in outcomes]

    def fail(where: str, error: Exception) -> list[Outcome]:
        if cases[0].hostile and isinstance(error, _core.Error) and not isinstance(error, _core.InternalError):
            return refuse(where, error)
        text = f"{where}: {type(error).__name__}: {error}"
        return [replace(o, failure=text) for o in outcomes]

    module = _Module(cases, row).eval()
    inputs = tuple(module.inputs)
    try:
        exported = torch.export.export(module, inputs, strict=False)
    except Exception as error:
        return refuse("torch.export", error)
    try:
        program = tosaic.from_exported(exported)
    except REFUSALS as error:
        return refuse("import", error)
    except Exception as error:
        return fail("import", error)
    opaque = [node.attrs["target"] for node in program.graph.nodes if node.op == "opaque"]
    if opaque:
        return refuse("import", _core.make_error(_core.UnsupportedOp, what=f"opaque: {opaque[0]}"))
    expected = [_Expected(case, row, program.graph) for case in cases]
    try:
        results = program.run(*inputs)
    except REFUSALS as error:
        return refuse("run", error)
    except Exception as error:
        return fail("run", error)
    _compare(outcomes, expected, results, "exported", lambda e, i, got: e.disagreement(i, got))
    for o in outcomes:
        o.exported = not o.failure
    if any(o.failure for o in outcomes):
        return outcomes
    return _check_lowered(program, inputs, outcomes, expected, refuse, fail, row)


def _check_lowered(
    program: tosaic.Program,
    inputs: Sequence[torch.Tensor],
    outcomes: list[Outcome],
    expected: list[_Expected],
    refuse: Callable[[str, Exception], list[Outcome]],
    fail: Callable[[str, Exception], list[Outcome]],
    row: Row,
) -> list[Outcome]:
    lowered, target, refusal = None, "", None
    dtypes = {value.dtype for node in program.graph.nodes for value in node.results}
    dtypes |= {port.dtype for port in program.inputs}
    extensions = ("+bf16" if "bf16" in dtypes else "") + row.extensions
    for base in ("TOSA-1.0+FP", "TOSA-1.0+FP+INT"):
        try:
            lowered, target = tosaic.lower(program, target=base + extensions), base
            break
        except REFUSALS as error:
            refusal = refusal or error
        except Exception as error:
            return fail(f"lowering to {base}", error)
    if lowered is None:
        assert refusal is not None
        return refuse("TOSA-1.0+FP", refusal)
    try:
        ours = lowered.run(*inputs)
    except tosaic.InvalidGraph as error:
        if "holds a value outside its range" in str(error):
            return refuse(target, error)
        return fail("run of the lowered program", error)
    except Exception as error:
        return fail("run of the lowered program", error)
    _compare(
        outcomes,
        expected,
        ours,
        f"lowered to {target}",
        lambda e, i, got: e.disagreement(i, got, lowered=True),
    )
    if not any(o.failure for o in outcomes) and _runs_on_reference_model(lowered):
        try:
            run = run_reference_model(lowered, *inputs)
        except Exception as error:
            return fail("reference model", error)
        if not run.ok:
            return fail("reference model", RuntimeError(f"status {run.status}: {run.log[-300:]}"))
        behind = {node.op for node in lowered.graph.nodes}
        theirs = dict(zip(map(id, expected), _grouped(expected, run.outputs), strict=True))
        _compare(
            outcomes, expected, ours, "our bytes on the reference model",
            lambda e, i, got: e.disagreement(
                i, theirs[id(e)][i], instead_of=got, lowered=True, behind=behind
            ),
        )  # fmt: skip
    for o in outcomes:
        o.lowered, o.target = not o.failure, target
    return outcomes


def _runs_on_reference_model(lowered: tosaic.Lowered) -> bool:
    """The reference model does not accept empty tensors, or graphs without nodes."""
    sides = [side for port in (*lowered.graph.inputs, *lowered.graph.outputs) for side in port.value.shape]
    return 0 not in sides and len(lowered.graph.nodes) > 0


def _grouped(expected: Sequence[_Expected], results: Sequence[Any]) -> list[list[Any]]:
    flat = iter(results)
    return [[next(flat) for _ in e.eager] for e in expected]


def _compare(
    outcomes: Sequence[Outcome],
    expected: Sequence[_Expected],
    results: Any,
    where: str,
    disagreement: Callable[[_Expected, int, Any], str],
) -> None:
    for outcome, expectation, got in zip(outcomes, expected, _grouped(expected, results), strict=True):
        for i, array in enumerate(got):
            text = disagreement(expectation, i, array)
            if text and not outcome.failure:
                outcome.failure = f"{where}, result {i}: {text}"


# ---- bounds ----


class _Expected:
    """torch's results for a case, and how far ours may be from them."""

    def __init__(self, case: Case, row: Row, graph: _core.Graph) -> None:
        self.case, self.row = case, row
        self.eager = _eager(case, row)
        self.ops = sorted({node.op for node in graph.nodes if node.op != "opaque"})
        self._cache: dict[Any, Any] = {}

    def disagreement(
        self,
        i: int,
        got: Any,
        *,
        instead_of: Any = None,
        lowered: bool = False,
        behind: Set[str] = frozenset(),
    ) -> str:
        """Returns an empty text if result i is right; otherwise the first wrong element, as text.

        With `instead_of` (our result), the result of the reference model is compared with it instead of
        torch's. `behind` has the TOSA operators that the reference model ran.
        """
        want_tensor = self.eager[i]
        want = _wide(want_tensor if instead_of is None else instead_of)
        dtype = _CODES.get(want_tensor.dtype)
        found = np.asarray(got)
        if found.shape != tuple(want_tensor.shape):
            return f"shape {found.shape}, expected {tuple(want_tensor.shape)}"
        if dtype is None or _dtype_name(found) != dtype:
            return f"dtype {_dtype_name(found)}, expected {dtype}"
        if dtype not in FLOATS:
            wrong = found != (want_tensor.numpy() if instead_of is None else np.asarray(instead_of))
            return _first(wrong, found, want, None)
        value = _wide(found)
        bound = self._bound(i, dtype, lowered, np.abs(_wide(want_tensor)))
        if instead_of is not None:
            bound = bound * self._in_sequence()
            unit = max(float(torch.finfo(TORCH[dtype]).eps), 2.0**-23)
            if "tosa.pow" in behind:
                with np.errstate(all="ignore"):
                    bound = bound + 2 * (1 + np.abs(np.log(np.abs(want)))) * unit * np.abs(want)
                bound = np.where(np.isnan(bound), 0, bound)
            if behind & _ABSOLUTE:
                bound = bound + 16 * unit * np.fmax(np.abs(want[np.isfinite(want)]).max(initial=0), 1)
        wrong = ~_close(value, want, bound, dtype, flushed=lowered)
        if wrong.any() and instead_of is None:
            truth = self._truth()
            if truth is not None:
                right = _rounded(truth[i], dtype)
                wrong &= ~_close(
                    value, right, self._bound(i, dtype, lowered, np.abs(right)), dtype, flushed=lowered
                )
        if lowered and (self.row.fused or (self.row.scale == "terms" and self._has_odd_operands())):
            wrong &= np.isfinite(value)
        return _first(wrong, value, want, bound)

    def _has_odd_operands(self) -> bool:
        return any(not t.tensor().isfinite().all() for t in tensors_of(self.case) if t.dtype in FLOATS)

    def _tolerance(self, dtype: str) -> tuple[float, float]:
        found = [_core.tolerance(op, dtype) for op in self.ops]
        return sum(t[0] for t in found), sum(t[1] for t in found)

    def _bound(self, i: int, dtype: str, lowered: bool, size: Any) -> Any:
        ulp, relative = self._tolerance(dtype)
        if (ulp, relative) == (0, 0) and not (lowered and self.row.expanded):
            return np.zeros(size.shape)
        size = np.fmax(size, self.row.unit)
        scale = self._scale(i, size)
        if dtype == "f64":
            scale = np.fmax(scale, 1e4)
        if not lowered:
            apart = self.row.scale == "conditioned" and len(self.ops) > 1
            effect = self._effect(i, size) if apart else 0
            return ulp * _spacing(size, dtype) + relative * scale + effect
        ulp, relative, units = _core.lowered_tolerance(ulp, relative)
        return ulp * _spacing(size, dtype) + relative * scale + units * self._effect(i, size)

    def _scale(self, i: int, size: Any) -> Any:
        if self.row.scale == "terms":
            terms = self._remember("terms", lambda: self._run_in_float64(lambda x, _: x.abs()))
            return size if terms is None else np.fmax(np.abs(terms[i]), size)
        if self.row.scale == "conditioned":
            return np.fmax(self._effect(i, size) / 2.0**-23, np.fmax(size, 2.0**-23))
        return size

    def _effect(self, i: int, size: Any) -> Any:
        """Returns the largest change of the float64 result if operands change by 2^-23, a unit of float32."""
        noisy = self._remember("noise", self._noise)
        if noisy is None:
            return np.zeros(size.shape)
        with np.errstate(all="ignore"):
            off = np.max([np.abs(v[i] - noisy[0][i]) for v in noisy[1:]], axis=0)
        return np.where(np.isfinite(off), off, 0)

    def _noise(self) -> Any:
        variants = [self._run_in_float64()]
        for seed in range(4):
            factor = 1 + (-1) ** seed * 2.0**-23
            variants.append(self._run_in_float64(lambda x, i, s=seed: _perturbed(x, s, i), factor))
        return None if any(v is None for v in variants) else variants

    def _truth(self) -> Any:
        return self._remember("truth", self._run_in_float64)

    def _remember(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def _run_in_float64(
        self, change: Callable[[torch.Tensor, int], torch.Tensor] | None = None, factor: float = 1
    ) -> Any:
        """Returns the results of the call in float64.

        The result is None if torch does not have the call in float64, or not with these shapes.

        `change` is applied to each float operand (with its position), and fractions among the arguments are
        multiplied by `factor`.
        """

        def widened(i: int, t: T) -> torch.Tensor:
            tensor = t.tensor()
            if t.dtype not in FLOATS:
                return tensor
            wide = tensor.double()
            return wide if change is None else change(wide, i)

        args = _wide_options(_scaled(self.case.args, factor))
        wide = replace(self.case, kwargs=_wide_options(self.case.kwargs), args=args)
        try:
            results = call(
                wide, self.row.function(wide.name), [widened(i, t) for i, t in enumerate(tensors_of(wide))]
            )
        except Exception:
            return None
        if [r.shape for r in results] != [r.shape for r in self.eager]:
            return None
        return [_wide(r) for r in results]

    def _in_sequence(self) -> float:
        terms = max([math.prod(t.shape) for t in tensors_of(self.case)], default=1)
        return max(1.0, math.sqrt(terms) / 4)


def _scaled(args: tuple[Any, ...], factor: float) -> tuple[Any, ...]:
    return tuple(arg * factor if isinstance(arg, float) else arg for arg in args)


def _wide_options(tree: Any) -> Any:
    """Returns the options with every float dtype among them replaced by float64."""
    from torch.utils import _pytree as pytree

    return pytree.tree_map_only(
        torch.dtype,
        lambda d: torch.float64 if d.is_floating_point else d,
        tree,
        is_leaf=lambda x: isinstance(x, T),
    )


def _perturbed(x: torch.Tensor, seed: int, position: int) -> torch.Tensor:
    """Changes every element of operand `position` by one unit, up or down.

    Over the four seeds, any two of the first four operands change in the same direction for some seeds and in
    opposite directions for others.
    """
    signs = torch.from_numpy(np.random.default_rng(seed).choice([-1.0, 1.0], tuple(x.shape)))
    apart = (-1) ** (position & seed).bit_count()
    return x * (1 + apart * signs * 2.0**-23)


def _close(value: Any, want: Any, bound: Any, dtype: str, *, flushed: bool) -> Any:
    info = torch.finfo(TORCH[dtype])
    floor = info.smallest_normal if flushed and dtype in ("f32", "bf16") else 0.0
    with np.errstate(all="ignore"):
        close = np.abs(value - want) <= bound + np.where(bound > 0, floor, 0)
        same = (value == want) | (np.isnan(value) & np.isnan(want))
        if floor:
            same |= (np.abs(value) <= floor) & (np.abs(want) <= floor)
        at_the_edge = (np.abs(np.where(np.isinf(value), want, value)) >= info.max * (1 - 64 * info.eps)) & (
            np.sign(value) == np.sign(want)
        )
    return close | same | (at_the_edge & (bound > 0))


def _rounded(array: Any, dtype: str) -> Any:
    return _wide(torch.from_numpy(np.asarray(array, np.float64)).to(TORCH[dtype]))


def _spacing(size: Any, dtype: str) -> Any:
    info = torch.finfo(TORCH[dtype])
    finite = np.clip(np.where(np.isfinite(size), size, 0), info.smallest_normal, None)
    return 2.0 ** np.floor(np.log2(finite)) * info.eps


def _wide(array: Any) -> Any:
    if isinstance(array, torch.Tensor):
        return array.double().numpy() if array.is_floating_point() else array.numpy()
    found = np.asarray(array)
    floats = found.dtype.kind == "f" or found.dtype == ml_dtypes.bfloat16
    return found.astype(np.float64) if floats else found


@cache
def _names_of_dtypes() -> dict[str, str]:
    return {
        "bool": "bool", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64",
        "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    }  # fmt: skip


def _dtype_name(array: Any) -> str:
    return _names_of_dtypes().get(str(array.dtype), str(array.dtype))


def _first(wrong: Any, found: Any, want: Any, bound: Any) -> str:
    if not wrong.any():
        return ""
    at = tuple(int(axis[0]) for axis in np.nonzero(wrong)) if wrong.ndim else ()
    text = f"{int(wrong.sum())} of {wrong.size} elements, first at {at}: {found[at]!r}, expected {want[at]!r}"
    return text if bound is None else f"{text} within {bound[at]:.3g}"


# ---- reasons ----


def _reason_of(error: Exception) -> str:
    problems = getattr(error, "problems", None)
    if problems:
        return _reason(problems[0].what)
    parts = getattr(error, "parts", None)
    if parts and parts.get("what"):
        return _reason(parts["what"])
    lines = [line for line in str(error).splitlines() if line.strip()]
    return _reason(lines[0] if lines else type(error).__name__)


def _reason(text: str) -> str:
    """Returns the text without the names and numbers of one case, so that equal reasons can be counted."""
    text = re.sub(r"'[A-Za-z_]\w*'", "'…'", text)
    text = re.sub(r"\[[\d, -]*\]|\([\d, -]*\)|torch\.Size\(\S*\)", "[…]", text)
    return re.sub(r"-?\b\d+(\.\d+)?(e[+-]?\d+)?\b", "n", text)[:160]
