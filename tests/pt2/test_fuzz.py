"""A few thousand damaged `.pt2` files; `tests/full/test_pt2_fuzz.py` reads a million."""

from __future__ import annotations

import pytest

from pt2.mutating import SOURCES, damaged, drive, source

_FILES, _PARTS = 3000, 6


@pytest.mark.parametrize("name", SOURCES)
def test_an_undamaged_file_is_read(name: str) -> None:
    assert drive(source(name), 0)


@pytest.mark.parametrize("part", range(_PARTS))
def test_damaged_files_are_read_or_refused_by_our_errors(part: int) -> None:
    count = _FILES // _PARTS
    seeds = range(part * count, (part + 1) * count)
    read = sum(drive(damaged(seed), seed) for seed in seeds)
    assert count / 100 < read < count * 0.9, f"seeds {seeds}"
