"""The time of calibration against plain runs, and of `tosaic.quantize` against torchao and the TOSAQuantizer.

    python tests/bench/calibrating.py [--rounds N] [--results FOLDER] [NETWORK ...]

Calibration: the samples run through the prepared program without observers, with ranges of all samples
(min/max), with histograms, and with the further ranges from which `tosaic.quantize` learns which numbers
matter to the readers of a tensor, in turns of 16 samples. Statistics are merged once, after the last sample,
as `tosaic.quantize` does. Times are CPU times, on one thread.

Quantizing: in each round, both quantize the same exported program on the same samples, one after the other,
and the outputs of both are compared with the outputs of the float network. Times are CPU times, on one
thread. Rounds are stored in the folder, and an interrupted run continues.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import tosaic
from bench.page import Section, milliseconds, table
from models.integers import signal_to_noise
from models.quantize import QUANTIZERS
from models.results import ROOT, parser_of, recorded
from models.zoo import NETWORKS, Network, build, one_thread, quiet
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic import _core
from tosaic.calibration.narrow import joined_values
from tosaic.calibration.observations import observations
from tosaic.calibration.plan_program import plan_program, prepared_graph
from tosaic.calibration.relevant import unobserved_values
from tosaic.calibration.table import job_of

RESULTS = ROOT / "build" / "bench" / "calibrating"
MOST = {"min/max": 1.10, "histogram": 1.50, "as quantize": 1.20}
"""By statistic: how many times as long as a plain run calibration may take."""
LEAST_RATIO = {"mobilenet_v2": 10.0, "resnet18": 10.0, "deit_tiny": 50.0, "bert4": 50.0}
"""By network: how many times as fast as torchao with the TOSAQuantizer `tosaic.quantize` has to be."""
_CALIBRATION, _FIRST_UNSEEN, _SAMPLES = 16, 100, 32
_LESS_EXACT_DB = 0.3  # our program may be further from the float network by this
_WARM_UP = "ds_cnn_small"


@dataclass(frozen=True)
class Calibration:
    """Milliseconds of a plain run, and ratios of calibration to it, by statistic."""

    network: str
    plain: float
    ratios: dict[str, float]
    tensors: int

    @property
    def ok(self) -> bool:
        """True if no statistic takes too long."""
        return all(self.ratios[statistic] <= most for statistic, most in MOST.items())


@dataclass(frozen=True)
class Round:
    """Seconds and ratios to the float network in dB of one round."""

    seconds: float
    prepare: float
    calibrate: float
    convert: float
    db: float
    their_db: float

    @property
    def theirs(self) -> float:
        """The seconds of torchao."""
        return self.prepare + self.calibrate + self.convert

    @property
    def ratio(self) -> float:
        """The time of torchao over ours."""
        return self.theirs / self.seconds


@dataclass(frozen=True)
class Row:
    """The rounds of one network."""

    network: str
    rounds: tuple[Round, ...]

    def median(self, field: str) -> float:
        """Returns the median of one attribute of the rounds."""
        return median(getattr(each, field) for each in self.rounds)

    @property
    def ok(self) -> bool:
        """True if ours is fast enough, and its program is not further from the float network."""
        return (
            self.median("ratio") >= LEAST_RATIO[self.network]
            and self.median("db") >= self.median("their_db") - _LESS_EXACT_DB
        )


@dataclass(frozen=True)
class Result:
    """What was measured."""

    calibrations: tuple[Calibration, ...]
    rows: tuple[Row, ...]
    rounds: int

    @property
    def ok(self) -> bool:
        """True if every calibration and every network is ok."""
        return all(each.ok for each in (*self.calibrations, *self.rows))


def run(rounds: int = 3, networks: Sequence[str] = NETWORKS, results: Path = RESULTS) -> Result:
    """Measures calibration, and the rounds of quantizing that are not stored in the folder."""
    calibrations, rows = [], []
    with one_thread(), quiet(), torch.no_grad():
        for name in networks:
            calibrations.append(_calibration(build(name), rounds))
            print(calibrations[-1], flush=True)
        for name in (each for each in LEAST_RATIO if each in networks):
            network, found = build(name), []
            for i in range(rounds):
                known = recorded(results, f"{name}.{i}", lambda network=network: _round(network))
                found.append(Round(**known))
                print(name, i, found[-1], flush=True)
            rows.append(Row(name, tuple(found)))
    return Result(tuple(calibrations), tuple(rows), rounds)


# ---- calibration ----


def _calibration(network: Network, rounds: int) -> Calibration:
    program = tosaic.from_exported(_exported(network))
    graph = prepared_graph(program.graph)
    planned = plan_program(graph, tosaic.QConfig.int8())
    observed = observations(planned)
    samples = [
        program.graph_arrays(program.arrays(*network.sample(i))) for i in range(max(2, _CALIBRATION * rounds))
    ]
    plain = _core.Session(graph)
    kinds = {"min/max": "range", "histogram": "histogram"}
    watches = dict.fromkeys(kinds, observed.watches)
    count, kinds["as quantize"] = len(observed.kinds), "range"
    joined = (name for names in joined_values(graph).values() for name in names)
    further = sorted({*unobserved_values(planned, observed), *joined})
    watches["as quantize"] = (*observed.watches, *((name, count + at) for at, name in enumerate(further)))
    indices = {statistic: 1 + max(index for _, index in each) for statistic, each in watches.items()}
    runs = {
        statistic: _Calibrating(job_of(program, graph, watches[statistic], ((kind,),) * indices[statistic]))
        for statistic, kind in kinds.items()
    }
    for run in (plain.run, *(each.run for each in runs.values())):
        run(samples[0])
    seconds = dict.fromkeys(("plain", *runs), 0.0)
    for begin in range(0, len(samples), _CALIBRATION):
        some = samples[begin : begin + _CALIBRATION]
        seconds["plain"] += _cpu(lambda some=some: [plain.run(sample) for sample in some])
        for statistic, each in runs.items():
            seconds[statistic] += _cpu(lambda some=some, each=each: each.run_all(some))
    for statistic, each in runs.items():
        seconds[statistic] += _cpu(each.merge)
    ratios = {statistic: seconds[statistic] / seconds["plain"] for statistic in runs}
    return Calibration(network.name, 1e3 * seconds["plain"] / len(samples), ratios, len(observed.watches))


class _Calibrating:
    """Calibrates sample by sample, and merges the statistics at the end."""

    def __init__(self, job: Any) -> None:
        self._program, self._total = job.ready()
        self._calibration = _core.Calibration(self._program, self._total)

    def run(self, sample: Sequence[Any]) -> None:
        self._calibration.run(sample)

    def run_all(self, samples: Sequence[Sequence[Any]]) -> None:
        for sample in samples:
            self._calibration.run(sample)

    def merge(self) -> None:
        self._calibration.merge_into(self._total)


def _cpu(body: Callable[[], Any]) -> float:
    start = time.thread_time()
    body()
    return time.thread_time() - start


# ---- quantizing ----


def _round(network: Network) -> Round:
    warm = build(_WARM_UP)
    _ours(_exported(warm), [warm.sample(0)])
    _theirs(_exported(warm), [warm.sample(0)])
    exported = _exported(network)
    samples = [network.sample(i) for i in range(_CALIBRATION)]
    unseen = [network.sample(_FIRST_UNSEEN + i) for i in range(_SAMPLES)]
    expected = [network.module(*sample).numpy() for sample in unseen]
    gc.collect()
    quantized, seconds = _ours(exported, samples)
    gc.collect()
    converted, *parts = _theirs(exported, samples)
    ours = [quantized.run(*sample) for sample in unseen]
    theirs = [converted(*sample).numpy() for sample in unseen]
    return Round(seconds, *parts, signal_to_noise(expected, ours), signal_to_noise(expected, theirs))


def _exported(network: Network) -> Any:
    return torch.export.export(network.module.eval(), network.sample())


def _ours(exported: Any, samples: Sequence[Any]) -> tuple[Any, float]:
    start = time.process_time()
    quantized = tosaic.quantize(exported, samples, progress=False)
    return quantized, time.process_time() - start


def _theirs(exported: Any, samples: Sequence[Any]) -> tuple[Any, float, float, float]:
    """Returns the converted graph, and the seconds of preparing, of calibrating and of converting."""
    times = [time.process_time()]
    prepared = prepare_pt2e(exported.module(check_guards=False), QUANTIZERS["arm"]())
    times.append(time.process_time())
    for sample in samples:
        prepared(*sample)
    times.append(time.process_time())
    converted = convert_pt2e(prepared)
    times.append(time.process_time())
    prepare, calibrate, convert = (after - before for before, after in pairwise(times))
    return converted, prepare, calibrate, convert


# ---- the page ----


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    calibrations = table(
        ("network", "tensors", "plain run, ms", *MOST),
        [
            (
                each.network,
                str(each.tensors),
                milliseconds(each.plain / 1e3),
                *(f"{each.ratios[statistic]:.2f}×" for statistic in MOST),
            )
            for each in result.calibrations
        ],
    )
    rows = table(
        ("network", "quantize, s", "torchao: prepare, s", "calibrate, s", "convert, s", "ratio", "at least",
         "dB", "TOSAQuantizer: dB"),
        [
            (
                row.network,
                *(f"{row.median(field):.2f}" for field in ("seconds", "prepare", "calibrate", "convert")),
                f"{row.median('ratio'):.0f}×",
                f"{LEAST_RATIO[row.network]:.0f}×",
                f"{row.median('db'):.1f}",
                f"{row.median('their_db'):.1f}",
            )
            for row in result.rows
        ],
    )  # fmt: skip
    limits = ", ".join(f"{statistic} at most {most:.2f}×" for statistic, most in MOST.items())
    missed = [
        f"{each.network}: {statistic} {each.ratios[statistic]:.2f}×"
        for each in result.calibrations
        for statistic, most in MOST.items()
        if each.ratios[statistic] > most
    ]
    count = _CALIBRATION * result.rounds
    text = (
        "Calibration of all tensors that int8 rounds, against plain runs of the same program, in turns of\n"
        f"{_CALIBRATION} samples, after which states are merged: CPU time of {count} samples.\n"
        "*as quantize* also has the ranges of results that int8 does not round, which bound the numbers\n"
        "that matter.\n"
        f"Required: {limits}.\n"
        + (f"Not met: {'; '.join(missed)}.\n" if missed else "")
        + f"\n{calibrations}\n\n"
        "`tosaic.quantize` against `prepare_pt2e`, calibration and `convert_pt2e` with ExecuTorch's\n"
        "TOSAQuantizer, from the same exported program and on the same samples, one after the other in each\n"
        f"round: CPU time on one thread, {_CALIBRATION} samples, medians of {result.rounds} rounds. *dB* is\n"
        "the signal-to-noise ratio of the quantized program against the float network, on "
        f"{_SAMPLES} inputs that no\nquantizer has seen; ours may be {_LESS_EXACT_DB} dB less.\n\n{rows}"
    )
    return Section("calibrating", "Calibrating", text, ok=result.ok)


def main() -> int:
    parser = parser_of(__doc__, RESULTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    return section(run(options.rounds, options.networks, options.results)).publish()


if __name__ == "__main__":
    sys.exit(main())
