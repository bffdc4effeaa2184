"""``python -m random_modules SEED ...``: checks seeds, and prints a minimal module for each failure.

With ``--show``, the modules are printed and not checked.
"""

from __future__ import annotations

import argparse
import sys

import torch
from operators.running import quiet

from random_modules.checking import check
from random_modules.generate import generate
from random_modules.reporting import report


def main() -> int:
    parser = argparse.ArgumentParser(prog="random_modules", description=__doc__)
    parser.add_argument("seeds", nargs="+", type=int, metavar="SEED")
    parser.add_argument("--show", action="store_true", help="print the modules instead of checking them")
    options = parser.parse_args()
    quiet()
    failed = 0
    for seed in options.seeds:
        with torch.no_grad():
            module = generate(seed)
        if options.show:
            print(module.source())
            continue
        found = check(module)
        failed += bool(found.failures)
        print(f"seed {seed}: passed {found.passed}, skipped {found.skipped}")
        for refusal in found.refusals:
            print(f"    {refusal.step} refuses: {refusal.message}")
        if found.failures:
            print(report(found))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
