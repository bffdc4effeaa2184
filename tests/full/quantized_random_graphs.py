"""Tests many random programs in integer arithmetic, also with unusual quantization parameters (--hostile).

    python tests/full/quantized_random_graphs.py [--start N] [--count N] [--hostile] [--workers W]

`random_graphs.quantized` says what has to agree. Each program runs in a process of its own, so that a crash
is a result too. Failures are printed with their seed. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from operators.running import in_children, quiet
from random_graphs.quantized import QuantizedResult, check_quantized

_PATIENCE_SECONDS = 300.0


def _job(seed: int, hostile: bool, note: Callable[[str], None]) -> QuantizedResult:
    note(str(seed))
    return check_quantized(seed, hostile=hostile)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(argv)
    quiet()
    seeds = range(options.start, options.start + options.count)
    jobs = [(str(seed), partial(_job, seed, options.hostile)) for seed in seeds]
    counts: Counter[str] = Counter()
    nodes = integers = 0
    for seed, result in in_children(jobs, options.workers, _PATIENCE_SECONDS):
        failures = [result] if isinstance(result, str) else result.failures
        if not isinstance(result, str):
            counts[result.target or "refused"] += 1
            nodes += result.nodes
            integers += result.integer_nodes
        if failures:
            counts["failed"] += 1
            print(f"seed {seed}: " + "\n    ".join(failures), flush=True)
    print(
        f"{len(jobs)} programs from seed {options.start}: {dict(counts)}; {integers} of {nodes} integer nodes"
    )
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
