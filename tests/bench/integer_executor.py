"""Our executor in int8, one thread: against itself in fp32, and against the TOSA reference model.

    python tests/bench/integer_executor.py [--rounds N] [NETWORK ...]

Each network is lowered three times: as it is, and quantized by `tosaic.quantize` with two configurations. All
three programs run on the same input in the same process, alternately. The outputs of the int8 programs are
compared with those of the fp32 program, and element by element with those of a session that uses the baseline
instructions only and computes one step at a time.

MobileNetV2 is also quantized by torchao with Arm's quantizer, and lowered to TOSA INT. The reference model
runs the same file on the same integers in the same process, alternately, and the outputs have to be equal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.executor import module_of
from bench.page import Measured, Section, in_turns, milliseconds, options_of, table
from models.integers import signal_to_noise
from models.quantize import converted
from models.zoo import MORE, build, quiet
from models.zoo import NETWORKS as TEN
from tosaic import _core
from tosaic.lowering.reference_model import ReferenceRun, run_reference_model

NETWORKS = (*TEN, *MORE, "vit_384", "audio_encoder")
"""All networks of the zoo, a ViT of width 384, and an audio encoder with attentions of 1,500 positions."""
CONFIGS = {
    "default": tosaic.QConfig.int8(),
    "every operator": tosaic.QConfig.int8(every_operator=True, stream="int16"),
}
"""By name: `tosaic.quantize` without a configuration, and the plan for Ethos-U."""
MOST_SHARE = 0.9
"""The largest allowed ratio of int8's time to fp32's, for each network and configuration."""
LEAST_DB = 0.0
"""The least signal-to-noise ratio of int8's outputs to fp32's: weights are random, so that it is small."""
AGAINST_REFERENCE = "mobilenet_v2"
LEAST_RATIO = 50.0
"""How many times as fast as the reference model int8 has to be."""
_CALIBRATION_SAMPLES = 4
_NO_GROUPS = 1 << 40  # no values of a program have this many bytes


@dataclass(frozen=True)
class Int8:
    """One configuration: median seconds, dB to the outputs of fp32, and the number of differing outputs."""

    seconds: float
    db: float
    differing: int


@dataclass(frozen=True)
class Row:
    """One network: median seconds in fp32, and int8 by configuration."""

    network: str
    fp32: float
    int8: dict[str, Int8]

    @property
    def share(self) -> float:
        """The time of the slower int8 program over fp32's."""
        return max(each.seconds for each in self.int8.values()) / self.fp32

    @property
    def ok(self) -> bool:
        """True if both int8 programs are fast enough and right."""
        right = all(each.differing == 0 and each.db >= LEAST_DB for each in self.int8.values())
        return right and self.share <= MOST_SHARE


@dataclass(frozen=True)
class AgainstReference:
    """One network: median seconds of both engines, and numbers of differing and of distinct outputs."""

    network: str
    ops: int
    ours: float
    reference: float
    differing: int
    distinct: int

    @property
    def ratio(self) -> float:
        """The reference model's time over ours."""
        return self.reference / self.ours


@dataclass(frozen=True)
class Result(Measured[Row]):
    against: AgainstReference

    @property
    def ok(self) -> bool:
        """True if every network is fast enough and right, and so is the one against the reference model."""
        fast = self.against.ratio >= LEAST_RATIO and self.against.differing == 0
        return fast and all(row.ok for row in self.rows)


def run(rounds: int = 7, networks: Sequence[str] = NETWORKS) -> Result:
    """Measures the networks."""
    torch.set_num_threads(1)
    return Result(tuple(_row(name, rounds) for name in networks), rounds, _against(AGAINST_REFERENCE, rounds))


def _row(name: str, rounds: int) -> Row:
    module, args = module_of(name)
    is_known = name in (*TEN, *MORE)
    samples = [build(name).sample(i) for i in range(_CALIBRATION_SAMPLES)] if is_known else [args]
    with quiet():
        exported = torch.export.export(module, args, strict=False)
    quantized = {key: tosaic.quantize(exported, samples, config=config) for key, config in CONFIGS.items()}
    programs = [tosaic.lower(exported, target="TOSA-1.0+FP")]
    programs += [tosaic.lower(program, target="TOSA-1.0+INT") for program in quantized.values()]
    arrays = [a.numpy() for a in args]
    prepared = [program.prepare() for program in programs]
    (fp32, expected), *found = in_turns([lambda p=p: p.run(*arrays) for p in prepared], rounds)
    int8 = {}
    for key, program, (seconds, outputs) in zip(CONFIGS, programs[1:], found, strict=True):
        session = _core.Session(program.graph, isa=_core.usable_isas()[0], least_group_bytes=_NO_GROUPS)
        (base,) = session.run(program.arrays(*arrays))
        differing = int(np.count_nonzero(outputs != base))
        int8[key] = Int8(seconds, signal_to_noise([expected], [outputs]), differing)
    return Row(name, fp32, int8)


def _against(name: str, rounds: int) -> AgainstReference:
    network = build(name)
    samples = [network.sample(i) for i in range(_CALIBRATION_SAMPLES)]
    exported = converted(network.module, samples, "arm")
    lowered = tosaic.lower(exported, target="TOSA-1.0+INT", io={"inputs": "int8", "outputs": "int8"})
    image = np.random.default_rng(0).integers(-128, 128, lowered.inputs[0].shape, dtype=np.int8)
    program = lowered.at("tosa")

    def reference() -> ReferenceRun:
        return run_reference_model(lowered, image)

    (ours, found), (theirs, expected) = in_turns([lambda: program.run(image), reference], rounds)
    if not expected.ok:
        raise RuntimeError(f"{name}: the reference model says {expected.status}: {expected.log[-400:]}")
    differing = int(np.count_nonzero(found != expected.outputs))
    return AgainstReference(name, len(lowered.graph), ours, theirs, differing, len(np.unique(found)))


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    header = ["network", "fp32, ms"]
    for key in CONFIGS:
        header += [f"int8, {key}, ms", "dB to fp32", "differing outputs"]
    rows = []
    for row in result.rows:
        cells = [row.network, milliseconds(row.fp32)]
        for each in row.int8.values():
            share = each.seconds / row.fp32
            cells += [f"{milliseconds(each.seconds)} ({share:.2f}×)", f"{each.db:.1f}", str(each.differing)]
        rows.append(tuple(cells))
    against = result.against
    against_header = (
        "network",
        "TOSA ops",
        "tosaic, ms",
        "reference model, ms",
        "ratio",
        "differing outputs",
        "distinct outputs",
    )
    against_row = (
        against.network,
        str(against.ops),
        milliseconds(against.ours),
        milliseconds(against.reference),
        f"{against.ratio:.0f}×",
        str(against.differing),
        str(against.distinct),
    )
    text = (
        "One inference with batch size 1: programs that `tosaic.quantize` quantized, against the fp32\n"
        "program of the same network, all lowered to TOSA. The configurations are the default one and\n"
        '`QConfig.int8(every_operator=True, stream="int16")`. All run alternately; medians of\n'
        f"{result.rounds} rounds. The executor uses `{_core.usable_isas()[-1]}`. *dB to fp32*: the\n"
        "signal-to-noise ratio of the outputs; the weights are random. *differing outputs*: elements that\n"
        "differ from a run with the baseline instructions, one step at a time.\n\n"
        f"{table(tuple(header), rows)}\n\n"
        f"At worst int8 takes {max(row.share for row in result.rows):.2f} times the time of fp32. At most "
        f"{MOST_SHARE} times is allowed.\n\n"
        "Against the TOSA reference model, on the same TOSA INT program:\n\n"
        f"{table(against_header, [against_row])}\n\n"
        f"The executor is {against.ratio:.0f} times as fast as the reference model.\n"
        f"The limit is {LEAST_RATIO:.0f} times, and the outputs of both have to be equal."
    )
    return Section("integer_executor", "Integer executor", text, ok=result.ok)


def main() -> int:
    options = options_of(__doc__, rounds=7, names=NETWORKS)
    return section(run(options.rounds, tuple(options.networks))).publish()


if __name__ == "__main__":
    sys.exit(main())
