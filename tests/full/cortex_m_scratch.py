"""Compares the sizes of temporary buffers with CMSIS-NN's C functions on random calls of kernels.

    python tests/full/cortex_m_scratch.py --cmsis-nn FOLDER [--calls N] [--record]

FOLDER is a checkout of CMSIS-NN, whose functions are compiled. `--record` only writes the sizes that the
tests compare with. Exit code 1 if a size differs without an explanation.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cortex_m.scratch import CPUS, Functions, drawn, of_tosaic, too_small, write

_RECORDED = range(300)


def _revision(folder: Path) -> str:
    made = subprocess.run(["git", "-C", str(folder), "rev-parse", "--short", "HEAD"], capture_output=True)
    return made.stdout.decode().strip() if made.returncode == 0 else "of unknown revision"


def differing(functions: Functions, calls: int) -> list[str]:
    """Returns a line for each size that differs without an explanation, and prints counts."""
    drawn_calls = [drawn(seed) for seed in range(1_000_000, 1_000_000 + calls)]
    lines = []
    for cpu, form in CPUS.items():
        sizes = of_tosaic(drawn_calls, cpu)
        expected = [functions.size(call, form) for call in drawn_calls]
        wrong = [
            f"{cpu}: {call}: {size}, by CMSIS-NN {theirs}"
            for call, size, theirs in zip(drawn_calls, sizes, expected, strict=True)
            if size != theirs and not (too_small(call) and size > theirs)
        ]
        explained, with_buffer = sum(map(too_small, drawn_calls)), sum(map(bool, sizes))
        print(
            f"{cpu}: {calls:,} calls, {with_buffer:,} with a buffer, {explained} larger, {len(wrong)} differ"
        )
        lines += wrong
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cmsis-nn", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--calls", type=int, default=5000, metavar="N")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        functions = Functions(options.cmsis_nn, Path(folder))
        if options.record:
            write(functions, _revision(options.cmsis_nn), _RECORDED)
            return 0
        lines = differing(functions, options.calls)
    print("\n".join(lines[:20]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
