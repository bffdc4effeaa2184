"""Networks of int16 with weights of int8, against the same networks of int8: one thread.

    python tests/bench/integer_widths.py [--rounds N] [NETWORK ...]

Both are quantized by `tosaic.quantize` with the same samples and lowered to TOSA INT, with integers at the
boundary. They run alternately in one process, once with each instruction set of this machine from AVX2 on.
The outputs of both have to equal the TOSA reference model's. AMX multiplies bytes only: with it,
int8 uses tiles and int16 uses vectors, so the limit does not apply.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.page import Measured, Section, in_turns, milliseconds, options_of
from markdown_table import markdown_table
from models.zoo import build, quiet
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

NETWORKS = ("mobilenet_v2", "resnet18", "resnet50")
MOST = 2.5
"""How many times as long as int8 a network of int16 may take."""
_LIMITED = ("avx512vnni", "avxvnni", "avx2")
_CALIBRATION_SAMPLES = 4


@dataclass(frozen=True)
class Row:
    """Median seconds of a network, and how many outputs differ from the reference model's."""

    network: str
    isa: str
    int8: float
    int16: float
    differing: int
    distinct: int

    @property
    def ratio(self) -> float:
        """The time of int16 over that of int8."""
        return self.int16 / self.int8

    @property
    def ok(self) -> bool:
        """True if int16 is fast enough, and both are right."""
        return self.differing == 0 and (self.ratio <= MOST or self.isa not in _LIMITED)


def run(rounds: int = 11, networks: Sequence[str] = NETWORKS) -> Measured[Row]:
    """Measures the networks on each path of this machine."""
    torch.set_num_threads(1)
    return Measured(tuple(row for name in networks for row in _rows(name, rounds)), rounds)


def _lowered(name: str, config: tosaic.QConfig, dtype: str) -> tosaic.Lowered:
    network = build(name)
    with quiet(), torch.no_grad():
        samples = [network.sample(i) for i in range(_CALIBRATION_SAMPLES)]
        quantized = tosaic.quantize(network.export(), samples, config=config)
        return tosaic.lower(quantized, target="TOSA-1.0+INT+int16", io={"inputs": dtype, "outputs": dtype})


def _rows(name: str, rounds: int) -> list[Row]:
    configs = {"int8": tosaic.QConfig.int8(), "int16": tosaic.QConfig.int16x8()}
    programs = [_lowered(name, config, dtype) for dtype, config in configs.items()]
    images = [_image(lowered, dtype) for dtype, lowered in zip(configs, programs, strict=True)]
    expected = []
    for lowered, image in zip(programs, images, strict=True):
        reference = run_reference_model(lowered, image)
        if not reference.ok:
            raise RuntimeError(f"{name}: the reference model says {reference.status}: {reference.log[-400:]}")
        expected.append(reference.outputs[0])
    rows = []
    for isa in [isa for isa in _core.usable_isas() if isa in (*_LIMITED, "amx")]:
        bodies = [
            partial(_core.Session(lowered.graph, isa=isa).run, lowered.graph_arrays([image]))
            for lowered, image in zip(programs, images, strict=True)
        ]
        (narrow, first), (wide, second) = in_turns(bodies, rounds, (3, 1))
        found = [np.asarray(results[0]) for results in (first, second)]
        differing = sum(int((a.ravel() != b.ravel()).sum()) for a, b in zip(found, expected, strict=True))
        rows.append(Row(name, isa, narrow, wide, differing, min(len(np.unique(each)) for each in found)))
    return rows


def _image(lowered: tosaic.Lowered, dtype: str) -> Any:
    limits, shape = np.iinfo(dtype), lowered.inputs[0].shape
    return np.random.default_rng(0).integers(limits.min, limits.max + 1, shape, dtype=dtype)


def section(result: Measured[Row]) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    rows = [
        (
            row.network,
            row.isa,
            milliseconds(row.int8),
            milliseconds(row.int16),
            f"{row.ratio:.2f}×",
            str(row.differing),
            str(row.distinct),
        )
        for row in result.rows
    ]
    header = ("network", "path", "int8, ms", "int16x8, ms", "ratio", "differing outputs", "distinct outputs")
    text = (
        "One inference of a network whose activations are int16 and whose weights are int8, against the\n"
        f"same network in int8. Both run alternately; medians of {result.rounds} rounds. The outputs of\n"
        "both are compared with the TOSA reference model's.\n\n"
        f"{markdown_table(header, rows, texts=2)}\n\n"
        f"int16x8 may take at most {MOST} times as long as int8, but for AMX, which multiplies bytes only."
    )
    return Section("integer_widths", "int16 against int8", text, all(row.ok for row in result.rows))


def main() -> int:
    options = options_of(__doc__, rounds=11, names=NETWORKS)
    return section(run(options.rounds, tuple(options.networks))).publish()


if __name__ == "__main__":
    sys.exit(main())
