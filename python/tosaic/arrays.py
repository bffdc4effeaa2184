"""Arrays of the caller: numpy's, torch's, or anything that becomes one, without importing torch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tosaic import _core

__all__ = ["as_array"]

# Floats that numpy does not have, as torch and ml_dtypes call them.
_NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def as_array(value: Any, name: str = "input") -> np.ndarray[Any, Any]:
    """The value as a numpy array over the same memory where that is possible; strides are kept.

    Parameters
    ----------
    value : array_like or torch.Tensor
        Tensors may require gradients; bfloat16 and float8 need ``ml_dtypes``.
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
        raise _not_an_array(type(value).__name__, name) from error
    if array.dtype == object or array.dtype.kind in "SUmM":
        raise _not_an_array(type(value).__name__, name)
    return array


def _from_torch(tensor: Any, torch: Any, name: str) -> np.ndarray[Any, Any]:
    if tensor.layout is not torch.strided or tensor.is_meta:
        kind = f"a {'meta' if tensor.is_meta else str(tensor.layout).removeprefix('torch.')} tensor"
        raise _not_an_array(kind, name)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    kind = str(plain.dtype).removeprefix("torch.")
    if kind in _NARROW:
        bits = plain.view(torch.uint8 if plain.element_size() == 1 else torch.int16).numpy()
        return np.asarray(bits.view(_narrow(kind, name)))
    try:
        return np.asarray(plain.numpy())
    except (TypeError, RuntimeError) as error:
        raise _not_an_array(f"a tensor of {kind}", name) from error


def _narrow(kind: str, name: str) -> Any:
    try:
        import ml_dtypes
    except ImportError as error:
        raise _core.make_error(
            _core.LayoutMismatch,
            where="inputs",
            what=f"input '{name}' is {kind}, which numpy does not have",
            expected="the package ml_dtypes installed",
            got="no ml_dtypes",
            hint="pip install ml_dtypes",
        ) from error
    return getattr(ml_dtypes, kind)


def _not_an_array(got: str, name: str) -> Exception:
    return _core.make_error(
        _core.LayoutMismatch,
        where="inputs",
        what=f"input '{name}' is not an array",
        expected="a numpy array or torch tensor",
        got=got,
    )
