"""A sample of the official TOSA conformance suite, from every operator.

`tests/full` runs all of it. The sample is drawn by a seed, so that it is the same everywhere.
"""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

pytest.importorskip("tosa_reference_model", reason="the conformance suite comes with tosa-tools")

from tosa_conformance import suite, sut
from tosa_conformance.suite import Batch, Result
from tosa_conformance.tags import RULES, rejected_by_rule_of, tag_of

SEED = 1
TESTS_OF_AN_OPERATOR = 10
JOBS = os.cpu_count() or 1


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> list[Batch]:
    return suite.plan(tmp_path_factory.mktemp("plan"), JOBS)


@pytest.fixture(scope="module")
def results(plan: list[Batch]) -> list[Result]:
    return list(suite.run(suite.sample(plan, SEED, TESTS_OF_AN_OPERATOR), JOBS))


def test_the_suite_accepts_every_test_of_the_sample(results: list[Result]) -> None:
    failures = [f"{result.test}: {result.outcome}: {result.message}" for result in results if not result.ok]
    assert failures == []


def test_the_sample_has_500_tests_of_both_kinds_from_every_operator(
    plan: list[Batch], results: list[Result]
) -> None:
    assert len(results) >= 500
    assert {result.operator for result in results} == {batch.operator for batch in plan}
    assert sum(result.negative for result in results) >= 50
    assert len({result.test for result in results}) == len(results)


def test_every_tag_of_the_suite_has_a_rule_and_every_rule_a_tag(plan: list[Batch]) -> None:
    assert {tag_of(name) for batch in plan for name in batch.tests} - {None} == set(RULES)


def test_a_rule_does_not_match_what_another_rule_says() -> None:
    assert rejected_by_rule_of("AxisLargerRank", "axis out of range: expected an axis in [0, 3), got 6")
    assert not rejected_by_rule_of("AxisLargerRank", "axis out of range: expected an axis in [0, 3), got -6")
    assert not rejected_by_rule_of("AxisLargerRank", "wrong number of operands: expected 1, got 2")


def only(plan: list[Batch], pattern: str) -> list[Batch]:
    chosen = suite.select(plan, lambda operator, name: re.match(pattern, name) is not None)
    return suite.sample(chosen, SEED, 1)


def test_a_result_that_is_off_is_not_accepted(plan: list[Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    write = sut.save_npy

    def write_off(path: str, array: np.ndarray, dtype: object) -> None:
        write(path, array * array.dtype.type(1.001), dtype)

    monkeypatch.setattr(sut, "save_npy", write_off)
    results = list(suite.run(only(plan, r"matmul_.*outf32_s0$")))
    assert [result.outcome for result in results] == ["UNEXPECTED_FAILURE"]


def test_a_loop_of_the_suite_needs_profile_int_for_nothing_but_its_condition(
    plan: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sut, "_NEED_INT", ())
    (result,) = suite.run(only(plan, r"while_loop_(?!ERRORIF).*f32"))
    (reason,) = result.message.splitlines()
    assert "tosa.greater with these dtypes is not in the target: expected PRO-INT" in reason


def test_a_rejection_for_another_reason_is_not_accepted(
    plan: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sut, "target_of", lambda desc: "TOSA-1.0+INT")
    results = list(suite.run(only(plan, r"(exp_ERRORIF_WrongRank|argmax_ERRORIF_WrongRank).*f32")))
    assert all("not by the rule" in result.message or result.ok for result in results)
    results = list(suite.run(only(plan, r"sigmoid_(?!ERRORIF).*f32")))
    assert [result.outcome for result in results] == ["UNEXPECTED_FAILURE"]
    assert "PRO-FP" in results[0].message
