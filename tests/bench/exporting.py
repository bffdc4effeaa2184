"""`tosaic.export_model` against the same flow by ExecuTorch's Arm path: quantize, lower, write a `.pte` file.

    python tests/bench/exporting.py [--rounds N] [NETWORK ...]

torch.export is left out on both sides: both get the same exported program of floats, and the same samples.
Theirs is torchao's PT2E flow with Arm's `TOSAQuantizer`, `to_edge_transform_and_lower` with Arm's
`TOSAPartitioner`, and `to_executorch`. Ours is `export_model` with recipe ``tosa-int8``, its numerical
checks and all files included. *through ExecuTorch* is tosaic's quantizer and `TosaicPartitioner`, with
`to_edge_transform_and_lower` and `to_executorch`. All run alternately in one process. The outputs of the
three files on an unseen sample are compared with the floats: the same check for all.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.page import Measured, Section, options_of, table, timed
from executorch.exir import to_edge_transform_and_lower
from models.integers import signal_to_noise
from models.quantize import QUANTIZERS
from models.tosaic_delegates import file_of, lower
from models.wrapped import PARTITIONERS
from models.zoo import build, one_thread, quiet
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic.executorch import TosaicPartitioner

NETWORKS = ("mobilenet_v2", "deit_tiny")
LEAST_RATIO, LEAST_RATIO_THROUGH = 30.0, 3.0
_SAMPLES, _UNSEEN = 4, 100
_LOSS_DB = 1.0
"""How much less accurate than Arm's file ours may be, in dB."""


@dataclass(frozen=True)
class Row:
    """Median seconds on one network, and the accuracy of the three files.

    Attributes
    ----------
    network : str
    ours, through, theirs : float
    empty : float
        ExecuTorch's own share: `to_edge_transform_and_lower` without a partitioner, and `to_executorch`.
    db, through_db, their_db : float
        Signal-to-noise ratio of the file's output against the floats, in dB.
    """

    network: str
    ours: float
    through: float
    theirs: float
    empty: float
    db: float
    through_db: float
    their_db: float

    @property
    def ok(self) -> bool:
        """True if ours is fast enough, and as accurate."""
        fast = self.theirs >= LEAST_RATIO * self.ours and self.theirs >= LEAST_RATIO_THROUGH * self.through
        return fast and min(self.db, self.through_db) >= self.their_db - _LOSS_DB


def _theirs(exported: Any, samples: Sequence[Any]) -> bytes:
    prepared = prepare_pt2e(exported.module(check_guards=False), QUANTIZERS["arm"]())
    for sample in samples:
        prepared(*sample)
    quantized = torch.export.export(convert_pt2e(prepared), samples[0])
    return file_of(lower(quantized, [PARTITIONERS["tosa-int"]()]))


def _through(exported: Any, samples: Sequence[Any]) -> bytes:
    quantized = tosaic.quantize(exported, samples, progress=False).to_exported()
    return file_of(lower(quantized, [TosaicPartitioner("TOSA-1.0+INT")]))


def _empty(exported: Any) -> bytes:
    return bytes(to_edge_transform_and_lower(exported, partitioner=[]).to_executorch().buffer)


def _lap(network: Any, samples: Sequence[Any], own: Path) -> tuple[list[float], list[bytes]]:
    """Returns the seconds of the four ways, and the files of ExecuTorch's two."""
    programs = [torch.export.export(network.module, samples[0]) for _ in range(4)]
    shutil.rmtree(own, ignore_errors=True)
    ours, _ = timed(
        lambda: tosaic.export_model(programs[0], recipe="tosa-int8", samples=samples, folder=own, verbose=0)
    )
    through, through_file = timed(lambda: _through(programs[1], samples))
    theirs, their_file = timed(lambda: _theirs(programs[2], samples))
    empty, _ = timed(lambda: _empty(programs[3]))
    return [ours, through, theirs, empty], [through_file, their_file]


def _samples(network: Any) -> list[Any]:
    return [network.sample(i) for i in range(_SAMPLES)]


def _row(name: str, rounds: int) -> Row:
    network, small = build(name), build(f"{name}_small")
    laps, files = [], []
    with one_thread(), quiet(), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "own"
        _lap(small, _samples(small), own)  # a warm-up
        for _ in range(rounds):
            seconds, files = _lap(network, _samples(network), own)
            laps.append(seconds)
        sample = network.sample(_UNSEEN)
        floats = [np.asarray(each) for each in torch.utils._pytree.tree_leaves(network.module(*sample))]
        found = []
        for index, data in enumerate(((own / "model.pte").read_bytes(), *files)):
            path = Path(folder) / f"{index}.pte"
            path.write_bytes(data)
            outputs = torch.utils._pytree.tree_leaves(tosaic.load_pte(path).run(*sample))
            found.append(signal_to_noise(floats, [np.asarray(each) for each in outputs]))
    return Row(name, *map(median, zip(*laps, strict=True)), *found)


def run(rounds: int = 3, names: tuple[str, ...] = NETWORKS) -> Measured[Row]:
    """Measures all networks."""
    return Measured(tuple(_row(name, rounds) for name in names), rounds)


def section(result: Measured[Row]) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    header = (
        "network",
        "ours, s",
        "through ExecuTorch, s",
        "Arm's path, s",
        "ratio",
        "ratio through",
        "ExecuTorch alone, s",
        "ours, dB",
        "through, dB",
        "Arm's, dB",
    )
    rows = [
        (
            row.network,
            f"{row.ours:.2f}",
            f"{row.through:.1f}",
            f"{row.theirs:.1f}",
            f"{row.theirs / row.ours:,.0f}",
            f"{row.theirs / row.through:.1f}",
            f"{row.empty:.1f}",
            *(f"{each:.1f}" for each in (row.db, row.through_db, row.their_db)),
        )
        for row in result.rows
    ]
    text = (
        "From an exported program of floats to a `.pte` file of int8: `tosaic.export_model` with its checks\n"
        "and files, against torchao's PT2E flow with Arm's quantizer, Arm's `TOSAPartitioner` and\n"
        f"`to_executorch`; medians of {result.rounds} rounds. *through ExecuTorch*: `tosaic.quantize` and\n"
        "`TosaicPartitioner` in ExecuTorch's calls. *ExecuTorch alone*: the same calls without a\n"
        "partitioner, on the floats. *dB*: the signal-to-noise ratio of the file's output\n"
        "against the floats, on an unseen sample, by `tosaic.load_pte`.\n\n"
        f"{table(header, rows)}\n\n"
        f"Required: {LEAST_RATIO:g} times as fast, {LEAST_RATIO_THROUGH:g} times through ExecuTorch,\n"
        f"and at most {_LOSS_DB:g} dB less."
    )
    return Section("exporting", "The export flow", text, all(row.ok for row in result.rows))


def main() -> int:
    options = options_of(__doc__, rounds=3, names=NETWORKS)
    return section(run(options.rounds, tuple(options.networks))).publish()


if __name__ == "__main__":
    sys.exit(main())
