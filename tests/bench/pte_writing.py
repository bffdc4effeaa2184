"""From a quantized program to a `.pte` file: `tosaic.save_pte` against ExecuTorch with Arm's TOSA backend.

    python tests/bench/pte_writing.py [--rounds N] [NETWORK ...]

The networks are quantized by Arm's quantizer. In each round, both make a `.pte` file of the same exported
program in the same process, one after the other: `tosaic.lower` and `save`, against
`to_edge_transform_and_lower` with Arm's `TOSAPartitioner` and `to_executorch`. Both files are read by
`tosaic.load_pte`, run on the same input, and compared.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.page import Measured, Section, milliseconds, options_of, table, timed
from models.integers import signal_to_noise
from models.quantize import converted
from models.tosaic_delegates import file_of, lower
from models.wrapped import PARTITIONERS
from models.zoo import build, one_thread, quiet

NETWORKS = ("ds_cnn", "mobilenet_v2", "resnet18")
TARGET = "TOSA-1.0+INT"
LEAST_RATIO = 100.0
"""How many times as fast as ExecuTorch's way ours has to be."""
LEAST_DB = 20.0
"""The least ratio of signal to difference of the outputs of the two files: the backends round differently."""
_CALIBRATION, _UNSEEN = 2, 100


@dataclass(frozen=True)
class Row:
    """Median seconds of both writers on one network.

    Attributes
    ----------
    network : str
    lower, save, theirs : float
    size, their_size : int
        Bytes of the files.
    db : float
        The ratio between the outputs of the two files.
    """

    network: str
    lower: float
    save: float
    theirs: float
    size: int
    their_size: int
    db: float

    @property
    def ratio(self) -> float:
        return self.theirs / (self.lower + self.save)

    @property
    def ok(self) -> bool:
        """True if ours is fast enough, and both files compute the same but for rounding."""
        return self.ratio >= LEAST_RATIO and self.db >= LEAST_DB


def _theirs(program: Any) -> bytes:
    return file_of(lower(program, [PARTITIONERS["tosa-int"]()]))


def _row(name: str, rounds: int) -> Row:
    network = build(name)
    with one_thread(), quiet(), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        program = converted(network.module, [network.sample(i) for i in range(_CALIBRATION)], "arm")
        own, other = Path(folder) / "own.pte", Path(folder) / "other.pte"
        laps = []
        for number in range(rounds + 1):  # the first is a warm-up
            given = copy.deepcopy(program)  # ExecuTorch changes the program
            lowering, lowered = timed(lambda: tosaic.lower(program, target=TARGET))
            saving, _ = timed(lambda made=lowered: made.save(own))
            theirs, file = timed(lambda g=given: _theirs(g))
            if number:
                laps.append((lowering, saving, theirs))
        other.write_bytes(file)
        sample = network.sample(_UNSEEN)
        outputs = [
            [np.asarray(each) for each in torch.utils._pytree.tree_leaves(tosaic.load_pte(path).run(*sample))]
            for path in (own, other)
        ]
        sizes = own.stat().st_size, other.stat().st_size
    return Row(name, *map(median, zip(*laps, strict=True)), *sizes, signal_to_noise(outputs[1], outputs[0]))


def run(rounds: int = 3, names: tuple[str, ...] = NETWORKS) -> Measured[Row]:
    """Measures all networks."""
    return Measured(tuple(_row(name, rounds) for name in names), rounds)


def section(result: Measured[Row]) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    header = ("network", "lower, ms", "save, ms", "ExecuTorch, s", "ratio", "bytes", "theirs", "dB")
    rows = [
        (
            row.network,
            milliseconds(row.lower),
            milliseconds(row.save),
            f"{row.theirs:.1f}",
            f"{row.ratio:,.0f}",
            f"{row.size:,}",
            f"{row.their_size:,}",
            f"{row.db:.0f}",
        )
        for row in result.rows
    ]
    text = (
        "From an int8 program of Arm's quantizer to a `.pte` file: `tosaic.lower` and `save`, against\n"
        "`to_edge_transform_and_lower` with Arm's `TOSAPartitioner` and `to_executorch`;\n"
        f"target {TARGET}, medians of {result.rounds} rounds. *dB*: the signal of the second file's output\n"
        "against the difference of both, which `tosaic.load_pte` runs on the same input.\n\n"
        f"{table(header, rows)}\n\n"
        f"Ours has to be at least {LEAST_RATIO:g} times as fast, and the outputs at least {LEAST_DB:g} dB."
    )
    return Section("pte_writing", "Writing `.pte` files", text, all(row.ok for row in result.rows))


def main() -> int:
    options = options_of(__doc__, rounds=3, names=NETWORKS)
    return section(run(options.rounds, tuple(options.networks))).publish()


if __name__ == "__main__":
    sys.exit(main())
