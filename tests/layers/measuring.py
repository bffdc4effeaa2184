"""Runs one layer at every stage and on the reference model, and measures all errors against float64.

Our results at stages exported and tosa, and the reference model's results for our bytes, may have four times
the error of torch in float32 (the largest difference from float64). At least 64 units (2^-23) of the largest
magnitude are always allowed, because torch's result of a layer with few elements may be exact by chance.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tosaic
from torch import nn
from torch.utils import _pytree as pytree
from tosaic.lowering.reference_model import run_reference_model

from layers.table import FUNCTIONS, MODULES, NO_LAYERS, Layer

__all__ = ["Measured", "classes", "functions", "measure"]

TARGETS = ("TOSA-1.0+FP", "TOSA-1.0+FP+INT")
_UNITS = 64 * 2.0**-23


@dataclass(frozen=True)
class Measured:
    """The outcome of a layer and its variants.

    Attributes
    ----------
    name : str
    variants : int
        The number of variants.
    reached : str
        The last step that all variants reached: ``nothing``, ``exported``, ``imported``, ``ran``,
        ``lowered``, ``agreed``.
    reason : str
        The error that kept the worst variant from the next step.
    target : str
        The largest target that a variant needed.
    operators : int
        The number of operators in the TOSA graphs of all variants.
    """

    name: str
    variants: int
    reached: str
    reason: str = ""
    target: str = ""
    operators: int = 0


_ORDER = ("nothing", "exported", "imported", "ran", "lowered", "agreed")


def classes() -> list[str]:
    """Returns all layer classes of torch.nn, found by introspection, without those that cannot be called."""
    found = {value: name for name, value in sorted(vars(nn).items(), reverse=True) if _is_layer(value)}
    return sorted(set(found.values()) - set(NO_LAYERS))


def _is_layer(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def functions() -> list[str]:
    """Returns all functions of torch.nn.functional, without the names that it imports from other modules."""
    import torch.nn.functional as F

    own = {"assert_int_or_pair", "boolean_dispatch", "handle_torch_function"}
    names = [
        n for n, v in vars(F).items() if not n.startswith("_") and callable(v) and not isinstance(v, type)
    ]
    names = [n for n in names if n not in own and not n.startswith("has_torch") and n != "Optional"]
    return sorted(set(names) - set(NO_LAYERS))


def layers_of(name: str, *, functional: bool) -> list[Layer]:
    """Returns the variants in the table of this class or function."""
    return [layer for layer in (FUNCTIONS if functional else MODULES) if layer.name == name]


def measure(name: str, *, functional: bool) -> Measured:
    """Runs all variants. Errors become reasons of the outcome; nothing is raised."""
    layers = layers_of(name, functional=functional)
    if not layers:
        return Measured(name, 0, "nothing", "no row in the table")
    with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        rows = [_measure(layer) for layer in layers]
    worst = min(rows, key=lambda row: _ORDER.index(row.reached))
    target = max((row.target for row in rows), key=len)
    total = sum(row.operators for row in rows)
    return Measured(name, len(layers), worst.reached, worst.reason, target, total)


def _measure(layer: Layer) -> Measured:
    steps = _Steps(layer)
    try:
        steps.run()
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        return Measured(
            layer.name, 1, steps.reached, f"{type(error).__name__}: {text[0]}"[:300], steps.target
        )
    return Measured(layer.name, 1, steps.reached, "", steps.target, steps.operators)


class _Steps:
    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.reached = "nothing"
        self.target = ""
        self.operators = 0

    def run(self) -> None:
        module = self.layer.module()
        inputs = [t.tensor() for t in self.layer.inputs]
        eager = _flat(module(*(x.clone() for x in inputs)))
        exported = torch.export.export(module, tuple(inputs), strict=False)
        self.reached = "exported"
        program = tosaic.from_exported(exported)
        opaque = [node.attrs["target"] for node in program.graph.nodes if node.op == "opaque"]
        if opaque:
            raise tosaic.UnsupportedOp(f"no row for {opaque[0]}")
        self.reached = "imported"
        ours = _flat(program.run(*inputs))
        self.reached = "ran"
        lowered = self._lower(program)
        self.reached = "lowered"
        self.operators = len(lowered.graph)
        ours_lowered = _flat(lowered.run(*inputs))
        run = run_reference_model(lowered, *inputs)
        if not run.ok:
            raise AssertionError(f"the reference model's status is {run.status}")
        narrow = any(x.dtype == torch.bfloat16 for x in inputs)  # layers that torch has only in bfloat16
        exact = eager if narrow else _flat(_in_float64(module)(*map(_double, inputs)))
        for where, found in (
            ("exported", ours),
            ("tosa", ours_lowered),
            ("reference model", _flat(run.outputs)),
        ):
            _compare(where, found, eager, exact)
        self.reached = "agreed"

    def _lower(self, program: tosaic.Program) -> tosaic.Lowered:
        """Lowers to the first of TARGETS that supports it, so with the integer profile only if needed."""
        narrow = any(t.dtype == "bf16" for t in self.layer.inputs)
        for target in TARGETS:
            self.target = target + ("+bf16" if narrow else "")
            try:
                return tosaic.lower(program, target=self.target)
            except (tosaic.UnsupportedOp, tosaic.SpecViolation) as error:
                last = error
        raise last


def _double(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def _in_float64(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).double()


def _flat(outputs: Any) -> list[np.ndarray[Any, Any]]:
    leaves = pytree.tree_leaves(outputs)
    return [np.asarray(leaf.float() if _is_bfloat16(leaf) else leaf) for leaf in leaves if leaf is not None]


def _is_bfloat16(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16


def _compare(where: str, found: Sequence[Any], eager: Sequence[Any], exact: Sequence[Any]) -> None:
    if len(found) != len(eager):
        raise AssertionError(f"{where}: {len(found)} outputs, expected {len(eager)}")
    for i, (ours, torchs, truth) in enumerate(zip(found, eager, exact, strict=True)):
        if ours.shape != torchs.shape:
            raise AssertionError(f"{where}: output {i} has shape {ours.shape}, expected {torchs.shape}")
        if torchs.dtype.kind != "f":
            if not np.array_equal(ours, torchs):
                raise AssertionError(f"{where}: output {i} is not equal to torch's")
            continue
        error, allowed = _largest(ours, truth), 4 * _largest(torchs, truth)
        floor = _UNITS * max(float(np.abs(truth).max(initial=0)), 2.0**-23)
        if not error <= max(allowed, floor):
            raise AssertionError(f"{where}: output {i} is {error:.3g} off, torch {allowed / 4:.3g}")


def _largest(a: Any, b: Any) -> float:
    with np.errstate(invalid="ignore"):
        off = np.abs(np.asarray(a, np.float64) - b)
    off = np.where((np.asarray(a) == b) | (np.isnan(np.asarray(a, np.float64)) & np.isnan(b)), 0, off)
    largest = float(off.max(initial=0))
    return math.inf if math.isnan(largest) else largest
