"""Random programs split between claimants: right groups and borders, and the results of the unsplit program.

`partitions.split_checking` says what is checked.
"""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from partitions.random_programs import kind_of
from partitions.split_checking import check_program

_NUMBER = {
    "quantized everywhere": 5,
    "hostile": 5,
    "torch": 15,
    "torch, quantized": 35,
    "layouts": 200,
    "layouts, quantized": 240,
}
"""By kind: 500 programs, a fortieth of the full tier. More of them are of the kinds that are made fast."""
_SHARDS = 5

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    pytest.mark.filterwarnings("ignore"),  # torch warns of convolutions with even kernels and padding "same"
]


def _seeds() -> list[int]:
    left, found = Counter(_NUMBER), []
    for seed in count():
        if left.total() == 0:
            return found
        if left[kind_of(seed)]:
            left[kind_of(seed)] -= 1
            found.append(seed)
    raise AssertionError


@pytest.mark.parametrize("shard", range(_SHARDS))
def test_split_programs_have_right_borders_and_compute_the_same(shard: int) -> None:
    counts: Counter[str] = Counter()
    seeds = _seeds()[shard::_SHARDS]
    faults = [f"seed {seed}: {fault}" for seed in seeds for fault in check_program(seed, counts)]
    assert faults == []
    assert counts["groups"] > 0
