"""Random programs split between claimants: right groups and borders, and the results of the unsplit program.

`partitions.split_checking` says what is checked.
"""

from __future__ import annotations

from collections import Counter

import pytest
from partitions.random_programs import KINDS
from partitions.split_checking import check_program

_SHARDS, _PER_SHARD = 20, 20

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    pytest.mark.filterwarnings("ignore"),  # torch warns of convolutions with even kernels and padding "same"
]


@pytest.mark.parametrize("shard", range(_SHARDS))
def test_split_programs_have_right_borders_and_compute_the_same(shard: int) -> None:
    counts: Counter[str] = Counter()
    seeds = range(shard * _PER_SHARD, (shard + 1) * _PER_SHARD)
    faults = [f"seed {seed}: {fault}" for seed in seeds for fault in check_program(seed, counts)]
    assert faults == []
    assert counts["groups"] > 0
    assert {*counts} >= {*KINDS}
