"""Many random graphs of views and elementwise operators: `choose-shapes` never increases their transposes.

    python tests/full/view_graphs.py [--start N] [--count N]

Results have to equal those of the reference kernels bit for bit. Every other graph is plain: for these, brute
force over the place of each element in memory finds the fewest bytes that any lowering moves. At most 1 % of
the plain graphs may move more bytes: `choose-shapes` does not find out that several views may equal one
transpose in a shape that none of them has. `test_view_layouts` tests the first 200 graphs in the same way;
none of these may move more. Failures are printed with their seed. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from layouts.view_checking import check_views


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args(argv)
    counts: Counter[str] = Counter()
    for seed in range(options.start, options.start + options.count):
        found = check_views(seed, plain=seed % 2 == 1)
        counts["graphs"] += 1
        counts["nodes"] += found.nodes
        counts["with transposes"] += found.before > 0
        counts["bytes before"] += found.before
        counts["bytes after"] += found.after
        counts["with fewer bytes"] += found.after < found.before
        counts["by brute force"] += found.least is not None
        if found.above_least:
            counts["above the least"] += 1
            print(f"seed {seed}: {found.after} bytes, and {found.least} in other shapes", flush=True)
        for failure in found.failures:
            counts["failures"] += 1
            print(f"seed {seed}: {failure}", flush=True)
    print(dict(counts))
    return 1 if counts["failures"] or counts["above the least"] > 0.01 * counts["by brute force"] else 0


if __name__ == "__main__":
    sys.exit(main())
