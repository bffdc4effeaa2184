"""Numbers far beyond others that share a unit with them: a sample of tests/full/shared_units.py."""

from __future__ import annotations

import pytest
from shared_units.measure import STATES, measure
from shared_units.networks import PLACES, READERS, generate

SEEDS = (*range(40), 1440, 1721)

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_number_far_beyond_others_takes_no_bits_from_them(seed: int) -> None:
    found = measure(generate(seed))
    assert found.state in STATES[:3], found


def test_the_programs_have_the_specified_contents() -> None:
    programs = [generate(seed) for seed in range(500)]
    assert {each.place for each in programs} == set(PLACES)
    assert {each.reader for each in programs} == set(READERS)
    assert {each.is_input for each in programs} == {True, False}
    assert {each.number > 0 for each in programs} == {True, False}
    assert generate(7) == generate(7)
