"""Our executor against the TOSA reference model: int8, one thread.

    python tests/bench/integer_executor.py [--rounds N]

The network is quantized by torchao with Arm's quantizer, and lowered by us to TOSA INT. Both run the same
file on the same integers in the same process, alternately, and their outputs have to be equal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.page import Measured, Section, in_turns, milliseconds, options_of, table
from models.quantize import converted
from models.zoo import build
from tosaic.lowering.reference_model import ReferenceRun, run_reference_model

NETWORKS = ("mobilenet_v2",)
LEAST_RATIO = 50.0
"""How many times as fast as the reference model each network has to be."""
_CALIBRATION_SAMPLES = 4


@dataclass(frozen=True)
class Row:
    """One network: median seconds of both engines, and numbers of differing and of distinct outputs."""

    network: str
    ops: int
    ours: float
    reference: float
    differing: int
    distinct: int

    @property
    def ratio(self) -> float:
        """The reference model's time over ours."""
        return self.reference / self.ours


class Result(Measured[Row]):
    @property
    def ok(self) -> bool:
        """True if every network is fast enough and right."""
        return all(row.ratio >= LEAST_RATIO and row.differing == 0 for row in self.rows)


def run(rounds: int = 7, networks: Sequence[str] = NETWORKS) -> Result:
    """Measures the networks."""
    torch.set_num_threads(1)
    return Result(tuple(_row(name, rounds) for name in networks), rounds)


def _row(name: str, rounds: int) -> Row:
    network = build(name)
    samples = [network.sample(i) for i in range(_CALIBRATION_SAMPLES)]
    exported = converted(network.module, samples, "arm")
    lowered = tosaic.lower(exported, target="TOSA-1.0+INT", io={"inputs": "int8", "outputs": "int8"})
    image = np.random.default_rng(0).integers(-128, 128, lowered.inputs[0].shape, dtype=np.int8)
    program = lowered.at("tosa")

    def reference() -> ReferenceRun:
        return run_reference_model(lowered, image)

    (ours, found), (theirs, expected) = in_turns([lambda: program.run(image), reference], rounds)
    if not expected.ok:
        raise RuntimeError(f"{name}: the reference model says {expected.status}: {expected.log[-400:]}")
    differing = int(np.count_nonzero(found != expected.outputs))
    return Row(name, len(lowered.graph), ours, theirs, differing, len(np.unique(found)))


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    rows = [
        (
            row.network,
            str(row.ops),
            milliseconds(row.ours),
            milliseconds(row.reference),
            f"{row.ratio:.0f}×",
            str(row.differing),
            str(row.distinct),
        )
        for row in result.rows
    ]
    header = (
        "network",
        "TOSA ops",
        "tosaic, ms",
        "reference model, ms",
        "ratio",
        "differing outputs",
        "distinct outputs",
    )
    text = (
        "One inference in int8 with batch size 1, against the TOSA reference model on the same TOSA INT\n"
        f"program. Both run alternately; medians of {result.rounds} rounds. "
        f"The executor uses `{tosaic._core.usable_isas()[-1]}`.\n\n"
        f"{table(header, rows)}\n\n"
        f"The executor is at least {min(row.ratio for row in result.rows):.0f} times as fast as the\n"
        f"reference model. The limit is {LEAST_RATIO:.0f} times, and the outputs of both have to be equal."
    )
    return Section("integer_executor", "Integer executor", text, ok=result.ok)


def main() -> int:
    return section(run(options_of(__doc__, rounds=7).rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
