"""Our convolutions of f32 against oneDNN's, layer by layer: one thread.

    python tests/bench/float_layers.py [--rounds N] [NETWORK ...]

In each round, the lowered network runs once in our executor, which measures each step, and then oneDNN runs
once on each convolution, in the order of the network, with the same input, weights and bias, which it has
packed before (`torch.ops.mkldnn._convolution_pointwise`, channels last). A clamp that follows a convolution
is part of it on both sides. The sums have another order, so results may differ in their last bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from bench.page import Measured, Section, milliseconds, options_of
from markdown_table import markdown_table
from models.zoo import build, quiet
from tosaic import _core

NETWORKS = ("mobilenet_v2", "resnet18", "resnet50")
_ISAS = ("avx512vnni", "avx2")  # later sets have the same kernels of floats
MOST = 0.9
"""How many times as long as oneDNN a network may take."""
_MOST_ERROR = 1e-4  # the error of a result, relative to the greatest result


@dataclass(frozen=True)
class Row(NetworkTimes):
    """One network, with the greatest difference of results, relative to the greatest result of the layer."""

    error: float

    @property
    def ratio_at_peak(self) -> float:
        """The ratio if all of our multiply-adds ran at the peak, and nothing else took time."""
        return sum(shape.macs for shape in self.shapes) / self.peak / self.theirs

    @property
    def ok(self) -> bool:
        """True if the network is fast enough and right."""
        return self.ratio <= MOST and self.error <= _MOST_ERROR


def run(rounds: int = 15, networks: Sequence[str] = NETWORKS) -> Measured[Row]:
    """Measures the networks, on each path of this machine."""
    return Measured(on_each_path(_row, networks, rounds, _ISAS), rounds)


def _row(name: str, *, isa: str, rounds: int) -> Row:
    torch.set_num_threads(1)
    network = build(name)
    with quiet():
        lowered = tosaic.lower(network.export())
    session = _core.Session(lowered.graph, isa=isa)
    (image,) = lowered.arrays(*network.sample())
    values = session.trace([image])["values"]
    values[lowered.graph.inputs[0].value.name] = np.asarray(image)
    fused = {step["name"] for step in session.steps if step["kernel"] == "fused"}
    layers = [_layer(node, values, fused) for node in lowered.graph.nodes if node.op in CONVOLUTIONS]
    error = 0.0
    for layer in layers:
        found = values[layer.result]
        theirs = layer.call().numpy().transpose(0, 2, 3, 1)
        error = max(error, float(np.abs(theirs - found).max() / max(np.abs(found).max(), 1e-30)))
    shapes, whole = in_turns(session, image, layers, rounds)
    return Row(name, isa, shapes, whole, peak_of(isa, "f32"), error)


def _layer(node: _core.Node, values: dict[str, Array], fused: set[str]) -> Layer:
    """oneDNN's call for a convolution of the program, and for the clamp that is fused with it."""
    source, weight, bias = node.operands
    weights, groups = weights_of(node, weight.constant.array)
    padding, more = padding_of(node.attrs["pad"])
    given = np.pad(values[source.name], ((0, 0), (0, more[0]), (0, more[1]), (0, 0)))
    image = torch.from_numpy(given.transpose(0, 3, 1, 2)).contiguous(memory_format=torch.channels_last)
    users = node.results[0].users
    clamp = users[0] if len(users) == 1 and users[0].name in fused else None
    limits = (clamp.attrs["min_val"], clamp.attrs["max_val"]) if clamp is not None else None
    channels = np.broadcast_to(bias.constant.array, len(weights)).copy()
    call = _conv_call(image, weights.copy(), channels, limits, node.attrs["stride"], padding, groups)
    shape, macs = shape_of(node, weights)
    return Layer(node.name, (clamp or node).results[0].name, call, shape, macs)


def _conv_call(
    image: torch.Tensor,
    weights: Array,
    bias: Array,
    limits: tuple[float, float] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
) -> Callable[[], torch.Tensor]:
    place: Any = (list(padding), list(stride), [1, 1], groups)
    packed = torch.ops.mkldnn._reorder_convolution_weight(
        torch.from_numpy(weights), *place, list(image.shape)
    )
    biases = torch.from_numpy(bias)
    after: Any = ("none", [], "") if limits is None else ("hardtanh", list(limits), "")
    convolve = torch.ops.mkldnn._convolution_pointwise
    return lambda: convolve(image, packed, biases, *place, *after)


def section(result: Measured[Row]) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    sums = [
        (
            row.network,
            row.isa,
            milliseconds(row.ours),
            milliseconds(row.theirs),
            f"{row.ratio:.2f}×",
            f"{row.ratio_at_peak:.2f}×",
            milliseconds(row.whole),
            f"{row.error:.0e}",
        )
        for row in result.rows
    ]
    text = (
        "Convolutions of f32, each with the clamp that is fused with it, against oneDNN's\n"
        "(`torch.ops.mkldnn._convolution_pointwise`) on the same input and packed weights. Both run\n"
        f"alternately; medians of {result.rounds} rounds, one thread. *whole*: all steps of our program.\n"
        "*error*: the greatest difference of the results, relative to the greatest result of the layer.\n"
        "*of peak*: as a share of the rate of multiply-adds in registers, with these instructions.\n"
        "*at peak*: the ratio that we would have if all of our multiply-adds ran at this peak.\n\n"
        + markdown_table(
            ("network", "path", "ours, ms", "oneDNN, ms", "ratio", "at peak", "whole, ms", "error"),
            sums,
            texts=2,
        )
        + "\n\n"
        + layer_table(result.rows, "GFLOP/s")
        + f"\n\nEach network may take at most {MOST} times oneDNN's time."
    )
    return Section("float_layers", "Convolutions of floats", text, ok=all(row.ok for row in result.rows))


def main() -> int:
    options = options_of(__doc__, rounds=15, names=NETWORKS)
    return section(run(options.rounds, options.networks)).publish()


if __name__ == "__main__":
    sys.exit(main())
