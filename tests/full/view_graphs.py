"""Many random graphs of views and elementwise operators: `choose-shapes` never increases their transposes.

    python tests/full/view_graphs.py [--start N] [--count N]

Results have to equal the results of the reference kernels bit for bit. Every other graph is plain: for these,
brute force over the place of each element in memory finds the fewest bytes that any lowering moves. At most 1
% of the plain graphs may move more bytes: `choose-shapes` does not find out that several views may equal one
transpose in a shape that none of them has. `test_view_layouts` tests the first 200 graphs in the same way;
none of these may move more. Failures are printed with their seed. Exit code 1 if anything failed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from layouts.seeds import check_seeds
from layouts.view_checking import check_views


def check(seed: int, counts: Counter[str]) -> list[str]:
    """Checks the graph of a seed, adds to the counts, and returns the failures."""
    found = check_views(seed, plain=seed % 2 == 1)
    counts["nodes"] += found.nodes
    counts["with transposes"] += found.before > 0
    counts["bytes before"] += found.before
    counts["bytes after"] += found.after
    counts["with fewer bytes"] += found.after < found.before
    counts["by brute force"] += found.least is not None
    if found.above_least:
        counts["above the least"] += 1
        print(f"seed {seed}: {found.after} bytes, and {found.least} in other shapes", flush=True)
    return found.failures


def main(argv: Sequence[str] | None = None) -> int:
    counts = check_seeds(__doc__, argv, check)
    return 1 if counts["failures"] or counts["above the least"] > 0.01 * counts["by brute force"] else 0


if __name__ == "__main__":
    sys.exit(main())
