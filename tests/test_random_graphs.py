"""Random graphs: torch, our executor at every stage and the TOSA reference model agree.

The graph of seed n contains operator n modulo the number of rows, so these graphs contain every operator.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from random_graphs.checking import Expected, Result, check, expected_outputs
from random_graphs.generate import generate
from random_graphs.programs import RandomProgram
from random_graphs.reporting import report
from random_graphs.rows import NOT_GENERATED, ROWS
from random_graphs.shrinking import shrink
from tosaic import _core

SEEDS = range(len(ROWS))

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


@cache
def result_of(seed: int) -> Result:
    return check(generate(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_executor_agrees_with_torch(seed: int) -> None:
    result = result_of(seed)
    if result.failures:
        pytest.fail(report(seed, result), pytrace=False)


def test_the_generator_has_a_row_for_every_canonical_operator() -> None:
    canonical = {op.name for op in _core.ops() if not op.is_tosa}
    assert set(ROWS) | set(NOT_GENERATED) == canonical
    assert not set(ROWS) & set(NOT_GENERATED)


def test_the_graphs_contain_every_operator_that_can_be_generated() -> None:
    seen = set().union(*(result_of(seed).ops for seed in SEEDS))
    assert seen == set(ROWS)


def test_the_graphs_have_the_specified_sizes() -> None:
    sizes = [result_of(seed).nodes for seed in SEEDS]
    assert sum(5 <= size <= 70 for size in sizes) >= 0.95 * len(sizes)
    assert max(sizes) > 45


def test_every_refusal_has_a_known_reason() -> None:
    """A program is refused only for integers that may exceed i32, which TOSA cannot express."""
    refusals = [reason for seed in SEEDS for reason in result_of(seed).refusals]
    known = (
        "an i64 result may not fit i32, and TOSA has no i64",
        "an i32 result may overflow, which TOSA leaves undefined",
    )
    assert [reason for reason in refusals if not reason.startswith(known)] == []
    assert sum(bool(result_of(seed).refusals) for seed in SEEDS) <= len(SEEDS) // 20


def test_a_seed_always_generates_the_same_program() -> None:
    assert generate(7) == generate(7)
    assert all(map(torch.equal, generate(7).arguments(), generate(7).arguments()))


def test_a_wrong_result_is_noticed() -> None:
    value = np.array([1.0, 2.0])
    expected = Expected(value.astype(np.float32), value, np.array([1e-6, 1e-6]))
    assert expected.disagreement(value.astype(np.float32)) == ""
    assert "1 of 2 elements, first at (1,)" in expected.disagreement(np.array([1.0, 2.1], np.float32))
    assert "shape (1,)" in expected.disagreement(np.array([1.0], np.float32))
    assert "dtype float64" in expected.disagreement(value)
    assert "2 of 2" in expected.disagreement(np.array([np.nan, np.inf], np.float32))


def test_the_bounds_are_narrow_enough_to_notice_an_error_of_one_in_30000() -> None:
    noticed = []
    for seed in range(20):
        for expected in expected_outputs(generate(seed)):
            if expected.exact.dtype.kind == "f" and expected.exact.any():
                noticed.append(expected.disagreement(expected.exact * np.float32(1 + 3e-5)) != "")
    assert len(noticed) > 60
    assert np.mean(noticed) > 0.95


def test_a_failure_is_shrunk_to_the_step_that_makes_it() -> None:
    program = next(
        p
        for p in map(generate, range(100))
        if any("softmax" in s.template for s in p.steps) and len(p.steps) > 20
    )

    def fails(candidate: RandomProgram) -> bool:
        return any("softmax" in step.template for step in candidate.steps)

    small = shrink(program, fails)
    assert len(small.steps) == 1
    assert "softmax" in small.steps[0].template
    small.module()(*small.arguments())
