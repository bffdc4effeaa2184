"""Quantize, dequantize, fake quantization, and the choice of parameters from numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from operators.checking import Row
from operators.draw import axis, shape, tensor
from operators.values import T

Draw = Callable[[Any], Any]
ROWS: dict[str, Row] = {}
STORAGE = (
    (torch.int8, "i8", -128, 127),
    (torch.uint8, "u8", 0, 255),
    (torch.int8, "i8", -127, 127),
    (torch.int16, "i16", -32768, 32767),
    (torch.int16, "i16", -32767, 32767),
)
SCALES = st.sampled_from([0.1, 0.05, 1.0, 0.0123, 2.0**-7])
KINDS = ("normal", "unit", "ties", "medium", "small")


@st.composite
def per_tensor(draw: Draw, *, undo: bool, form: str) -> Any:
    """Draws arguments of a per-tensor quantize (or dequantize, if `undo`).

    Parameters are numbers or tensors of one element.
    """
    dtype, name, qmin, qmax = draw(st.sampled_from(STORAGE))
    scale, zero = draw(SCALES), draw(st.sampled_from([0, 3, qmin, -1 if qmin < 0 else 1]))
    x = T(draw(shape()), name, "normal", 0) if undo else draw(tensor(shape(), ("f32",), KINDS))
    options = {"out_dtype": torch.float32} if undo and draw(st.booleans()) else {}
    if form == "number":
        return (x, scale, zero, qmin, qmax, dtype), options
    s, z = T((1,), "f32", [scale], const=True), T((1,), "i64", [zero], const=True)
    if form == "tensor":
        return (x, s, z, qmin, qmax, dtype), options
    low, high = (T((1,), "i64", [bound], const=True) for bound in (qmin, qmax))
    return (x, s, z, low, high, dtype), options


@st.composite
def per_channel(draw: Draw, *, undo: bool) -> Any:
    dtype, name, qmin, qmax = draw(st.sampled_from(STORAGE))
    sides = draw(shape(1, 5))
    dim = draw(axis(len(sides))) % len(sides)
    count = sides[dim]
    x = T(sides, name, "normal", 0) if undo else draw(tensor(sides, ("f32",), KINDS))
    scales = T((count,), "f32", [0.1, 0.05, 1.0, 0.0123], const=True)
    zeros = T((count,), "i64", [0] if draw(st.booleans()) else [0, 3, 1], const=True)
    options = {"out_dtype": torch.float32} if undo and draw(st.booleans()) else {}
    return (x, scales, zeros, dim, qmin, qmax, dtype), options


for _name, _undo in (("quantize", False), ("dequantize", True)):
    _base = f"quantized_decomposed::{_name}_per_tensor"
    ROWS[_base] = Row(per_tensor(undo=_undo, form="number"))
    ROWS[f"{_base}.tensor"] = Row(per_tensor(undo=_undo, form="tensor"))
    ROWS[f"{_base}.tensor2"] = Row(per_tensor(undo=_undo, form="tensor2"))
    ROWS[f"quantized_decomposed::{_name}_per_channel"] = Row(per_channel(undo=_undo))


@st.composite
def chosen(draw: Draw) -> Any:
    dtype, _, qmin, qmax = STORAGE[0]
    return (draw(tensor(shape(1, 4, empty=False), ("f32",), KINDS)), qmin, qmax, 1e-6, dtype), {}


for _name in ("choose_qparams", "choose_qparams_symmetric"):
    ROWS[f"quantized_decomposed::{_name}.tensor"] = Row(chosen())


@st.composite
def affine(draw: Draw, form: str) -> Any:
    """Draws arguments of torchao's operators.

    A block is the whole tensor, or all axes but one (per channel).
    """
    dtype, name, qmin, qmax = draw(st.sampled_from(STORAGE[:3]))
    sides = draw(shape(1, 4, empty=False))
    dim = draw(st.one_of(st.none(), axis(len(sides))))
    block = [1 if dim is not None and i == dim % len(sides) else side for i, side in enumerate(sides)]
    count = math.prod(side // b for side, b in zip(sides, block, strict=True))
    of = tuple(side // b for side, b in zip(sides, block, strict=True)) if dim is not None else (1,)
    if form == "choose":
        x = draw(tensor(sides, ("f32",), KINDS))
        return (x, draw(st.sampled_from(["ASYMMETRIC", "SYMMETRIC"])), block, torch.int8), {}
    assert count
    scale, zero = T(of, "f32", [0.1, 0.05, 0.5], const=True), T(of, "i32", [0, 3], const=True)
    if form == "quantize":
        return (draw(tensor(sides, ("f32",), KINDS)), block, scale, zero, dtype, qmin, qmax), {}
    return (T(sides, name), block, scale, zero, dtype, qmin, qmax, torch.float32), {}


ROWS["torchao::quantize_affine"] = Row(affine("quantize"))
ROWS["torchao::dequantize_affine"] = Row(affine("dequantize"))
ROWS["torchao::choose_qparams_affine"] = Row(affine("choose"))


@st.composite
def fake(draw: Draw, form: str) -> Any:
    qmin, qmax, zero = draw(st.sampled_from([(-128, 127, 0), (0, 255, 128), (-128, 127, 5), (-8, 7, 0)]))
    sides = draw(shape(1 if form == "channel" else 0, 5))
    x = draw(tensor(sides, ("f32",), KINDS))
    if form == "number":
        return (x, draw(SCALES), zero, qmin, qmax), {}
    if form == "tensor":
        return (
            x,
            T((1,), "f32", [draw(SCALES)], const=True),
            T((1,), "i32", [zero], const=True),
            qmin,
            qmax,
        ), {}
    dim = draw(st.integers(0, len(sides) - 1))
    scales = T((sides[dim],), "f32", [0.1, 0.05, 1.0], const=True)
    return (x, scales, T((sides[dim],), "i32", [zero], const=True), dim, qmin, qmax), {}


ROWS["fake_quantize_per_tensor_affine"] = Row(fake("number"))
ROWS["fake_quantize_per_tensor_affine.tensor_qparams"] = Row(fake("tensor"))
ROWS["fake_quantize_per_channel_affine"] = Row(fake("channel"))
