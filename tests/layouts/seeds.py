"""The scripts that check one random graph for each seed: their command line, counts and failures."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

__all__ = ["check_seeds"]


def check_seeds(
    doc: str | None, argv: Sequence[str] | None, check: Callable[[int, Counter[str]], Iterable[str]]
) -> Counter[str]:
    """Checks the graphs of the seeds that the command line names, and prints what it found.

    Parameters
    ----------
    doc : str
        The docstring of the script.
    argv : sequence of str
        The command line: ``--start`` and ``--count``. None: the command line of the process.
    check : callable
        Checks the graph of a seed, adds to the counts, and returns the failures.

    Returns
    -------
    Counter of str
        The counts of `check`, and the numbers of ``graphs`` and ``failures``.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args(argv)
    counts: Counter[str] = Counter()
    for seed in range(options.start, options.start + options.count):
        counts["graphs"] += 1
        for failure in check(seed, counts):
            counts["failures"] += 1
            print(f"seed {seed}: {failure}", flush=True)
    print(dict(counts))
    return counts
