"""What it costs to import: the package, and a network.

    python tests/bench/import_time.py [--rounds N]

The package, against numpy, in fresh interpreters that can see numpy and tosaic only. `import tosaic` loads
nothing by itself, so a second figure loads every public name.

A network: `tosaic.from_exported`, by FX node, beside a bare walk over the same nodes, their arguments and
metadata. CPU time, which a busy machine changes least: one thread does all of it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.page import Section, options_of, table
from models.zoo import NETWORKS, build

MOST_TIMES_NUMPY = 2.0
MOST_MICROSECONDS = 15.0
"""Of import, per FX node, network by network."""

_STATEMENTS = {
    "numpy": "import numpy",
    "tosaic": "import numpy, tosaic",
    "names": "import numpy, tosaic\nfor n in tosaic.__all__: getattr(tosaic, n)",
}
_PROGRAM = """
import sys, time
sys.path.insert(0, {folder!r})
start = time.perf_counter()
{statement}
print(time.perf_counter() - start)
assert "torch" not in sys.modules
"""


@dataclass(frozen=True)
class NetworkTime:
    """Number of FX nodes; microseconds of CPU for each of them."""

    nodes: int
    importing: float
    walking: float


@dataclass(frozen=True)
class Result:
    """Median seconds by statement, and the times of the networks."""

    package: dict[str, float]
    networks: dict[str, NetworkTime]
    rounds: int

    @property
    def times_numpy(self) -> float:
        """numpy and all of tosaic over numpy alone."""
        return max(self.package["tosaic"], self.package["names"]) / self.package["numpy"]

    @property
    def ok(self) -> bool:
        """Both limits hold."""
        slowest = max(network.importing for network in self.networks.values())
        return self.times_numpy <= MOST_TIMES_NUMPY and slowest <= MOST_MICROSECONDS


def run(rounds: int = 21, networks: Sequence[str] = NETWORKS) -> Result:
    """Measures."""
    return Result(time_package(rounds), {name: time_network(name, rounds) for name in networks}, rounds)


def time_package(rounds: int) -> dict[str, float]:
    """Seconds of each statement in an interpreter of its own, by turns."""
    with tempfile.TemporaryDirectory() as folder:
        _offer(Path(folder))
        times: dict[str, list[float]] = {name: [] for name in _STATEMENTS}
        for counts in [False] + [True] * rounds:  # the first round fills the disk cache
            for name, statement in _STATEMENTS.items():
                program = _PROGRAM.format(folder=folder, statement=statement)
                done = subprocess.run(
                    [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True
                )
                if counts:
                    times[name].append(float(done.stdout))
    return {name: median(t) for name, t in times.items()}


def _offer(folder: Path) -> None:
    """Puts numpy and tosaic, and nothing else, into a folder."""
    numpy = Path(np.__file__).parent
    for package in (numpy, numpy.parent / "numpy.libs", Path(tosaic.__file__).parent):
        if package.exists():
            (folder / package.name).symlink_to(package)


def time_network(name: str, rounds: int) -> NetworkTime:
    """The import and the walk, by turns."""
    exported = build(name).export()
    bodies = (tosaic.from_exported, _walk)
    times: tuple[list[float], ...] = ([], [])
    for _ in range(rounds):
        for body, taken in zip(bodies, times, strict=True):
            start = time.process_time()
            body(exported)
            taken.append(time.process_time() - start)
    count = len(exported.graph.nodes)
    return NetworkTime(count, *(1e6 * median(taken) / count for taken in times))


def _walk(exported: torch.export.ExportedProgram) -> int:
    """What no importer can do without: each argument, type and stack trace, looked at."""
    seen = 0
    for node in exported.graph.nodes:
        for argument in (*node.args, *node.kwargs.values()):
            seen += argument is not None
        value, trace = node.meta.get("val"), node.meta.get("stack_trace")
        if isinstance(value, torch.Tensor):
            seen += len(value.shape) + (value.dtype is torch.float32) + (trace is not None)
    return seen


def section(result: Result) -> Section:
    """The part of docs/benchmarks.md."""
    package = [
        (what, f"{1e3 * result.package[name]:.0f}", f"{result.package[name] / result.package['numpy']:.2f}×")
        for name, what in (
            ("numpy", "`import numpy`"),
            ("tosaic", "`import numpy, tosaic`"),
            ("names", "the same, and every public name of tosaic"),
        )
    ]
    networks = [
        (name, str(n.nodes), f"{n.importing:.1f}", f"{n.walking:.2f}") for name, n in result.networks.items()
    ]
    text = (
        "The package, in fresh interpreters that see numpy and tosaic only; medians of "
        f"{result.rounds} rounds. At most {MOST_TIMES_NUMPY:.0f}× is required.\n\n"
        f"{table(('statements', 'ms', 'against numpy'), package)}\n\n"
        "A network, `tosaic.from_exported`, beside a bare walk over nodes, arguments and metadata; CPU time, "
        "medians of as many rounds by turns. "
        f"At most {MOST_MICROSECONDS:.0f} µs per FX node are required.\n\n"
        f"{table(('network', 'FX nodes', 'import, µs per FX node', 'bare walk'), networks)}"
    )
    return Section("import_time", "Import", text, ok=result.ok)


def main() -> int:
    return section(run(options_of(__doc__, rounds=21).rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
