"""Time from a quantized program to a TOSA INT file, against ExecuTorch's `to_edge_transform_and_lower`.

    python tests/bench/integer_lowering.py [--rounds N] [NETWORK ...]

Both get the same converted program (Arm's TOSAQuantizer) in the same process, alternately. Ours imports,
lowers with the verifier between all passes and serializes; theirs ends with the bytes of its delegate. The
same run compares both files with torch's Q/DQ graph, by the signal to noise ratio over a sample. All five
networks take about half an hour per round.
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
from bench.lowering import LEAST_PASSES_RATIO, LEAST_PAYLOAD_SPEED, OUR_REPEATS
from bench.own_lowering import OwnTimes, own_times
from bench.page import Measured, Section, in_turns, milliseconds, options_of, table
from models.delegates import WithDelegates, delegates_of, lower_with_executorch, operators_of
from models.delegates import run_file_on_reference_model as run_file
from models.quantize import converted
from models.zoo import build

NETWORKS = ("resnet18", "mobilenet_v2", "resnet50", "convnext_tiny", "deit_tiny")
LEAST_RATIO = 500.0
"""How many times as fast as ExecuTorch each network has to be."""
_TARGET = "TOSA-1.0+INT"
_CALIBRATION_SAMPLES = 4


@dataclass(frozen=True)
class Row:
    """One network: median seconds, numbers of TOSA operators, and signal to noise ratios to torch in dB."""

    network: str
    ours: float
    theirs: float
    our_ops: int
    their_ops: int
    our_sqnr: float
    their_sqnr: float
    own: OwnTimes

    @property
    def ratio(self) -> float:
        """The time of the other side over ours."""
        return self.theirs / self.ours


class Result(Measured[Row]):
    @property
    def ok(self) -> bool:
        """True if every network is fast enough, at most 1 dB worse than theirs, and has no more operators."""
        return all(
            row.ratio >= LEAST_RATIO
            and row.theirs / row.own.passes >= LEAST_PASSES_RATIO
            and row.own.payload_speed >= LEAST_PAYLOAD_SPEED
            and row.our_sqnr >= row.their_sqnr - 1
            and row.our_ops <= row.their_ops
            for row in self.rows
        )


def run(rounds: int = 1, networks: Sequence[str] = NETWORKS) -> Result:
    """Measures the networks; the first round is a warm-up and is not counted."""
    torch.set_num_threads(1)
    return Result(tuple(_row(name, rounds) for name in networks), rounds)


def _row(name: str, rounds: int) -> Row:
    network = build(name)
    program = converted(network.module, [network.sample(i) for i in range(_CALIBRATION_SAMPLES)], "arm")
    (ours, _), (theirs, their_program) = in_turns(
        [lambda: _lowered(program).to_bytes(), lambda: lower_with_executorch(program, _TARGET)],
        rounds,
        OUR_REPEATS,
    )
    args = network.sample(_CALIBRATION_SAMPLES)
    lowered = _lowered(program)
    with torch.no_grad():
        expected = program.module()(*args).numpy()
    return Row(
        name,
        ours,
        theirs,
        len(lowered.graph.nodes),
        sum(operators_of(file) for file in delegates_of(their_program)),
        _sqnr(np.asarray(lowered.run(*(a.numpy() for a in args))), expected),
        _sqnr(WithDelegates(their_program, run_file).run(*args)[0], expected),
        own_times(program, _lowered),
    )


def _lowered(program: torch.export.ExportedProgram) -> tosaic.Lowered:
    return tosaic.lower(program, target=_TARGET)


def _sqnr(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    noise = float(np.linalg.norm(found.reshape(expected.shape) - expected))
    return float("inf") if noise == 0 else 20 * float(np.log10(np.linalg.norm(expected) / noise))


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    rows = [
        (
            row.network,
            milliseconds(row.ours),
            milliseconds(row.theirs),
            f"{row.ratio:.0f}×",
            milliseconds(row.own.passes),
            f"{row.theirs / row.own.passes:,.0f}×",
            milliseconds(row.own.payload),
            milliseconds(row.own.copy),
            str(row.our_ops),
            str(row.their_ops),
            f"{row.our_sqnr:.1f}",
            f"{row.their_sqnr:.1f}",
        )
        for row in result.rows
    ]
    header = (
        "network", "tosaic, ms", "ExecuTorch, ms", "ratio", "our passes, ms", "ratio of passes",
        "our payload, ms", "copy of weights, ms", "our TOSA ops", "its TOSA ops",
        "our SQNR, dB", "its SQNR, dB",
    )  # fmt: skip
    text = (
        "From a converted program to the bytes of a TOSA INT file. The time of tosaic includes the import;\n"
        "ExecuTorch runs `to_edge_transform_and_lower` with Arm's partitioner.\n"
        f"Both run alternately in one process (rounds: {result.rounds}, in each tosaic\n"
        f"runs {OUR_REPEATS[0]} times; the table has medians).\n"
        f"Signal-to-noise ratios are against torch's q/dq graph.\n\n{table(header, rows)}\n\n"
        f"Each network has to be lowered at least {LEAST_RATIO:.0f} times as fast. Passes and payload\n"
        "are as in the section on lowering to floats, with the same limits."
    )
    return Section("integer_lowering", "Integer lowering", text, ok=result.ok)


def main() -> int:
    options = options_of(__doc__, rounds=1, names=NETWORKS)
    result = run(options.rounds, options.networks)
    if tuple(options.networks) != NETWORKS:
        print(section(result).text)
        return 0 if result.ok else 1
    return section(result).publish()


if __name__ == "__main__":
    sys.exit(main())
