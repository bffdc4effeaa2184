"""20,000 random programs split between up to three claimants with random rules, in the way of a user.

    python tests/full/split_programs.py [--shard I/N] [--results FOLDER]

`partitions.split_checking` says what is checked, `partitions.random_programs` which programs there are. The
results of each 100 seeds are stored, so an interrupted run continues. Failures are printed with their seed.
Exit code 1 if anything failed. `test_split_programs` of the ci tier tests 2,000 programs in the same way.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import tosaic

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.results import ROOT, in_shard, parser_of, store, stored
from partitions import split_checking
from partitions.split_checking import check_program

RESULTS = ROOT / "build" / "split_programs"
_EACH = 100
STARTS = [str(start) for start in range(0, 20_000, _EACH)]
"""The first seed of each stored result."""


@dataclass
class Checked:
    """The outcome of consecutive seeds: what is wrong, and numbers of groups and comparisons."""

    failures: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def measured(start: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Returns the result of the seeds from `start`, stored or new."""
    name, sources = f"{start}_{_version()}", Path(split_checking.__file__).parent
    known = stored(folder, name, sources)
    return store(folder, name, _check(int(start)), sources) if known is None else known


@cache
def _version() -> str:
    """A hash of the modules that make and run splits. `models.results` hashes the core and the checks."""
    digest = hashlib.sha256()
    for path in sorted((Path(tosaic.__file__).parent / "partitions").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def _check(start: int) -> Checked:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failures = [
            f"seed {seed}: {each}"
            for seed in range(start, start + _EACH)
            for each in check_program(seed, counts)
        ]
    logging.disable(logging.NOTSET)
    return Checked(failures, dict(counts))


def main(argv: Sequence[str] | None = None) -> int:
    options = parser_of(__doc__, RESULTS).parse_args(argv)
    counts: Counter[str] = Counter()
    failed = 0
    for start in in_shard(STARTS, options.shard):
        result = measured(start, options.results)
        failed += len(result["failures"])
        counts.update(result["counts"], programs=_EACH)
        for failure in result["failures"]:
            print(failure, flush=True)
    print(dict(counts), f"{failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
