"""The default number of threads of a run.

It is one, because programs often run inside of other pools of threads and processes. The command line,
calibration and lowering use all cores, since they are usually alone on the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MOST_THREADS = 256
"""The greatest number of threads of one run."""

_threads: ContextVar[int | None] = ContextVar("tosaic_threads", default=None)


def run_threads() -> int:
    """Returns the default number of threads of a run."""
    return _threads.get() or 1


def batch_threads() -> int:
    """Returns the number of threads for a calibration, or for computing a lowering's constants."""
    return _threads.get() or own_cores()


def own_cores() -> int:
    """Returns the number of cores for work that is alone on the machine.

    It is the number of cores that the process may use. Inside of a pool, it is one: in a process that
    `multiprocessing` started, and in any thread but the main one.
    """
    import multiprocessing

    from tosaic import _core

    inside = multiprocessing.parent_process() is not None
    if inside or threading.current_thread() is not threading.main_thread():
        return 1
    return min(_core.usable_cores(), MOST_THREADS)


@contextmanager
def all_cores(count: int | None = None) -> Iterator[None]:
    """Makes runs in the block use `count` threads; without a number, all cores."""
    token = _threads.set(own_cores() if count is None else count)
    try:
        yield
    finally:
        _threads.reset(token)
