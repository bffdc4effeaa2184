"""Random programs split between up to three claimants with random rules, in the way of a user.

    python tests/full/split_programs.py [--start N] [--count N]

`partitions.split_checking` says what is checked, `partitions.random_programs` which programs there are. The
goal is 20,000 seeds: run shards of them, each with its own `--start`. `test_split_programs` tests the first
seeds in the same way. Failures are printed with their seed. Exit code 1 if anything failed.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from layouts.seeds import check_seeds
from partitions.split_checking import check_program


def main(argv: Sequence[str] | None = None) -> int:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    return 1 if check_seeds(__doc__, argv, check_program)["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
