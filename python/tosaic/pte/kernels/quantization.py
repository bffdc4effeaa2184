"""Kernels that quantize and dequantize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.pte.host import Held, Host
from tosaic.pte.kernels.table import Operands, Results, row
from tosaic.pte.method_writer import code_of

_QUANTIZED = ("i8", "u8", "i16", "u16", "i32")
"""The dtypes that these kernels support."""


@row("quantize")
def _quantize(host: Host, node: _core.Node, operands: Operands) -> Results:
    return quantized(host, operands[0], node.attrs)


@row("dequantize")
def _dequantize(host: Host, node: _core.Node, operands: Operands) -> Results:
    return dequantized(host, operands[0], node.attrs, node.results[0].dtype)


def quantized(host: Host, x: Held, attrs: Mapping[str, Any]) -> Held | None:
    """Writes the call that quantizes a tensor with the attributes of a ``quantize``.

    Returns None if no kernel supports it.
    """
    dtype = attrs["dtype"]
    if dtype not in _QUANTIZED or attrs.get("groups"):
        return None
    kernel, parameters = _parameters(host, "quantize", attrs)
    return host.call(kernel, [x, *parameters, code_of(dtype)], dtype, x.shape, x.order)


def dequantized(host: Host, x: Held, attrs: Mapping[str, Any], dtype: str) -> Held | None:
    """Writes the call that converts integers to floats, with the attributes of a ``dequantize``.

    Returns None if no kernel supports it.
    """
    if x.dtype not in _QUANTIZED or attrs.get("groups"):
        return None
    kernel, parameters = _parameters(host, "dequantize", attrs)
    wanted = None if dtype == "f32" else code_of(dtype)
    return host.call(kernel, [x, *parameters, code_of(x.dtype), wanted], dtype, x.shape, x.order)


def _parameters(host: Host, verb: str, attrs: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Returns the kernel, and its arguments up to the bounds."""
    scales, zeros = attrs["scales"], attrs["zero_points"]
    bounds = [int(attrs["qmin"]), int(attrs["qmax"])]
    if attrs.get("axis") is None:
        name = f"quantized_decomposed::{verb}_per_tensor.out"
        return name, [float(scales[0]), int(zeros[0]), *bounds]
    channels = [
        host.constant(np.asarray(scales, np.float64), "f64"),
        host.constant(np.asarray(zeros, np.int64), "i64"),
    ]
    return f"quantized_decomposed::{verb}_per_channel.out", [*channels, int(attrs["axis"]), *bounds]
