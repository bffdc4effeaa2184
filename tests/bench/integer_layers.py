"""Our int8 convolutions against those of oneDNN, layer by layer: one thread.

    python tests/bench/integer_layers.py [--rounds N] [NETWORK ...]

The networks are quantized by torchao with Arm's quantizer, and lowered to TOSA INT. In each round, the
network runs once in our executor, which measures each step, and then oneDNN's `qconv2d_pointwise` runs once
on each convolution, in the order of the network, with the same input, weights, biases and scales. A
convolution of ours includes the rescale that follows it, as oneDNN's does. oneDNN's times are those that it
reports itself (its `verbose` mode), without torch's call around it. oneDNN rounds floats: its results may
differ by one unit. With AVX2, its sums of two products saturate, so results may differ by much more. Ours
are exact on every path.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.page import Measured, Section, milliseconds, options_of
from markdown_table import markdown_table
from models.quantize import converted
from models.zoo import build
from tosaic import _core

NETWORKS = ("mobilenet_v2", "resnet18", "resnet50")
_PATHS = {"avx512vnni": "DEFAULT", "avx2": "AVX2"}
"""Our instruction sets, and the value of `ONEDNN_MAX_CPU_ISA` for each."""
MOST = 1.3
"""How many times as long as oneDNN a network, and each layer of it, may take."""
_CALIBRATION_SAMPLES = 4
_CONVOLUTIONS = ("tosa.conv2d", "tosa.depthwise_conv2d")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layer:
    """A convolution of the program and the rescale behind it."""

    name: str
    result: str
    """The name of the rescaled value."""
    call: Callable[[], torch.Tensor]
    """oneDNN's call of the same layer; its result has no sign: 128 more than ours."""
    shape: str
    macs: int


@dataclass(frozen=True)
class Shape:
    """All layers of one shape: sums over the layers of the medians, in seconds."""

    text: str
    layers: int
    macs: int
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """Our time over oneDNN's."""
        return self.ours / self.theirs


@dataclass(frozen=True)
class Row:
    """One network: median seconds of the sum of its convolutions, and of our whole run."""

    network: str
    isa: str
    ours: float
    theirs: float
    whole: float
    most_steps: int
    """The greatest difference of the results, in units."""
    distinct: int
    shapes: tuple[Shape, ...]

    @property
    def ratio(self) -> float:
        """Our time over oneDNN's."""
        return self.ours / self.theirs


class Result(Measured[Row]):
    @property
    def ok(self) -> bool:
        """True if every network and every layer is fast enough and right."""
        return all(
            row.ratio <= MOST
            and (row.most_steps <= 1 or row.isa == "avx2")
            and all(shape.ratio <= MOST for shape in row.shapes)
            for row in self.rows
        )


def run(rounds: int = 15, networks: Sequence[str] = NETWORKS) -> Result:
    """Measures the networks, each path in a process of its own: oneDNN reads its limit once."""
    rows: list[Row] = []
    for isa in _PATHS:
        if isa not in _core.usable_isas():
            continue
        os.environ["ONEDNN_MAX_CPU_ISA"] = _PATHS[isa]
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            rows += pool.map(partial(_row, isa=isa, rounds=rounds), networks)
    return Result(tuple(rows), rounds)


def _program(name: str) -> _core.Graph:
    network = build(name)
    samples = [network.sample(i) for i in range(_CALIBRATION_SAMPLES)]
    exported = converted(network.module, samples, "arm")
    return tosaic.lower(exported, target="TOSA-1.0+INT", io={"inputs": "int8", "outputs": "int8"}).graph


def _row(name: str, *, isa: str, rounds: int) -> Row:
    torch.set_num_threads(1)
    graph = _program(name)
    session = _core.Session(graph, isa=isa)
    image = np.random.default_rng(0).integers(-128, 128, graph.inputs[0].value.shape, dtype=np.int8)
    values = session.trace([image])["values"]
    values[graph.inputs[0].value.name] = image
    layers = [_layer(node, values) for node in graph.nodes if _is_layer(node)]
    steps, distinct = 0, 256
    for layer in layers:
        found = values[layer.result]
        theirs = layer.call().numpy().astype(np.int32).transpose(0, 2, 3, 1) - 128
        steps = max(steps, int(np.abs(theirs - found).max()))
        distinct = min(distinct, len(np.unique(found)))
    order = {step["nodes"][0].name: step["key"] for step in session.profiled_steps}
    places = [order[layer.name] for layer in layers]
    ours, theirs, wholes = [], [], []
    with torch.inference_mode():
        for _ in range(rounds + 2):
            events = session.profile([image])["events"]
            seconds = dict(zip(events[:, 0].tolist(), (events[:, 2] - events[:, 1]) / 1e9, strict=True))
            ours.append([seconds[i] for i in places])
            wholes.append(sum(seconds.values()))
            theirs.append(_onednn_seconds([layer.call for layer in layers]))
    our_times = [median(times) for times in zip(*ours[2:], strict=True)]
    their_times = [median(times) for times in zip(*theirs[2:], strict=True)]
    return Row(
        name,
        isa,
        sum(our_times),
        sum(their_times),
        median(wholes[2:]),
        steps,
        distinct,
        _by_shape(layers, our_times, their_times),
    )


def _onednn_seconds(calls: Sequence[Callable[[], object]]) -> list[float]:
    """What oneDNN reports for each call. It prints a line for each primitive to the standard output."""
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), 1)
        try:
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                for call in calls:
                    call()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        lines = [line for line in file if ",exec,cpu,convolution," in line]
    if len(lines) != len(calls):
        raise RuntimeError(f"{len(calls)} convolutions ran, and oneDNN reported {len(lines)}")
    return [float(line.rsplit(",", 1)[1]) / 1e3 for line in lines]


def _by_shape(layers: Sequence[Layer], ours: Sequence[float], theirs: Sequence[float]) -> tuple[Shape, ...]:
    found: dict[str, list[int]] = {}
    for i, layer in enumerate(layers):
        found.setdefault(layer.shape, []).append(i)
    return tuple(
        Shape(
            text,
            len(places),
            sum(layers[i].macs for i in places),
            sum(ours[i] for i in places),
            sum(theirs[i] for i in places),
        )
        for text, places in found.items()
    )


def _rescale_of(node: _core.Node) -> _core.Node:
    return node.results[0].users[0]


def _is_layer(node: _core.Node) -> bool:
    return node.op in _CONVOLUTIONS and _rescale_of(node).op == "tosa.rescale"


def _layer(node: _core.Node, values: dict[str, Array]) -> Layer:
    """oneDNN's call for a convolution of the program. Its scales are those of the rescale."""
    source, weight, bias = node.operands
    rescale = _rescale_of(node)
    attrs, after = node.attrs, rescale.attrs
    depthwise = node.op == "tosa.depthwise_conv2d"
    weights = weight.constant.array
    # TOSA: [C_out, KH, KW, C_in] and [KH, KW, C, M]; torch: [C_out, C_in, KH, KW]
    weights = weights.transpose(2, 3, 0, 1) if depthwise else weights.transpose(0, 3, 1, 2)
    groups = weights.shape[0] if depthwise else 1
    given = values[source.name] if source.constant is None else source.constant.array
    pads = attrs["pad"]  # (top, bottom, left, right); oneDNN's operator has one number for each axis
    more = [max(pads[2 * i + 1] - pads[2 * i], 0) if pads[2 * i] == 0 else 0 for i in range(2)]
    given = np.pad(given, ((0, 0), (0, more[0]), (0, more[1]), (0, 0)), constant_values=attrs["input_zp"])
    image = torch.from_numpy((given.astype(np.int16) + 128).astype(np.uint8).transpose(0, 3, 1, 2))
    scales = np.asarray(after["multiplier"], np.float64) * 2.0 ** -np.asarray(after["shift"], np.float64)
    call = _conv_call(
        image.contiguous(memory_format=torch.channels_last),
        weights.copy(),
        bias=np.broadcast_to(bias.constant.array, weights.shape[0]),
        scales=np.broadcast_to(scales, weights.shape[0]),
        zero_points=(attrs["input_zp"] + 128, after["output_zp"] + 128),
        stride=attrs["stride"],
        padding=(pads[0], pads[2]),
        groups=groups,
    )
    out = node.results[0].shape
    macs = _core.multiply_adds(node)
    kind = "depthwise " if depthwise else ""
    shape = (
        "x".join(map(str, source.shape[1:])) + f" to {out[3]}, {kind}{weights.shape[2]}x{weights.shape[3]}"
    )
    shape += f", stride {attrs['stride'][0]}" if attrs["stride"][0] > 1 else ""
    return Layer(node.name, rescale.results[0].name, call, shape, macs)


def _conv_call(
    image: torch.Tensor,
    weights: Array,
    *,
    bias: Array,
    scales: Array,
    zero_points: tuple[int, int],
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Callable[[], torch.Tensor]:
    weight_scales = torch.from_numpy(scales.astype(np.float32))
    weight_zero_points = torch.zeros(len(weights), dtype=torch.int64)
    biases = torch.from_numpy(bias.astype(np.float32)) * weight_scales
    place = (stride, padding, [1, 1], groups)
    packed = torch.ops.onednn.qconv_prepack(
        torch.from_numpy(weights), weight_scales, 1.0, zero_points[0], *place, list(image.shape)
    )
    weight = (packed, weight_scales, weight_zero_points, biases)
    result = (1.0, zero_points[1], torch.uint8, "none", [], "")
    convolve = torch.ops.onednn.qconv2d_pointwise
    return lambda: convolve(image, 1.0, zero_points[0], *weight, *place, *result)


def section(result: Result) -> Section:
    """Returns the section of docs/benchmarks.md."""
    sums = [
        (
            row.network,
            row.isa,
            milliseconds(row.ours),
            milliseconds(row.theirs),
            f"{row.ratio:.2f}×",
            milliseconds(row.whole),
            str(row.most_steps),
            str(row.distinct),
        )
        for row in result.rows
    ]
    layers = [
        (
            row.network,
            row.isa,
            shape.text,
            str(shape.layers),
            f"{shape.ours * 1e6:,.0f}",
            f"{shape.theirs * 1e6:,.0f}",
            f"{shape.ratio:.2f}×",
            f"{2 * shape.macs / shape.ours / 1e9:,.0f}",
        )
        for row in result.rows
        for shape in row.shapes
    ]
    text = (
        "int8 convolutions, each with its rescale, against oneDNN's\n"
        "(`torch.ops.onednn.qconv2d_pointwise`) on the same input, weights and scales. Both run\n"
        f"alternately; medians of {result.rounds} rounds, one thread. *whole*: all steps of our program.\n"
        "*units*: the greatest difference of the results; oneDNN rounds floats, and with AVX2 its sums\n"
        "of two products saturate.\n\n"
        + markdown_table(
            (
                "network",
                "path",
                "ours, ms",
                "oneDNN, ms",
                "ratio",
                "whole, ms",
                "units",
                "least distinct results",
            ),
            sums,
            texts=2,
        )
        + "\n\n"
        + markdown_table(
            ("network", "path", "layer", "layers", "ours, µs", "oneDNN, µs", "ratio", "Gop/s"),
            layers,
            texts=3,
        )
        + f"\n\nEach network and each layer may take at most {MOST} times oneDNN's time."
    )
    return Section("integer_layers", "Integer convolutions", text, ok=result.ok)


def main() -> int:
    options = options_of(__doc__, rounds=15, names=NETWORKS)
    return section(run(options.rounds, options.networks)).publish()


if __name__ == "__main__":
    sys.exit(main())
