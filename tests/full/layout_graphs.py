"""Many small random graphs: no choice of dim orders costs less than the plan, and results are unchanged.

    python tests/full/layout_graphs.py [--start N] [--count N]

`test_layouts` tests the first 200 graphs in the same way. Failures are printed with their seed. Exit code 1
if anything failed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from layouts.checking import check_layout


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args(argv)
    counts: Counter[str] = Counter()
    for seed in range(options.start, options.start + options.count):
        found = check_layout(seed)
        counts["graphs"] += 1
        counts["nodes"] += found.nodes
        counts["transposes"] += found.transposes
        counts["tried choices"] += found.choices
        counts["by brute force"] += found.choices > 0
        for failure in found.failures:
            counts["failures"] += 1
            print(f"seed {seed}: {failure}", flush=True)
    print(dict(counts))
    return 1 if counts["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
