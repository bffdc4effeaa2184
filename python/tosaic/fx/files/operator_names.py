"""Names of calls in a ``.pt2`` file that are not operators of torch."""

from __future__ import annotations

_ARITHMETIC = "eq ne le ge lt gt neg pos mul add sub floordiv mod pow truediv and_ or_ lshift rshift"
_SYMBOLIC = "sym_not sym_int sym_float sym_ite sym_max sym_min sym_sqrt"

SYMBOLIC_CALLS = frozenset(
    [
        *(f"_operator.{name}" for name in _ARITHMETIC.split()),
        *(f"torch.{name}" for name in _SYMBOLIC.split()),
        "math.trunc",
    ]
)
"""Functions over sizes and numbers, as `torch.export.save` names them."""
