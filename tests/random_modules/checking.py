"""Checks one random module at each step from torch.export to the reference model.

    step              compares                                                   bound
    import            eager `ep.module()` with the imported program              from noise, see below
    lower             eager with the program lowered to TOSA FP                  the same
    reference model   eager with the reference model, on the bytes of FP         the same, * sqrt(terms) / 4,
                                                                                 and what TOSA lets TANH err
    quantize          nothing: `tosaic.quantize`, int8 or int16x8 in turn
    integers          the quantized program with its lowered form: `compare`,    each node from equal integers
                      and the signal-to-noise ratios of both against floats      at most 6 dB lost
    integer model     the lowered program with the reference model               equal; floats within 1e-4

The bound of a float is 4 times torch's own error in float32, plus twice the largest distance of a noisy
float64 variant (`random_graphs.programs`). Integers, truth values, shapes and dtypes have to be equal, except
elements in which the noisy variants themselves differ: those are counted as undecided. States, inputs that
the module writes, and results are compared over several calls; `ep.module()` is the reference for aliasing.

A cast of a huge float to an integer is undefined in torch, and a lowered program has 32 bits for integers.
So a module that has an integer beyond them in one of the calls is compared up to the import only. A float
within `_TIE` of a tie may be rounded to either integer: the reference model adds floats in another order.

A step that refuses a module, or that does not apply to it, is recorded with the reason. Nothing after it is
compared, and nothing is called right that was not compared.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tosaic
from random_graphs.checking import Expected
from random_graphs.quantized import differing
from tosaic.lowering.reference_model import run_reference_model

from random_modules.need import RETURNED, returns
from random_modules.programs import ModuleValues, RandomModule, evaluated

__all__ = ["STEPS", "Bounded", "Checked", "Refusal", "bounded", "check", "effective_count"]

STEPS = (
    "export",
    "import",
    "lower",
    "reference model",
    "quantize",
    "integers",
    "integer model",
)
CALLS = 2
_CALIBRATION = 6
_FORMS = ((tosaic.QConfig.int8, ""), (tosaic.QConfig.int16x8, "+int16"))
_LOST_DB, _LEAST_DB, _LEAST_ELEMENTS = 6.0, 10.0, 16
_MOST_DB = 80.0  # integers of 16 bits that are off by half a unit have 80 dB at half of their range
_TIE = 1e-5  # relative to the number, or absolute for numbers below 1
_MOST_INTEGER = 2**31 - 1
_SMALLEST = 1e-37  # float32 numbers below about this are subnormal and may be flushed to zero
_REFUSALS = (tosaic.UnsupportedOp, tosaic.SpecViolation)
_NOT_OURS = (
    "numbers that are not finite",
    "holds a value outside its range",
    "nothing of the program is quantized",
)
"""Refusals of class InvalidGraph: the numbers of a sample, or a program without calls to quantize."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Refusal:
    """A step that refused the module: the rules, without names and numbers, and the whole message."""

    step: str
    rules: list[str]
    message: str


@dataclass
class Checked:
    """What became of a module.

    Attributes
    ----------
    seed, steps, writes : int
        The seed, and how many steps and statements the module has.
    bits : int
    passed : list of str
        The steps whose comparison was made and found no difference; for ``quantize``, that it succeeded.
    refusals : list of Refusal
    skipped : dict of str to str
        Steps that do not apply, and why.
    failures : list of (str, str)
        Wrong numbers and unexpected errors: the step and the text.
    targets : dict of str to str
        The target of each step that lowers.
    compared, undecided : int
        How many elements were compared with eager, and how many were not, since noise decides them.
    build : str
        A hash of the code that was tested, if the result is stored.
    """

    seed: int
    steps: int = 0
    writes: int = 0
    bits: int = 8
    passed: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)
    targets: dict[str, str] = field(default_factory=dict)
    compared: int = 0
    undecided: int = 0
    build: str = ""


class _Stop(Exception):
    """The step refused the module or failed, which is recorded."""


def check(module: RandomModule, note: Callable[[str], None] = lambda _: None) -> Checked:
    """Checks one module. All errors of tosaic become failures or refusals; nothing is raised."""
    found = Checked(module.seed, len(module.steps), sum(s.writes for s in module.steps))  # type: ignore[attr-defined]
    found.bits = 8 if module.seed % 2 == 0 else 16
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        _Check(module, found, note).run()
    return found


class _Check:
    def __init__(self, module: RandomModule, found: Checked, note: Callable[[str], None]) -> None:
        self.module, self.found, self.note = module, found, note
        self.quantized: Any = None

    def run(self) -> None:
        try:
            exported = self._exported()
            self._expect()
            program = self._step("import", lambda: self._import(exported))
        except _Stop:
            return
        if self.beyond_32_bits:
            for step in ("lower", "integers"):
                self.found.skipped[step] = "an integer of more than 32 bits"
            return
        for chain in (self._lower, self._quantize):
            try:
                chain(program, exported)
            except _Stop:
                continue

    # ---- recording ----

    def _step(self, step: str, make: Callable[[], Any]) -> Any:
        self.note(f"{self.module.seed} {step}")
        try:
            return make()
        except _Stop:
            raise
        except _REFUSALS as error:
            self._refuse(step, error)
        except tosaic.InvalidGraph as error:
            if not any(text in str(error) for text in _NOT_OURS):
                self.found.failures.append((step, f"{type(error).__name__}: {error}"))
            else:
                self._refuse(step, error)
        except Exception as error:
            self.found.failures.append((step, f"{type(error).__name__}: {error}"))
        raise _Stop

    def _refuse(self, step: str, error: Exception) -> None:
        problems = getattr(error, "problems", ())
        rules = [rule_of(each.what) + self._whether_returned(each.node) for each in problems]
        rules = rules or [rule_of(str(error).partition("\n")[0])]
        self.found.refusals.append(Refusal(step, [*dict.fromkeys(rules)], str(error)[:600]))

    def _whether_returned(self, node: str) -> str:
        is_returned = self.quantized is not None and returns(self.quantized.graph, node)
        return RETURNED if is_returned else ""

    def _judge(self, step: str, wrong: Sequence[str]) -> None:
        if wrong:
            self.found.failures.append((step, "; ".join(wrong[:3])))
            raise _Stop
        self.found.passed.append(step)

    # ---- torch ----

    def _exported(self) -> Any:
        self.note(f"{self.module.seed} export")
        try:
            exported = torch.export.export(self.module.module(), self.module.arguments(), strict=False)
            self._eager(exported)
        except Exception as error:
            self.found.skipped["export"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:200]
            raise _Stop from None
        self.found.passed.append("export")
        return exported

    def _eager(self, exported: Any) -> None:
        """Runs `ep.module()`: the results and the written inputs of each call.

        The module writes into the buffers of the exported program, which are restored afterwards.
        """
        module = exported.module(check_guards=False)
        before = {name: value.clone() for name, value in exported.state_dict.items()}
        self.calls = [self.module.sample(i) for i in range(CALLS)]
        self.results: list[list[Array]] = []
        self.written: list[list[Array]] = []
        for call in self.calls:
            given = [x.clone() for x in call]
            self.results.append([_array(x) for x in module(*given)])
            self.written.append([_array(x) for x in given])
        for name, value in before.items():
            exported.state_dict[name].copy_(value)

    def _expect(self) -> None:
        """Derives the bound of each element from noisy variants of the module.

        A variant in which a step cannot be evaluated at other samples leaves the bounds of its call open.
        """
        names = list(self.module.outputs)
        inputs = [leaf.name for leaf in self.module.inputs]
        try:
            calls = evaluated(self.module, self.calls)
        except Exception as error:
            self.found.skipped["import"] = f"no bound: {type(error).__name__}: {error}"[:200]
            raise _Stop from None
        self.beyond_32_bits = any(
            not value.dtype.is_floating_point and _magnitude(value) > _MOST_INTEGER
            for values in calls
            for variants in values.values.values()
            for value in variants
        )
        self.expected: list[list[Bounded]] = []
        for values, results, written in zip(calls, self.results, self.written, strict=True):
            self.expected.append(self._bounded(values, [*results, *written]))
        torch_itself = [
            text
            for call, values in zip(self.expected, calls, strict=True)
            for name, bounded in zip((*names, *inputs), call, strict=True)
            if (text := bounded.disagreement(bounded.expected.exact))
        ]
        if torch_itself:
            self.found.skipped["import"] = f"torch.export changes the numbers: {torch_itself[0]}"[:200]
            raise _Stop
        self.found.compared = sum(b.decided for call in self.expected for b in call)
        self.found.undecided = sum(b.undecided for call in self.expected for b in call)

    def _bounded(self, values: ModuleValues, eager: Sequence[Array]) -> list[Bounded]:
        """Returns the bounds of the results and inputs of a call from their values in all variants."""
        names = [*self.module.outputs, *(leaf.name for leaf in self.module.inputs)]
        terms = max(v[0].numel() for v in values.values.values())
        return [bounded(e, values.values[name], terms) for name, e in zip(names, eager, strict=True)]

    def _wrong(
        self, run: Callable[..., Any], reset: Callable[[], None], *, in_sequence: bool = False
    ) -> list[str]:
        """Runs the calls one after the other and returns what differs from eager."""
        reset()
        wrong = []
        names = [*self.module.outputs, *(leaf.name for leaf in self.module.inputs)]
        for number, (call, expected) in enumerate(zip(self.calls, self.expected, strict=True)):
            given = [x.clone() for x in call]
            outputs = [*_several(run(*given)), *map(_array, given)]
            for name, bounded, got in zip(names, expected, outputs, strict=True):
                if text := bounded.disagreement(np.asarray(got), in_sequence=in_sequence):
                    wrong.append(f"call {number}, {name}: {text}")
        return wrong

    # ---- floats ----

    def _import(self, exported: Any) -> tosaic.Program:
        program = tosaic.from_exported(exported)
        self._judge("import", self._wrong(program.run, program.reset_state))
        return program

    def _lowered(self, step: str, program: Any, targets: Sequence[str]) -> tosaic.Lowered:
        """Lowers to the first of the targets that takes the program. Refusals of all of them are recorded."""
        for target in targets:
            try:
                lowered = tosaic.lower(program, target=target)
            except _REFUSALS as error:
                self._refuse(f"{step}, {target.removeprefix('TOSA-1.0+')}", error)
                continue
            self.found.targets[step] = target
            return lowered
        raise _Stop

    def _lower(self, program: tosaic.Program, exported: Any) -> None:
        narrow = _narrow(program)
        targets = (f"TOSA-1.0+FP{narrow}", f"TOSA-1.0+FP+INT{narrow}", f"TOSA-1.0+FP+INT+int16{narrow}")
        lowered = self._step("lower", lambda: self._lowered("lower", program, targets))
        self._step("lower", lambda: self._judge("lower", self._wrong(lowered.run, lowered.reset_state)))
        if self._beyond_the_model("reference model", lowered):
            return
        self._step("reference model", lambda: self._model_of_floats(lowered))

    def _beyond_the_model(self, step: str, lowered: tosaic.Lowered) -> bool:
        """The reference model takes no empty tensors and no graph without nodes."""
        if not lowered.graph.nodes:
            self.found.skipped[step] = "no operators"
        elif any(0 in value.shape for value in lowered.graph.values):
            self.found.skipped[step] = "empty tensors"
        elif any(0 in port.value.shape for port in (*lowered.graph.inputs, *lowered.graph.outputs)):
            self.found.skipped[step] = "empty inputs or outputs"
        return step in self.found.skipped

    def _model_of_floats(self, lowered: tosaic.Lowered) -> None:
        """Runs the first call on the reference model, whose states start from their initial values."""
        given = [x.clone() for x in self.calls[0]]
        run = run_reference_model(lowered, *given)
        if not run.ok or run.outputs is None:
            self._judge("reference model", [f"status {run.status}: {run.log[-300:]}"])
        (values,) = evaluated(self.module.on_the_model(), self.calls[:1])
        expected = self._bounded(values, [*self.results[0], *self.written[0]])
        wrong = []
        for name, bounded, got in zip(self.module.outputs, expected, _several(run.outputs), strict=False):
            if text := bounded.disagreement(np.asarray(got), in_sequence=True):
                wrong.append(f"{name}: {text}")
        self._judge("reference model", wrong)

    # ---- integers ----

    def _quantize(self, program: tosaic.Program, exported: Any) -> None:
        config, extension = _FORMS[self.module.seed % 2]
        samples = [self.module.sample(i) for i in range(_CALIBRATION)]
        quantized = self._step(
            "quantize", lambda: tosaic.quantize(exported, _cloned(samples), config=config(), progress=False)
        )
        self.found.passed.append("quantize")
        self.quantized = quantized
        targets = (f"TOSA-1.0+INT{extension}", f"TOSA-1.0+INT+FP{extension}{_narrow(program)}")
        lowered = self._step("integers", lambda: self._lowered("integers", quantized, targets))
        self._step("integers", lambda: self._integers(program, quantized, lowered, samples[:CALLS]))
        if self._beyond_the_model("integer model", lowered):
            return
        self._step("integer model", lambda: self._model_of_integers(lowered, samples[:CALLS]))

    def _integers(self, program: Any, quantized: Any, lowered: Any, samples: Sequence[Any]) -> None:
        comparison = tosaic.compare(quantized, lowered, _cloned(samples))
        wrong = []
        if not comparison.ok:
            rows = [row for row in comparison if not row.ok]
            wrong += [f"{row.fx_name}: local error beyond its bound: {row.local}" for row in rows]
            wrong += wrong or [
                f"output '{row.path}' is wrong: {row.metrics}" for row in comparison.outputs if not row.ok
            ]
        wrong += _lost(program, quantized, lowered, samples)
        self._judge("integers", wrong)

    def _model_of_integers(self, lowered: Any, samples: Sequence[Any]) -> None:
        wrong = []
        for number, sample in enumerate(samples):
            lowered.reset_state()
            ours = _several(lowered.run(*[x.clone() for x in sample]))
            run = run_reference_model(lowered, *[x.clone() for x in sample])
            if not run.ok or run.outputs is None:
                wrong.append(f"status {run.status}: {run.log[-300:]}")
                break
            otherwise: list[list[Array]] | None = None
            for i, (got, wanted) in enumerate(zip(_several(run.outputs), ours, strict=True)):
                count = differing(np.asarray(got), np.asarray(wanted))
                if count and otherwise is None:
                    otherwise = [_with_ties(lowered, sample, way) for way in (-_TIE, _TIE)]
                if count and all(differing(np.asarray(got), x[i]) for x in otherwise or ()):
                    wrong.append(f"call {number}: {count} of {np.size(got)} elements of output {i} differ")
        self._judge("integer model", wrong)


def _narrow(program: tosaic.Program) -> str:
    """Returns the extension for bfloat16, if the program has it."""
    return "+bf16" if any(value.dtype == "bf16" for value in program.graph.values) else ""


def _lost(program: Any, quantized: Any, lowered: Any, samples: Sequence[Any]) -> list[str]:
    """Returns the outputs whose signal-to-noise ratio is much lower after lowering than before."""
    runs = []
    for each in (program, quantized, lowered):
        found = []
        for sample in samples:
            each.reset_state()
            found.append(_several(each.run(*[x.clone() for x in sample])))
        runs.append([np.concatenate([np.ravel(x[i]) for x in found]) for i in range(len(found[0]))])
    wrong = []
    for i, (floats, before, after) in enumerate(zip(*runs, strict=True)):
        finite = np.isfinite(floats) if floats.dtype.kind == "f" else np.zeros(floats.shape, bool)
        finite &= np.isfinite(before) & np.isfinite(after)
        if effective_count(floats[finite]) < _LEAST_ELEMENTS:
            continue
        was, now = (_ratio(floats[finite], x[finite]) for x in (before, after))
        if was >= _LEAST_DB and now < was - _LOST_DB:
            wrong.append(f"output {i}: {now:.1f} dB, the quantized program has {was:.1f}")
    return wrong


def effective_count(numbers: Array) -> float:
    """Returns how many equal numbers would have the same spread of energy (the participation ratio).

    One or two results of ``exp(x)`` may have nearly all of the energy. Then the rounding of these few decides
    the signal-to-noise ratio of all.
    """
    energy = np.square(numbers.astype(np.float64))
    energy /= max(energy.max(initial=0), 1e-300)
    fourth = np.square(energy).sum()
    return float(energy.sum() ** 2 / fourth) if fourth else float(energy.size)


def _cloned(samples: Sequence[Any]) -> list[Any]:
    """Returns copies of the samples, since a module may write into its inputs."""
    return [tuple(x.clone() for x in sample) for sample in samples]


def _ratio(wanted: Array, got: Array) -> float:
    """Returns the signal-to-noise ratio in dB, at most `_MOST_DB`."""
    wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    signal, noise = np.square(wanted).sum(), np.square(wanted - got).sum()
    if signal == 0:
        return _MOST_DB if noise == 0 else -_MOST_DB
    return float(min(_MOST_DB, 10 * np.log10(signal / noise))) if noise else _MOST_DB


@dataclass(frozen=True)
class Bounded:
    """A result of eager, its bound, and which elements noise does not decide."""

    expected: Expected
    open: Array

    @property
    def undecided(self) -> int:
        return int(self.open.sum())

    @property
    def decided(self) -> int:
        return int(self.open.size) - self.undecided

    def disagreement(self, got: Array, *, in_sequence: bool = False) -> str:
        wanted = self.expected.exact
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return f"{got.dtype}{list(got.shape)}, expected {wanted.dtype}{list(wanted.shape)}"
        value, bound = self.expected.value, self.expected.bound
        with np.errstate(all="ignore"):
            if wanted.dtype == np.float32:
                factor = self.expected.in_sequence if in_sequence else 1.0
                right = np.abs(got.astype(np.float64) - value) <= bound * factor
                right |= ~np.isfinite(wanted) & (
                    np.asarray(got == wanted) | (np.isnan(got) & np.isnan(wanted))
                )
            else:
                right = np.asarray(got == wanted)
        wrong = ~(right | self.open)
        if not wrong.any():
            return ""
        at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong)))[: wrong.ndim]
        count = f"{int(wrong.sum())} of {wrong.size} elements"
        text = f"{count}, first at {at}: {got[at]!r}, expected {wanted[at]!r}"
        return text + (f" within {bound[at]:.3g}" if wanted.dtype == np.float32 else "")


def bounded(eager: Array, variants: Sequence[torch.Tensor], terms: int) -> Bounded:
    """Derives the bounds of a result from its values in f32, in f64 and with noise.

    `terms` is the largest number of terms of a sum.
    """
    f32, f64, *noisy = (_array(v) for v in variants)
    if eager.dtype != np.float32 or f64.dtype.kind != "f":
        differs = np.zeros(f64.shape, bool)
        for value in (f32, *noisy):
            differs |= np.asarray(value != f64)
        return Bounded(Expected(eager, eager, np.zeros(eager.shape)), differs)
    with np.errstate(all="ignore"):
        noise = np.max([np.abs(value - f64) for value in noisy], axis=0)
        bound = 4 * np.abs(f32.astype(np.float64) - f64) + 2 * noise + _SMALLEST
        # A discontinuous operator before this result: the variants are on different sides of it.
        wide = ~(noise <= 1e-2 * np.abs(f64).max(initial=0)) & np.isfinite(f64)
    unequal = np.zeros(f64.shape, bool)
    for value in (f32, *noisy):
        unequal |= np.isfinite(value) != np.isfinite(f64)
        unequal |= np.isnan(value) != np.isnan(f64)
    return Bounded(Expected(eager, f64, bound, max(1.0, terms**0.5 / 4)), wide | unequal)


def _with_ties(lowered: tosaic.Lowered, sample: Sequence[Any], way: float) -> list[Array]:
    """Runs a call in which floats near a tie are rounded up, or down if `way` is negative."""

    def rounded(call: tosaic.NodeCall) -> Array:
        x = np.asarray(call.operands[0])
        return np.rint(x + way * np.maximum(1, np.abs(x))).astype(x.dtype)

    canonical = lowered.at("canonical")  # at stage tosa several operators round a float
    models = {tosaic.Nodes(kind="round"): rounded}
    prepared = canonical.prepare(models=models if any(n.op == "round" for n in canonical.graph.nodes) else {})
    prepared.reset_state()
    return _several(prepared.run(*[x.clone() for x in sample]))


def _magnitude(value: torch.Tensor) -> float:
    return float(value.double().abs().max()) if value.numel() else 0.0


def _array(x: Any) -> Array:
    if isinstance(x, torch.Tensor):
        x = x.detach()
        x = x.float() if x.dtype is torch.bfloat16 else x
        return np.array(x.numpy(), copy=True)
    return np.asarray(x)


def _several(outputs: Any) -> list[Array]:
    found = outputs if isinstance(outputs, tuple | list) else [outputs]
    return [
        np.asarray(a, np.float32) if str(np.asarray(a).dtype) == "bfloat16" else np.asarray(a) for a in found
    ]


def rule_of(text: str) -> str:
    """Returns a refusal without the names and numbers of one module, so that equal rules can be counted."""
    text = re.sub(r"\(node .*?\)|'[^']*'|%[\w.]+", "'…'", text.partition("\n")[0])
    text = re.sub(r"\[[^\]]*\]", "[…]", text)
    return re.sub(r"-?\b\d+(\.\d+)?(e[+-]?\d+)?\b", "n", text)[:200]
