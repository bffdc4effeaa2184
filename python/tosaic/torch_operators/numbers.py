"""Python numbers as arrays of rank 0, as torch converts them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosaic import _core
from tosaic.base.dtypes import NUMPY
from tosaic.torch_operators.dtypes import CATEGORY


def number_array(value: bool | int | float, code: int) -> NDArray[Any] | None:
    """Returns a number in a dtype, or None if numpy does not have the dtype.

    Integers wrap around, and floats that are too large become infinite.
    """
    dtype = NUMPY.get(_core.DTYPES[code])
    if dtype is None:
        return None
    if isinstance(value, int) and CATEGORY[code] == 1:
        return np.array(value, np.int64).astype(dtype)
    with np.errstate(over="ignore"):
        return np.array(value, dtype)
