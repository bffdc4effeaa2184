"""A transformer of 300 million parameters, and a file beyond 2 GiB: time and memory of a lowering.

    python tests/bench/large_model.py [--rounds N]

Each round has two processes. Both export the network. Then the first one copies its weights, which is the
yardstick, and writes them to a file. The second one lowers the program, saves it, loads the file, and runs
both programs. The first operation of a process gets its memory from the system, which takes much longer than
the copying itself. So first times are compared with first times, and repeated ones with repeated ones. Memory
is the resident memory of the process (Linux only): what `save` adds at its peak, and what a first run adds
and keeps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
TIMED = ("vit_large",)
MOST_COPIES = 3.0
"""Lowering and saving one of these may take at most as long as this number of copies of its weights."""
MOST_SAVE_MEMORY = 0.1
"""What `save` may add at its peak, as a share of the weights."""
MOST_RUN_MEMORY = 1.05
"""What a first run may add for packed weights, as a share of the weights."""
_LEAST_DB = 80.0
_REPETITIONS = 3


@dataclass(frozen=True)
class Yardstick:
    """The first process of a round: seconds.

    Attributes
    ----------
    copy, copy_again : float
        Copying the weights into new memory, the first time and repeatedly.
    write : float
        Writing them to a file in the same folder as `save` does, with an `fsync`, repeatedly.
    """

    copy: float
    copy_again: float
    write: float


@dataclass(frozen=True)
class Row:
    """The second process of a round, times in seconds, sizes in bytes.

    Attributes
    ----------
    network : str
    weights, file : int
        Sizes of the weights in torch and of the ``.tosa`` file.
    lower, save, load : float
        The first time.
    lower_again, save_again : float
        Repeatedly, to a new file each time.
    save_memory, run_memory : int
        Resident memory that `save` added at its peak, and that the first run added.
    error : float
        Signal-to-noise ratio, in dB, of the outputs against torch.
    same : bool
        Whether the program of the file has the same output bytes.
    yardstick : Yardstick
    """

    network: str
    weights: int
    file: int
    lower: float
    save: float
    load: float
    lower_again: float
    save_again: float
    save_memory: int
    run_memory: int
    error: float
    same: bool
    yardstick: Yardstick

    @property
    def copies(self) -> float:
        """The time of lowering and saving, as a multiple of the time to copy the weights."""
        return (self.lower + self.save) / self.yardstick.copy

    @property
    def copies_again(self) -> float:
        """The same multiple for repeated lowering, saving and copying."""
        return (self.lower_again + self.save_again) / self.yardstick.copy_again

    @property
    def ok(self) -> bool:
        return (
            (max(self.copies, self.copies_again) <= MOST_COPIES or self.network not in TIMED)
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


@contextmanager
def _exported(name: str) -> Iterator[tuple[torch.nn.Module, tuple[torch.Tensor, ...], Any, Path]]:
    """The network, its inputs, the exported program, and a folder."""
    torch.manual_seed(0)
    with one_thread(), quiet(), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        module, args = _MAKERS[name]()
        module.eval()
        yield module, args, torch.export.export(module, args), Path(folder)


def _arrays(module: torch.nn.Module) -> list[np.ndarray[Any, Any]]:
    return [each.detach().numpy() for each in (*module.parameters(), *module.buffers())]


def measure_yardstick(name: str) -> Yardstick:
    """Copies and writes the weights of one network in this process."""
    with _exported(name) as (module, _args, _program, folder):
        arrays = _arrays(module)
        copies = []
        for _ in range(1 + _REPETITIONS):
            seconds, copied = _seconds(lambda: [array.copy() for array in arrays])
            copies.append(seconds)
            del copied
        writes = []
        for number in range(_REPETITIONS):
            path = folder / f"{number}.bin"
            writes.append(_seconds(lambda path=path: _write(path, arrays))[0])
            path.unlink()
    return Yardstick(copies[0], median(copies[1:]), median(writes))


def measure(name: str, yardstick: Yardstick) -> Row:
    """Lowers, saves, loads and runs one network in this process."""
    with _exported(name) as (module, args, program, folder):
        lower, lowered = _seconds(lambda: tosaic.lower(program))
        path = folder / "m.tosa"
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size
        save, size = _seconds(lambda lowered=lowered: lowered.save(path))
        save_memory = _resident("VmHWM") - before
        before = _resident("VmRSS")
        prepared = lowered.prepare()
        found = np.asarray(prepared.run_arrays([each.numpy() for each in args])[0])
        run_memory = _resident("VmRSS") - before
        del prepared
        load, loaded = _seconds(lambda: tosaic.load_tosa(path))
        again = np.asarray(loaded.run_arrays([each.numpy() for each in args])[0])
        expected = module(*args)
        expected = (expected if isinstance(expected, torch.Tensor) else expected.logits).numpy()
        del lowered, loaded
        path.unlink()
        lowers, saves = [], []
        for number in range(_REPETITIONS):
            path = folder / f"{number}.tosa"
            seconds, lowered = _seconds(lambda: tosaic.lower(program))
            lowers.append(seconds)
            saves.append(_seconds(lambda path=path, lowered=lowered: lowered.save(path))[0])
            del lowered
            path.unlink()
        weights = sum(array.nbytes for array in _arrays(module))
    return Row(
        name,
        weights,
        size,
        lower,
        save,
        load,
        median(lowers),
        median(saves),
        save_memory,
        run_memory,
        _sqnr(found, expected),
        found.tobytes() == again.tobytes(),
        yardstick,
    )


def _in_a_process(*args: str) -> Any:
    done = subprocess.run([sys.executable, __file__, *args], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _medians(laps: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each number, and whether each truth holds in all laps."""
    return {
        key: value
        if isinstance(value, str)
        else all(lap[key] for lap in laps)
        if isinstance(value, bool)
        else median(lap[key] for lap in laps)
        for key, value in laps[0].items()
    }


def run(rounds: int = 3, networks: tuple[str, ...] = NETWORKS) -> Measured[Row]:
    """Measures each network in `rounds` rounds, and takes the median of each number."""
    rows = []
    for name in networks:
        yardsticks, laps = [], []
        for _ in range(rounds):
            yardsticks.append(_in_a_process("--yardstick", name))
            laps.append(_in_a_process("--measure", name))
        rows.append(Row(**_medians(laps), yardstick=Yardstick(**_medians(yardsticks))))
    return Measured(tuple(rows), rounds)


def section(result: Measured[Row]) -> Section:
    """Returns the section of the page."""
    rows = [
        (
            row.network,
            f"{row.weights / 1e6:,.0f}",
            when,
            milliseconds(copy),
            milliseconds(lower),
            milliseconds(save),
            f"{copies:.2f}",
        )
        for row in result.rows
        for when, copy, lower, save, copies in (
            ("first", row.yardstick.copy, row.lower, row.save, row.copies),
            ("again", row.yardstick.copy_again, row.lower_again, row.save_again, row.copies_again),
        )
    ]
    times = table(
        ("network", "weights, MB", "time", "copy, ms", "lower, ms", "save, ms", "lower and save, copies"),
        rows,
    )
    rows = [
        (
            row.network,
            f"{row.save_memory / row.weights:.3f}",
            f"{row.run_memory / row.weights:.2f}",
            milliseconds(row.load),
            milliseconds(row.yardstick.write),
            f"{row.error:.0f}",
            "yes" if row.same else "**no**",
        )
        for row in result.rows
    ]
    others = table(
        (
            "network",
            "memory of save",
            "memory of a run",
            "load, ms",
            "write, ms",
            "SQNR, dB",
            "file gives the same",
        ),
        rows,
    )
    text = (
        "From an exported program to a `.tosa` file, in fresh processes for each round (rounds:\n"
        f"{result.rounds}; the tables have medians). One process copies the weights into new memory,\n"
        "another one lowers and saves the program. *first*: the first time in its process, when the system\n"
        "has to provide the memory; *again*: repeated in the same process.\n\n"
        f"{times}\n\n"
        "Memory is resident memory, as a share of the weights: what `save` adds at its peak and what a\n"
        "first run adds. *write* writes the weights to a file and waits for the disk, as `save` does.\n\n"
        f"{others}\n\n"
        f"Lowering and saving the transformer may take the time of {MOST_COPIES:g} copies. `save` may add\n"
        f"{MOST_SAVE_MEMORY:g} and a first run {MOST_RUN_MEMORY:g} times the memory of the weights."
    )
    return Section("large_model", "Large models", text, all(row.ok for row in result.rows))


def main() -> int:
    if sys.argv[1:2] == ["--yardstick"]:
        print(json.dumps(asdict(measure_yardstick(sys.argv[2]))))
        return 0
    if sys.argv[1:2] == ["--measure"]:
        row = asdict(measure(sys.argv[2], Yardstick(1.0, 1.0, 1.0)))
        del row["yardstick"]
        print(json.dumps(row))
        return 0
    options = options_of(__doc__, rounds=3, names=NETWORKS)
    return section(run(options.rounds, tuple(options.networks))).publish()


if __name__ == "__main__":
    sys.exit(main())
