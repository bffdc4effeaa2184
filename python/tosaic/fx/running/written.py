"""Converts arrays to tensors, and writes new values into tensors as an operator of torch does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_BITS = {1: np.uint8, 2: np.int16}


def tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Returns a tensor with the memory of an array, which has to be writable.

    Numpy's bfloat16 and float8 come from ml_dtypes, with torch's names.
    """
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return _of_bits(array, getattr(torch, array.dtype.name))


def _of_bits(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(array.view(_BITS[array.dtype.itemsize])).view(dtype)


def write_tensor(tensor: torch.Tensor, new: np.ndarray[Any, Any]) -> None:
    """Writes an array of the tensor's dtype and shape into the tensor, which increments its version."""
    has_dtype = new.dtype.isbuiltin == 1 and tensor.dtype is _dtype_of(new)  # else bits as another dtype
    source = torch.from_numpy(new) if has_dtype else _of_bits(new, tensor.dtype)
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.detach().copy_(source)


def _dtype_of(array: np.ndarray[Any, Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
