"""The time of `TosaicPartitioner` and its `preprocess` in ExecuTorch's lowering, against Arm's TOSA backend.

    python tests/bench/executorch_backend.py [--rounds N] [NETWORK ...]

The networks are quantized by Arm's quantizer. In each round, both backends lower the same programs in the
same process, one after the other: the program of Arm's delegate (`preprocess` alone), and the whole program
(`to_edge_transform_and_lower`). The payloads of the first are run on the same input and compared.
ExecuTorch's own time is what is left of the second without the methods of the partitioner and without
`preprocess`. Takes a quarter of an hour, almost all of it in Arm's backend.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from bench.page import Measured, Section, milliseconds, options_of, table, timed
from executorch.backends.arm.tosa.backend import TOSABackend
from executorch.exir.backend.partitioner import Partitioner
from models.delegates import run_file
from models.quantize import converted
from models.tosaic_delegates import lower, modules_of
from models.wrapped import PARTITIONERS
from models.zoo import build, one_thread, quiet
from tosaic.executorch import TosaicPartitioner
from tosaic.executorch.delegates.backends import backend_named

NETWORKS = ("ds_cnn", "mobilenet_v2", "resnet18")
TARGET = "TOSA-1.0+INT"
LEAST_RATIO = 100.0
"""How many times as fast as Arm's `preprocess` ours has to be."""
MOST_STEPS = 2
"""By how many integers an element of the two payloads' outputs may differ: the backends round differently."""
_CALIBRATION, _UNSEEN = 2, 100


@dataclass(frozen=True)
class Row:
    """Median seconds of both backends on one network.

    Attributes
    ----------
    network : str
    calls : int
        Calls of the delegate's program.
    preprocess, arms_preprocess : float
    whole, arms_whole : float
        The time of the whole `to_edge_transform_and_lower`.
    own, arms_own : float
        The part of the partitioner and of `preprocess`.
    steps : int
        The greatest difference of the outputs of the two payloads.
    """

    network: str
    calls: int
    preprocess: float
    arms_preprocess: float
    whole: float
    arms_whole: float
    own: float
    arms_own: float
    steps: int

    @property
    def ratio(self) -> float:
        return self.arms_preprocess / self.preprocess

    @property
    def ok(self) -> bool:
        """True if ours is fast enough, and both payloads compute the same."""
        return self.ratio >= LEAST_RATIO and self.steps <= MOST_STEPS


class Timed(Partitioner):
    """A partitioner that adds up the seconds of its methods."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.seconds = 0.0
        self._inner = inner

    def _call(self, method: str, program: Any) -> Any:
        start = time.perf_counter()
        found = getattr(self._inner, method)(program)
        self.seconds += time.perf_counter() - start
        return found

    def partition(self, exported_program: Any) -> Any:
        return self._call("partition", exported_program)

    def ops_to_not_decompose(self, ep: Any) -> Any:
        return self._call("ops_to_not_decompose", ep)

    def transform_for_pre_decomposition(self, exported_program: Any) -> Any:
        return self._call("transform_for_pre_decomposition", exported_program)


@contextmanager
def _preprocess_timed(backend: Any) -> Iterator[list[float]]:
    """Collects the seconds of each call of a backend's `preprocess`."""
    laps: list[float] = []
    preprocess = backend.preprocess

    def preprocess_timed(program: Any, specs: Any) -> Any:
        seconds, found = timed(lambda: preprocess(program, specs))
        laps.append(seconds)
        return found

    backend.preprocess = staticmethod(preprocess_timed)
    try:
        yield laps
    finally:
        backend.preprocess = staticmethod(preprocess)


def _whole(program: Any, make: Callable[[], Any], backend: Any) -> tuple[float, float]:
    """Returns the seconds of a whole lowering, and the part of the partitioner and of `preprocess`."""
    partitioner = Timed(make())
    with _preprocess_timed(backend) as laps:
        seconds, _ = timed(lambda: lower(program, [partitioner]))
    return seconds, partitioner.seconds + sum(laps)


def _row(name: str, rounds: int) -> Row:
    network = build(name)
    with one_thread(), quiet(), torch.no_grad():
        samples = [network.sample(i) for i in range(_CALIBRATION)]
        program = converted(network.module, samples, "arm")
        (arms,) = modules_of(lower(program, [PARTITIONERS["tosa-int"]()]))
        delegate = arms.original_module
        specs = TosaicPartitioner(TARGET).delegation_spec.compile_specs
        laps: list[tuple[float, ...]] = []
        for number in range(rounds + 1):  # the first is a warm-up
            given = copy.deepcopy(delegate)  # Arm's backend changes the program
            ours, made = timed(lambda: backend_named("TosaicTosaBackend").preprocess(delegate, specs))
            theirs, arms_made = timed(lambda g=given: TOSABackend.preprocess(g, arms.compile_specs))
            if number:
                whole = _whole(program, lambda: TosaicPartitioner(TARGET), backend_named("TosaicTosaBackend"))
                arms_whole = _whole(program, PARTITIONERS["tosa-int"], TOSABackend)
                laps.append((ours, theirs, whole[0], arms_whole[0], whole[1], arms_whole[1]))
        steps = _steps(bytes(made.processed_bytes), bytes(arms_made.processed_bytes), delegate)
    calls = sum(node.op == "call_function" for node in delegate.graph.nodes)
    return Row(name, calls, *map(median, zip(*laps, strict=True)), steps)


def _steps(ours: bytes, theirs: bytes, delegate: Any) -> int:
    """Returns the greatest difference of the outputs of two payloads of a delegate."""
    nodes = {node.name: node for node in delegate.graph.nodes}
    generator = torch.Generator().manual_seed(_UNSEEN)
    tensors = []
    for name in delegate.graph_signature.user_inputs:
        value = nodes[name].meta["val"]
        order = tuple(value.dim_order())
        shape = [value.shape[axis] for axis in order]
        tensors.append(torch.randint(-128, 128, shape, dtype=value.dtype, generator=generator))
    found = [run_file(file, tensors) for file in (ours, theirs)]
    pairs = zip(*found, strict=True)
    return max(int(np.abs(a.astype(np.int64) - b.astype(np.int64)).max()) for a, b in pairs)


def run(rounds: int = 3, names: tuple[str, ...] = NETWORKS) -> Measured[Row]:
    """Measures all networks."""
    return Measured(tuple(_row(name, rounds) for name in names), rounds)


def section(result: Measured[Row]) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    header = (
        *("network", "calls", "preprocess, ms", "Arm's, ms", "ratio", "steps"),
        *("whole, s", "Arm's, s", "ratio", "ours in whole", "Arm's in whole"),
    )
    rows = [
        (
            row.network,
            f"{row.calls:,}",
            milliseconds(row.preprocess),
            milliseconds(row.arms_preprocess),
            f"{row.ratio:,.0f}",
            str(row.steps),
            f"{row.whole:.1f}",
            f"{row.arms_whole:.1f}",
            f"{row.arms_whole / row.whole:.1f}",
            f"{row.own:.2f} s, {row.own / row.whole:.0%}",
            f"{row.arms_own:.2f} s, {row.arms_own / row.arms_whole:.0%}",
        )
        for row in result.rows
    ]
    text = (
        "Lowering inside of ExecuTorch: `TosaicPartitioner` against Arm's `TOSAPartitioner`, int8 programs\n"
        f"of Arm's quantizer, target {TARGET}; medians of {result.rounds} rounds. *preprocess*: the program\n"
        "of Arm's delegate becomes a `.tosa` file. *steps*: the greatest difference of the integers that\n"
        "the two files compute from the same input. *whole*: `to_edge_transform_and_lower`. *in whole*: the\n"
        "part of the partitioner and of `preprocess`; the rest is ExecuTorch's own time.\n\n"
        f"{table(header, rows)}\n\n"
        f"`preprocess` has to be at least {LEAST_RATIO:g} times as fast, and at most {MOST_STEPS} steps off."
    )
    return Section(
        "executorch_backend", "Lowering inside of ExecuTorch", text, all(row.ok for row in result.rows)
    )


def main() -> int:
    options = options_of(__doc__, rounds=3, names=NETWORKS)
    return section(run(options.rounds, tuple(options.networks))).publish()


if __name__ == "__main__":
    sys.exit(main())
