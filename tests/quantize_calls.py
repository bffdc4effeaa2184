"""Calls of torch's quantize and dequantize operators, per tensor."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed

__all__ = ["RANGES", "dq", "q", "qdq"]

_OPS = torch.ops.quantized_decomposed

RANGES = {
    torch.int8: (-128, 127),
    torch.uint8: (0, 255),
    torch.int16: (-32768, 32767),
    torch.int32: (-(2**31), 2**31 - 1),
}
"""The least and the greatest integer of each dtype of quantized values."""


def q(x: torch.Tensor, scale: float, zero: int = 0, low: int = -128, high: int = 127) -> torch.Tensor:
    """Quantizes floats to int8."""
    return _OPS.quantize_per_tensor(x, scale, zero, low, high, torch.int8)


def dq(x: torch.Tensor, scale: float, zero: int = 0, low: int = -128, high: int = 127) -> torch.Tensor:
    """Dequantizes int8."""
    return _OPS.dequantize_per_tensor(x, scale, zero, low, high, torch.int8)


def qdq(x: torch.Tensor, scale: float, zero: int = 0, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    """Quantizes floats over the whole range of `dtype`, and dequantizes the integers."""
    low, high = RANGES[dtype]
    integers = _OPS.quantize_per_tensor(x, scale, zero, low, high, dtype)
    return _OPS.dequantize_per_tensor(integers, scale, zero, low, high, dtype)
