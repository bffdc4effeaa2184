"""10,000 damaged files, texts and archives each; objects that are read from them fail only by our errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from tosa_files.mutating import FILES, TEXTS, damaged, damaged_archive, damaged_text, drive, drive_text

pytestmark = pytest.mark.full
COUNT, STEP = 10_000, 1_000


@pytest.mark.parametrize("start", range(0, COUNT, STEP))
@pytest.mark.parametrize("name", FILES)
def test_objects_of_a_damaged_file_fail_only_with_our_errors(name: str, start: int, tmp_path: Path) -> None:
    read = sum(drive(damaged(name, 1_000_000 + seed), tmp_path) for seed in range(start, start + STEP))
    print(f"{name}: {read} of {STEP} were read")
    assert read > 0


@pytest.mark.parametrize("name", TEXTS)
def test_objects_of_a_damaged_text_fail_only_with_our_errors(name: str, tmp_path: Path) -> None:
    assert sum(drive_text(damaged_text(name, 1_000_000 + seed), tmp_path) for seed in range(COUNT)) > 0


def test_objects_of_a_damaged_archive_fail_only_with_our_errors(tmp_path: Path) -> None:
    assert sum(drive(damaged_archive(1_000_000 + seed, tmp_path), tmp_path) for seed in range(COUNT)) > 0
