"""Drives a reader with many damaged files: each thousand in a process of its own with little memory."""

from __future__ import annotations

import os
import resource
import traceback
from collections.abc import Callable
from pathlib import Path

from operators.running import in_children

__all__ = ["read_all"]

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


def read_all(run: Callable[[int], bool], count: int) -> int:
    """Returns how many files could be read. `run` makes and reads the file of a seed.

    Raises
    ------
    AssertionError
        A process ended or hung, or `run` raised an exception.
    """
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
