"""Reads and runs `.pte` files with calls of every overload of the operator list, from the portable flow.

    python tests/full/pte_operators.py [--calls N] [--seed S] [--shard I/N] [--workers W] [--results FOLDER]
                                       [NAME ...]

`tests/pte/calls.py` says what is compared. An overload is tried in a process of its own, so that a crash or a
hang is a result too. Results are stored in the folder, so an interrupted run continues. Exit code 1 if one of
our results is wrong.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.results import ROOT, in_shard, parser_of, store, stored
from operators.running import in_children
from operators.table import ROWS
from pte.calls import Tried, try_calls

RESULTS = ROOT / "build" / "full" / "pte_operators"
SOURCES = Path(__file__).resolve().parents[1] / "operators"
_PACKAGES = ("pte", "torch_operators")
_PATIENCE_SECONDS = 900.0


def _job(name: str, calls: int, seed: int, note: Callable[[str], None]) -> Tried:
    note(name)
    return try_calls(name, calls, seed)


def tried(names: Sequence[str], *, calls: int, seed: int, workers: int, results: Path) -> list[Tried]:
    """Returns the outcome of each overload, stored or made now; prints failures and refusals."""
    found: dict[str, Tried] = {}
    jobs: list[tuple[str, Callable[[Callable[[str], None]], Tried]]] = []
    for name in names:
        known = stored(results, _file_name(name, calls, seed), SOURCES, _PACKAGES)
        if known is None:
            jobs.append((name, partial(_job, name, calls, seed)))
        else:
            found[name] = Tried(**known)
    for name, outcome in in_children(jobs, workers, _PATIENCE_SECONDS):
        if isinstance(outcome, str):
            outcome = Tried(name, failure=outcome)
        found[name] = outcome
        store(results, _file_name(name, calls, seed), outcome, SOURCES, _PACKAGES)
        print(f"{name}: {_text(outcome)}", flush=True)
    return [found[name] for name in names]


def _file_name(name: str, calls: int, seed: int) -> str:
    return f"{name.replace('::', '__')}.{calls}.{seed}"


def _text(outcome: Tried) -> str:
    if outcome.failure:
        return f"FAILED {outcome.failure}"
    if outcome.refused:
        return outcome.refused
    runtime = "; the runtime ran it" if outcome.ran else ""
    differs = f", and differs: {outcome.runtime_differs}" if outcome.runtime_differs else ""
    return f"{outcome.calls} calls{runtime}{differs}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, RESULTS)
    parser.add_argument("names", nargs="*", default=sorted(ROWS))
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args(argv)
    outcomes = tried(
        in_shard(options.names, options.shard),
        calls=options.calls,
        seed=options.seed,
        workers=options.workers,
        results=options.results,
    )
    kinds = Counter(_kind(each) for each in outcomes)
    print(*(f"{count} overloads: {kind}" for kind, count in kinds.most_common()), sep="\n")
    print(sum(each.ran for each in outcomes), "files ran in ExecuTorch's runtime")
    return int(any(each.failure for each in outcomes))


def _kind(outcome: Tried) -> str:
    if outcome.failure:
        return "failed"
    return f"refused by {outcome.refused.partition(':')[0]}" if outcome.refused else "right"


if __name__ == "__main__":
    sys.exit(main())
