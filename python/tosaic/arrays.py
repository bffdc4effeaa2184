"""Arrays of the caller: numpy's, torch's, or anything that becomes one, without importing torch."""

from __future__ import annotations

import numbers
import sys
from typing import Any

import numpy as np

from tosaic import _core

__all__ = ["as_array", "dtype_name"]

# Floats that numpy does not have, as torch and ml_dtypes call them.
_NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
# Floats as which numbers without a dtype of their own are read, by the graph's name for them.
_FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def as_array(value: Any, name: str = "input", *, dtype: str = "") -> np.ndarray[Any, Any]:
    """The value as a numpy array over the same memory where that is possible; strides are kept.

    Parameters
    ----------
    value : array_like or torch.Tensor
        Tensors may require gradients; bfloat16 and float8 need ``ml_dtypes``. Arrays of another byte order
        are copied into this machine's.
    name : str
        How messages call it.
    dtype : str
        What numbers of Python, nested in lists perhaps, are read as where it is a float: ``f32``.

    Raises
    ------
    LayoutMismatch
        It is no array of numbers, has masked elements, or is of a dtype that has no counterpart.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(value, torch, name)
    if isinstance(value, np.ma.MaskedArray) and np.any(value.mask):
        raise _masked(value, name)
    try:
        array = np.asarray(value)
    except Exception as error:  # whatever an object raises that says it is an array
        raise _not_an_array(type(value).__name__, name) from error
    if array.dtype.kind in "OSUmM" or array.dtype.type is np.void:
        is_array = isinstance(value, np.ndarray | np.generic)
        raise _not_an_array(f"an array of {array.dtype}" if is_array else type(value).__name__, name)
    if dtype in _FLOATS and array.dtype.kind in "if" and _is_plain(value):
        return array.astype(_FLOATS[dtype])
    return _native(array, name)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name in graphs of a dtype that `as_array` returns: ``f32`` of float32, ``bf16`` of bfloat16."""
    known = {"bool": "bool", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}
    return known.get(dtype.name) or f"{dtype.kind}{8 * dtype.itemsize}"


def _is_plain(value: Any) -> bool:
    """Numbers of Python, which have no dtype, nested in lists and tuples perhaps."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, numbers.Real) and not isinstance(value, np.generic)


def _native(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """In this machine's byte order, unsigned integers of 32 and 64 bits as signed ones of 64."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "u" and size >= 4:
        if size == 8 and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise _core.make_error(
                _core.LayoutMismatch,
                where="inputs",
                what=f"input '{name}' holds a number beyond 64 bits with a sign",
                expected=f"at most {np.iinfo(np.int64).max}",
                got=str(array.max()),
            )
        return array.astype(np.int64)
    if kind == "c" or (kind == "f" and size > 8):
        raise _core.make_error(
            _core.LayoutMismatch,
            where="inputs",
            what=f"input '{name}' has a dtype without a counterpart",
            expected="truth values, integers or floats of up to 64 bits",
            got=str(array.dtype),
        )
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
        return _native(plain.numpy(), name)
    except (TypeError, RuntimeError) as error:
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        found = "nested tensor" if tensor.is_nested else "tensor" if is_plain else type(tensor).__name__
        raise _not_an_array(f"a {found} of {kind}", name) from error


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


def _masked(array: Any, name: str) -> Exception:
    return _core.make_error(
        _core.LayoutMismatch,
        where="inputs",
        what=f"input '{name}' has masked elements",
        expected="a number for each element",
        got=f"{np.count_nonzero(array.mask)} of {array.size} masked",
        hint="Give their numbers: array.filled(0)",
    )


def _not_an_array(got: str, name: str) -> Exception:
    return _core.make_error(
        _core.LayoutMismatch,
        where="inputs",
        what=f"input '{name}' is not an array",
        expected="a numpy array or torch tensor",
        got=got,
    )
