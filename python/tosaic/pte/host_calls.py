"""Operators of tosaic as calls of ExecuTorch's kernels.

A row has the name and overload of an out variant, and a function that returns its arguments, in the order of
the schema. A canonical operator without attributes that torch has under the same name needs no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tosaic import _core
from tosaic.pte.file_writer import MethodWriter, Slot
from tosaic.torch_operators.table import TABLE

__all__ = ["KernelCall", "call_of", "quantize_call", "dequantize_call"]

KernelCall: TypeAlias = tuple[str, str, list[Any]]
"""Name, overload, and the arguments without results."""
_Arguments = Callable[[Mapping[str, Any], Sequence[Slot], Any], list[Any] | None]
_CODES = {dtype: code for code, _, _, dtype in _core.pte_scalar_types() if dtype is not None}


def _binary(attrs: Mapping[str, Any], operands: Sequence[Slot], _: Any) -> list[Any] | None:
    return None if any(attrs.values()) else list(operands)


def _sum(attrs: Mapping[str, Any], operands: Sequence[Slot], _: Any) -> list[Any]:
    return [*operands, attrs["alpha"]]


def _softmax(attrs: Mapping[str, Any], operands: Sequence[Slot], _: Any) -> list[Any] | None:
    return None if attrs["dtype"] else [*operands, attrs["axis"], False]


def _mean(attrs: Mapping[str, Any], operands: Sequence[Slot], _: Any) -> list[Any] | None:
    return None if attrs["dtype"] else [*operands, list(attrs["axes"]), attrs["keepdim"], None]


_ROWS: dict[str, tuple[str, str, _Arguments]] = {
    "add": ("aten::add", "out", _sum),
    "sub": ("aten::sub", "out", _sum),
    "mul": ("aten::mul", "out", _binary),
    "div": ("aten::div", "out", _binary),
    "maximum": ("aten::maximum", "out", _binary),
    "minimum": ("aten::minimum", "out", _binary),
    "softmax": ("aten::_softmax", "out", _softmax),
    "mean": ("aten::mean", "out", _mean),
    "bmm": ("aten::bmm", "out", _binary),
    "reshape": ("aten::view_copy", "out", lambda a, x, _: [*x, list(a["shape"])]),
    "permute": ("aten::permute_copy", "out", lambda a, x, _: [*x, list(a["perm"])]),
    "expand": ("aten::expand_copy", "out", lambda a, x, _: [*x, list(a["shape"]), False]),
    "cat": ("aten::cat", "out", lambda a, x, _: [list(x), a["axis"]]),
    "slice": (
        "aten::slice_copy",
        "Tensor_out",
        lambda a, x, _: [*x, a["axis"], a["start"], a["end"], a["step"]],
    ),
    "select": ("aten::select_copy", "int_out", lambda a, x, _: [*x, a["axis"], a["index"]]),
    "cast": (
        "dim_order_ops::_to_dim_order_copy",
        "out",
        lambda _, x, result: [*x, False, list(range(len(result.shape)))],
    ),
    "clone": (
        "dim_order_ops::_to_dim_order_copy",
        "out",
        lambda _, x, result: [*x, False, list(range(len(result.shape)))],
    ),
}


def call_of(node: _core.Node, operands: Sequence[Slot], writer: MethodWriter) -> KernelCall | None:
    """Returns the call that computes a node; None if no kernel is known to."""
    attrs = node.attrs or {}
    if node.op == "quantize":
        return quantize_call(operands[0], attrs, writer)
    if node.op == "dequantize":
        return dequantize_call(operands[0], attrs, node.operands[0].dtype, writer)  # type: ignore[union-attr]
    row = _ROWS.get(node.op)
    if row is not None:
        name, overload, arguments = row
        made = arguments(attrs, operands, node.results[0])
        return None if made is None else (name, overload, made)
    if not attrs and len(operands) == len(node.results) == 1 and node.op in TABLE:
        return f"aten::{node.op}", "out", list(operands)
    return None


def quantize_call(x: Slot, attrs: Mapping[str, Any], writer: MethodWriter) -> KernelCall | None:
    """Returns the call that quantizes a tensor with the attributes of a ``quantize``."""
    return _quantizer("quantize", x, attrs, _CODES[attrs["dtype"]], writer, [])


def dequantize_call(x: Slot, attrs: Mapping[str, Any], dtype: str, writer: MethodWriter) -> KernelCall | None:
    """Returns the call that dequantizes a tensor of `dtype` with the attributes of a ``dequantize``."""
    if attrs.get("dtype", "f32") != "f32":
        return None
    return _quantizer("dequantize", x, attrs, _CODES[dtype], writer, [None])


def _quantizer(
    verb: str, x: Slot, attrs: Mapping[str, Any], dtype: int, writer: MethodWriter, rest: list[Any]
) -> KernelCall | None:
    scales, zeros = attrs["scales"], attrs["zero_points"]
    bounds = [int(attrs["qmin"]), int(attrs["qmax"]), dtype]
    if attrs.get("groups"):
        return None
    if attrs.get("axis") is None:
        numbers = [float(scales[0]), int(zeros[0])]
        return f"quantized_decomposed::{verb}_per_tensor", "out", [x, *numbers, *bounds, *rest]
    channels = [
        writer.constant(np.asarray(scales, np.float64), "f64"),
        writer.constant(np.asarray(zeros, np.int64), "i64"),
    ]
    name = f"quantized_decomposed::{verb}_per_channel"
    return name, "out", [x, *channels, int(attrs["axis"]), *bounds, *rest]
