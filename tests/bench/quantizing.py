"""The time of `prepare_pt2e` and `convert_pt2e` with our quantizer and with ExecuTorch's TOSAQuantizer.

    python tests/bench/quantizing.py [--rounds N] [--results FOLDER] [NETWORK ...]

In each round both quantize the same network in the same process, one after the other, and the outputs of both
graphs are compared with the outputs of the float network. Calibration is not measured. The TOSAQuantizer
takes minutes for a network, so each round is stored in the folder, and an interrupted run continues.

The time in which C++ computes the plan is measured for each node of torch.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import tosaic
from bench.page import Measured, Section, table
from models.integers import signal_to_noise
from models.planning import plan_us
from models.quantize import QUANTIZERS
from models.results import ROOT, parser_of, recorded
from models.zoo import Network, build, one_thread, quiet
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

RESULTS = ROOT / "build" / "bench" / "quantizing"
LEAST_RATIO = {"deit_tiny": 10.0, "bert4": 10.0, "mobilenet_v2": 1.0, "resnet50": 1.0}
"""By network: how many times as fast as the TOSAQuantizer ours has to be."""
MOST_MICROSECONDS = 10.0
"""The largest allowed time of computing the plan for a node."""
_LESS_EXACT_DB = 1.0  # the graph of our quantizer may be further from the float network by this
_CALIBRATION, _FIRST_UNSEEN, _SAMPLES = 4, 100, 8
_WARM_UP = "ds_cnn_small"


@dataclass(frozen=True)
class Round:
    """Seconds and ratios to the float network in dB of one round, and microseconds of the plan for a node."""

    prepare: float
    convert: float
    their_prepare: float
    their_convert: float
    db: float
    their_db: float
    plan_us: float

    @property
    def ratio(self) -> float:
        """The time of the TOSAQuantizer over ours."""
        return (self.their_prepare + self.their_convert) / (self.prepare + self.convert)


@dataclass(frozen=True)
class Row:
    """The rounds of one network."""

    network: str
    nodes: int
    rounds: tuple[Round, ...]

    def median(self, field: str) -> float:
        """Returns the median of one attribute of the rounds."""
        return median(getattr(each, field) for each in self.rounds)

    @property
    def ok(self) -> bool:
        """True if ours is fast enough, and its graph is not further from the float network."""
        return (
            self.median("ratio") >= LEAST_RATIO[self.network]
            and self.median("plan_us") <= MOST_MICROSECONDS
            and self.median("db") >= self.median("their_db") - _LESS_EXACT_DB
        )


class Result(Measured[Row]):
    @property
    def ok(self) -> bool:
        """True if every network is ok."""
        return all(row.ok for row in self.rows)


def run(rounds: int = 3, networks: Sequence[str] = tuple(LEAST_RATIO), results: Path = RESULTS) -> Result:
    """Measures the rounds that are not stored in the folder."""
    rows = []
    for name in networks:
        network, found = build(name), []
        with one_thread(), quiet(), torch.no_grad():
            nodes = len(_exported(network).graph.nodes)
            for i in range(rounds):
                known = recorded(results, f"{name}.{i}", lambda network=network: _round(network))
                found.append(Round(**known))
                print(name, i, found[-1], flush=True)
        rows.append(Row(name, nodes, tuple(found)))
    return Result(tuple(rows), rounds)


def _round(network: Network) -> Round:
    warm = build(_WARM_UP)
    makers: tuple[Callable[[], Any], ...] = (tosaic.Quantizer, QUANTIZERS["arm"])
    for make in makers:
        _quantized(warm, make)
    samples = [network.sample(_FIRST_UNSEEN + i) for i in range(_SAMPLES)]
    expected = [network.module(*sample).numpy() for sample in samples]
    ours, theirs = (_quantized(network, make) for make in makers)
    ratios = (
        signal_to_noise(expected, [graph(*sample).numpy() for sample in samples])
        for graph in (ours[0], theirs[0])
    )
    return Round(*ours[1:], *theirs[1:], *ratios, plan_us(network))


def _exported(network: Network) -> Any:
    return torch.export.export(network.module.eval(), network.sample()).module(check_guards=False)


def _quantized(network: Network, make: Callable[[], Any]) -> tuple[Any, float, float]:
    """Returns the converted graph, and the seconds of preparing and of converting."""
    model = _exported(network)
    gc.collect()
    start = time.perf_counter()
    prepared = prepare_pt2e(model, make())
    prepare = time.perf_counter() - start
    for i in range(_CALIBRATION):
        prepared(*network.sample(i))
    gc.collect()
    start = time.perf_counter()
    converted = convert_pt2e(prepared)
    return converted, prepare, time.perf_counter() - start


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    lines = [
        (
            row.network,
            str(row.nodes),
            f"{row.median('prepare'):.2f}",
            f"{row.median('convert'):.2f}",
            f"{row.median('their_prepare'):.2f}",
            f"{row.median('their_convert'):.2f}",
            f"{row.median('ratio'):.1f}×",
            f"{LEAST_RATIO[row.network]:.0f}×",
            f"{row.median('db'):.1f}",
            f"{row.median('their_db'):.1f}",
            f"{row.median('plan_us'):.1f}",
        )
        for row in result.rows
    ]
    header = (
        "network", "FX nodes", "prepare, s", "convert, s", "TOSAQuantizer: prepare, s", "convert, s", "ratio",
        "at least", "dB", "TOSAQuantizer: dB", "plan, µs per node",
    )  # fmt: skip
    text = (
        "`prepare_pt2e` and `convert_pt2e` with `tosaic.Quantizer()` and with ExecuTorch's TOSAQuantizer,\n"
        f"one after the other in each round; medians of {result.rounds} rounds. Both calibrate on "
        f"{_CALIBRATION} inputs, which is\nnot measured. *dB* is the signal-to-noise ratio of the converted "
        f"graph against the float network, on {_SAMPLES} inputs\nthat no quantizer has seen; ours may be "
        f"{_LESS_EXACT_DB:.0f} dB less. *plan* is the time in\nwhich C++ computes the specs: at most "
        f"{MOST_MICROSECONDS:.0f} µs.\n\n{table(header, lines)}"
    )
    return Section("quantizing", "Quantizing", text, ok=result.ok)


def main() -> int:
    parser = parser_of(__doc__, RESULTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("networks", nargs="*", default=list(LEAST_RATIO))
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    return section(run(options.rounds, options.networks, options.results)).publish()


if __name__ == "__main__":
    sys.exit(main())
