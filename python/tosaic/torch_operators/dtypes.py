"""Dtypes in the form that rows use: their positions in ``DTYPES``, by which the builder identifies them."""

from __future__ import annotations

from tosaic import _core
from tosaic.base.dtypes import is_float

CODE: dict[str, int] = {name: code for code, name in enumerate(_core.DTYPES)}
"""The position of each dtype, by name: ``CODE["f32"]``."""

CATEGORY = tuple(0 if name == "bool" else 2 if is_float(name) else 1 for name in _core.DTYPES)
"""torch's promotion category of each dtype, by position: bool 0, integer 1, float 2."""

DEFAULT_OF_CATEGORY = (CODE["bool"], CODE["i64"], CODE["f32"])
"""The dtype of a Python number if no tensor has its category, by category."""

NARROW_FLOATS = frozenset((CODE["f16"], CODE["bf16"]))
"""Floats in which torch does not compute: it computes in f32 and rounds the results."""

INTEGER_LIMITS: dict[int, tuple[int, int]] = {
    CODE[f"{sign}{bits}"]: (0, (1 << bits) - 1) if sign == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    for sign, bits in (("i", 8), ("u", 8), ("i", 16), ("u", 16), ("i", 32), ("i", 64))
}
"""The least and the greatest integer of the integer dtypes that torch has, by position."""
