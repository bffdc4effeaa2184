"""Calls of one overload in a ``.pte`` file of ours: the results of ExecuTorch's runtime, and ours.

The calls are drawn as in `tests/operators`, and judged by the same bounds against torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import tosaic
from operators.checking import _Expected, _Module, _quiet
from operators.table import ROWS
from tosaic import _core
from tosaic.pte.file import PteFile

from pte.calls import _array, _disagreement, _in_order, drawn_cases, run_in_executorch

__all__ = ["Written", "try_written"]


@dataclass
class Written:
    """The outcome of the calls of an overload.

    Attributes
    ----------
    name : str
    calls : int
    refused : str
        Why the calls are not written, or why the runtime does not take them; empty if neither.
    operators : tuple of str
        The operators that the file calls.
    failure : str
        Where a result is outside the bound of torch's.
    """

    name: str
    calls: int = 0
    refused: str = ""
    operators: tuple[str, ...] = ()
    failure: str = ""


def try_written(name: str, count: int, seed: int = 0) -> Written:
    """Draws calls of an overload, and runs the file that `tosaic.save_pte` makes of them."""
    row, tried = ROWS[name], Written(name)
    with _quiet():
        cases = drawn_cases(name, count, seed)
        if not cases:
            tried.refused = "torch: no call"
            return tried
        module = _Module(cases, row).eval()
        try:
            program = tosaic.from_exported(torch.export.export(module, tuple(module.inputs), strict=False))
        except Exception as error:
            tried.refused = f"import: {error}"
            return tried
        tried.calls = len(cases)
        try:
            with TemporaryDirectory() as folder:
                path = Path(folder) / "calls.pte"
                tosaic.save_pte(program, path)
                data = path.read_bytes()
        except tosaic.UnsupportedOp as error:
            tried.refused = f"tosaic: {error}"
            return tried
        expected = [_Expected(case, row, program.graph) for case in module.cases]
        file = PteFile(_core.read_pte(data))
        tried.operators = file.method().operators
        again = file.method().program
        tried.failure = _prefixed(
            "read again", _disagreement(expected, again.run_arrays(again.arrays(*module.inputs)))
        )
        try:
            given = zip(module.inputs, file.method().inputs, strict=True)
            results = run_in_executorch(data, [_in_order(each, spec.dim_order) for each, spec in given])
        except Exception as error:
            tried.refused = f"executorch: {error}"
            return tried
        tried.failure = tried.failure or _prefixed(
            "runtime", _disagreement(expected, [_array(each) for each in results])
        )
    return tried


def _prefixed(where: str, text: str) -> str:
    return f"{where}: {text}" if text else ""
