"""oneDNN's convolutions, layer by layer next to ours: what the benchmarks of floats and of int8 share.

oneDNN reports its times itself (its `verbose` mode), without torch's call around it.
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
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch
from markdown_table import markdown_table
from tosaic import _core

CONVOLUTIONS = ("tosa.conv2d", "tosa.depthwise_conv2d")
_PATHS = {"amx": "DEFAULT", "avx512vnni": "AVX512_CORE_VNNI", "avx2": "AVX2"}
"""Our instruction sets, and the value of `ONEDNN_MAX_CPU_ISA` for each."""

Array = np.ndarray[Any, Any]
_Times = TypeVar("_Times", bound="NetworkTimes")


@dataclass(frozen=True)
class Layer:
    """A convolution of the program, with the node that is fused with it.

    Attributes
    ----------
    name : str
    result : str
        The name of the value that the layer makes.
    call : callable
        oneDNN's call of the same layer.
    shape : str
    macs : int
        Multiply-adds.
    """

    name: str
    result: str
    call: Callable[[], torch.Tensor]
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
class NetworkTimes:
    """The convolutions of a network on one instruction set.

    Attributes
    ----------
    network, isa : str
    shapes : tuple of Shape
    whole : float
        Median seconds of all steps of our program.
    peak : float
        Multiply-adds per second that the instruction set can do, measured in registers.
    """

    network: str
    isa: str
    shapes: tuple[Shape, ...]
    whole: float
    peak: float

    @property
    def ours(self) -> float:
        """Seconds of all convolutions."""
        return sum(shape.ours for shape in self.shapes)

    @property
    def theirs(self) -> float:
        """Seconds of oneDNN's convolutions."""
        return sum(shape.theirs for shape in self.shapes)

    @property
    def ratio(self) -> float:
        """Our time over oneDNN's."""
        return self.ours / self.theirs


def on_each_path(
    measure: Callable[..., _Times], networks: Sequence[str], rounds: int, isas: Sequence[str] = tuple(_PATHS)
) -> tuple[_Times, ...]:
    """Calls measure(network, isa=..., rounds=...) for each network and each of the `isas` here.

    Each path has a process of its own: oneDNN reads its limit once.
    """
    found: list[_Times] = []
    for isa in isas:
        if isa not in _core.usable_isas():
            continue
        os.environ["ONEDNN_MAX_CPU_ISA"] = _PATHS[isa]
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found += pool.map(partial(measure, isa=isa, rounds=rounds), networks)
    return tuple(found)


def layer_table(times: Sequence[NetworkTimes], unit: str) -> str:
    """Returns the table of all shapes; `unit` is the head of the column of operations per second."""
    rows = [
        (
            each.network,
            each.isa,
            shape.text,
            str(shape.layers),
            f"{shape.ours * 1e6:,.0f}",
            f"{shape.theirs * 1e6:,.0f}",
            f"{shape.ratio:.2f}×",
            f"{2 * shape.macs / shape.ours / 1e9:,.0f}",
            f"{shape.macs / shape.ours / each.peak:.0%}",
        )
        for each in times
        for shape in each.shapes
    ]
    head = ("network", "path", "layer", "layers", "ours, µs", "oneDNN, µs", "ratio", unit, "of peak")
    return markdown_table(head, rows, texts=3)


def peak_of(isa: str, factors: str) -> float:
    """Returns the multiply-adds per second that an instruction set can do, measured in registers."""
    rate = _core.peak_multiply_adds(isa, factors)
    if rate is None:
        raise ValueError(f"{isa} multiplies no {factors}")
    return rate


def weights_of(node: _core.Node, weight: Array) -> tuple[Array, int]:
    """Returns the weights of a convolution in torch's order, and the number of groups."""
    # TOSA: [C_out, KH, KW, C_in] and [KH, KW, C, M]; torch: [C_out, C_in, KH, KW]
    if node.op == "tosa.depthwise_conv2d":
        kh, kw, channels, multiplier = weight.shape
        return weight.transpose(2, 3, 0, 1).reshape(channels * multiplier, 1, kh, kw), channels
    return weight.transpose(0, 3, 1, 2), 1


def padding_of(pads: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns the padding of each axis, and what has to be added after it.

    TOSA's padding is (top, bottom, left, right). oneDNN's operators have one number for each axis; more
    after it than before it has to be in the input.
    """
    return (pads[0], pads[2]), (max(pads[1] - pads[0], 0), max(pads[3] - pads[2], 0))


def shape_of(node: _core.Node, weights: Array) -> tuple[str, int]:
    """Returns the text of the shape of a convolution, and its multiply-adds."""
    source, out = node.operands[0].shape, node.results[0].shape
    kind = "depthwise " if node.op == "tosa.depthwise_conv2d" else ""
    stride = node.attrs["stride"][0]
    text = "x".join(map(str, source[1:])) + f" to {out[3]}, {kind}{weights.shape[2]}x{weights.shape[3]}"
    return text + (f", stride {stride}" if stride > 1 else ""), _core.multiply_adds(node)


def in_turns(
    session: _core.Session, image: Array, layers: Sequence[Layer], rounds: int
) -> tuple[tuple[Shape, ...], float]:
    """Runs our program and oneDNN's calls alternately.

    Returns
    -------
    tuple of Shape
    float
        The median of the seconds of all steps of our program.
    """
    order = {step["nodes"][0].name: step["key"] for step in session.profiled_steps}
    places = [order[layer.name] for layer in layers]
    ours, theirs, wholes = [], [], []
    with torch.inference_mode():
        for _ in range(rounds + 2):
            events = session.profile([image])["events"]
            seconds = dict(zip(events[:, 0].tolist(), (events[:, 2] - events[:, 1]) / 1e9, strict=True))
            ours.append([seconds[i] for i in places])
            wholes.append(sum(seconds.values()))
            theirs.append(_seconds([layer.call for layer in layers]))
    our_times = [median(times) for times in zip(*ours[2:], strict=True)]
    their_times = [median(times) for times in zip(*theirs[2:], strict=True)]
    return _by_shape(layers, our_times, their_times), median(wholes[2:])


def _seconds(calls: Sequence[Callable[[], object]]) -> list[float]:
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
