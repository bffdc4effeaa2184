"""1,000,000 damaged `.pt2` files: errors of tosaic only, no crash, no hang.

Each thousand runs in a process of its own with little memory, so a file that asks for more is found too.
"""

from __future__ import annotations

import os

import pytest
from fuzzing import read_all
from pt2.mutating import SOURCES, damaged, drive, source

pytestmark = pytest.mark.full
FILES = int(os.environ.get("TOSAIC_FUZZ_FILES", "1000000"))


def test_damaged_files_are_read_or_refused_by_our_errors() -> None:
    for name in SOURCES:
        assert drive(source(name), 0), name
    read = read_all(lambda seed: drive(damaged(seed), seed), FILES)
    print(f"{read} of {FILES} files were read")
    assert FILES / 100 < read < FILES * 0.9
