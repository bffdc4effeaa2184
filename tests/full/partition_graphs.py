"""Groups of random graphs: as few as possible, right for several claimants, equal to the whole program.

    python tests/full/partition_graphs.py [--start N] [--count N]

Each seed makes one small dag whose groups are compared with all groupings, and four dags with up to three
claimants. Each fifth seed also makes a random program that is split. `test_partitions` tests the first seeds
in the same way. Failures are printed with their seed. Exit code 1 if anything failed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from layouts.seeds import check_seeds
from partitions.checking import check_claims, check_least, check_split

_CLAIMED, _SPLIT = 4, 5


def check(seed: int, counts: Counter[str]) -> list[str]:
    """Checks the graphs of a seed, adds to the counts, and returns the failures."""
    found = [check_least(seed), *(check_claims(_CLAIMED * seed + i) for i in range(_CLAIMED))]
    counts["least groups"] += 1
    counts["claims"] += _CLAIMED
    if seed % _SPLIT == 0:
        found.append(check_split(seed))
        counts["programs split"] += 1
    return [each for each in found if each]


def main(argv: Sequence[str] | None = None) -> int:
    return 1 if check_seeds(__doc__, argv, check)["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
