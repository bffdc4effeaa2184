"""Many small random graphs: no choice of dim orders costs less than the plan, and results are unchanged.

    python tests/full/layout_graphs.py [--start N] [--count N]

`test_layouts` tests the first 200 graphs in the same way. Failures are printed with their seed. Exit code 1
if anything failed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from layouts.checking import check_layout
from layouts.seeds import check_seeds


def check(seed: int, counts: Counter[str]) -> list[str]:
    """Checks the graph of a seed, adds to the counts, and returns the failures."""
    found = check_layout(seed)
    counts["nodes"] += found.nodes
    counts["transposes"] += found.transposes
    counts["tried choices"] += found.choices
    counts["by brute force"] += found.choices > 0
    return found.failures


def main(argv: Sequence[str] | None = None) -> int:
    return 1 if check_seeds(__doc__, argv, check)["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
