"""A transformer of 300 million parameters, and a file beyond 2 GiB: time and memory of a lowering.

    python tests/bench/large_model.py [--rounds N]

Each round is a process of its own. It exports the network, copies its weights once (the yardstick), lowers
the program, saves it, loads the file, and runs both programs. Memory is the resident memory of the process
(Linux only): what `save` adds at its peak, and what a first run adds and keeps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.page import Measured, Section, milliseconds, options_of, table
from models.zoo import one_thread, quiet

NETWORKS = ("vit_large", "beyond_2_gib")
MOST_COPIES = 3.0
"""Lowering and saving may take at most as long as copying the weights so many times."""
MOST_SAVE_MEMORY = 0.1
"""What `save` may add at its peak, as a share of the weights."""
MOST_RUN_MEMORY = 1.05
"""What a first run may add for packed weights, as a share of the weights."""
_LEAST_DB = 80.0


@dataclass(frozen=True)
class Row:
    """One process, times in seconds, sizes in bytes.

    Attributes
    ----------
    network : str
    weights, file : int
        Sizes of the weights in torch and of the ``.tosa`` file.
    copy, write : float
        Copying the weights into new memory, and writing them to a file in the same folder as `save` does,
        with an `fsync`.
    lower, save, load : float
    save_memory, run_memory : int
        Resident memory that `save` added at its peak, and that the first run added.
    error : float
        Signal-to-noise ratio, in dB, of the outputs against torch.
    same : bool
        Whether the program of the file has the same output bytes.
    """

    network: str
    weights: int
    file: int
    copy: float
    write: float
    lower: float
    save: float
    load: float
    save_memory: int
    run_memory: int
    error: float
    same: bool

    @property
    def copies(self) -> float:
        """The time of lowering and saving, in copies of the weights."""
        return (self.lower + self.save) / self.copy

    @property
    def ok(self) -> bool:
        return (
            self.copies <= MOST_COPIES
            and self.save_memory <= MOST_SAVE_MEMORY * self.weights
            and self.run_memory <= MOST_RUN_MEMORY * self.weights
            and self.error >= _LEAST_DB
            and self.same
        )


def _vit_large() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        num_labels=1000,
        attn_implementation="sdpa",
    )
    return ViTForImageClassification(config), (torch.randn(1, 3, 224, 224),)


def _beyond_2_gib() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Three linear layers with 2.4 GB of weights; the largest has 2.2 GB."""
    width = 23_500
    layers = [
        torch.nn.Linear(1000, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.Linear(width, 64),
    ]
    return torch.nn.Sequential(*layers), (torch.randn(1, 1000),)


_MAKERS: dict[str, Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]] = {
    "vit_large": _vit_large,
    "beyond_2_gib": _beyond_2_gib,
}


def _resident(field: str) -> int:
    """Returns a size in bytes of ``/proc/self/status``: ``VmRSS``, or ``VmHWM`` for the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def _seconds(body: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = body()
    return time.perf_counter() - start, found


def _write(path: Path, arrays: list[np.ndarray[Any, Any]]) -> None:
    with path.open("wb") as file:
        for array in arrays:
            file.write(memoryview(array).cast("B"))
        file.flush()
        os.fsync(file.fileno())


def _sqnr(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    noise = float(np.sum((found.astype(np.float64) - expected) ** 2))
    return 1000.0 if noise == 0 else 10 * float(np.log10(np.sum(expected.astype(np.float64) ** 2) / noise))


def measure(name: str) -> Row:
    """Measures one network in this process."""
    torch.manual_seed(0)
    with one_thread(), quiet(), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        module, args = _MAKERS[name]()
        module.eval()
        exported = torch.export.export(module, args)
        expected = module(*args)
        expected = (expected if isinstance(expected, torch.Tensor) else expected.logits).numpy()
        arrays = [each.detach().numpy() for each in (*module.parameters(), *module.buffers())]
        copies = []
        for _ in range(3):
            seconds, copied = _seconds(lambda: [array.copy() for array in arrays])
            copies.append(seconds)
            del copied
        writes = []
        for _ in range(2):
            writes.append(_seconds(lambda: _write(Path(folder) / "w.bin", arrays))[0])
        (Path(folder) / "w.bin").unlink()
        lower, lowered = _seconds(lambda: tosaic.lower(exported))
        path = Path(folder) / "m.tosa"
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size
        save, size = _seconds(lambda: lowered.save(path))
        save_memory = _resident("VmHWM") - before
        before = _resident("VmRSS")
        prepared = lowered.prepare()
        found = np.asarray(prepared.run_arrays([each.numpy() for each in args])[0])
        run_memory = _resident("VmRSS") - before
        del prepared
        load, loaded = _seconds(lambda: tosaic.load_tosa(path))
        again = np.asarray(loaded.run_arrays([each.numpy() for each in args])[0])
    return Row(
        name,
        sum(array.nbytes for array in arrays),
        size,
        median(copies),
        median(writes),
        lower,
        save,
        load,
        save_memory,
        run_memory,
        _sqnr(found, expected),
        found.tobytes() == again.tobytes(),
    )


def run(rounds: int = 3, networks: tuple[str, ...] = NETWORKS) -> Measured[Row]:
    """Measures each network in so many processes; takes the median of each number."""
    rows = []
    for name in networks:
        laps = []
        for _ in range(rounds):
            done = subprocess.run(
                [sys.executable, __file__, "--measure", name], check=True, capture_output=True, text=True
            )
            laps.append(json.loads(done.stdout.splitlines()[-1]))
        rows.append(
            Row(
                **{
                    key: value
                    if isinstance(value, str)
                    else all(lap[key] for lap in laps)
                    if isinstance(value, bool)
                    else median(lap[key] for lap in laps)
                    for key, value in laps[0].items()
                }
            )
        )
    return Measured(tuple(rows), rounds)


def section(result: Measured[Row]) -> Section:
    """Returns the section of the page."""
    megabytes = [f"{row.weights / 1e6:,.0f}" for row in result.rows]
    rows = [
        (
            row.network,
            size,
            milliseconds(row.copy),
            milliseconds(row.write),
            milliseconds(row.lower),
            milliseconds(row.save),
            milliseconds(row.load),
            f"{row.copies:.2f}",
            f"{row.save_memory / row.weights:.3f}",
            f"{row.run_memory / row.weights:.2f}",
            f"{row.error:.0f}",
            "yes" if row.same else "**no**",
        )
        for row, size in zip(result.rows, megabytes, strict=True)
    ]
    head = (
        "network",
        "weights, MB",
        "copy, ms",
        "write, ms",
        "lower, ms",
        "save, ms",
        "load, ms",
        "lower and save, copies",
        "memory of save",
        "memory of a run",
        "SQNR, dB",
        "file gives the same",
    )
    text = (
        "From an exported program to a `.tosa` file, in a process of its own for each round (rounds:\n"
        f"{result.rounds}; the table has medians). *copy* copies the weights into new memory, *write*\n"
        "writes them to a file and waits for the disk, as `save` does. Memory is resident, as a share of\n"
        "the weights: what `save` adds at its peak, and what a first run adds.\n\n"
        f"{table(head, rows)}\n\n"
        f"Lowering and saving may take {MOST_COPIES:g} copies, `save` may add {MOST_SAVE_MEMORY:g} and a\n"
        f"first run {MOST_RUN_MEMORY:g} of the weights."
    )
    return Section("large_model", "Large models", text, all(row.ok for row in result.rows))


def main() -> int:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(asdict(measure(sys.argv[2]))))
        return 0
    options = options_of(__doc__, rounds=3, names=NETWORKS)
    return section(run(options.rounds, tuple(options.networks))).publish()


if __name__ == "__main__":
    sys.exit(main())
