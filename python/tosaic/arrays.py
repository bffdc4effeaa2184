"""Arrays of the caller: numpy's, torch's, or anything that becomes one, without importing torch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tosaic import _core

__all__ = ["as_array"]


def as_array(value: Any, name: str = "input") -> np.ndarray[Any, Any]:
    """The value as a numpy array over the same memory where that is possible; strides are kept.

    Parameters
    ----------
    value : array_like or torch.Tensor
        Tensors may require gradients; bfloat16 needs ``ml_dtypes``.
    name : str
        How messages call it.

    Raises
    ------
    LayoutMismatch
        It is no array of numbers.
    """
    if isinstance(value, np.ndarray):
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(value, torch, name)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise _not_an_array(value, name) from error
    if array.dtype == object or array.dtype.kind in "SUmM":
        raise _not_an_array(value, name)
    return array


def _from_torch(tensor: Any, torch: Any, name: str) -> np.ndarray[Any, Any]:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        bits = plain.view(torch.int16).numpy()
        return np.asarray(bits.view(_bfloat16(name)))
    try:
        return np.asarray(plain.numpy())
    except (TypeError, RuntimeError) as error:
        raise _not_an_array(tensor, name) from error


def _bfloat16(name: str) -> Any:
    try:
        import ml_dtypes
    except ImportError as error:
        raise _core.make_error(
            _core.LayoutMismatch,
            where="inputs",
            what=f"input '{name}' is bfloat16, which numpy does not have",
            expected="the package ml_dtypes installed",
            got="no ml_dtypes",
            hint="pip install ml_dtypes",
        ) from error
    return ml_dtypes.bfloat16


def _not_an_array(value: Any, name: str) -> Exception:
    return _core.make_error(
        _core.LayoutMismatch,
        where="inputs",
        what=f"input '{name}' is not an array",
        expected="a numpy array or torch tensor",
        got=type(value).__name__,
    )
