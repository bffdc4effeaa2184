"""Quantization and dequantization of one tensor with torch's operators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed

__all__ = ["Grid"]

Q = torch.ops.quantized_decomposed


@dataclass(frozen=True)
class Grid:
    """The quantization parameters of one tensor: scale, zero point, range and storage dtype."""

    scale: float
    zero: int
    low: int
    high: int
    storage: torch.dtype = torch.int8

    def quantize(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the integers of torch's quantize operator."""
        return Q.quantize_per_tensor(x, self.scale, self.zero, self.low, self.high, self.storage)

    def dequantize(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the floats that the integers represent."""
        return Q.dequantize_per_tensor(x, self.scale, self.zero, self.low, self.high, self.storage)

    def around(self, x: torch.Tensor) -> torch.Tensor:
        """Quantizes and dequantizes."""
        return self.dequantize(self.quantize(x))

    def quantize_double(self, x: torch.Tensor) -> torch.Tensor:
        """Quantizes a float64 tensor. It is divided by the scale, where torch multiplies by the inverse."""
        return torch.clamp(torch.round(x / self.scale) + self.zero, self.low, self.high).to(self.storage)
