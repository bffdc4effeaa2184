"""Measures the time to import the package, and the time to import a network.

    python tests/bench/import_time.py [--rounds N]

The package is compared with numpy, in fresh interpreters that can see numpy and tosaic only. `import tosaic`
loads nothing by itself, so a second measurement loads every public name, and a third prints a pipeline. All
times are CPU time, which depends least on a busy machine.

For a network, `tosaic.from_exported` is measured per FX node, and compared with a bare walk over the same
nodes, their arguments and metadata. One thread does all of it.

In-place calls make the import find out which tensors share memory. A network with ``relu_`` after each batch
norm is compared with the same network with ``relu``; both compute the same numbers.
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
from torch import nn

MOST_TIMES_NUMPY = 2.0
MOST_MICROSECONDS = 15.0
"""The largest allowed CPU time of an import per FX node, for each network."""

MOST_TIMES_OUT_OF_PLACE = 3.0
"""The largest allowed ratio of the import of a network with in-place calls to that without them."""

MOST_PRINTING = 0.030
"""The largest allowed CPU seconds of ``str(Pipeline.default())`` after ``import tosaic``."""

_ALL_NAMES = """import numpy, tosaic
for name in tosaic.__all__:
    try:
        getattr(tosaic, name)
    except ModuleNotFoundError:  # a class over torch's, such as Quantizer
        pass
"""
_STATEMENTS = {
    "numpy": ("", "import numpy"),
    "tosaic": ("", "import numpy, tosaic"),
    "names": ("", _ALL_NAMES),
    "printing": ("import tosaic", "str(tosaic.Pipeline.default())"),
}
"""By name, what runs first, and what is measured."""

_PROGRAM = """
import sys, time
sys.path.insert(0, {folder!r})
{before}
start = time.process_time()
{statement}
print(time.process_time() - start)
assert "torch" not in sys.modules
"""


@dataclass(frozen=True)
class NetworkTime:
    """The number of FX nodes, and CPU microseconds per node of the import and of the bare walk."""

    nodes: int
    importing: float
    walking: float


@dataclass(frozen=True)
class Result:
    """Median CPU seconds by statement, and the times of the networks."""

    package: dict[str, float]
    networks: dict[str, NetworkTime]
    rounds: int
    in_place: tuple[float, float]  # milliseconds with in-place calls, and without

    @property
    def times_numpy(self) -> float:
        """The time for numpy and all of tosaic over the time for numpy."""
        return max(self.package["tosaic"], self.package["names"]) / self.package["numpy"]

    @property
    def times_out_of_place(self) -> float:
        """The time to import a network with in-place calls over that of the same network without them."""
        return self.in_place[0] / self.in_place[1]

    @property
    def ok(self) -> bool:
        """True if all limits hold."""
        slowest = max(network.importing for network in self.networks.values())
        return (
            self.times_numpy <= MOST_TIMES_NUMPY
            and self.package["printing"] <= MOST_PRINTING
            and slowest <= MOST_MICROSECONDS
            and self.times_out_of_place <= MOST_TIMES_OUT_OF_PLACE
        )


def run(rounds: int = 21, networks: Sequence[str] = NETWORKS) -> Result:
    """Measures the package and the networks."""
    each = {name: time_network(name, rounds) for name in networks}
    return Result(time_package(rounds), each, rounds, time_in_place(rounds))


def time_package(rounds: int) -> dict[str, float]:
    """Returns median CPU seconds of each statement; they run alternately, each in a new interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        _offer(Path(folder))
        times: dict[str, list[float]] = {name: [] for name in _STATEMENTS}
        for counts in [False] + [True] * rounds:  # the first round fills the disk cache
            for name, (before, statement) in _STATEMENTS.items():
                program = _PROGRAM.format(folder=folder, before=before, statement=statement)
                done = subprocess.run(
                    [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True
                )
                if counts:
                    times[name].append(float(done.stdout))
    return {name: median(t) for name, t in times.items()}


def _offer(folder: Path) -> None:
    """Links numpy and tosaic, and nothing else, into a folder."""
    numpy = Path(np.__file__).parent
    for package in (numpy, numpy.parent / "numpy.libs", Path(tosaic.__file__).parent):
        if package.exists():
            (folder / package.name).symlink_to(package)


def time_network(name: str, rounds: int) -> NetworkTime:
    """Measures the import and the walk, alternately."""
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


def time_in_place(rounds: int, blocks: int = 16) -> tuple[float, float]:
    """Returns CPU milliseconds of the import with in-place calls, and of that without.

    Raises
    ------
    AssertionError
        The imported networks compute other numbers than torch.
    """
    x = torch.randn(1, 8, 112, 112, generator=torch.Generator().manual_seed(0))
    programs = []
    for inplace in (True, False):
        torch.manual_seed(0)
        layers = [
            layer
            for _ in range(blocks)
            for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=inplace))
        ]
        network = nn.Sequential(*layers).eval()
        programs.append(torch.export.export(network, (x,)))
        found = tosaic.from_exported(programs[-1]).run(x)
        np.testing.assert_allclose(np.asarray(found), network(x).detach().numpy(), rtol=1e-4, atol=1e-4)
    times: tuple[list[float], ...] = ([], [])
    for _ in range(rounds):
        for exported, taken in zip(programs, times, strict=True):
            start = time.process_time()
            tosaic.from_exported(exported)
            taken.append(time.process_time() - start)
    with_writes, without = (1e3 * median(taken) for taken in times)
    return with_writes, without


def _walk(exported: torch.export.ExportedProgram) -> int:
    """Does the least work of any importer: looks at each argument, type and stack trace."""
    seen = 0
    for node in exported.graph.nodes:
        for argument in (*node.args, *node.kwargs.values()):
            seen += argument is not None
        value, trace = node.meta.get("val"), node.meta.get("stack_trace")
        if isinstance(value, torch.Tensor):
            seen += len(value.shape) + (value.dtype is torch.float32) + (trace is not None)
    return seen


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    package = [
        (what, f"{1e3 * result.package[name]:.0f}", f"{result.package[name] / result.package['numpy']:.2f}×")
        for name, what in (
            ("numpy", "`import numpy`"),
            ("tosaic", "`import numpy, tosaic`"),
            ("names", "the same, and every public name of tosaic"),
            ("printing", "`str(Pipeline.default())` after `import tosaic`"),
        )
    ]
    networks = [
        (name, str(n.nodes), f"{n.importing:.1f}", f"{n.walking:.2f}") for name, n in result.networks.items()
    ]
    in_place = [
        ("out of place", f"{result.in_place[1]:.2f}", "1.00×"),
        ("in place", f"{result.in_place[0]:.2f}", f"{result.times_out_of_place:.2f}×"),
    ]
    text = (
        "The CPU time to import the package, in fresh interpreters that can see numpy and tosaic only;\n"
        f"medians of {result.rounds} rounds. At most {MOST_TIMES_NUMPY:.0f}× the time to import numpy "
        "is allowed, and "
        f"{1e3 * MOST_PRINTING:.0f} ms for the pipeline.\n\n"
        f"{table(('statements', 'ms', 'against numpy'), package)}\n\n"
        "The CPU time to import a network with `tosaic.from_exported`, compared with a bare walk over its\n"
        "nodes, arguments and metadata. Both run alternately; medians of as many rounds.\n"
        f"At most {MOST_MICROSECONDS:.0f} µs per FX node are allowed.\n\n"
        f"{table(('network', 'FX nodes', 'import, µs per FX node', 'bare walk'), networks)}\n\n"
        "The CPU time to import 16 blocks of convolution, batch norm and ReLU at 112x112, with ReLU in\n"
        "place and out of place. Both run alternately and compute the same numbers. At most "
        f"{MOST_TIMES_OUT_OF_PLACE:.0f}× is allowed.\n\n"
        f"{table(('ReLU', 'ms', 'ratio'), in_place)}"
    )
    return Section("import_time", "Import", text, ok=result.ok)


def main() -> int:
    return section(run(options_of(__doc__, rounds=21).rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
