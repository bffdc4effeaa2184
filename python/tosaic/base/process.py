"""Settings of the whole process that tosaic changes temporarily, each by a context manager.

Code of other libraries runs in the same process, also in other threads. So only this module changes such
settings; ``tests/test_layering.py`` checks that.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

_T = TypeVar("_T")

_lock = threading.Lock()
_pauses = 0  # how many blocks of `collection_paused` are active, in all threads
_was_enabled = False  # whether the collector was enabled before the first of these blocks


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pauses the garbage collector for a block that makes many objects and no garbage.

    A collection during the block would only visit objects that stay. If blocks overlap, in one thread or in
    several, the last one to end restores the setting from before the first.
    """
    global _pauses, _was_enabled
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()


@contextmanager
def log_shown(name: str, level: int) -> Iterator[None]:
    """Shows the messages of a logger of this level and above on standard error, for a block."""
    log = logging.getLogger(name)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


@contextmanager
def setting_changed(read: Callable[[], _T], write: Callable[[_T], Any], value: _T) -> Iterator[None]:
    """Changes a setting of another library for a block: `read` returns the setting, and `write` sets it."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


@contextmanager
def log_captured(name: str) -> Iterator[list[str]]:
    """Collects the warnings of another library's logger and of its child loggers, and does not show them."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, collector = logging.getLogger(name), Collector()
    propagated, level = logger.propagate, logger.level
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    logger.addHandler(collector)
    try:
        yield messages
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = propagated


@contextmanager
def output_captured() -> Iterator[list[str]]:
    """Captures what C++ code prints to file descriptors 1 and 2; the list has the text after the block."""
    import tempfile

    log: list[str] = []
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with tempfile.TemporaryFile() as file:
        with ExitStack() as restored:
            for number in (1, 2):
                original = os.dup(number)
                restored.callback(os.close, original)
                restored.callback(os.dup2, original, number)
                os.dup2(file.fileno(), number)
            yield log
        file.seek(0)
        log.append(file.read().decode(errors="replace"))
