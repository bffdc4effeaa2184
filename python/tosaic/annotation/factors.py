"""Products and quotients by numbers: the integers stay the same, and only the scale changes.

    x = (integer - zero point) * scale
    x * 0.25 = (integer - zero point) * (scale * 0.25)
    x * -0.25 = (mirrored integer - mirrored zero point) * (scale * 0.25)

Scales cannot be negative. The integers are mirrored in their range instead, which is exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tosaic.annotation.joins import Scale

_LEAST = float(np.finfo(np.float32).tiny)
_GREATEST = float(np.finfo(np.float32).max)


def scaled_by(operand: Scale, factor: float, *, is_symmetric: bool = False) -> Scale | None:
    """Returns the scale of a tensor times a number, or None if that scale or its zero point is not allowed.

    Parameters
    ----------
    operand : Scale
    factor : float
        Finite and not 0.
    is_symmetric : bool
        The result must have the zero point of the operand.

    Examples
    --------
    >>> scaled_by(Scale(0.5, 3, "i8", -128, 127), -0.25)
    Scale(scale=0.125, zero_point=-4, dtype='i8', qmin=-128, qmax=127)
    """
    scale, zero_point = operand.scale * abs(factor), operand.zero_point
    if factor < 0:
        zero_point = operand.qmin + operand.qmax - zero_point
    if not _LEAST <= scale <= _GREATEST or (is_symmetric and zero_point != operand.zero_point):
        return None
    return replace(operand, scale=scale, zero_point=zero_point)
