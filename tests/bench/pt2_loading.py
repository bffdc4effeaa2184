"""From a `.pt2` file to a program: our reader against `torch.export.load`.

    python tests/bench/pt2_loading.py [--rounds N] [NETWORK ...]

In each round, both read the same file in the same process, one after the other. Ours reads the archive,
maps the weights and makes the graph at stage `exported`; `torch.export.load` makes the `ExportedProgram`. The
import of that program is measured apart, and its graph has to be the same.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from bench.page import Measured, Section, milliseconds, options_of, table, timed
from models.zoo import build, one_thread, quiet
from tosaic import fx
from tosaic.pt2.program import read_pt2

NETWORKS = ("mobilenet_v2", "resnet50", "deit_tiny")
LEAST_RATIO = 50.0
"""How many times as fast as `torch.export.load` ours has to be."""


@dataclass(frozen=True)
class Row:
    """Median seconds on one network.

    Attributes
    ----------
    network : str
    ours, theirs, importing : float
        Our reader, `torch.export.load`, and the import of the program that it returns.
    size : int
        Bytes of the file.
    same : bool
        Whether both graphs are the same.
    """

    network: str
    ours: float
    theirs: float
    importing: float
    size: int
    same: bool

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours

    @property
    def ok(self) -> bool:
        """True if ours is fast enough, and the graphs are the same."""
        return self.ratio >= LEAST_RATIO and self.same


def _row(name: str, rounds: int) -> Row:
    network = build(name)
    with one_thread(), quiet(), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.pt2"
        torch.export.save(torch.export.export(network.module, network.sample(0)), path)
        laps = []
        for number in range(rounds + 1):  # the first is a warm-up
            ours, read = timed(lambda: read_pt2(path))
            theirs, loaded = timed(lambda: torch.export.load(path))
            importing, imported = timed(lambda program=loaded: fx.from_exported(program))
            if number:
                laps.append((ours, theirs, importing))
        same = read.graph.text() == imported.graph.text()
        size = path.stat().st_size
    return Row(name, *map(median, zip(*laps, strict=True)), size, same)


def run(rounds: int = 9, names: tuple[str, ...] = NETWORKS) -> Measured[Row]:
    """Measures all networks."""
    return Measured(tuple(_row(name, rounds) for name in names), rounds)


def section(result: Measured[Row]) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    header = ("network", "ours, ms", "torch.export.load, ms", "import of it, ms", "ratio", "bytes", "graph")
    rows = [
        (
            row.network,
            milliseconds(row.ours),
            milliseconds(row.theirs),
            milliseconds(row.importing),
            f"{row.ratio:,.0f}",
            f"{row.size:,}",
            "the same" if row.same else "differs",
        )
        for row in result.rows
    ]
    text = (
        "From a `.pt2` file to a graph by our reader, against `torch.export.load`, which makes an\n"
        f"`ExportedProgram`; medians of {result.rounds} rounds.\n\n"
        f"{table(header, rows)}\n\n"
        f"Ours has to be at least {LEAST_RATIO:g} times as fast, and the graph has to be the same."
    )
    return Section("pt2_loading", "Reading `.pt2` files", text, all(row.ok for row in result.rows))


def main() -> int:
    options = options_of(__doc__, rounds=9, names=NETWORKS)
    return section(run(options.rounds, tuple(options.networks))).publish()


if __name__ == "__main__":
    sys.exit(main())
