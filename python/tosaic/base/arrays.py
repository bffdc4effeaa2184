"""Converts a caller's arrays, tensors and array-likes to numpy arrays, without importing torch."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tosaic.base.dtypes import ML_DTYPES, NUMPY, OF_TORCH, is_float
from tosaic.base.options import layout_mismatch

# Float dtypes of the graph that Python numbers are converted to.
_FLOATS = {name: dtype for name, dtype in NUMPY.items() if is_float(name)}
# Numpy's dtypes that graphs have too, in this machine's byte order. Arrays of them are returned unchanged.
_PLAIN = frozenset(map(np.dtype, ["?", "b", "B", "h", "H", "i", "q", "e", "f", "d"]))


class _Named(NamedTuple):
    """The names of a value in messages: ``[inputs]`` and ``input 'x'``."""

    where: str
    what: str


def as_array(
    value: Any, name: str = "input", *, dtype: str = "", where: str = "inputs", what: str = ""
) -> np.ndarray[Any, Any]:
    """Converts a value to a numpy array, over the same memory and with the same strides if possible.

    Parameters
    ----------
    value : array_like or torch.Tensor
        A tensor may require gradients. bfloat16 and float8 need ``ml_dtypes``. Arrays of another byte order
        are copied to this machine's, and unsigned integers of 32 and 64 bits to int64.
    name : str
        Name of the input in error messages.
    dtype : str
        Dtype of the input in the graph. If it is ``f16``, ``f32`` or ``f64``, Python numbers (also in nested
        lists and tuples) are converted to it. It has no effect on arrays and tensors.
    where, what : str
        The location and the subject of error messages, if the value is not an input: ``constant 'scale'``.

    Raises
    ------
    LayoutMismatch
        The value is not an array of numbers, has masked elements, has a dtype that the graph does not have,
        or has a number above 2**63 - 1.
    """
    if type(value) is np.ndarray and value.dtype in _PLAIN:
        return value
    named = _Named(where, what or f"input '{name}'")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(value, torch, named)
    if isinstance(value, np.ma.MaskedArray) and np.any(value.mask):
        raise _masked(value, named)
    try:
        array = np.asarray(value)
    except MemoryError:
        raise
    except Exception as error:  # the array protocol of an object may raise anything
        raise _not_an_array(type(value).__name__, named) from error
    if array.dtype.kind in "OSUmM" or array.dtype.type is np.void:
        is_array = isinstance(value, np.ndarray | np.generic)
        raise _not_an_array(f"an array of {array.dtype}" if is_array else type(value).__name__, named)
    if dtype in _FLOATS and array.dtype.kind in "if" and _is_plain(value):
        return array.astype(_FLOATS[dtype])
    return _native(array, named)


def channel_axis(shape: Sequence[int]) -> int | None:
    """Returns the axis of the channels of a bias or addend: the last axis longer than 1; None without one.

    A bias of convolutions may have the shape (1, channels, 1, 1), and one of matrix products (channels,).
    """
    return max((axis for axis, size in enumerate(shape) if size > 1), default=None)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns the name in graphs of a dtype that `as_array` returns, such as ``f32`` for float32."""
    return OF_TORCH.get(dtype.name) or f"{dtype.kind}{8 * dtype.itemsize}"


def _is_plain(value: Any) -> bool:
    """True for a Python number, which has no dtype, or (nested) lists and tuples of Python numbers."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, numbers.Real) and not isinstance(value, np.generic)


def _native(array: np.ndarray[Any, Any], named: _Named) -> np.ndarray[Any, Any]:
    """Converts to this machine's byte order, and unsigned integers of 32 and 64 bits to int64."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "u" and size >= 4:
        if size == 8 and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise layout_mismatch(
                named.where,
                f"{named.what} holds a number beyond 64 bits with a sign",
                expected=f"at most {np.iinfo(np.int64).max}",
                got=str(array.max()),
            )
        return array.astype(np.int64)
    if kind == "c" or (kind == "f" and size > 8):
        raise layout_mismatch(
            named.where,
            f"{named.what} has a dtype without a counterpart",
            expected="truth values, integers or floats of up to 64 bits",
            got=str(array.dtype),
        )
    return array


def _from_torch(tensor: Any, torch: Any, named: _Named) -> np.ndarray[Any, Any]:
    if tensor.layout is not torch.strided or tensor.is_meta:
        kind = f"a {'meta' if tensor.is_meta else str(tensor.layout).removeprefix('torch.')} tensor"
        raise _not_an_array(kind, named)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    kind = str(plain.dtype).removeprefix("torch.")
    if kind in ML_DTYPES.values():
        bits = plain.view(torch.uint8 if plain.element_size() == 1 else torch.int16).numpy()
        return np.asarray(bits.view(_narrow(kind, named)))
    try:
        return _native(plain.numpy(), named)
    except (TypeError, RuntimeError) as error:
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        found = "nested tensor" if tensor.is_nested else "tensor" if is_plain else type(tensor).__name__
        raise _not_an_array(f"a {found} of {kind}", named) from error


def narrow_dtype(name: str, where: str, what: str) -> Any:
    """Returns the dtype of ``ml_dtypes`` for a dtype of graphs that numpy does not have, such as ``bf16``.

    Raises
    ------
    LayoutMismatch
        ``ml_dtypes`` is not installed; `where` and `what` begin the message.
    """
    return _narrow(ML_DTYPES[name], _Named(where, what))


def _narrow(kind: str, named: _Named) -> Any:
    try:
        import ml_dtypes
    except ImportError as error:
        raise layout_mismatch(
            named.where,
            f"{named.what} is {kind}, which numpy does not have",
            expected="the package ml_dtypes installed",
            got="no ml_dtypes",
            hint="pip install ml_dtypes",
        ) from error
    return getattr(ml_dtypes, kind)


def _masked(array: Any, named: _Named) -> Exception:
    return layout_mismatch(
        named.where,
        f"{named.what} has masked elements",
        expected="a number for each element",
        got=f"{np.count_nonzero(array.mask)} of {array.size} masked",
        hint="Give their numbers: array.filled(0)",
    )


def _not_an_array(got: str, named: _Named) -> Exception:
    return layout_mismatch(
        named.where, f"{named.what} is not an array", expected="a numpy array or torch tensor", got=got
    )


def in_memory_order(array: np.ndarray[Any, Any], order: Sequence[int]) -> np.ndarray[Any, Any]:
    """Returns an array with its axes as before, whose elements are dense in memory in a dim order.

    It is the array itself if it has this order already.
    """
    return np.asarray(np.asarray(array.transpose(order), order="C").transpose(np.argsort(order)))
