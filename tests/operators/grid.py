"""How floats are quantized, in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed

__all__ = ["Grid"]

Q = torch.ops.quantized_decomposed


@dataclass(frozen=True)
class Grid:
    """Scale, zero point and range of one tensor."""

    scale: float
    zero: int
    low: int
    high: int
    storage: torch.dtype = torch.int8

    def quantize(self, x: torch.Tensor) -> torch.Tensor:
        """Integers, as torch's operator gives them."""
        return Q.quantize_per_tensor(x, self.scale, self.zero, self.low, self.high, self.storage)

    def dequantize(self, x: torch.Tensor) -> torch.Tensor:
        """The numbers that integers stand for."""
        return Q.dequantize_per_tensor(x, self.scale, self.zero, self.low, self.high, self.storage)

    def around(self, x: torch.Tensor) -> torch.Tensor:
        """There and back."""
        return self.dequantize(self.quantize(x))

    def quantize_double(self, x: torch.Tensor) -> torch.Tensor:
        """The same integers of a tensor in float64, divided and not multiplied by the inverse."""
        return torch.clamp(torch.round(x / self.scale) + self.zero, self.low, self.high).to(self.storage)
