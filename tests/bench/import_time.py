"""What it costs to import: the package, and a network.

    python tests/bench/import_time.py [--rounds N]

The package, against numpy, in fresh interpreters that can see numpy and tosaic only. `import tosaic` loads
nothing by itself, so a second figure loads every public name.

A network: `tosaic.from_exported`, by FX node.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import tosaic
from bench.page import Section, in_turns, table
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
class Result:
    """Median seconds by statement, and microseconds per FX node and numbers of nodes by network."""

    package: dict[str, float]
    networks: dict[str, tuple[float, int]]
    rounds: int

    @property
    def times_numpy(self) -> float:
        """numpy and all of tosaic over numpy alone."""
        return max(self.package["tosaic"], self.package["names"]) / self.package["numpy"]

    @property
    def ok(self) -> bool:
        """Both limits hold."""
        slowest = max(microseconds for microseconds, _ in self.networks.values())
        return self.times_numpy <= MOST_TIMES_NUMPY and slowest <= MOST_MICROSECONDS


def run(rounds: int = 21, networks: Sequence[str] = NETWORKS) -> Result:
    """Measures."""
    return Result(time_package(rounds), {name: _time_network(name, rounds) for name in networks}, rounds)


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


def _time_network(name: str, rounds: int) -> tuple[float, int]:
    exported = build(name).export()
    count = len(exported.graph.nodes)
    ((seconds, _),) = in_turns([lambda: tosaic.from_exported(exported)], rounds)
    return 1e6 * seconds / count, count


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
    networks = [(name, str(nodes), f"{us:.1f}") for name, (us, nodes) in result.networks.items()]
    text = (
        "The package, in fresh interpreters that see numpy and tosaic only; medians of "
        f"{result.rounds} rounds. At most {MOST_TIMES_NUMPY:.0f}× is required.\n\n"
        f"{table(('statements', 'ms', 'against numpy'), package)}\n\n"
        "A network, `tosaic.from_exported`; medians of as many repetitions. At most "
        f"{MOST_MICROSECONDS:.0f} µs per FX node are required.\n\n"
        f"{table(('network', 'FX nodes', 'µs per FX node'), networks)}"
    )
    return Section("import_time", "Import", text, ok=result.ok)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    return section(run(options.rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
