"""The dtypes of graphs: the size of an element, and the dtypes of numpy and torch for the same elements.

Other tables of dtypes in this package are taken from the table here. The module imports neither torch nor the
core.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

# Name in graphs, bits of an element, name in torch, name of the numpy dtype that arrays have. An empty name
# means that torch or numpy has no such dtype.
_TABLE = (
    ("bool", 8, "bool", "bool"),
    ("i4", 4, "", "int8"),
    ("i8", 8, "int8", "int8"),
    ("u8", 8, "uint8", "uint8"),
    ("i16", 16, "int16", "int16"),
    ("u16", 16, "uint16", "uint16"),
    ("i32", 32, "int32", "int32"),
    ("i48", 48, "", ""),
    ("i64", 64, "int64", "int64"),
    ("f8e4m3", 8, "float8_e4m3fn", ""),
    ("f8e5m2", 8, "float8_e5m2", ""),
    ("f16", 16, "float16", "float16"),
    ("bf16", 16, "bfloat16", ""),
    ("f32", 32, "float32", "float32"),
    ("f64", 64, "float64", "float64"),
)

BITS: dict[str, int] = {name: bits for name, bits, _, _ in _TABLE}
"""The size of an element in bits. A bool has 8 bits, as in memory."""

TORCH: dict[str, str] = {name: torch for name, _, torch, _ in _TABLE if torch}
"""The name of the dtype in torch, for the dtypes that torch has."""

OF_TORCH: dict[str, str] = {torch: name for name, torch in TORCH.items()}
"""The name in graphs, by the name of the dtype in torch."""

NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(numpy) for name, _, _, numpy in _TABLE if numpy}
"""The dtype of numpy arrays, for the dtypes that numpy has. An array of ``i4`` has int8."""

NUMPY_INTEGERS: dict[str, np.dtype[Any]] = {
    name: dtype for name, dtype in NUMPY.items() if dtype.kind in "iu" and BITS[name] <= 32
}
"""`NUMPY` for the dtypes that the integers of a quantized value may have."""

ML_DTYPES: dict[str, str] = {name: torch for name, torch in TORCH.items() if name not in NUMPY}
"""The name of the dtype in the package ml_dtypes (and in torch), for the floats that numpy lacks."""


WITH_INTEGER_FORM = frozenset(("f32", "f16", "bf16"))
"""The float dtypes that integers with qparams may replace."""


def bytes_of(value: Any) -> int:
    """Returns the size in bytes of the elements of a value of a graph."""
    elements: int = math.prod(value.shape)
    return (elements * BITS[value.dtype] + 7) // 8


def is_float(dtype: str) -> bool:
    """True for a float dtype of graphs, such as ``f32`` or ``bf16``."""
    return dtype.startswith(("f", "bf"))


def is_float_array(array: Any) -> bool:
    """True for a numpy array of floats, floats of the package ml_dtypes included."""
    return array.dtype.kind == "f" or array.dtype.name in ML_DTYPES.values()


def is_held_as(dtype: str, in_file: str) -> bool:
    """True if a ``.tosa`` file holds elements of `dtype` as `in_file`.

    TOSA has neither 64-bit nor unsigned integers: i64 is held as i32, and an unsigned integer as the signed
    integer with the same bits. All other elements keep their dtype.
    """
    if is_float(dtype) or is_float(in_file) or "bool" in (dtype, in_file):
        return dtype == in_file
    return BITS[dtype] == BITS[in_file] or (dtype, in_file) == ("i64", "i32")


def type_text(dtype: object, shape: Sequence[int]) -> str:
    """Returns dtype and shape as text: ``f32[1,3,8,8]``."""
    return f"{dtype}[{','.join(map(str, shape))}]"
