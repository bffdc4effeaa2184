"""The forms of contractions: networks with and without each row of the table. One thread, CPU time.

    python tests/bench/forms.py [--rounds N] [NETWORK ...]

The rows are those of `cpp/tosaic/kernels/gemm/forms.def` whose instruction set this machine runs. A network
runs with the row and without it, in turns, in one process. Without it, the next row that fits is used.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.page import Measured, Section, options_of
from markdown_table import markdown_table
from models.results import cpu_name
from models.zoo import build, quiet
from tosaic import _core

NETWORKS = ("mobilenet_v2", "resnet18", "resnet50", "deit_tiny")
LEAST = 5.0
"""What a row has to save of the time of one of the networks, in percent."""
_CALIBRATION_SAMPLES = 4
_SECONDS = 0.03  # for all runs of a session in a round
_DTYPES = {"Pairs": "int8", "Quads": "int8", "CappedQuads": "int8", "WidePairs": "int16", "F32": "float32"}
_CONFIGS = {"int8": tosaic.QConfig.int8, "int16": tosaic.QConfig.int16x8}


@dataclass(frozen=True)
class Row:
    """A row of the table, and what it saves of the time of each network, in percent."""

    form: dict[str, Any]
    saved: dict[str, float]
    same: bool  # outputs of integers, and of lines, have the same bytes

    @property
    def ok(self) -> bool:
        """True if it saves enough, where the table says so for a processor of this kind."""
        processor = self.form["measured"].partition(", ")[2].split(" ")[0]
        claims = self.form["saves"] > 0 and processor in cpu_name()
        return self.same and (not claims or max(self.saved.values()) >= LEAST)


def run(rounds: int = 9, networks: Sequence[str] = NETWORKS) -> Measured[Row]:
    """Measures the rows of this machine."""
    torch.set_num_threads(1)
    return Measured(
        tuple(
            _row(form, [name for name in networks if name in NETWORKS], rounds)
            for form in _core.contraction_forms()
            if form["isa"] in _core.usable_isas()
            and form["form"] in _DTYPES
            and form["name"] != "any.F32.baseline"  # without it, f32 would be computed in f64
        ),
        rounds,
    )


@cache
def _program(name: str, dtype: str) -> tuple[_core.Graph, list[Any]]:
    network = build(name)
    with quiet(), torch.no_grad():
        if dtype == "float32":
            lowered = tosaic.lower(network.export())
            return lowered.graph, list(lowered.arrays(*network.sample()))
        samples = [network.sample(i) for i in range(_CALIBRATION_SAMPLES)]
        quantized = tosaic.quantize(network.export(), samples, config=_CONFIGS[dtype]())
        lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+int16", io={"inputs": dtype, "outputs": dtype})
    limits = np.iinfo(dtype)
    image = np.random.default_rng(0).integers(
        limits.min, limits.max + 1, lowered.inputs[0].shape, dtype=dtype
    )
    return lowered.graph, lowered.graph_arrays([image])


def _row(form: dict[str, Any], networks: Sequence[str], rounds: int) -> Row:
    saved, same = {}, True
    # A row for lines has no loops of its own.
    isa = _core.usable_isas()[-1] if form["kind"] == "lines" else form["isa"]
    for name in networks:
        graph, inputs = _program(name, _DTYPES[form["form"]])
        sessions = [_core.Session(graph, isa=isa, left_out=names) for names in ((), (form["name"],))]
        outputs = [np.asarray(session.run(inputs)[0]) for session in sessions]
        is_exact = form["form"] != "F32" or form["kind"] == "lines"
        same = same and (not is_exact or outputs[0].tobytes() == outputs[1].tobytes())
        bodies = [partial(session.run, inputs) for session in sessions]
        saved[name] = 100 * (1 - _ratio(bodies, rounds))
    return Row(form, saved, same)


def _ratio(bodies: Sequence[Callable[[], Any]], rounds: int) -> float:
    """Returns the median ratio of the CPU times of two bodies, which run in turns."""
    repeats = max(1, int(_SECONDS / max(_cpu(bodies[0], 1), 1e-4)))
    ratios = []
    for i in range(rounds):
        order = (0, 1) if i % 2 == 0 else (1, 0)
        seconds = {which: _cpu(bodies[which], repeats) for which in order}
        ratios.append(seconds[0] / seconds[1])
    return median(ratios)


def _cpu(body: Callable[[], Any], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        body()
    return time.process_time() - start


def section(result: Measured[Row]) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    names = list(result.rows[0].saved) if result.rows else []
    rows = [
        (
            f"`{row.form['name']}`",
            f"`{row.form['rule']}`",
            _DTYPES[row.form["form"]],
            *(f"{row.saved[name]:.0f}%" for name in names),
            "yes" if row.same else "no",
            f"{row.form['saves']}%, {row.form['measured']}" if row.form["saves"] else row.form["measured"],
        )
        for row in result.rows
    ]
    others = [
        f"`{form['name']}` ({form['measured']})"
        for form in _core.contraction_forms()
        if form["name"] not in {row.form["name"] for row in result.rows}
    ]
    text = (
        "What each row of `cpp/tosaic/kernels/gemm/forms.def` saves of the CPU time of a network, which\n"
        "runs with and without the row in turns; without it, the next row that fits is used. Medians of\n"
        f"the ratios of {result.rounds} rounds. *The table says*: what the row saves where it was measured,\n"
        "or why the row stays.\n\n"
        + markdown_table(("row", "rule", "dtype", *names, "same bytes", "the table says"), rows, texts=3)
        + f"\n\nNot measured here: {'; '.join(others)}.\n\n"
        f"A row has to save {LEAST:.0f}% of the time of one network at least, unless it stays for the\n"
        "reason that the table gives."
    )
    return Section("forms", "Forms of contractions", text, ok=all(row.ok for row in result.rows))


def main() -> int:
    options = options_of(__doc__, rounds=9, names=NETWORKS)
    return section(run(options.rounds, options.networks)).publish()


if __name__ == "__main__":
    sys.exit(main())
