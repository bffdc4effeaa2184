"""What protection against faults of memory costs: lowering and runs with TOSAIC_HARDENING, and without.

    python tests/bench/hardening.py [--rounds N] [--hardened FILE --plain FILE] [NETWORK ...]

Two builds of the extension that differ in this option only are made, unless their files are given. In each
round, a process with the one and a process with the other read the same program, and take turns: in each
lap, both lower it, and both run it, in alternating order. The next round has new processes, since the
addresses that a process gets may make it a little faster or slower. Files and outputs have to have the same
bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
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
from bench.build_time import build as build_extension
from bench.page import Section, milliseconds, options_of, table
from models.zoo import build, one_thread, quiet

NETWORKS = ("mobilenet_v2", "resnet18", "deit_tiny")
MOST_RATIO = 1.02
"""How many times the time of the plain build the hardened one may take, in the median of the rows."""
LAPS = 21

_SECONDS = 0.1  # for the work of one process in a lap
_WORK = ("lower", "run")
_WORKER = Path(__file__).resolve().with_name("hardening_worker.py")


@dataclass(frozen=True)
class Row:
    """Lowering or runs of one network.

    Attributes
    ----------
    network : str
    what : str
        ``lower`` or ``run``.
    plain, hardened : float
        Median CPU seconds of one lowering or run.
    ratio : float
        The median over the rounds of a round's median ratio, which is taken over its laps.
    least, most : float
        The least and the greatest median ratio of a round.
    same : bool
        Whether both builds made the same bytes.
    """

    network: str
    what: str
    plain: float
    hardened: float
    ratio: float
    least: float
    most: float
    same: bool


@dataclass(frozen=True)
class Result:
    """All rows, the number of rounds, and the load average before the first: how many processes ran."""

    rows: tuple[Row, ...]
    rounds: int
    load: float

    def ratio(self, what: str) -> float:
        """The median ratio of the rows with this `what`: lowering or runs."""
        return median(row.ratio for row in self.rows if row.what == what)

    @property
    def ok(self) -> bool:
        """True if lowering and runs take little longer in the median, and all bytes are the same."""
        return all(self.ratio(what) <= MOST_RATIO for what in _WORK) and all(row.same for row in self.rows)


class _Worker:
    """A process with one build of the extension."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-I", "-S", str(_WORKER), str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        extension = Path(self._answer())
        assert extension.is_relative_to(folder), extension

    def ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _offer(folder: Path, extension: Path) -> Path:
    """Links numpy, and the package with another extension, into a folder."""
    numpy, package = Path(np.__file__).parent, Path(tosaic.__file__).parent
    (folder / "tosaic").mkdir(parents=True)
    for library in (numpy, numpy.parent / "numpy.libs"):
        if library.exists():
            (folder / library.name).symlink_to(library)
    for entry in package.iterdir():
        if not entry.name.startswith("_core."):
            (folder / "tosaic" / entry.name).symlink_to(entry)
    (folder / "tosaic" / extension.name).symlink_to(extension.resolve())
    return folder


def _programs(folder: Path, names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Writes each network in f32 and in int8, and returns its name and the request that loads it."""
    found = []
    for name in names:
        with one_thread(), quiet(), torch.no_grad():
            network = build(name)
            exported = network.export()
            quantized = tosaic.quantize(exported, [network.sample(i) for i in range(2)])
            (x,) = network.sample()
        np.save(folder / f"{name}.npy", x.numpy())
        floats = tosaic.from_exported(exported)
        for kind, program, target in (("f32", floats, "TOSA-1.0+FP"), ("int8", quantized, "TOSA-1.0+INT")):
            path = folder / f"{name}_{kind}.tosaic"
            program.save(path)
            found.append((f"{name}, {kind}", ["load", str(path), str(folder / f"{name}.npy"), target]))
    return found


def _ratios(workers: Sequence[_Worker], what: str) -> list[tuple[float, float]]:
    """Returns the CPU seconds of one lowering or run by the plain and by the hardened build, for each lap."""
    once = max(worker.ask(what, 1) for worker in workers)
    count = max(1, round(_SECONDS / once))
    laps = []
    for lap in range(LAPS + 1):  # the first is a warm-up
        order = (0, 1) if lap % 2 else (1, 0)
        seconds = {i: workers[i].ask(what, count) / count for i in order}
        if lap:
            laps.append((seconds[0], seconds[1]))
    return laps


def run(
    rounds: int = 5, names: Sequence[str] = NETWORKS, hardened: Path | None = None, plain: Path | None = None
) -> Result:
    """Measures the networks. An extension that is not given is built first."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        extensions = [plain, hardened]
        for i, option in enumerate(("OFF", "ON")):
            if extensions[i] is None:
                build_extension(folder / option, TOSAIC_HARDENING=option)
                (extensions[i],) = (folder / option).glob("_core*.so")
        offers = [_offer(folder / f"package{i}", Path(str(each))) for i, each in enumerate(extensions)]
        programs = _programs(folder, names)
        load = os.getloadavg()[0]
        laps: dict[tuple[str, str], list[list[tuple[float, float]]]] = {}
        same = dict.fromkeys((name for name, _ in programs), True)
        for _ in range(rounds):
            workers = [_Worker(offer) for offer in offers]
            for name, request in programs:
                first, second = (worker.ask(*request) for worker in workers)
                same[name] &= first == second
                for what in _WORK:
                    laps.setdefault((name, what), []).append(_ratios(workers, what))
            for worker in workers:
                worker.close()
    rows = [_row(name, what, found, same[name]) for (name, what), found in laps.items()]
    return Result(tuple(rows), rounds, load)


def _row(name: str, what: str, rounds: list[list[tuple[float, float]]], same: bool) -> Row:
    plain, hardened = (median(lap[i] for laps in rounds for lap in laps) for i in (0, 1))
    ratios = [median(hard / soft for soft, hard in laps) for laps in rounds]
    return Row(name, what, plain, hardened, median(ratios), min(ratios), max(ratios), same)


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    rows = [
        (
            row.network,
            "lowering" if row.what == "lower" else "run",
            milliseconds(row.plain),
            milliseconds(row.hardened),
            f"{row.ratio:.3f}",
            f"{row.least:.3f} to {row.most:.3f}",
            "the same" if row.same else "differ",
        )
        for row in result.rows
    ]
    header = ("network", "what", "plain, ms", "hardened, ms", "ratio", "rounds", "bytes")
    text = (
        "Lowering to bytes, and runs, by an extension built with `TOSAIC_HARDENING` (stack protector,\n"
        "checked calls of libc, control-flow protection, read-only relocations) and by one without. A\n"
        f"process of each takes turns with the other; {result.rounds} rounds with new processes, {LAPS}\n"
        "laps in each. The times are CPU time, which depends least on a busy machine. *Ratio* is the median\n"
        "over the rounds of the median over the laps, *rounds* the least and the greatest of a round.\n\n"
        f"{table(header, rows, texts=2)}\n\n"
        f"In the median, lowering takes **{result.ratio('lower'):.3f}** times as long, and runs take\n"
        f"**{result.ratio('run'):.3f}** times as long. Allowed is {MOST_RATIO:g} for each, and the bytes\n"
        f"have to be the same. The load average before the first round was {result.load:.1f}."
    )
    return Section("hardening", "Protection against faults of memory", text, result.ok)


def main() -> int:
    files = {
        "hardened": "an extension built with TOSAIC_HARDENING",
        "plain": "an extension built without it",
    }
    options = options_of(__doc__, rounds=5, names=NETWORKS, files=files)
    return section(run(options.rounds, options.networks, options.hardened, options.plain)).publish()


if __name__ == "__main__":
    sys.exit(main())
