"""Writes the new values of inputs that a program mutates, as with `cache.index_copy_(1, pos, q)`.

New values are written to the caller's arrays. All arguments are checked before the program runs: if one of
them cannot be written, no array and no state changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tosaic.base.dtypes import BITS, ML_DTYPES, NUMPY, type_text
from tosaic.base.options import layout_mismatch

_Array = np.ndarray[Any, Any]

_HINT = "Pass such an array, or call run_functional, which returns the new value"
_MOST_WORK = 100_000  # limit of numpy's search for a shared element


def writer(
    given: Any, array: _Array, name: str, dtype: str, shape: Sequence[int]
) -> Callable[[_Array], None]:
    """Returns a function that writes the new value of an input to the caller's argument.

    Parameters
    ----------
    given : numpy.ndarray or torch.Tensor
        The argument.
    array : numpy.ndarray
        The argument as a numpy array.
    name : str
        Name of the input in error messages.
    dtype : str
        Dtype of the new value, such as ``f32``.
    shape : sequence of int
        Shape of the new value.

    Raises
    ------
    LayoutMismatch
        The argument is not a writable array or tensor, has elements that share memory, or has another dtype
        or shape than the new value.
    """
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(given, torch.Tensor)
    if not is_tensor and not isinstance(given, np.ndarray):
        raise _refusal(name, "a numpy array or torch tensor", type(given).__name__)
    if not is_tensor and not given.flags.writeable:
        raise _refusal(name, "a writable array", "a read-only one")
    if array.size and _has_elements_in_common(array):
        got = "a broadcast one" if 0 in array.strides else "overlapping windows"
        raise _refusal(name, "an array with memory for each element", got)
    if not _is_dtype(array.dtype, dtype) or array.shape != tuple(shape):
        raise _refusal(name, type_text(dtype, shape), type_text(array.dtype, array.shape))
    if is_tensor:
        from tosaic.fx.running.written import write_tensor

        return lambda new: write_tensor(given, new)
    return lambda new: _write(given, new)


def refuse_shared_memory(index: int, arrays: Sequence[_Array], names: Sequence[str]) -> None:
    """Refuses a written input that shares elements with another input.

    A torch module in eager mode would see the new elements in the other input as well; an exported program
    does not. If the search for shared elements is too long, the input is refused too.

    Raises
    ------
    LayoutMismatch
        Input `index` shares elements with another input; the message names both.
    """
    for other, array in enumerate(arrays):
        if other == index or not np.may_share_memory(arrays[index], array):
            continue
        try:
            shared = np.shares_memory(arrays[index], array, max_work=_MOST_WORK)
        except np.exceptions.TooHardError:
            shared = True
        if shared:
            raise layout_mismatch(
                "inputs",
                f"the program writes input '{names[index]}', which shares memory with '{names[other]}'",
                expected="memory of its own",
                got="the same elements in both",
                hint="Pass a copy of one of them",
            )


def _has_elements_in_common(array: _Array) -> bool:
    """True if a byte belongs to several elements, because strides of different axes overlap."""
    reach = array.itemsize - 1
    axes = zip(array.strides, array.shape, strict=True)
    for stride, extent in sorted((abs(stride), extent) for stride, extent in axes if extent > 1):
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


def _is_dtype(found: np.dtype[Any], dtype: str) -> bool:
    if dtype in ML_DTYPES:  # without ml_dtypes, the array has the integers of the same bits
        return found.name == ML_DTYPES[dtype] or found == np.dtype(f"u{BITS[dtype] // 8}")
    return found == NUMPY[dtype]


def _write(to: _Array, new: _Array) -> None:
    same_bits = to.dtype.kind in "uV" and to.dtype.itemsize == new.dtype.itemsize
    to[...] = new.view(to.dtype) if same_bits else new


def _refusal(name: str, expected: str, got: str) -> Exception:
    return layout_mismatch(
        "inputs",
        f"the program writes input '{name}', and what was given cannot take its new value",
        expected=expected,
        got=got,
        hint=_HINT,
    )
