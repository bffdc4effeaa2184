"""Our int8 convolutions against oneDNN's, layer by layer: one thread.

    python tests/bench/integer_layers.py [--rounds N] [NETWORK ...]

The networks are quantized by torchao with Arm's quantizer, and lowered to TOSA INT. In each round, the
network runs once in our executor, which measures each step, and then oneDNN's `qconv2d_pointwise` runs once
on each convolution, in the order of the network, with the same input, weights, biases and scales. A
convolution of ours includes the rescale that follows it, as oneDNN's does. oneDNN reports its times itself
(its `verbose` mode), without torch's call around it. oneDNN rounds floats: its results may differ by one
unit. With AVX2, its sums of two products saturate, so results may differ by much more. Ours are exact on
every path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.onednn import (
    CONVOLUTIONS,
    Array,
    Layer,
    NetworkTimes,
    in_turns,
    layer_table,
    on_each_path,
    padding_of,
    peak_of,
    shape_of,
    weights_of,
)
from bench.page import ABOVE, Measured, Section, milliseconds, options_of
from markdown_table import markdown_table
from models.quantize import converted
from models.zoo import build
from tosaic import _core

NETWORKS = ("mobilenet_v2", "resnet18", "resnet50")
MOST = 1.3
"""How many times as long as oneDNN a network, and each layer of it, may take."""
_CALIBRATION_SAMPLES = 4


@dataclass(frozen=True)
class Row(NetworkTimes):
    """One network.

    Attributes
    ----------
    most_steps : int
        The greatest difference of the results, in units.
    distinct : int
        The least number of distinct results of a layer.
    """

    most_steps: int
    distinct: int


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
    """Measures the networks, on each path of this machine."""
    return Result(on_each_path(_row, networks, rounds), rounds)


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
    shapes, whole = in_turns(session, image, layers, rounds)
    peak = max(peak_of(isa, factors) for factors in ("i8", "i16"))
    return Row(name, isa, shapes, whole, peak, steps, distinct)


def _rescale_of(node: _core.Node) -> _core.Node:
    return node.results[0].users[0]


def _is_layer(node: _core.Node) -> bool:
    return node.op in CONVOLUTIONS and _rescale_of(node).op == "tosa.rescale"


def _layer(node: _core.Node, values: dict[str, Array]) -> Layer:
    """oneDNN's call for a convolution of the program; its result has no sign: 128 more than ours.

    Its scales are the scales of the rescale.
    """
    source, weight, bias = node.operands
    rescale = _rescale_of(node)
    attrs, after = node.attrs, rescale.attrs
    weights, groups = weights_of(node, weight.constant.array)
    given = values[source.name] if source.constant is None else source.constant.array
    padding, more = padding_of(attrs["pad"])
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
        padding=padding,
        groups=groups,
    )
    shape, macs = shape_of(node, weights)
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


def _above(result: Result) -> list[str]:
    return [
        f"{shape.text} of {row.network} with {row.isa} ({shape.ratio:.2f}×)"
        for row in result.rows
        for shape in row.shapes
        if shape.ratio > MOST
    ]


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
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
    text = (
        "int8 convolutions, each with its rescale, against oneDNN's\n"
        "(`torch.ops.onednn.qconv2d_pointwise`) on the same input, weights and scales. Both run\n"
        f"alternately; medians of {result.rounds} rounds, one thread. *whole*: all steps of our program.\n"
        "*units*: the greatest difference of the results; oneDNN rounds floats, and with AVX2 its sums\n"
        "of two products saturate. *of peak*: as a share of the rate of multiply-adds in registers,\n"
        "with the instructions of our kernels: quads of bytes, or pairs of int16.\n\n"
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
        + f"\n\n{ABOVE}{'; '.join(_above(result)) or 'no layer'}.\n\n"
        + layer_table(result.rows, "Gop/s")
        + f"\n\nEach network and each layer may take at most {MOST} times oneDNN's time."
    )
    return Section("integer_layers", "Integer convolutions", text, ok=result.ok)


def main() -> int:
    options = options_of(__doc__, rounds=15, names=NETWORKS)
    return section(run(options.rounds, options.networks)).publish()


if __name__ == "__main__":
    sys.exit(main())
