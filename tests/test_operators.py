"""A few calls of every overload of the operator list: torch, our two stages and the reference model agree.

`tests/operators` has the rows and the bounds; `tests/full/operators.py` tests many more calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from operators.checking import check
from operators.names import overloads
from operators.running import try_overload
from operators.table import ROWS
from operators.values import Case, T
from tosaic import _core

EXAMPLES = 2
SEED = 0

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


@pytest.mark.parametrize("name", overloads())
def test_a_few_calls_agree_with_torch_at_every_stage(name: str) -> None:
    tried = try_overload(name, examples=EXAMPLES, seed=SEED, patience=5)
    if tried.failures:
        pytest.fail("\n".join([f"seed {SEED}", *tried.failures]), pytrace=False)
    row = ROWS[name]
    if row.refused:
        assert any(row.refused in reason for reason in tried.refused)


def test_every_overload_of_the_list_has_a_row_and_no_other() -> None:
    assert sorted(set(overloads()) - set(ROWS)) == []
    assert sorted(set(ROWS) - set(overloads())) == []


def test_the_list_names_only_operators_that_torch_has() -> None:
    from operators.names import SECTIONS, _overloads_of

    assert [name for names in SECTIONS.values() for name in names.split() if not _overloads_of(name)] == []


def test_a_case_prints_as_the_expression_that_makes_it() -> None:
    case = Case("add.Tensor", (T((2, 3), "f16", "special", 1), T((), "i64", [4], const=True)), {"alpha": 2})
    assert eval(repr(case), {"T": T, "Case": Case}) == case


def _off_by(how: Callable[[torch.Tensor], torch.Tensor], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the function; in torch's eager mode, `how` then changes the result slightly."""
    result = function(*args, **kwargs)
    return result if torch.compiler.is_exporting() else how(result)


@pytest.mark.parametrize(
    ("name", "args", "how", "where"),
    [
        ("exp", (T((7,)),), lambda r: r * (1 + 1e-5), "exported"),
        ("mm", (T((3, 8)), T((8, 2))), lambda r: r + 1e-3, "exported"),
        ("neg", (T((3,)),), lambda r: r * (1 + 1e-6), "exported"),
        ("sum", (T((3, 4), "i32"),), lambda r: r + 1, "exported"),
        ("eq.Tensor", (T((3,)), T((3,))), lambda r: ~r, "exported"),
        ("relu", (T((2, 3)),), lambda r: r[None], "shape"),
        ("relu", (T((2, 3)),), lambda r: r.double(), "dtype"),
    ],
)
def test_a_wrong_result_is_noticed(
    name: str, args: Sequence[T], how: Callable[[torch.Tensor], torch.Tensor], where: str
) -> None:
    row = ROWS[name]
    (right,) = check([Case(name, tuple(args))], row)
    assert right.exported
    assert right.lowered
    (wrong,) = check([Case(name, tuple(args))], replace(row, call=partial(_off_by, how, row.function(name))))
    assert where in wrong.failure


def test_a_wrong_call_is_refused_and_not_a_failure() -> None:
    (outcome,) = check(
        [Case("sum.dim_IntList", (T((2,)), [5], False), hostile=True)], ROWS["sum.dim_IntList"]
    )
    assert (outcome.refused_by, outcome.failure) == ("torch", "")


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_tolerances_are_those_declared_beside_the_kernels(dtype: str) -> None:
    assert _core.tolerance("reshape", dtype) == (0, 0)
    assert _core.tolerance("exp", dtype)[0] > 0
    assert _core.tolerance("matmul", dtype)[1] > 0
    with pytest.raises(_core.InvalidGraph, match="unknown operator"):
        _core.tolerance("no such operator", dtype)
