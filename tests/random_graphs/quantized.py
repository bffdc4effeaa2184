"""Random programs with quantize and dequantize nodes after every float tensor, lowered to integers.

A program of the generator is run once, and rewritten so that each of its float32 tensors is quantized to 8
bits and dequantized. The quantization parameters fit the range that was observed or, with
``hostile``, scales, zero points and ranges that no observer would choose. `check_quantized` says what must
hold.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tosaic
from operators.grid import Grid
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

from random_graphs.generate import generate

__all__ = ["QuantizedResult", "check_quantized", "differing", "quantized_program"]

_TARGETS = ("TOSA-1.0+INT", "TOSA-1.0+FP+INT")
_TOLERANCE = 1e-4


@dataclass
class QuantizedResult:
    """The outcome of one program.

    Attributes
    ----------
    target : str
        The target to which it was lowered; empty if all targets refused it.
    refused : str
        The error of the last target that refused it.
    nodes, integer_nodes : int
        The number of nodes of the lowered graph, and of nodes without floats among operands and results.
    failures : list of str
    """

    target: str = ""
    refused: str = ""
    nodes: int = 0
    integer_nodes: int = 0
    failures: list[str] = field(default_factory=list)


def _observed(x: torch.Tensor) -> Grid:
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    scale = (high - low) / 255 or 1.0
    return Grid(scale, int(np.clip(round(-128 - low / scale), -128, 127)), -128, 127)


def _hostile(x: torch.Tensor, rng: np.random.Generator) -> Grid:
    scale = _observed(x).scale * 10.0 ** rng.choice([0, 0, 0, -1, 1, -6, 3])
    low = int(rng.choice([-128, -127, -8, 0]))
    high = int(rng.choice([127, 126, 7, low]))
    low, high = min(low, high), max(low, high)
    return Grid(float(scale), int(rng.choice([low, high, 0, -128, 127])), low, high)


class _Observing(torch.fx.Interpreter):
    """Runs a program once and chooses quantization parameters (a grid) for each float32 tensor."""

    def __init__(self, module: torch.fx.GraphModule, seed: int | None) -> None:
        super().__init__(module)
        self.grids: dict[str, Grid] = {}
        self._rng = None if seed is None else np.random.default_rng(seed)

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if _is_float(n, result) and bool(torch.isfinite(result).all()):
            self.grids[n.name] = _observed(result) if self._rng is None else _hostile(result, self._rng)
            result = self.grids[n.name].around(result)
        return result


class _Quantizing(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule, grids: dict[str, Grid]) -> None:
        super().__init__(module)
        self._grids = grids

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        return self._grids[n.name].around(result) if n.name in self._grids else result


def _is_float(n: torch.fx.Node, result: Any) -> bool:
    return (
        n.op in ("placeholder", "call_function")
        and isinstance(result, torch.Tensor)
        and result.dtype == torch.float32
        and result.numel() > 0
    )


class _Module(torch.nn.Module):
    def __init__(self, module: torch.fx.GraphModule, grids: dict[str, Grid]) -> None:
        super().__init__()
        self.inner, self.grids = module, grids

    def forward(self, *args: torch.Tensor) -> Any:
        return _Quantizing(self.inner, self.grids).run(*args)


def check_quantized(seed: int, *, hostile: bool = False) -> QuantizedResult:
    """Checks the program of a seed. All errors become failures of the result; nothing is raised.

    The program is lowered to integers only or, if some operators need floats, to integers and floats. Our
    executor at the stages canonical and tosa, with scalar and with fast kernels, and the reference model must
    have the same results: equal integers, and floats within 1e-4 of the largest magnitude.

    Integers that depend on floats must be equal too. Kernels differ by a few units in the last place of a
    float (1e-6 of the largest). Every float is quantized again, to 8 bits or by a comparison, so this could
    change an integer only if the float is that close to the threshold between two integers: less than one
    element in a thousand. No program that was tried has such an element. Outputs that depend on a cast of NaN
    to an integer are not compared, since that integer is undefined (0 in our executor, the smallest integer
    elsewhere).
    """
    result = QuantizedResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _check(seed, hostile, result)
        except Exception as error:
            result.failures.append(f"{type(error).__name__}: {error}")
    return result


def quantized_program(seed: int, *, hostile: bool = False) -> tuple[tosaic.Program, tuple[Any, ...]]:
    """Returns the program of a seed with quantize and dequantize around all floats, and its arguments."""
    program = generate(seed)
    args = program.arguments()
    with torch.no_grad():
        plain = torch.export.export(program.module(), args).module(check_guards=False)
        observing = _Observing(plain, seed if hostile else None)
        observing.run(*args)
        converted = torch.export.export(_Module(plain, observing.grids), args)
    return tosaic.from_exported(converted), args


def _check(seed: int, hostile: bool, result: QuantizedResult) -> None:
    imported, args = quantized_program(seed, hostile=hostile)
    low = None
    for target in _TARGETS:
        try:
            low = tosaic.lower(imported, target=target)
            break
        except (tosaic.UnsupportedOp, tosaic.SpecViolation) as error:
            result.refused = str(error)
    if low is None:
        return
    result.target = low.target
    nodes = list(low.graph.nodes)
    result.nodes = len(nodes)
    result.integer_nodes = sum(not _touches_floats(node) for node in nodes)
    exact = result.integer_nodes == result.nodes
    arrays = imported.arrays(*args)
    expected = _core.Session(low.graph, reference=True).run(arrays)
    undefined = set() if exact else _outputs_of_casts_of_nan(low.graph, arrays)
    for name in ("canonical", "tosa"):
        for reference in (True, False):
            found = _core.Session(low.stages[name], reference=reference).run(arrays)
            _compare(f"stage {name}, {'scalar' if reference else 'fast'}", found, expected, undefined, result)
    run = run_reference_model(low, *args)
    if not run.ok:
        result.failures.append(f"the reference model says {run.status}: {run.log[-300:]}")
    elif run.outputs is not None:
        _compare("the reference model", list(run.outputs), expected, undefined, result)


def _touches_floats(node: Any) -> bool:
    return any(value is not None and value.dtype.startswith("f") for value in (*node.operands, *node.results))


def _outputs_of_casts_of_nan(graph: _core.Graph, arrays: Any) -> set[int]:
    """Returns the indices of the outputs that depend on a cast of NaN to an integer."""
    values = _core.Session(graph, reference=True).trace(arrays)["values"]
    tainted: set[str] = set()
    for node in graph.nodes:
        operands = [value.name for value in node.operands if value is not None]
        makes_integers = not any(value.dtype.startswith("f") for value in node.results)
        is_cast = node.op == "tosa.cast" and makes_integers
        if (is_cast and _has_nan(values.get(operands[0]))) or not tainted.isdisjoint(operands):
            tainted.update(value.name for value in node.results)
    return {i for i, port in enumerate(graph.outputs) if port.value.name in tainted}


def _has_nan(array: Any) -> bool:
    return array is not None and array.dtype.kind == "f" and bool(np.isnan(array).any())


def _compare(where: str, found: Any, expected: Any, undefined: set[int], result: QuantizedResult) -> None:
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        wrong = 0 if i in undefined else differing(np.asarray(a), np.asarray(b))
        if wrong:
            result.failures.append(f"{where}: {wrong} of {np.size(a)} elements of output {i} differ")


def differing(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> int:
    """Returns the number of wrong elements: unequal integers, distant floats, and NaN on one side only."""
    same = got == wanted
    if np.issubdtype(wanted.dtype, np.floating):
        size = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0))
        with np.errstate(invalid="ignore"):
            same |= np.abs(got - wanted) <= _TOLERANCE * size + 1e-6
        same |= np.isnan(got) & np.isnan(wanted)
    return int((~same).sum())
