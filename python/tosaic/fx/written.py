"""Writes new values into torch tensors, like an operator of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["write_tensor"]

_BITS = {1: torch.uint8, 2: torch.int16}


def write_tensor(tensor: torch.Tensor, new: np.ndarray[Any, Any]) -> None:
    """Writes an array of the tensor's dtype and shape into the tensor, which increments its version."""
    if new.dtype.isbuiltin != 1 or tensor.dtype is not _dtype_of(new):  # bfloat16 and float8 have other names
        bits = _BITS[tensor.element_size()]
        source = torch.from_numpy(new.view(np.uint8 if bits is torch.uint8 else np.int16)).view(tensor.dtype)
    else:
        source = torch.from_numpy(new)
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.detach().copy_(source)


def _dtype_of(array: np.ndarray[Any, Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
