"""Our histogram observer against torchao's: the time to observe activations, and the error of the scales.

    python tests/bench/observers.py [--rounds N]

Both observe the same tensors in the same process, alternately: three tensors of each size and distribution,
as if they were activations of three samples. The scales that follow quantize these tensors, and the mean
squared error of ours may not be larger.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
import tosaic
from bench.page import Measured, Section, in_turns, milliseconds, options_of, table
from torchao.quantization.pt2e.observer import HistogramObserver
from tosaic.fx.quantizer.observers import TosaicHistogramObserver

LEAST_RATIO = 5.0
"""How many times as fast as torchao's observer ours has to be."""
SIZES = (100_000, 1_000_000, 10_000_000)
_TENSORS = 3
_CHANCE = 1e-4  # two errors may differ by this: histograms do not record where in a bin a sample is

DISTRIBUTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda x: x,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "normal³": lambda x: x**3,
}


@dataclass(frozen=True)
class Row:
    """One size and distribution: median seconds of observing a tensor and of choosing a scale; errors."""

    distribution: str
    size: int
    ours: float
    theirs: float
    our_choice: float
    their_choice: float
    our_error: float
    their_error: float

    @property
    def ratio(self) -> float:
        """The time in which torchao observes a tensor over ours."""
        return self.theirs / self.ours


class Result(Measured[Row]):
    @property
    def ok(self) -> bool:
        """True if observing is fast enough and no error is larger than torchao's."""
        return all(
            row.ratio >= LEAST_RATIO and row.our_error <= row.their_error * (1 + _CHANCE) for row in self.rows
        )


def run(rounds: int = 3) -> Result:
    """Measures all sizes and distributions."""
    torch.set_num_threads(1)
    return Result(tuple(_row(name, size, rounds) for name in DISTRIBUTIONS for size in SIZES), rounds)


def _row(name: str, size: int, rounds: int) -> Row:
    generator = torch.Generator().manual_seed(size)
    tensors = [DISTRIBUTIONS[name](torch.randn(size, generator=generator)) for _ in range(_TENSORS)]
    repeats = max(1, 1_000_000 // size)

    def observing(observer: Any) -> Callable[[], None]:
        def body() -> None:
            for _ in range(repeats):
                for tensor in tensors:
                    observer(tensor)

        return body

    observers = [kind(dtype=torch.int8) for kind in (TosaicHistogramObserver, HistogramObserver)]
    (ours, _), (theirs, _) = in_turns([observing(each) for each in observers], rounds)
    (our_choice, _), (their_choice, _) = in_turns([lambda o=each: _choice(o) for each in observers], rounds)
    errors = [_error(each, tensors) for each in observers]
    calls = repeats * _TENSORS
    return Row(name, size, ours / calls, theirs / calls, our_choice, their_choice, *errors)


def _choice(observer: Any) -> Any:
    if isinstance(observer, TosaicHistogramObserver):
        observer.merge(TosaicHistogramObserver(dtype=torch.int8))  # nothing, but the choice is made again
    return observer.calculate_qparams()


def _error(observer: Any, tensors: list[torch.Tensor]) -> float:
    scale, zero_point = (each.item() for each in observer.calculate_qparams())
    decomposed = torch.ops.quantized_decomposed
    total = 0.0
    for tensor in tensors:
        integers = decomposed.quantize_per_tensor(tensor, scale, zero_point, -128, 127, torch.int8)
        found = decomposed.dequantize_per_tensor(integers, scale, zero_point, -128, 127, torch.int8)
        total += float((found - tensor).double().square().mean())
    return total / len(tensors)


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    rows = [
        (
            row.distribution,
            f"{row.size:,}",
            milliseconds(row.ours),
            milliseconds(row.theirs),
            f"{row.ratio:.1f}×",
            milliseconds(row.our_choice),
            milliseconds(row.their_choice),
            f"{row.our_error:.4g}",
            f"{row.their_error:.4g}",
        )
        for row in result.rows
    ]
    header = (
        "activations",
        "floats",
        "tosaic, ms",
        "torchao, ms",
        "ratio",
        "choice by tosaic, ms",
        "by torchao, ms",
        "squared error, tosaic",
        "torchao",
    )
    worst = min(row.ratio for row in result.rows)
    text = (
        "Observing one tensor with `TosaicHistogramObserver` and with torchao's `HistogramObserver`,\n"
        "choosing an int8 scale and zero point, and the mean squared error of quantizing the tensors with\n"
        f"them. Both run alternately; medians of {result.rounds} rounds. "
        f"The core uses `{tosaic._core.usable_isas()[-1]}`.\n\n"
        f"{table(header, rows)}\n\n"
        f"At worst our observer is {worst:.1f} times as fast. It has to be at least {LEAST_RATIO:.0f} times\n"
        f"as fast, and its error may not be larger by more than {_CHANCE:.2%}."
    )
    return Section("observers", "Observers", text, ok=result.ok)


def main() -> int:
    return section(run(options_of(__doc__, rounds=3).rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
