"""Draws and checks many calls of one overload. Failing calls are shrunk and printed as cases to repeat."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, Verbosity, settings

from operators.checking import Outcome, check
from operators.table import ROWS, cases
from operators.values import Case

__all__ = ["Tried", "first_examples", "in_children", "quiet", "try_overload"]

_MOST = 6
_MOST_KINDS_OF_FAILURE = 3
_WAITS = 10
_Result = TypeVar("_Result")


@dataclass
class Tried:
    """The outcomes of the examples of one overload.

    Attributes
    ----------
    name : str
    seed, examples : int
        The seed of the draws, and the number of calls that were drawn.
    refused_by_torch : int
        How many calls torch refused. Most of them were made wrong on purpose.
    exported, lowered, needs_integers : int
        How many calls agreed at that stage, and how many of the lowered ones needed the integer profile too.
    refused : dict of str to int
        For each "who: reason", how many calls were refused.
    failures : list of str
        One for each kind of failure, with the shrunk case.
    seconds : float
    """

    name: str
    seed: int
    examples: int = 0
    refused_by_torch: int = 0
    exported: int = 0
    lowered: int = 0
    needs_integers: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


class _OutOfPatience(KeyboardInterrupt):
    """Ends a search of hypothesis at once, as Ctrl-C does."""


def try_overload(
    name: str, *, examples: int, seed: int = 0, patience: float = 20.0, note: Any = None
) -> Tried:
    """Draws and checks at least `examples` calls.

    `note` is called with each batch before it is run. `patience` is the time in seconds for shrinking, for
    each kind of failure.
    """
    row = ROWS[name]
    begin = time.monotonic()
    result = Tried(name, seed)
    failed: list[Outcome] = []
    refused: Counter[str] = Counter()

    def count(batch: Sequence[Case]) -> None:
        if result.examples >= examples:
            raise _OutOfPatience
        if note is not None:
            note(repr(batch))
        for o in check(batch, row):
            result.examples += 1
            result.refused_by_torch += o.refused_by == "torch"
            result.exported += o.exported
            result.lowered += o.lowered
            result.needs_integers += o.lowered and o.target != "TOSA-1.0+FP"
            if o.refused_by not in ("", "torch"):
                refused[f"{o.refused_by}: {o.reason}"] += 1
            if o.failure:
                failed.append(o)

    _search(name, seed, examples, count, [Phase.generate])
    result.refused = dict(refused.most_common())
    for kind in list(dict.fromkeys(_kind(o) for o in failed))[:_MOST_KINDS_OF_FAILURE]:
        small = _shrunk(name, seed, examples, kind, patience, note) or next(
            o for o in failed if _kind(o) == kind
        )
        times = sum(_kind(o) == kind for o in failed)
        result.failures.append(f"{times} of {result.examples}: {small.case!r}\n    {small.failure}")
    result.seconds = time.monotonic() - begin
    return result


def first_examples(name: str, count: int, seed: int = 0) -> list[Case]:
    """Returns the first `count` calls that are drawn, without those that are made wrong."""
    found: list[Case] = []

    def take(batch: Sequence[Case]) -> None:
        found.extend(case for case in batch if not case.hostile)
        if len(found) >= count:
            raise _OutOfPatience

    _search(name, seed, 10 * count, take, [Phase.generate])
    return found[:count]


def _search(
    name: str, seed: int, examples: int, body: Callable[[Any], None], phases: Sequence[Phase]
) -> None:
    options = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    search = hypothesis.seed(seed)(
        options(hypothesis.given(cases(name, most=_MOST))(lambda batch: body(batch)))
    )
    with contextlib.suppress(_OutOfPatience):
        search()


class _Disagreement(Exception):
    pass


def _shrunk(name: str, seed: int, examples: int, kind: str, patience: float, note: Any) -> Outcome | None:
    """Returns the smallest example that fails in the same way, or None if the failure did not occur again."""
    best: list[Outcome] = []
    end: list[float] = []

    def fail(batch: Sequence[Case]) -> None:
        if end and time.monotonic() > end[0]:
            raise _OutOfPatience
        if note is not None:
            note(repr(batch))
        same = [o for o in check(batch, ROWS[name]) if o.failure and _kind(o) == kind]
        if same:
            best[:] = [min(same, key=lambda o: len(repr(o.case)))]
            end.append(time.monotonic() + patience)
            raise _Disagreement

    with contextlib.suppress(Exception):
        _search(name, seed, examples, fail, [Phase.generate, Phase.shrink])
    return best[0] if best else None


def _kind(o: Outcome) -> str:
    """Returns the kind of a failure: the stage and the first words of the message."""
    where, _, what = o.failure.partition(": ")
    words = [w for w in what.split() if w.isalpha()]
    return f"{where} {' '.join(words[:6])}"


def quiet() -> None:
    """Sets torch to one thread (tensors are too small for more) and disables warnings and logs."""
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")


def in_children(
    jobs: Sequence[tuple[str, Callable[[Callable[[str], None]], _Result]]], workers: int, patience: float
) -> Iterator[tuple[str, _Result | str]]:
    """Runs each job in a fork of this process, `workers` at a time. A crash or a hang ends only that job.

    A job is called with a function to which it passes a note before each step. Yields (name, result) in order
    of completion. If a job crashed or took more than `patience` seconds of processor time (or waited for ten
    times as long), the result is a text with its last note.
    """
    _warm_up()
    waiting = list(jobs)
    running: dict[int, tuple[str, int, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            name, job = waiting.pop(0)
            running.update([_start(name, job, patience)])
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            for child, (_, _, _, begin) in running.items():
                if time.monotonic() - begin > _WAITS * patience:
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
            continue
        name, results, notes, _ = running.pop(pid)
        with os.fdopen(results, "rb") as file:
            file.seek(0)
            content = file.read()
        notes.seek(0)
        last = notes.read()
        notes.close()
        if status == 0 and content:
            yield name, pickle.loads(content)
        else:
            how = (
                f"signal {os.WTERMSIG(status)}"
                if os.WIFSIGNALED(status)
                else f"exit {os.waitstatus_to_exitcode(status)}"
            )
            yield name, f"ended by {how} at {last}"


def _warm_up() -> None:
    """Runs one export before forking, since the imports of the first export take seconds."""
    check(first_examples("relu", 1), ROWS["relu"])


def _start(
    name: str, job: Callable[[Callable[[str], None]], Any], patience: float
) -> tuple[int, tuple[str, int, Any, float]]:
    results = os.memfd_create(name)
    notes = tempfile.TemporaryFile("w+")  # noqa: SIM115
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid, (name, results, notes, time.monotonic())
    status = 1
    try:

        def note(text: str) -> None:
            notes.seek(0)
            notes.truncate()
            notes.write(text)
            notes.flush()

        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(patience), resource.RLIM_INFINITY))
        content = pickle.dumps(job(note))
        with os.fdopen(results, "wb", closefd=False) as file:
            file.write(content)
        status = 0
    except BaseException as error:
        notes.write(f"\n{type(error).__name__}: {error}")
        notes.flush()
    finally:
        os._exit(status)
