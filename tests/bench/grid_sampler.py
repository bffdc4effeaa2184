"""Grid samplers: our kernels against torch and against our expansions, one thread.

    python tests/bench/grid_sampler.py [--rounds N]

All run the same call in the same process, alternately, and the same run compares their outputs. An expansion
is the graph that the pass `decompose` makes of the sampler. Samplers over integers have images of int8 and
grids of int16. Positions are a warp: a regular grid plus noise, with some outside of the image. Ours
run by `Prepared.run_arrays`, which like torch's operator takes the tensors of the call as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
from grid_sampler.cases import GRID16, MODES, PADDINGS, SNORM, Combination, IntegerCall, Quantized, Sample
from grid_sampler.test_integers import integer_graph

# N, C and the sides of image and grid.
IMAGES = ((1, 1, 128, 128), (1, 3, 128, 128), (2, 7, 96, 96), (1, 32, 64, 64))
VOLUMES = ((1, 1, 24, 24, 24), (2, 3, 16, 24, 16), (1, 16, 16, 16, 16))
LEAST_TO_TORCH, LEAST_TO_EXPANSION = 1.5, 4.0
REPEATS = 20
_MOST_ERROR = 1e-5


@dataclass(frozen=True)
class Row:
    """One sampler: seconds of each, summed over the sizes, and ratios as geometric means."""

    name: str
    torch: float
    ours: float
    to_torch: float
    least_to_torch: float
    to_expansion: float
    integers_to_expansion: float | None  # None for volumes, which have no integer form
    error: float


class Result(Measured[Row]):
    @property
    def ok(self) -> bool:
        """True if every mode is fast enough and right."""
        return all(
            row.to_torch >= LEAST_TO_TORCH
            and row.to_expansion >= LEAST_TO_EXPANSION
            and (row.integers_to_expansion is None or row.integers_to_expansion >= LEAST_TO_EXPANSION)
            and row.error <= _MOST_ERROR
            for row in self.rows
        )


def run(rounds: int = 5) -> Result:
    torch.set_num_threads(1)
    images = [_row((mode, padding, False), IMAGES, rounds) for mode in MODES for padding in PADDINGS]
    volumes = [
        _row((mode, padding, False), VOLUMES, rounds)
        for mode in MODES
        if mode != "bicubic"
        for padding in PADDINGS
    ]
    return Result((*images, *volumes), rounds)


def _inputs(size: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    spatial = len(size) - 2
    identity = torch.eye(spatial, spatial + 1).repeat(size[0], 1, 1)
    grid = F.affine_grid(identity, list(size), align_corners=False)
    noise = torch.randn(grid.shape, generator=generator) * 0.05
    return torch.randn(*size, generator=generator), grid + noise


def _expanded(graph: Any) -> Any:
    return tosaic.program.from_graph(tosaic.Pipeline.default()["decompose"].run(graph)).prepare()


def _calls(prepared: Any, args: Sequence[Any], repeats: int) -> Callable[[], Any]:
    return _repeated(lambda: prepared.run_arrays(args)[0], repeats)


def _repeated(call: Callable[[], Any], repeats: int) -> Callable[[], Any]:
    """Calls `repeats` times and returns the last result. A call may reuse the memory of earlier results."""

    def calls() -> Any:
        for _ in range(repeats):
            found = call()
        return found

    return calls


def _row(combination: Combination, sizes: Sequence[Sequence[int]], rounds: int) -> Row:
    times: list[tuple[float, float, float]] = []
    of_integers: list[float] = []
    error = 0.0
    for size in sizes:
        args = _inputs(size)
        module = Sample(combination)
        program = tosaic.from_exported(torch.export.export(module, args))
        arrays = [a.numpy() for a in args]

        def eager(module: Any = module, args: Any = args) -> Any:
            with torch.inference_mode():
                return module(*args).numpy()

        kernel = _calls(program.prepare(), arrays, REPEATS)
        expansion = _calls(_expanded(program.graph), arrays, REPEATS // 4)
        (a, expected), (b, found), (c, other) = in_turns(
            [_repeated(eager, REPEATS), kernel, expansion], rounds
        )
        times.append((a / REPEATS, b / REPEATS, c / (REPEATS // 4)))
        largest = float(np.abs(arrays[0]).max())
        error = max(error, *(float(np.abs(y - expected).max()) / largest for y in (found, other)))
        if len(size) == 4:
            of_integers.append(_integers(combination, arrays, rounds))
    to_torch = [a / b for a, b, _ in times]
    kind = "volumes, " if len(sizes[0]) == 5 else ""
    return Row(
        f"{kind}{combination[0]}, {combination[1]}",
        sum(t[0] for t in times),
        sum(t[1] for t in times),
        geometric_mean(to_torch),
        min(to_torch),
        geometric_mean([c / b for _, b, c in times]),
        geometric_mean(of_integers) if of_integers else None,
        error,
    )


def _integers(combination: Combination, arrays: Sequence[Any], rounds: int) -> float:
    """Returns the time of the expansion over that of the kernel, whose integers are equal."""
    args = _quantized(SNORM, arrays[0] / 4), _quantized(GRID16, arrays[1])
    graph = integer_graph(IntegerCall(combination, SNORM, GRID16, SNORM, args))
    kernel = _calls(tosaic.program.from_graph(graph).prepare(), args, REPEATS // 2)
    expansion = _calls(_expanded(graph), args, REPEATS // 4)
    (a, found), (b, expected) = in_turns([kernel, expansion], rounds)
    np.testing.assert_array_equal(found, expected)
    return 2 * b / a


def _quantized(like: Quantized, numbers: Any) -> Any:
    return np.clip(np.round(numbers / like.scale), like.low, like.high).astype(like.dtype)


def section(result: Result) -> Section:
    rows = [
        (
            row.name,
            milliseconds(row.torch),
            milliseconds(row.ours),
            f"{row.to_torch:.2f}×",
            f"{row.least_to_torch:.2f}×",
            f"{row.to_expansion:.1f}×",
            "" if row.integers_to_expansion is None else f"{row.integers_to_expansion:.1f}×",
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
        "integers",
        "largest error",
    )
    images, volumes = (", ".join("x".join(map(str, size)) for size in sizes) for sizes in (IMAGES, VOLUMES))
    text = (
        f"Samples of images of {images} and of volumes of {volumes} at as many positions, in float32. All "
        f"run alternately; medians of {result.rounds} rounds of {REPEATS} calls; ratios are geometric means "
        "over the images, `least` is that of the worst image. `integers` compares the kernel of an image of "
        f"int8 and a grid of int16 with its expansion.\n\n{table(header, rows)}\n\n"
        f"At least {LEAST_TO_TORCH} times torch's speed and {LEAST_TO_EXPANSION:g} times the expansion's "
        "are required."
    )
    return Section("grid_sampler", "Grid sampler", text, ok=result.ok)


def main() -> int:
    return section(run(options_of(__doc__, rounds=5).rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
