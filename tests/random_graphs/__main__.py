"""python -m random_graphs --start 0 --count 2000 --state runs.json: checks seeds and prints failures.

With a state file, an interrupted run is continued: seeds that passed before are not run again.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from random_graphs.checking import check
from random_graphs.generate import generate
from random_graphs.reporting import report


def run(seeds: range, state: Path | None = None) -> list[dict[str, Any]]:
    """Checks the programs of these seeds. Returns one dict for each seed.

    Seeds that passed before, according to the state file, are not run again.
    """
    done: dict[str, dict[str, Any]] = json.loads(state.read_text()) if state and state.exists() else {}
    for seed in seeds:
        if str(seed) in done and not done[str(seed)]["failures"]:
            continue
        result = check(generate(seed))
        if result.failures:
            print(report(seed, result), flush=True)
        done[str(seed)] = {
            "failures": [str(failure) for failure in result.failures],
            "refusals": result.refusals,
            "target": result.target,
            "nodes": result.nodes,
            "checks": result.checks,
        }
        if state and (seed % 20 == 19 or seed == seeds[-1]):
            state.write_text(json.dumps(done))
    return [done[str(seed)] for seed in seeds]


def main() -> int:
    parser = argparse.ArgumentParser(prog="random_graphs", description=__doc__)
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=200, help="number of seeds")
    parser.add_argument("--state", type=Path, help="file that remembers what is done")
    parser.add_argument("--show", action="store_true", help="print the programs instead of running them")
    options = parser.parse_args()
    seeds = range(options.start, options.start + options.count)
    if options.show:
        for seed in seeds:
            print(generate(seed).source())
        return 0
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    begin = time.monotonic()
    rows = run(seeds, options.state)
    failed = sum(bool(row["failures"]) for row in rows)
    targets = Counter(row["target"] or "refused" for row in rows)
    print(f"{len(rows)} graphs from seed {options.start}: {failed} failed, {time.monotonic() - begin:.0f} s")
    print(
        f"  {sum(row['nodes'] for row in rows)} nodes, {sum(row['checks'] for row in rows)} outputs compared"
        f", {dict(targets)}"
    )
    refusals = Counter(reason for row in rows for reason in set(row["refusals"]))
    for reason, count in refusals.most_common():
        print(f"  refused {count} times: {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
