"""Grid samplers: our kernel against torch and against our expansion, one thread.

    python tests/bench/grid_sampler.py [--rounds N]

All three run the same call in the same process, alternately, and the same run compares their outputs. The
expansion is the graph that the pass `decompose` makes of the sampler. Positions are those of a warp: a
regular grid plus noise, with some beside the image.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F
import tosaic
from bench.page import Measured, Section, in_turns, milliseconds, options_of, table
from grid_sampler.cases import MODES, PADDINGS, Sample

SIZES = ((1, 1, 128), (1, 3, 128), (2, 7, 96), (1, 32, 64))  # N, C, height and width of image and grid
LEAST_TO_TORCH, LEAST_TO_EXPANSION = 1.5, 4.0
REPEATS = 20
_MOST_ERROR = 1e-5


@dataclass(frozen=True)
class Row:
    """One mode and padding: seconds of each, summed over the sizes, and ratios as geometric means."""

    mode: str
    padding: str
    torch: float
    ours: float
    to_torch: float
    least_to_torch: float
    to_expansion: float
    error: float


class Result(Measured[Row]):
    @property
    def ok(self) -> bool:
        """True if every mode is fast enough and right."""
        return all(
            row.to_torch >= LEAST_TO_TORCH
            and row.to_expansion >= LEAST_TO_EXPANSION
            and row.error <= _MOST_ERROR
            for row in self.rows
        )


def run(rounds: int = 5) -> Result:
    torch.set_num_threads(1)
    return Result(tuple(_row(mode, padding, rounds) for mode in MODES for padding in PADDINGS), rounds)


def _inputs(n: int, c: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    identity = torch.eye(2, 3).repeat(n, 1, 1)
    grid = F.affine_grid(identity, [n, c, side, side], align_corners=False)
    noise = torch.randn(grid.shape, generator=generator) * 0.05
    return torch.randn(n, c, side, side, generator=generator), grid + noise


def _row(mode: str, padding: str, rounds: int) -> Row:
    times: list[tuple[float, float, float]] = []
    error = 0.0
    for size in SIZES:
        args = _inputs(*size)
        module = Sample((mode, padding, False))
        program = tosaic.from_exported(torch.export.export(module, args))
        expanded = tosaic.from_graph(tosaic.Pipeline.default()["decompose"].run(program.graph))
        arrays = [a.numpy() for a in args]
        prepared, of_expansion = program.prepare(), expanded.prepare()

        def eager(module: Any = module, args: Any = args) -> Any:
            with torch.inference_mode():
                return [module(*args) for _ in range(REPEATS)][-1].numpy()

        def kernel(prepared: Any = prepared, arrays: Any = arrays) -> Any:
            return [prepared.run(*arrays) for _ in range(REPEATS)][-1]

        def expansion(prepared: Any = of_expansion, arrays: Any = arrays) -> Any:
            return [prepared.run(*arrays) for _ in range(REPEATS // 4)][-1]

        (a, expected), (b, found), (c, other) = in_turns([eager, kernel, expansion], rounds)
        times.append((a / REPEATS, b / REPEATS, c / (REPEATS // 4)))
        largest = float(np.abs(arrays[0]).max())
        error = max(error, *(float(np.abs(y - expected).max()) / largest for y in (found, other)))
    to_torch = [a / b for a, b, _ in times]
    return Row(
        mode,
        padding,
        sum(t[0] for t in times),
        sum(t[1] for t in times),
        geometric_mean(to_torch),
        min(to_torch),
        geometric_mean([c / b for _, b, c in times]),
        error,
    )


def section(result: Result) -> Section:
    rows = [
        (
            f"{row.mode}, {row.padding}",
            milliseconds(row.torch),
            milliseconds(row.ours),
            f"{row.to_torch:.2f}×",
            f"{row.least_to_torch:.2f}×",
            f"{row.to_expansion:.1f}×",
            f"{row.error:.1g}",
        )
        for row in result.rows
    ]
    header = (
        "sampler",
        "torch, ms",
        "tosaic, ms",
        "faster than torch",
        "least",
        "faster than the expansion",
        "largest error",
    )
    sizes = ", ".join(f"{n}x{c}x{side}x{side}" for n, c, side in SIZES)
    text = (
        f"Samples of images of {sizes} at as many positions, in float32. All run alternately; medians of "
        f"{result.rounds} rounds of {REPEATS} calls; ratios are geometric means over the images, `least` is "
        f"that of the worst image.\n\n{table(header, rows)}\n\n"
        f"At least {LEAST_TO_TORCH} times torch's speed and {LEAST_TO_EXPANSION:g} times the expansion's "
        "are required."
    )
    return Section("grid_sampler", "Grid sampler", text, ok=result.ok)


def main() -> int:
    return section(run(options_of(__doc__, rounds=5).rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
