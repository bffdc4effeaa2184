"""Every operator of the operator table has all its parts; the tests use each part, by `lowering.support`.

The parts of a canonical operator are type inference, a kernel or an expansion that runs, a lowering to TOSA,
a tolerance, and a torch call that is imported as the operator. The parts of a TOSA operator are type
inference, a kernel, the writer, the reader and an entry of the checker, for every combination of dtypes of
the specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.exporting import imported, ops
from operators.checking import _Module
from operators.running import first_examples
from operators.table import ROWS
from tosaic import _core
from tosaic.lowering.support import DTYPES, SAMPLES, canonical_cells, one_op_graph, sample_of, tosa_modes

OPS = {op.name: op for op in _core.ops()}
CANONICAL = sorted(name for name, op in OPS.items() if not op.is_tosa)
TOSA = sorted(name for name, op in OPS.items() if op.is_tosa)
FLOATS = ("f16", "bf16", "f32")

# Canonical operators that do not run, and what the error says about each.
NOT_RUN = {"opaque": "no kernel for the foreign operator"}
INTEGERS_ONLY = {
    "bitwise_not",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
    "dequantize",
    "gcd",
}
TRANSFORMS = {"fft2", "rfft2"}  # TOSA has Fourier transforms in f32 only
# Operators that passes create at stage integer, with the dtypes that are tested; no torch call is imported as
# one. integer_conv is not tested with i16, because its sums of 48 bits cannot be an output of the graph.
ARITHMETIC = {
    "integer_conv": ("i8",),
    "integer_grid_sample": ("i8", "i16"),
    "rescale": ("i8", "i16", "i32"),
}


@pytest.mark.parametrize("name", CANONICAL)
def test_a_canonical_operator_is_inferred_run_and_lowered(name: str) -> None:
    cells = {cell.dtype: cell for cell in canonical_cells(OPS[name])}
    if name in NOT_RUN:
        assert all(NOT_RUN[name] in cell.reason for cell in cells.values() if cell.inferred)
        return
    wanted = ("i8", "i32") if name in INTEGERS_ONLY else ("f32",) if name in TRANSFORMS else FLOATS
    for dtype in ARITHMETIC.get(name, wanted):
        assert cells[dtype].inferred, cells[dtype].reason
        assert cells[dtype].runs, cells[dtype].reason
        assert cells[dtype].targets, cells[dtype].reason
    for cell in cells.values():
        assert cell.runs or not cell.targets, f"{cell.dtype} lowers and does not run: {cell.reason}"


@pytest.mark.parametrize("name", CANONICAL)
def test_a_canonical_operator_has_no_smaller_tolerance_for_a_narrower_dtype(name: str) -> None:
    assert _core.tolerance(name, "i32") == (0, 0)
    narrow, wide = (_core.tolerance(name, dtype) for dtype in ("bf16", "f32"))
    assert narrow[1] >= wide[1]
    assert (narrow == (0, 0)) == (wide == (0, 0))


@pytest.mark.parametrize("name", TOSA)
def test_a_tosa_operator_works_with_every_combination_of_dtypes_of_the_specification(name: str) -> None:
    modes = list(tosa_modes(OPS[name]))
    assert modes
    assert [f"{mode.dtypes} ({mode.need}): {mode.reason}" for mode in modes if not mode.works] == []


def test_operators_that_passes_create_are_refused_before_stage_integer() -> None:
    assert {name for name in CANONICAL if sample_of(OPS[name]).stage == "integer"} == set(ARITHMETIC)
    for name in ARITHMETIC:
        sample = replace(sample_of(OPS[name]), stage="quantized")
        with pytest.raises(tosaic.SpecViolation, match=f"{name} may not stand at stage quantized"):
            one_op_graph(OPS[name], "i8", sample).verify()


def test_every_sample_names_an_existing_operator_and_every_dtype_has_a_column() -> None:
    assert set(SAMPLES) <= set(OPS)
    assert set(DTYPES) | {"i4", "u16", "i48"} == set(_core.DTYPES)


def test_a_combination_of_dtypes_outside_the_profile_is_refused_by_the_checker() -> None:
    graph = one_op_graph(OPS["tosa.mul"], "i8", sample_of(OPS["tosa.mul"]))
    assert not _core.problems(graph, pipeline="TOSA-1.0+INT")
    assert _core.problems(graph, pipeline="TOSA-1.0+FP")


# Calls of torch operators that are not in the operator list of tests/operators/names.py.
OTHER_CALLS = [
    torch.diff,
    F.hardshrink,
    F.softshrink,
    F.logsigmoid,
    lambda x: torch.fft.rfft2(x).real,
    lambda x: torch.fft.fft2(torch.fft.fft2(x)).real,
]


def operators_of(what: Callable[..., Any], *inputs: Any) -> set[str]:
    """Returns the canonical operators of a module or function; the empty set if its import fails."""
    try:
        with torch.no_grad():
            return set(ops(imported(what, *inputs, strict=False)))
    except Exception:  # another call has to reach the operators of this one
        return set()


def test_every_canonical_operator_is_reached_by_a_torch_call(one_thread_without_traces: None) -> None:
    reached = {"opaque", *ARITHMETIC}
    for call in OTHER_CALLS:
        reached |= operators_of(call, torch.randn(4, 8))
    for calls in (2, 10):  # drawn for each row; ten only if two miss an operator
        for name, row in ROWS.items():
            if reached >= set(CANONICAL):
                break
            module = _Module(first_examples(name, calls), row)
            reached |= operators_of(module, *module.inputs)
    assert " ".join(sorted(set(CANONICAL) - reached)) == ""
