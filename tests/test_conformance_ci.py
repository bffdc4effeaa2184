"""A sample of the official TOSA conformance suite, from every operator.

`tests/full` runs all of it. The sample is drawn by a seed, so that it is the same everywhere.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("tosa_reference_model", reason="the conformance suite comes with tosa-tools")

from tosa_conformance import suite, sut
from tosa_conformance.suite import Result
from tosa_conformance.tags import RULES, rejected_by_rule_of, tag_of

SEED = 1
POSITIVE, NEGATIVE = 9, 3  # tests of each operator
OPERATORS = suite.operators()


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_suite_accepts_a_sample_of_every_operator(operator: str) -> None:
    plan = suite.plan([operator])
    positive = suite.select(plan, lambda _, name: tag_of(name) is None)
    negative = suite.select(plan, lambda _, name: tag_of(name) is not None)
    chosen = suite.sample(positive, SEED, POSITIVE) + suite.sample(negative, SEED, NEGATIVE)
    results = list(suite.run(chosen))
    failures = [f"{result.test}: {result.outcome}: {result.message}" for result in results if not result.ok]
    assert failures == []
    assert len(results) == len({result.test for result in results})
    assert sum(not result.negative for result in results) == POSITIVE
    assert sum(result.negative for result in results) == min(NEGATIVE, sum(len(b.tests) for b in negative))
    assert {tag_of(name) for batch in negative for name in batch.tests} <= set(RULES)


def test_the_sample_has_at_least_500_tests() -> None:
    assert len(OPERATORS) * POSITIVE >= 500


def test_a_rule_does_not_match_what_another_rule_says() -> None:
    assert rejected_by_rule_of("AxisLargerRank", "axis out of range: expected an axis in [0, 3), got 6")
    assert not rejected_by_rule_of("AxisLargerRank", "axis out of range: expected an axis in [0, 3), got -6")
    assert not rejected_by_rule_of("AxisLargerRank", "wrong number of operands: expected 1, got 2")
    assert not rejected_by_rule_of("NoSuchTag", "axis out of range")


def the_first(operator: str, pattern: str) -> Result:
    """The result of the first test of an operator whose name matches."""
    plan = suite.plan([operator])
    chosen = suite.select(plan, lambda _, name: re.fullmatch(pattern, name) is not None)
    (result,) = suite.run(suite.sample(chosen, SEED, 1))
    return result


def test_a_result_that_is_off_by_a_thousandth_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    write = sut.save_npy

    def write_off(path: str, array: np.ndarray, dtype: object) -> None:
        write(path, array * array.dtype.type(1.001), dtype)

    assert the_first("matmul", r"matmul_.*f32xf32_outf32_s0").ok
    monkeypatch.setattr(sut, "save_npy", write_off)
    assert the_first("matmul", r"matmul_.*f32xf32_outf32_s0").outcome == "UNEXPECTED_FAILURE"


def test_a_test_outside_the_target_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sut, "target_of", lambda desc: "TOSA-1.0+INT")
    result = the_first("sigmoid", r"sigmoid_(?!ERRORIF).*_f32.*")
    assert result.outcome == "UNEXPECTED_FAILURE"
    assert "expected PRO-FP" in result.message


def test_a_rejection_for_another_reason_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert the_first("sigmoid", r"sigmoid_ERRORIF_WrongOutputList_.*").outcome == "EXPECTED_FAILURE"
    monkeypatch.setattr(sut, "rejected_by_rule_of", lambda tag, reasons: tag == "WrongRank")
    result = the_first("sigmoid", r"sigmoid_ERRORIF_WrongOutputList_.*")
    assert result.outcome == "UNEXPECTED_FAILURE"
    assert result.message.startswith("rejected, but not by the rule of WrongOutputList: ")


def test_a_loop_of_the_suite_needs_profile_int_for_nothing_but_its_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sut, "_NEED_INT", ())
    result = the_first("while_loop", r"while_loop_(?!ERRORIF).*_f32_iter4")
    (reason,) = result.message.splitlines()
    assert "tosa.greater with these dtypes is not in the target: expected PRO-INT" in reason
