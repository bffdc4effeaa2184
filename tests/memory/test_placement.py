"""Offsets in one arena: known least arenas, brute force, proofs, parts, and limits of the search."""

from __future__ import annotations

import functools
import random

import pytest
import tosaic
from tosaic import _core

from memory.instances import Instance, challenging, cut

Shared = tuple[int, int, int, int, str, int, int]


def _faultless(buffers: list[tuple[int, int, int]], offsets: list[int], size: int, alignment: int) -> None:
    fields: list[Shared] = [(b, alignment, first, last, "none", -1, 0) for b, first, last in buffers]
    assert _core.placement_fault(fields, offsets, size) == ""


def _fits(buffers: list[tuple[int, int, int]], size: int) -> bool:
    """True if the buffers fit, as a search over every offset of every buffer finds."""

    def extend(placed: tuple[int, ...]) -> bool:
        if len(placed) == len(buffers):
            return True
        nbytes, first, last = buffers[len(placed)]
        for offset in range(size - nbytes + 1):
            clashes = any(
                first <= until and begin <= last and offset < at + other and at < offset + nbytes
                for at, (other, begin, until) in zip(placed, buffers, strict=False)
            )
            if not clashes and extend((*placed, offset)):
                return True
        return False

    return extend(())


def _least(buffers: list[tuple[int, int, int]]) -> int:
    bound = max(sum(b for b, first, last in buffers if first <= step <= last) for step in range(8))
    return next(size for size in range(bound, 1000) if _fits(buffers, size))


def _random(seed: int) -> list[tuple[int, int, int]]:
    rng = random.Random(seed)
    made = []
    for _ in range(rng.randint(1, 6)):
        first = rng.randrange(6)
        made.append((rng.randint(1, 5), first, min(7, first + rng.randrange(4))))
    return sorted(made, reverse=True)


def test_small_arenas_are_the_least_and_proven_so() -> None:
    for seed in range(1500):
        buffers = _random(seed)
        offsets, size, bound = _core.place_buffers(buffers, alignment=1)
        _faultless(buffers, offsets, size, 1)
        assert size == bound == _least(buffers), f"seed {seed}: {buffers}"


def test_a_bound_above_the_greatest_load_is_proven() -> None:
    # at each step 48 bytes are needed, but two of the buffers begin at multiples of 64
    buffers: list[Shared] = [(16, alignment, 0, 1, "none", -1, 0) for alignment in (64, 64, 16)]
    offsets, size, bound, live = _core.place_shared(buffers)
    assert (size, bound, live) == (80, 80, [48, 48])
    assert _core.placement_fault(buffers, offsets, size) == ""


@pytest.mark.parametrize("kept", [1.0, 0.8])
@pytest.mark.parametrize("seed", range(6))
def test_rectangles_that_were_cut_are_put_together_again(seed: int, kept: float) -> None:
    made = cut(seed, 40, steps=30, units=64, unit=16, kept=kept)
    offsets, size, bound = _core.place_buffers(made.buffers, alignment=16, budget=2_000_000_000)
    _faultless(made.buffers, offsets, size, 16)
    assert size == bound == made.least


@functools.cache
def _challenging() -> tuple[Instance, ...]:
    return tuple(challenging())


def test_challenging_instances_fill_their_rectangle_at_every_step() -> None:
    for made in _challenging():
        load = [0] * 500
        for nbytes, first, last in made.buffers:
            assert nbytes % made.alignment == 0
            for step in range(first, last + 1):
                load[step] += nbytes
        assert max(load) == made.least == 1 << 20
    assert [len(made.buffers) for made in _challenging()[:11]] == [
        154, 170, 203, 213, 215, 296, 308, 316, 374, 409, 454,
    ]  # fmt: skip


def test_a_search_that_ends_early_reports_the_gap() -> None:
    made = cut(3, 300, steps=200, units=1024)
    offsets, size, bound = _core.place_buffers(made.buffers, alignment=1024, budget=0)
    _faultless(made.buffers, offsets, size, 1024)
    assert size > bound == made.least
    offsets, size, _ = _core.place_buffers(made.buffers, alignment=1024, budget=10**12, seconds=0.05)
    _faultless(made.buffers, offsets, size, 1024)


def test_the_same_buffers_get_the_same_offsets() -> None:
    made = cut(5, 200, steps=150, units=512)
    first = _core.place_buffers(made.buffers, alignment=1024)
    assert first == _core.place_buffers(made.buffers, alignment=1024)


def test_parts_are_in_their_whole_which_lives_from_their_first_step() -> None:
    buffers: list[Shared] = [
        (64, 64, 0, 2, "part", 3, 0),
        (64, 64, 1, 2, "none", -1, 0),
        (64, 64, 2, 5, "part", 3, 64),
        (128, 64, 4, 5, "none", -1, 0),
    ]
    offsets, size, bound, live = _core.place_shared(buffers)
    assert (offsets[0], offsets[2]) == (offsets[3], offsets[3] + 64)
    assert (size, bound, live) == (192, 192, [128, 192, 192, 128, 128, 128])


@pytest.mark.parametrize(
    ("part", "offsets", "fault"),
    [
        ((64, 64, 0, 4, "part", 1, 64), [64, 0], ""),
        ((64, 64, 0, 4, "part", 1, 64), [0, 0], "buffer 0 is away from its target"),
        ((64, 64, 0, 4, "none", -1, 0), [64, 0], "buffers 0 and 1 overlap while both are live"),
        ((64, 64, 4, 5, "part", 1, 64), [64, 0], "buffer 0 is written after that of which it is a part"),
    ],
)
def test_the_check_finds_wrong_parts(part: Shared, offsets: list[int], fault: str) -> None:
    whole: Shared = (128, 64, 3, 5, "none", -1, 0)
    assert _core.placement_fault([part, whole], offsets, 128) == fault


def test_two_parts_of_the_same_bytes_are_a_fault() -> None:
    whole: Shared = (128, 64, 3, 5, "none", -1, 0)
    parts: list[Shared] = [(64, 64, 0, 3, "part", 2, 0), (64, 64, 1, 3, "part", 2, 0)]
    assert _core.placement_fault([*parts, whole], [0, 0, 0], 128) == (
        "buffers 0 and 1 overlap while both are live"
    )


def test_a_buffer_that_shares_memory_with_itself_is_refused() -> None:
    buffers: list[Shared] = [(64, 64, 0, 1, "view", 1, 0), (64, 64, 0, 1, "view", 0, 0)]
    with pytest.raises(tosaic.InvalidGraph, match="shares memory with itself"):
        _core.place_shared(buffers)
    with pytest.raises(tosaic.InvalidGraph, match="a buffer that is not there"):
        _core.place_shared([(64, 64, 0, 1, "view", 7, 0)])
