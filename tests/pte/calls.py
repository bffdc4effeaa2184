"""Calls of one overload in a ``.pte`` file of ExecuTorch's portable flow: our results, and its runtime's.

The calls are drawn as in `tests/operators` and judged by the same bounds against torch. ExecuTorch decomposes
many of them, and its runtime computes the calls for which it has kernels. Where our result and the runtime's
differ by more than the bound, torch decides: the runtime's kernels of some functions are coarser than
torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import tosaic
from operators.checking import _eager, _Expected, _Module, _quiet, _refused_by_torch
from operators.running import first_examples
from operators.table import ROWS
from operators.values import Case
from tosaic import _core
from tosaic.pte.file import PteFile

__all__ = ["Tried", "drawn_cases", "portable_file", "run_in_executorch", "try_calls"]


@dataclass
class Tried:
    """The outcome of the calls of an overload.

    Attributes
    ----------
    name : str
    calls : int
        Calls that ExecuTorch wrote into a file.
    refused : str
        Why ExecuTorch does not write them, or why we refuse the file; empty if neither.
    operators : tuple of str
        The operators that the file calls.
    ran : bool
        ExecuTorch's runtime ran the file.
    runtime_differs : str
        Where the runtime's result is outside the bound of torch's result.
    failure : str
        Where our result is outside the bound of torch's, or what else is wrong with our code.
    """

    name: str
    calls: int = 0
    refused: str = ""
    operators: tuple[str, ...] = ()
    ran: bool = False
    runtime_differs: str = ""
    failure: str = ""


def portable_file(module: torch.nn.Module, inputs: tuple[Any, ...], **config: Any) -> bytes:
    """Returns the ``.pte`` file of a module, without delegates."""
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge

    exported = torch.export.export(module, inputs, strict=False)
    edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))
    return bytes(edge.to_executorch(ExecutorchBackendConfig(**config)).buffer)


@cache
def _runtime() -> Any:
    import executorch.kernels.quantized  # noqa: F401 - registers the kernels of quantize and dequantize
    from executorch.runtime import Runtime

    return Runtime.get()


def run_in_executorch(data: bytes, inputs: Sequence[torch.Tensor], method: str = "forward") -> list[Any]:
    """Returns the outputs of a method in ExecuTorch's runtime."""
    program = _runtime().load_program(data)  # owns the memory of its methods
    outputs = program.load_method(method).execute(list(inputs))
    return [each.clone() if isinstance(each, torch.Tensor) else each for each in outputs]


def drawn_cases(name: str, count: int, seed: int) -> list[Case]:
    """Draws calls of an overload that torch takes, and whose results have elements."""
    row = ROWS[name]
    taken = [case for case in first_examples(name, count, seed) if not _refused_by_torch(case, row)]
    return [case for case in taken if all(each.numel() for each in _eager(case, row))]


def try_calls(name: str, count: int, seed: int = 0) -> Tried:
    """Draws calls of an overload, and runs the file that ExecuTorch makes of them."""
    row, tried = ROWS[name], Tried(name)
    with _quiet():
        cases = drawn_cases(name, count, seed)
        if not cases:
            tried.refused = "torch: no call"
            return tried
        module = _Module(cases, row).eval()
        try:
            data = portable_file(module, tuple(module.inputs))
        except Exception as error:
            tried.refused = (
                f"executorch: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:90]}"
            )
            return tried
        tried.calls = len(cases)
        _judge(tried, data, module, row)
    return tried


def _judge(tried: Tried, data: bytes, module: _Module, row: Any) -> None:
    try:
        method = PteFile(_core.read_pte(data)).method()
        tried.operators = method.operators
        program = method.program
        arrays = program.arrays(*module.inputs)
        ours = program.run_arrays(arrays)
    except (tosaic.UnsupportedOp, tosaic.InvalidGraph) as error:
        tried.refused = f"tosaic: {str(error).partition(chr(10))[0][:160]}"
        return
    except Exception as error:
        tried.failure = f"{type(error).__name__}: {error}"
        return
    expected = [_Expected(case, row, program.graph) for case in module.cases]
    tried.failure = _disagreement(expected, ours)
    try:
        given = zip(module.inputs, method.inputs, strict=True)
        theirs = run_in_executorch(data, [_in_order(each, spec.dim_order) for each, spec in given])
    except Exception:
        return
    tried.ran = True
    tried.runtime_differs = _disagreement(expected, [_array(each) for each in theirs])
    if tried.failure == tried.runtime_differs:
        tried.failure = ""  # the file itself computes something else than torch


def _in_order(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Returns a tensor that is dense in a dim order."""
    back = [list(order).index(axis) for axis in range(tensor.dim())]
    return tensor.permute(list(order)).contiguous().permute(back)


def _array(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    if value.dtype is torch.bfloat16:
        import ml_dtypes

        return value.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def _disagreement(expected: Sequence[_Expected], results: Sequence[Any]) -> str:
    rest = iter(results)
    for each in expected:
        for i in range(len(each.eager)):
            text = each.disagreement(i, next(rest))
            if text:
                return f"{each.case!r}, result {i}: {text}"
    return ""
