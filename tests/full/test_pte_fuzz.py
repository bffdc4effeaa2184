"""100,000 damaged `.pte` files and 5,000 damaged sidecars: errors of tosaic only, no crash, no hang.

Each thousand runs in a process of its own with little memory, so a file that asks for more is found too. The
C++ reader and writer have a test of their own, with sanitizers: `test_fuzz.py`.
"""

from __future__ import annotations

import os

import pytest
from fuzzing import read_all
from pte.mutating import SOURCES, damaged, drive, drive_sidecar, source
from pte.test_sidecars import _written

pytestmark = pytest.mark.full
FILES = int(os.environ.get("TOSAIC_FUZZ_FILES", "100000"))
SIDECARS = FILES // 20


def test_damaged_files_are_read_or_refused_by_our_errors() -> None:
    for name in SOURCES:
        assert drive(source(name), 1), name
    read = read_all(lambda seed: drive(damaged(seed), seed), FILES)
    print(f"{read} of {FILES} files were read")
    assert FILES / 100 < read < FILES * 0.9


def test_damaged_sidecars_are_read_or_refused_by_our_errors() -> None:
    data, text = _written("floats")
    read = read_all(lambda seed: drive_sidecar(data, text, seed), SIDECARS)
    print(f"{read} of {SIDECARS} sidecars were accepted")
    assert 0 < read < SIDECARS
