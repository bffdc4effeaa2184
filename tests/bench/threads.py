"""Runs of two threads: which share they reach of the speed-up that two cores can give.

    python tests/bench/threads.py [--rounds N] [NETWORK ...]

In each round, three things take turns: runs of one thread; the same runs, half of them in one Python thread
and half in another, each of one thread and with a session of its own; and runs of two threads. The second is
the ideal: work that is cut in halves, with nothing to wait for. The gain of the ideal depends on the machine:
two cores may be one, or wait for one memory. Runs of two threads have to reach at least nine tenths of this
gain, with the same bytes.

Then runs after pauses are measured, as a camera has them between two images: threads sleep meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.page import Measured, Section, milliseconds, options_of, table, timed
from models.zoo import build, one_thread, quiet

NETWORKS = ("mobilenet_v2", "resnet18", "deit_tiny")
LEAST_SHARE = 0.9
"""The part of the ideal gain that two threads have to reach."""

_SECONDS = 0.25  # for all runs of one thread in a round
_PAUSE = 0.02  # seconds before a run


@dataclass(frozen=True)
class Row:
    """Median seconds of a run of one network.

    Attributes
    ----------
    network : str
    one, ideal, two : float
        A run by one thread; half the time of two runs at once, by one thread each; a run by two threads.
    one_after_pause, two_after_pause : float
        A run after a pause, by one and by two threads.
    share : float
        The median over the rounds of `ideal` divided by `two`.
    load : float
        The load average of the minute before the measurement: how many processes ran or could have run.
    same : bool
        Whether both have the same bytes.
    """

    network: str
    one: float
    ideal: float
    two: float
    one_after_pause: float
    two_after_pause: float
    share: float
    load: float
    same: bool

    @property
    def ok(self) -> bool:
        """True if two threads gain enough, with the same bytes."""
        return self.share >= LEAST_SHARE and self.same


def _at_once(first: Callable[[], None], second: Callable[[], None]) -> None:
    other = threading.Thread(target=second)
    other.start()
    first()
    other.join()


def _after_pause(body: Callable[[], object]) -> float:
    time.sleep(_PAUSE)
    return timed(body)[0]


def _lowered(name: str, integers: bool) -> tuple[tosaic.Lowered, tuple[torch.Tensor, ...]]:
    network = build(name)
    exported = network.export()
    if not integers:
        return tosaic.lower(exported), network.sample()
    quantized = tosaic.quantize(exported, [network.sample(i) for i in range(2)])
    return tosaic.lower(quantized, target="TOSA-1.0+INT"), network.sample()


def _row(name: str, integers: bool, rounds: int) -> Row:
    load = os.getloadavg()[0]
    with one_thread(), quiet(), torch.no_grad():
        lowered, x = _lowered(name, integers)
        first, second = lowered.prepare(), lowered.prepare()
        shared = lowered.prepare(threads=2)
        bytes_of = [np.asarray(prepared.run(*x)).tobytes() for prepared in (first, shared, second)]
        once, _ = timed(lambda: first.run(*x))
        runs = 2 * max(1, round(_SECONDS / once / 2))

        def many(prepared: Any, count: int) -> Callable[[], None]:
            def body() -> None:
                for _ in range(count):
                    prepared.run(*x)

            return body

        laps = []
        for number in range(rounds + 1):  # the first is a warm-up
            one, _ = timed(many(first, runs))
            ideal, _ = timed(lambda: _at_once(many(first, runs // 2), many(second, runs // 2)))
            two, _ = timed(many(shared, runs))
            if number:
                laps.append((one / runs, ideal / runs, two / runs))
        share = median(ideal / two for _, ideal, two in laps)
        pauses = [
            [_after_pause(lambda prepared=prepared: prepared.run(*x)) for prepared in (first, shared)]
            for _ in range(2 * rounds)
        ]
    kind = "int8" if integers else "f32"
    same = len(set(bytes_of)) == 1
    medians = [median(times) for runs_of in (laps, pauses) for times in zip(*runs_of, strict=True)]
    return Row(f"{name}, {kind}", *medians, share, load, same)


def run(rounds: int = 15, names: tuple[str, ...] = NETWORKS) -> Measured[Row]:
    """Measures all networks, in f32 and in int8."""
    return Measured(tuple(_row(name, kind, rounds) for kind in (False, True) for name in names), rounds)


def section(result: Measured[Row]) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    header = (
        "network",
        "one, ms",
        "ideal, ms",
        "two, ms",
        "ideal gain",
        "gain",
        "share",
        "one, paused",
        "two, paused",
        "load",
        "bytes",
    )
    rows = [
        (
            row.network,
            milliseconds(row.one),
            milliseconds(row.ideal),
            milliseconds(row.two),
            f"{row.one / row.ideal:.2f}",
            f"{row.one / row.two:.2f}",
            f"{row.share:.2f}",
            milliseconds(row.one_after_pause),
            milliseconds(row.two_after_pause),
            f"{row.load:.1f}",
            "the same" if row.same else "differ",
        )
        for row in result.rows
    ]
    text = (
        "A run by two threads, against a run by one. *Ideal* is half the time of two runs at once, by one\n"
        f"thread each; medians of {result.rounds} rounds. *Share* is the median of ideal divided by\n"
        f"the time of two threads. *Paused*: a run after a pause of {_PAUSE * 1e3:g} ms.\n\n"
        f"{table(header, rows)}\n\n"
        f"The share has to be at least {LEAST_SHARE:g}, and the results have to have the same bytes."
    )
    return Section("threads", "Two threads", text, all(row.ok for row in result.rows))


def main() -> int:
    options = options_of(__doc__, rounds=15, names=NETWORKS)
    return section(run(options.rounds, tuple(options.networks))).publish()


if __name__ == "__main__":
    sys.exit(main())
