"""Which operands of joins, such as a concatenation, take the scale of the result even if others read them.

An operand with its own scale is rescaled to the scale of the result, and rounded a second time. If it takes
the result's scale, there is no rescale, but its other readers get coarser numbers. Let r be the ratio of the
scale of the result to the scale of the operand. Keeping its own scale multiplies the noise at the join by 1 +
1/r²; taking the result's scale multiplies the noise at the other readers by r². Both factors are equal if r²
is the golden ratio (2.1 dB). Up to this ratio, the result's scale loses less, and is free at run time.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

NEARLY_EQUAL = math.sqrt((1 + math.sqrt(5)) / 2)

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class Scale:
    """The scale and zero point of a tensor, and the range of its integers."""

    scale: float
    zero_point: int
    dtype: str
    qmin: int
    qmax: int

    def holds(self, other: Scale) -> bool:
        """Returns whether this scale can represent numbers of another scale with little loss."""
        is_alike = (self.dtype, self.qmin, self.qmax) == (other.dtype, other.qmin, other.qmax)
        half = self.scale / 2
        return (
            is_alike
            and self.scale <= NEARLY_EQUAL * other.scale
            and self._least <= other._least + half
            and self._greatest >= other._greatest - half
        )

    @property
    def _least(self) -> float:
        return (self.qmin - self.zero_point) * self.scale

    @property
    def _greatest(self) -> float:
        return (self.qmax - self.zero_point) * self.scale


def takers(joined: Sequence[tuple[_Key, _Key]], scales: Mapping[_Key, Scale]) -> dict[_Key, _Key]:
    """Returns which tensor takes the scale of which other tensor.

    Parameters
    ----------
    joined : sequence of (key, key)
        An operand and the result of a join, whose scales may differ.
    scales : mapping
        The scales that the tensors have on their own.

    Returns
    -------
    dict
        Operands that are not in it keep their scales.

    Examples
    --------
    >>> wide, near, far = (Scale(each, 0, "int8", -128, 127) for each in (1.0, 0.9, 0.1))
    >>> takers([("near", "cat"), ("far", "cat")], {"cat": wide, "near": near, "far": far})
    {'near': 'cat'}
    """
    found: dict[_Key, _Key] = {}

    def last(key: _Key) -> _Key:
        while key in found:
            key = found[key]
        return key

    known = [(operand, result) for operand, result in joined if operand in scales and result in scales]
    # The widest results come first: a result that is itself an operand then has its final scale.
    for operand, result in sorted(known, key=lambda pair: -scales[pair[1]].scale):
        target = last(result)
        if operand not in found and operand != target and scales[target].holds(scales[operand]):
            found[operand] = target
    return {key: last(key) for key in found}
