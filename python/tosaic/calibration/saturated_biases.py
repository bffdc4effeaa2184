"""Biases of quantized programs that saturate: their scale is too small for them, and their value is lost.

Quantizers choose the scale of a bias as the product of the scales of data and weight. If the weights of a
channel are zero, or the data was zero in all samples, the product is so small that the bias exceeds int32.
Torch's integers then wrap to -2^31, and tosaic's saturate. `tosaic.quantize` and `tosaic.Quantizer` avoid
this. Other quantizers do not, and nothing later in a lowering can restore the bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.base.arrays import channel_axis
from tosaic.base.visible import one_line
from tosaic.program.overrides import all_nodes

_END = 2**31 - 128  # the largest float32 below 2^31
_LISTED = 8
_CONVERSIONS = frozenset({"dequantize", "quantize"})
_READ_OR_ADD = _CONVERSIONS | {"conv", "linear", "addmm", "baddbmm", "add", "sub"}


@dataclass(frozen=True)
class SaturatedBias:
    """A bias with elements at a bound of int32.

    Attributes
    ----------
    node : str
        The node that adds the bias.
    constant : str
    channels : tuple of int
    module_path, source : str
        Origin of the node.
    """

    node: str
    constant: str
    channels: tuple[int, ...]
    module_path: str = ""
    source: str = ""

    def __str__(self) -> str:
        """A sentence with a remedy."""
        listed = ", ".join(map(str, self.channels[:_LISTED]))
        more = f" and {len(self.channels) - _LISTED} more" if len(self.channels) > _LISTED else ""
        places = [f"module '{self.module_path}'" if self.module_path else "", self.source]
        where = "".join(f", {each}" for each in places if each)
        several = "s" if len(self.channels) > 1 else ""
        return one_line(
            f"the bias of '{self.node}' saturates in channel{several} {listed}{more}: the product of the "
            f"scales of data and weight is too small for it{where}. Its value is lost. Quantize with "
            "tosaic.quantize or tosaic.Quantizer, which raise the scale of the weight, or leave the bias "
            "without a spec"
        )


def saturated_biases(graph: _core.Graph) -> list[SaturatedBias]:
    """Returns the biases of a graph at stage ``exported`` or ``quantized`` that saturate."""
    if graph.stage not in ("exported", "quantized"):
        return []
    return list(_found([node for node in all_nodes(graph) if node.op in _READ_OR_ADD]))


def _found(nodes: list[Any]) -> Iterator[SaturatedBias]:
    for node in nodes:
        for operand in node.operands:
            channels = _saturated(node, operand)
            for each in _adding(nodes, node) if channels else ():
                origin = each.origins[0] if each.origins else None
                yield SaturatedBias(
                    each.name,
                    operand.name,
                    channels,
                    getattr(origin, "module_path", "") or "",
                    getattr(origin, "source", "") or "",
                )


def _adding(nodes: list[Any], node: Any) -> list[Any]:
    """Returns the node itself, or if it quantizes or dequantizes, the nodes that add its result."""
    if node.op not in _CONVERSIONS:
        return [node]
    made = node.results[0].name
    readers = [
        each
        for each in nodes
        if any(operand is not None and operand.name == made for operand in each.operands)
    ]
    return [found for reader in readers for found in _adding(nodes, reader)]


def _saturated(node: Any, operand: Any) -> tuple[int, ...]:
    """Returns the channels (`channel_axis`) of a constant that saturate where a node reads it."""
    if operand is None or operand.constant is None or not operand.shape:
        return ()
    if operand.dtype == "i32" and (node.op == "dequantize" or operand.qparams is not None):
        elements = np.abs(np.asarray(operand.constant.array, np.int64))
        return _channels(elements >= _END)
    if node.op == "quantize" and operand.dtype == "f32" and node.results[0].dtype == "i32":
        scales = np.asarray(node.attrs["scales"], np.float64)
        if scales.size > 1:
            axis = node.attrs["axis"]
            scales = scales.reshape([-1 if at == axis else 1 for at in range(len(operand.shape))])
        with np.errstate(invalid="ignore", over="ignore"):
            elements = np.abs(np.asarray(operand.constant.array, np.float64) / scales)
        return _channels(elements >= _END)
    return ()


def _channels(found: np.ndarray[Any, Any]) -> tuple[int, ...]:
    channels = channel_axis(found.shape)
    others = tuple(axis for axis in range(found.ndim) if axis != channels)
    return tuple(map(int, np.flatnonzero(np.atleast_1d(found.any(axis=others)))))
