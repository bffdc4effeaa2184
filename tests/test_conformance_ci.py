"""A sample of the official TOSA conformance suite, with tests of every operator of both profiles.

`tests/full` runs all of it. A seed draws the sample, so that it is the same everywhere. For each operator,
as many batches of positive tests are listed as positive tests run; these are drawn from the lightest quarter.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tosa_reference_model", reason="the conformance suite comes with tosa-tools")

from tosa_conformance import suite, sut
from tosa_conformance.suite import Batch, Profile, Result
from tosa_conformance.tags import RULES, rejected_by_rule_of, tag_of

SEED = 1
POSITIVE = {"fp": 5, "int": 3}  # tests per operator
NEGATIVE = {"fp": 2, "int": 1}
OPERATORS = [
    (profile, name) for profile in suite.PROFILES for name in suite.operators(suite.PROFILES[profile])
]


@pytest.mark.parametrize(("profile", "operator"), OPERATORS)
def test_the_suite_accepts_a_sample_of_every_operator(profile: str, operator: str) -> None:
    negative: list[Batch] = []

    def choose(plan: list[Batch]) -> list[Batch]:
        positive = suite.select(plan, lambda _, name: tag_of(name) is None)
        positive = suite.lightest_quarter(positive, POSITIVE[profile])
        negative.extend(suite.select(plan, lambda _, name: tag_of(name) is not None))
        drawn = suite.sample(positive, SEED, POSITIVE[profile]) + suite.sample(
            negative, SEED, NEGATIVE[profile]
        )
        names = {name for batch in drawn for name in batch.tests}
        return suite.select(plan, lambda _, name: name in names)

    results = suite.list_and_run(operator, choose, suite.PROFILES[profile], POSITIVE[profile], SEED)
    failures = [f"{result.test}: {result.outcome}: {result.message}" for result in results if not result.ok]
    assert failures == []
    assert len(results) == len({result.test for result in results})
    assert sum(not result.negative for result in results) == POSITIVE[profile]
    assert sum(result.negative for result in results) == min(
        NEGATIVE[profile], sum(len(b.tests) for b in negative)
    )
    assert {tag_of(name) for batch in negative for name in batch.tests} <= set(RULES)


@pytest.mark.parametrize(("profile", "least"), [("fp", 250), ("int", 150)])
def test_the_sample_is_not_small(profile: str, least: int) -> None:
    assert sum(of == profile for of, _ in OPERATORS) * POSITIVE[profile] >= least


def test_a_rule_matches_only_its_own_error_messages() -> None:
    assert rejected_by_rule_of("AxisLargerRank", "axis out of range: expected an axis in [0, 3), got 6")
    assert not rejected_by_rule_of("AxisLargerRank", "axis out of range: expected an axis in [0, 3), got -6")
    assert not rejected_by_rule_of("AxisLargerRank", "wrong number of operands: expected 1, got 2")
    assert not rejected_by_rule_of("NoSuchTag", "axis out of range")
    assert rejected_by_rule_of("InputZeroPointNotZero", "attribute 'input_zp' for i16: expected 0, got -3")
    assert not rejected_by_rule_of(
        "InputZeroPointNotZero", "attribute 'input_zp' for u16: expected 0 or 32768, got 1"
    )
    assert not rejected_by_rule_of(
        "InputZeroPointNotZero", "attribute 'output_zp' for i16: expected 0, got -3"
    )


def the_first(operator: str, pattern: str, profile: Profile = suite.FP) -> Result:
    """Returns the result of one test of the operator, which SEED draws from those that match the pattern."""

    def choose(plan: list[Batch]) -> list[Batch]:
        matching = suite.select(plan, lambda _, name: re.fullmatch(pattern, name) is not None)
        return suite.sample(matching, SEED, 1)

    (result,) = suite.list_and_run(operator, choose, profile)
    return result


def test_a_result_that_is_off_by_a_thousandth_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    write = sut.save_npy

    def write_off(path: str, array: np.ndarray, dtype: object) -> None:
        write(path, array * array.dtype.type(1.001), dtype)

    assert the_first("matmul", r"matmul_.*f32xf32_outf32_s0").ok
    monkeypatch.setattr(sut, "save_npy", write_off)
    assert the_first("matmul", r"matmul_.*f32xf32_outf32_s0").outcome == "UNEXPECTED_FAILURE"


@pytest.mark.parametrize(
    ("operator", "pattern"),
    [
        ("conv2d", r"conv2d_(?!ERRORIF).*_i8xi8_acci32_(?!.*_is).*"),
        ("conv2d", r"conv2d_(?!ERRORIF).*_i16xi8_acci48_(?!.*_is).*"),
        ("rescale", r"rescale_(?!ERRORIF).*_i48_outi8_.*_rmS_.*"),
        ("rescale", r"rescale_(?!ERRORIF).*_i32_outi16_.*_rmD_.*"),
        ("table", r"table_(?!ERRORIF).*_i16"),
        ("identity", r"identity_.*_i4"),
        ("equal", r"equal_(?!ERRORIF).*_i32"),
    ],
)
def test_one_integer_that_is_off_by_one_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch, operator: str, pattern: str
) -> None:
    write = sut.save_npy

    def write_off(path: str, array: np.ndarray, dtype: object) -> None:
        changed = array.copy()
        changed.flat[-1] ^= 1
        write(path, changed, dtype)

    assert the_first(operator, pattern, suite.INT).ok
    monkeypatch.setattr(sut, "save_npy", write_off)
    assert the_first(operator, pattern, suite.INT).outcome == "UNEXPECTED_FAILURE"


def test_an_integer_that_differs_between_instruction_sets_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Off:
        def __init__(self, graph: object, isa: str | None = None, **options: Any) -> None:
            self.session, self.change = session(graph, isa=isa, **options), int(isa == "baseline")

        def run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
            return [array ^ array.dtype.type(self.change) for array in self.session.run(arrays)]

    session = sut._core.Session
    monkeypatch.setattr(sut._core, "Session", Off)
    result = the_first("clz", r"clz_(?!ERRORIF).*", suite.INT)
    assert result.outcome == "INTERNAL_ERROR"
    assert result.message == "System Under Test error: other integers on path baseline"


def test_a_test_outside_the_target_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sut, "target_of", lambda desc, profile: "TOSA-1.0+INT")
    result = the_first("sigmoid", r"sigmoid_(?!ERRORIF).*_f32.*")
    assert result.outcome == "UNEXPECTED_FAILURE"
    assert "expected PRO-FP" in result.message


def test_a_rejection_for_another_reason_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert the_first("sigmoid", r"sigmoid_ERRORIF_WrongOutputList_.*").outcome == "EXPECTED_FAILURE"
    monkeypatch.setattr(sut, "rejected_by_rule_of", lambda tag, reasons: tag == "WrongRank")
    result = the_first("sigmoid", r"sigmoid_ERRORIF_WrongOutputList_.*")
    assert result.outcome == "UNEXPECTED_FAILURE"
    assert result.message.startswith("rejected, but not by the rule of WrongOutputList: ")


def test_a_loop_of_the_suite_needs_profile_int_only_for_its_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sut, "_NEED_INT", ())
    result = the_first("while_loop", r"while_loop_(?!ERRORIF).*_f32_iter4")
    (reason,) = result.message.splitlines()
    assert "tosa.greater with these dtypes is not in the target: expected PRO-INT" in reason
