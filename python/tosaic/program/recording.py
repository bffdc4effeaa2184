"""Records the runs of prepared programs, and of the groups that they call, for profiles."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tosaic.program.prepared import Prepared

_of_thread = threading.local()


@dataclass
class Call:
    """A recorded run of a prepared program, with the runs of groups that it called.

    Attributes
    ----------
    prepared : Prepared
    name : str
        The name of the group whose part the session runs; empty for the whole program.
    begin, end : int
        Readings of ``perf_counter_ns``, around the call of the session.
    nanoseconds : int
        The time of the run by the clock of its events.
    recording : tuple of int
        Nanoseconds for the recording itself, before and after the call of the session.
    events : numpy.ndarray
        As `ProfileRun.events`, with the keys of ``Session.profiled_steps``.
    inner : list of Call
        The calls of groups, in the order in which they ended.
    """

    prepared: Prepared
    name: str
    begin: int = 0
    end: int = 0
    nanoseconds: int = 0
    recording: tuple[int, int] = (0, 0)
    events: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    inner: list[Call] = field(default_factory=list)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps that the events refer to."""
        return self.prepared.session.profiled_steps


def profiled_calls() -> list[Call] | None:
    """Returns the list of calls of the run that this thread profiles; None if it does not profile."""
    return getattr(_of_thread, "calls", None)


def profile_session(prepared: Prepared, arrays: Sequence[Any], name: str) -> tuple[list[Any], Call]:
    """Runs the session of a program; returns its outputs, and the record of the run."""
    entered = perf_counter_ns()
    call = Call(prepared, name)
    session = prepared.session
    with _collecting(call.inner):
        call.begin = perf_counter_ns()
        found = session.profile(arrays)
        call.end = perf_counter_ns()
    call.events, call.nanoseconds = found["events"], found["nanoseconds"]
    outputs = list(found["outputs"])
    call.recording = (call.begin - entered, perf_counter_ns() - call.end)
    return outputs, call


@contextmanager
def _collecting(calls: list[Call]) -> Iterator[None]:
    before = profiled_calls()
    _of_thread.calls = calls
    try:
        yield
    finally:
        _of_thread.calls = before
