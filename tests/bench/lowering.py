"""Time from an exported program to a TOSA FP file, against ExecuTorch's `to_edge_transform_and_lower`.

    python tests/bench/lowering.py [--rounds N]

Both get the same exported program in the same process, alternately. A round is everything that a user runs:
ours imports, lowers with the verifier between all passes (the default) and serializes; theirs ends with the
bytes of its delegate. The same run compares the outputs of both files with torch: our reader and executor run
the files, torch runs the operators that ExecuTorch leaves outside its delegates.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.own_lowering import OwnTimes, own_times
from bench.page import Measured, Section, in_turns, milliseconds, options_of, table
from models.delegates import WithDelegates, delegates_of, lower_with_executorch, run_file
from models.zoo import build
from tosaic import _core

NETWORKS = ("resnet18", "mobilenet_v2", "resnet50", "convnext_tiny", "deit_tiny")
_TARGET = "TOSA-1.0+FP"
OUR_REPEATS = (5, 1)
"""How often a round runs our lowering and ExecuTorch's."""
LEAST_RATIO = 150.0
"""How many times as fast as ExecuTorch each network has to be."""
LEAST_PASSES_RATIO = 1000.0
"""How many times the time of our passes ExecuTorch's whole time has to be."""
LEAST_PAYLOAD_SPEED = 0.5
"""The least speed of the work on constants, as a share of the speed of a copy."""


@dataclass(frozen=True)
class Row:
    """One network: median seconds, numbers of operators and graphs, and relative errors against torch."""

    network: str
    ours: float
    theirs: float
    our_ops: int
    their_ops: int
    their_graphs: int
    our_error: float
    their_error: float
    own: OwnTimes

    @property
    def ok(self) -> bool:
        """True if all three speeds are reached, and our error is of the size of theirs."""
        return (
            self.theirs / self.ours >= LEAST_RATIO
            and self.theirs / self.own.passes >= LEAST_PASSES_RATIO
            and self.own.payload_speed >= LEAST_PAYLOAD_SPEED
            and self.our_error <= max(2 * self.their_error, 1e-5)
        )


class Result(Measured[Row]):
    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)


def run(rounds: int = 3, networks: Sequence[str] = NETWORKS) -> Result:
    """Measures the networks; the first round is a warm-up and is not counted."""
    torch.set_num_threads(1)
    return Result(tuple(_row(name, rounds) for name in networks), rounds)


def _row(name: str, rounds: int) -> Row:
    network = build(name)
    exported = network.export()
    (ours, our_bytes), (theirs, their_program) = in_turns(
        [lambda: lower_with_tosaic(exported), lambda: lower_with_executorch(exported, _TARGET)],
        rounds,
        OUR_REPEATS,
    )
    args = network.sample()
    their_files = delegates_of(their_program)
    with torch.no_grad():
        expected = network.module(*args).numpy()
    return Row(
        name,
        ours,
        theirs,
        len(_core.deserialize(our_bytes)),
        sum(len(_core.deserialize(file)) for file in their_files),
        len(their_files),
        _error(run_file(our_bytes, args), expected),
        _error(WithDelegates(their_program).run(*args), expected),
        own_times(exported, lambda program: tosaic.lower(program, target=_TARGET)),
    )


def lower_with_tosaic(exported: torch.export.ExportedProgram) -> bytes:
    """Returns the bytes of the ``.tosa`` file."""
    return tosaic.lower(exported, target=_TARGET).to_bytes()


def _error(found: Sequence[np.ndarray[Any, Any]], expected: np.ndarray[Any, Any]) -> float:
    (only,) = found
    return float(np.linalg.norm(only.reshape(expected.shape) - expected) / np.linalg.norm(expected))


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    rows = [
        (
            row.network,
            milliseconds(row.ours),
            milliseconds(row.theirs),
            f"{row.theirs / row.ours:.0f}×",
            milliseconds(row.own.passes),
            f"{row.theirs / row.own.passes:,.0f}×",
            milliseconds(row.own.payload),
            milliseconds(row.own.copy),
            str(row.our_ops),
            f"{row.their_ops}" + (f" in {row.their_graphs} graphs" if row.their_graphs > 1 else ""),
            f"{row.our_error:.1g}",
            f"{row.their_error:.1g}",
        )
        for row in result.rows
    ]
    header = (
        "network", "tosaic, ms", "ExecuTorch, ms", "ratio", "our passes, ms", "ratio of passes",
        "our payload, ms", "copy of weights, ms", "our TOSA ops", "its TOSA ops",
        "our error against torch", "its error against torch",
    )  # fmt: skip
    text = (
        "From an exported program to the bytes of a TOSA FP file. tosaic imports, runs the passes with the\n"
        "verifier and serializes; ExecuTorch runs `to_edge_transform_and_lower` with Arm's partitioner.\n"
        f"Both run alternately in one process (rounds: {result.rounds}, in each tosaic\n"
        f"runs {OUR_REPEATS[0]} times; the table has medians).\n\n"
        f"{table(header, rows)}\n\n"
        f"Each network has to be lowered at least {LEAST_RATIO:.0f} times as fast. Our passes alone, with\n"
        "the verifier but without import and constants, have to take at most "
        f"1/{LEAST_PASSES_RATIO:,.0f} of ExecuTorch's\n"
        "whole time. The payload (computing constants, and writing bytes) has to reach "
        f"{LEAST_PAYLOAD_SPEED:g} times\nthe speed of a copy."
    )
    return Section("lowering", "Lowering", text, ok=result.ok)


def main() -> int:
    return section(run(options_of(__doc__, rounds=3).rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
