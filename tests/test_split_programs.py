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
    "quantized everywhere": 10,
    "hostile": 10,
    "torch": 30,
    "torch, quantized": 70,
    "layouts": 400,
    "layouts, quantized": 480,
}
"""By kind: 1,000 programs, a twentieth of the full tier. More of them are of the kinds that are made fast."""
_SHARDS = 10

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
