"""100,000 damaged `.pte` files and 5,000 damaged sidecars: errors of tosaic only, no crash, no hang.

Each thousand runs in a process of its own with little memory, so a file that asks for more is found too. The
C++ reader and writer have a test of their own, with sanitizers: `test_fuzz.py`.
"""

from __future__ import annotations

import os
import resource
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from operators.running import in_children
from pte.mutating import SOURCES, damaged, drive, drive_sidecar, source
from pte.test_sidecars import _written

pytestmark = pytest.mark.full
FILES = int(os.environ.get("TOSAIC_FUZZ_FILES", "100000"))
SIDECARS = FILES // 20
_STEP = 1000
_MEMORY = 2 << 30  # beyond what the process has at its start
_SECONDS = 1800  # for a thousand files, on a busy machine

Note = Callable[[str], None]


def _limited(run: Callable[[int], bool], first: int, note: Note) -> tuple[int, list[str]]:
    """Returns how many of a thousand could be read, and what went wrong."""
    present = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (present + _MEMORY, present + _MEMORY))
    read, wrong = 0, []
    for seed in range(first, first + _STEP):
        note(str(seed))
        try:
            read += run(seed)
        except Exception:
            wrong.append(f"seed {seed}: {traceback.format_exc()}")
    return read, wrong


def _all(run: Callable[[int], bool], count: int) -> int:
    jobs = [
        (str(first), lambda note, first=first: _limited(run, first, note)) for first in range(0, count, _STEP)
    ]
    read = 0
    for name, result in in_children(jobs, max(1, len(os.sched_getaffinity(0)) - 1), _SECONDS):
        assert not isinstance(result, str), f"files from {name}: {result}"
        found, wrong = result
        assert not wrong, wrong[0]
        read += found
        print(f"{name}: {found} of {_STEP} were read", flush=True)
    return read


def test_damaged_files_are_read_or_refused_by_our_errors() -> None:
    for name in SOURCES:
        assert drive(source(name), 1), name
    read = _all(lambda seed: drive(damaged(seed), seed), FILES)
    print(f"{read} of {FILES} files were read")
    assert FILES / 100 < read < FILES * 0.9


def test_damaged_sidecars_are_read_or_refused_by_our_errors() -> None:
    data, text = _written("floats")
    read = _all(lambda seed: drive_sidecar(data, text, seed), SIDECARS)
    print(f"{read} of {SIDECARS} sidecars were accepted")
    assert 0 < read < SIDECARS
