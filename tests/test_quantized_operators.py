"""A call of every overload of the operator list between dequantize and quantize nodes, in integer arithmetic.

`operators.integers` says what has to agree; `tests/full/quantized_operators.py` tests many more calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tosaic
from operators.integers import check_integers
from operators.names import overloads
from operators.running import first_examples
from operators.values import Case, T

EXAMPLES = 1

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", overloads())
def test_calls_agree_with_torch_and_the_reference_model(name: str, bits: int) -> None:
    for case in first_examples(name, EXAMPLES):
        outcome = check_integers(case, bits)
        assert not outcome.failure, f"{case!r}: {outcome.failure}"


@pytest.mark.parametrize("bits", [8, 16])
def test_a_result_that_is_off_by_units_is_a_failure(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tosaic.Lowered.run

    def halved(lowered: tosaic.Lowered, *args: Any) -> Any:
        return tuple(result // 2 for result in run(lowered, *args))

    monkeypatch.setattr(tosaic.Lowered, "run", halved)
    outcome = check_integers(Case("abs", (T((3, 5), "f32", "normal", 1),)), bits)
    assert "units off" in outcome.failure


ORDER = Case("argsort", (T((17, 1, 17, 1), "f32", seed=2), -4, False))
BOUNDARIES = T((3,), "f32", kind=[-4, -3, 3], const=True)
SEARCH = Case(
    "bucketize.Tensor",
    (T((4, 1), "f32", kind="integers", seed=1), BOUNDARIES),
    {"right": False, "out_int32": False},
)


@pytest.mark.parametrize(("case", "bits"), [(ORDER, 8), (SEARCH, 16)])
def test_equal_elements_have_any_order_and_numbers_at_a_boundary_are_on_either_side(
    case: Case, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = check_integers(case, bits)
    assert (outcome.refused, outcome.skipped, outcome.failure) == ("", "", "")
    run = tosaic.Lowered.run

    def wrong(lowered: tosaic.Lowered, *args: Any) -> Any:
        found = run(lowered, *args)
        results = found if isinstance(found, tuple) else (found,)
        return tuple(result[::-1] for result in results)

    monkeypatch.setattr(tosaic.Lowered, "run", wrong)
    assert "units off" in check_integers(case, bits).failure


def test_a_position_that_occurs_twice_is_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    run = tosaic.Lowered.run
    case = Case("argsort", (T((5,), "f32", kind=[1, 1, 1, 0, 0]), 0, False))

    def doubled(lowered: tosaic.Lowered, *args: Any) -> Any:
        found = run(lowered, *args)
        results = [np.array(result) for result in (found if isinstance(found, tuple) else (found,))]
        results[0][3] = results[0][4]
        return tuple(results)

    assert not check_integers(case, 8).failure
    monkeypatch.setattr(tosaic.Lowered, "run", doubled)
    assert "units off" in check_integers(case, 8).failure


def test_a_difference_of_coarse_integers_is_as_exact_as_they_are() -> None:
    """Inputs in units of 1000 and a result in units of 1: no finer number is lost, and none is there."""
    outcome = check_integers(Case("sub.Tensor", (T((), "f32"), T((), "f32"))), 16)
    assert (outcome.refused, outcome.failure, outcome.elements) == ("", "", 1)
