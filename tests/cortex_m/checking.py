"""Compares tosaic's Cortex-M arithmetic with ExecuTorch's Python operators and with CMSIS-NN's C kernels.

`EXPLAINED` lists the operators whose Python form differs from the kernel that runs on a device. For these,
each difference must be one that the explanation allows, and the kernel's integers must be ours. All other
operators must equal the Python form bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cortex_m.kernels import Kernels
from cortex_m.programs import PROGRAMS, Drawn, Program
from cortex_m.reference import called, of_tosaic, transformed

__all__ = ["EXPLAINED", "KERNELS", "Compared", "compared", "kernel_result"]


def _is_near_half(program: Program) -> np.ndarray:
    """Says where the average is halfway between two integers."""
    assert program.exact is not None
    average = program.exact.numpy()
    return np.abs(average - np.floor(average) - 0.5) < 1e-6


def _is_any(program: Program) -> np.ndarray:
    return np.array(True)


EXPLAINED: dict[str, Callable[[Program], np.ndarray]] = {
    "avg_pool": _is_near_half,
    "mean": _is_near_half,
    "adaptive avg_pool": _is_near_half,
    "softmax": _is_any,
}
"""Where results may differ by one unit from the Python operator. Everywhere else they may not differ."""


def _node(backend: torch.export.ExportedProgram, name: str) -> torch.fx.Node | None:
    found = [node for node in backend.graph.nodes if f"cortex_m.{name}." in str(node.target)]
    return found[0] if found else None


def _softmax(
    backend: torch.export.ExportedProgram, x: np.ndarray, kernels: Kernels
) -> tuple[np.ndarray, np.ndarray]:
    node = _node(backend, "softmax")
    assert node is not None
    multiplier, shift, least = (int(value) for value in node.args[4:7])
    scale = multiplier * 2.0 ** (shift - 31 - 26)
    numbers = x.astype(np.float64) * scale
    sums = np.exp(numbers - numbers.max(-1, keepdims=True)).sum(-1, keepdims=True)
    return kernels.softmax(x, multiplier, shift, least), np.broadcast_to(sums < 511, x.shape)


def _average(
    backend: torch.export.ExportedProgram, x: np.ndarray, kernels: Kernels
) -> tuple[np.ndarray, np.ndarray]:
    node, pad = _node(backend, "quantized_avg_pool2d"), _node(backend, "pad")
    assert node is not None
    if pad is not None:
        before, after, value = pad.args[1:4]
        x = np.pad(x, list(zip(before, after, strict=True)), constant_values=value)
    kernel, stride, padding = (tuple(int(n) for n in each) for each in node.args[1:4])
    size = tuple(node.meta["val"].shape[2:])
    parts = [kernels.average(part[None], kernel, stride, padding, size) for part in x]
    result = np.concatenate(parts)
    return result, np.ones(result.shape, bool)


KERNELS = {"softmax": _softmax, "avg_pool": _average, "mean": _average, "adaptive avg_pool": _average}
"""Functions that call CMSIS-NN's kernel as ExecuTorch's runtime does.

They return the kernel's integers, and where C defines them. Softmax shifts by more than 31 if the sum of the
exponentials of a row reaches 512.
"""


def kernel_result(name: str, program: Program, kernels: Kernels) -> tuple[np.ndarray, np.ndarray]:
    """Returns the integers of CMSIS-NN's kernel, and where they are defined."""
    backend = transformed(program.exported, *program.arrays)
    return KERNELS[name](backend, program.arrays[0].numpy(), kernels)


def _apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.shape != b.shape:
        raise AssertionError(f"shape {a.shape}, expected {b.shape}")
    return np.abs(a.astype(int) - b.astype(int))


@dataclass
class Compared:
    """Differences between the results of a program."""

    elements: int = 0
    differing: int = 0  # elements that differ from the Python operator's
    most: int = 0
    unexplained: int = 0
    usual_differing: int = 0  # elements in which the usual integer forms differ from it
    usual_most: int = 0
    kernel_elements: int = 0
    kernel_differing: int = 0  # elements that differ from CMSIS-NN's kernel
    operators: Sequence[str] = ()


def compared(name: str, seed: int, kernels: Kernels | None = None) -> Compared:
    """Draws the program of an operator and a seed, and compares its results."""
    program = PROGRAMS[name](Drawn(seed))
    backend = transformed(program.exported, *program.arrays)
    with torch.no_grad():
        expected = np.asarray(backend.module(check_guards=False)(*program.arrays))
    ours = of_tosaic(program.exported, *program.arrays)
    apart = _apart(ours, expected)
    usual = _apart(of_tosaic(program.exported, *program.arrays, semantics="tosa"), expected)
    allowed = np.array(False)
    if name in EXPLAINED:
        allowed = EXPLAINED[name](program) & (apart <= 1)
    out = Compared(
        elements=apart.size,
        differing=int((apart != 0).sum()),
        most=int(apart.max()),
        unexplained=int(((apart != 0) & ~allowed).sum()),
        usual_differing=int((usual != 0).sum()),
        usual_most=int(usual.max()),
        operators=sorted(each for each in set(called(backend)) if "." in each and "quantize_per" not in each),
    )
    if kernels is not None and name in KERNELS:
        exact, is_defined = KERNELS[name](backend, program.arrays[0].numpy(), kernels)
        out.kernel_elements = int(is_defined.sum())
        out.kernel_differing = int(((ours != exact) & is_defined).sum())
    return out
