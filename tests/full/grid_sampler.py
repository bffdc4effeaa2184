"""Grid samplers, 18 combinations x {float, int8 image with int16 grid, with int8 grid} x drawn shapes.

Volumes in floats are a fourth kind, without bicubic samples.

    python tests/full/grid_sampler.py [--calls N] [--seed S]

Floats are compared with torch, NaN and infinite positions included. Integers are compared with the exact
result, which float64 computes from the numbers that the integers mean: at most one unit apart. The kernel,
the lowered program and the TOSA reference model have to compute identical integers.

Writes docs/measured/grid_sampler_errors.md with the date. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F
from grid_sampler.cases import COMBINATIONS, VOLUMES, Combination, draw_floats, draw_integers, draw_shapes
from grid_sampler.exact import distance
from grid_sampler.test_floats import RELATIVE
from grid_sampler.test_floats import exported as exported_floats
from grid_sampler.test_integers import by_kernel, lowered
from markdown_page import write_markdown
from markdown_table import markdown_table
from models.results import ROOT
from tosaic.lowering.reference_model import run_reference_model

PAGE = ROOT / "docs" / "measured" / "grid_sampler_errors.md"
KINDS = ("float", "int8, int16 grid", "int8, int8 grid", "volumes")


@dataclass
class Found:
    """What the calls of one combination and kind had."""

    calls: int = 0
    elements: int = 0
    worst: float = 0.0
    failures: list[str] = field(default_factory=list)


def check_floats(
    combination: Combination, rng: np.random.Generator, found: Found, number: int, *, spatial: int
) -> None:
    shapes = draw_shapes(rng, most=24 if spatial == 2 else 9, spatial=spatial)
    args = draw_floats(rng, shapes, odd=number % 3 == 0)
    got = exported_floats(combination, args).run(*args)
    expected = F.grid_sample(*(torch.from_numpy(a) for a in args), *combination).numpy()
    known = ~np.isnan(expected)
    error = float(np.abs(got[known] - expected[known]).max(initial=0) / np.abs(args[0]).max())
    _count(found, got.size, error)
    if not np.array_equal(np.isnan(got), ~known) or error > RELATIVE:
        found.failures.append(f"call {number}: error {error:.2g}, shapes {args[0].shape} and {args[1].shape}")


def check_integers(
    combination: Combination, grid: str, rng: np.random.Generator, found: Found, number: int
) -> None:
    call = draw_integers(rng, combination, "int8", grid, most=24)
    got = by_kernel(call)
    apart = float(distance(call, got).max())
    _count(found, got.size, apart)
    made = lowered(call, "TOSA-1.0+INT")
    if apart > 1:
        found.failures.append(
            f"call {number}: {apart:.3f} units apart, {call.image}, {call.grid}, {call.result}"
        )
    if not np.array_equal(made.run(*call.args), got):
        found.failures.append(f"call {number}: the lowered program has other integers than the kernel")
    on_model = run_reference_model(made, *call.args)
    if not on_model.ok or not np.array_equal(on_model.outputs, got):
        found.failures.append(f"call {number}: the reference model has other integers ({on_model.status})")


def _count(found: Found, elements: int, error: float) -> None:
    found.calls += 1
    found.elements += elements
    found.worst = max(found.worst, error)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=20, help="of each combination and kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows, totals = [], Counter[str]()
    for combination in COMBINATIONS:
        cells = [f"{combination[0]}, {combination[1]}, {combination[2]}"]
        for kind in KINDS:
            if kind == "volumes" and combination not in VOLUMES:
                cells.append("")
                continue
            rng = np.random.default_rng([options.seed, COMBINATIONS.index(combination), KINDS.index(kind)])
            found = Found()
            for number in range(options.calls):
                if kind in ("float", "volumes"):
                    check_floats(combination, rng, found, number, spatial=2 if kind == "float" else 3)
                else:
                    check_integers(combination, kind.split()[1], rng, found, number)
            for failure in found.failures:
                print(f"{combination} {kind}: {failure}", flush=True)
            totals["calls"] += found.calls
            totals["elements"] += found.elements
            totals["failures"] += len(found.failures)
            cells.append(f"{found.worst:.1g}" if kind in ("float", "volumes") else f"{found.worst:.4f}")
        rows.append(tuple(cells))
        print(*cells, flush=True)
    header = ("mode, padding, align_corners", *(f"{kind}" for kind in KINDS))
    write_markdown(
        PAGE,
        "# Grid samplers against torch and exact results\n\n"
        f"`tests/full/grid_sampler.py --calls {options.calls} --seed {options.seed}`, "
        f"{date.today().isoformat()}: {totals['calls']:,} calls, {totals['elements']:,} elements, "
        f"{totals['failures']} failures. Floats and volumes: the largest difference from torch, as a "
        "share of the largest pixel. Integers: the largest distance from the exact result, in units; the "
        "lowered program and the TOSA reference model have identical integers.\n\n"
        f"{markdown_table(header, rows, texts=1)}\n",
    )
    return 1 if totals["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
