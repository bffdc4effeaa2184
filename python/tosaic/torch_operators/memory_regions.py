"""The memory of tensors: which elements of a storage a tensor has, and whether two tensors overlap.

    x = torch.empty(4, 6)      the storage of x, shape (4, 6), strides (6, 1)
    x.t()                      shape (6, 4), strides (1, 6): the elements of x in another order
    x[2:]                      offset 12, shape (2, 6): overlaps x, but not x[:2]
    x.detach()                 the same as x

A `Region` without a layout says only in which storages a tensor may be: for example, a nested graph may
return any of its operands.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tosaic.torch_operators.places import has_own_places, places

_MOST_COMPARED = 1 << 20  # larger tensors are not compared element by element


@dataclass(frozen=True)
class Region:
    """The memory of a tensor.

    Attributes
    ----------
    memories : frozenset
        The storages in which the tensor may lie: exactly one if the layout is known.
    layout : tuple or None
        The dtype, the offset, and the pairs of size and stride of all axes, in elements.
    unit : int
        Bytes of an element.
    is_certain : bool
        False if the strides are recorded ones, which may differ from those of the computed tensor.
    """

    memories: frozenset[Hashable]
    layout: tuple[Any, int, tuple[tuple[int, int], ...]] | None = None
    unit: int = 1
    is_certain: bool = True

    @property
    def memory(self) -> Hashable:
        """The only storage in which the tensor lies."""
        (memory,) = self.memories
        return memory

    @property
    def offset(self) -> int:
        """The offset in elements."""
        assert self.layout is not None
        return self.layout[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        assert self.layout is not None
        return tuple([size for size, _ in self.layout[2]])

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of the axes in elements."""
        assert self.layout is not None
        return tuple([stride for _, stride in self.layout[2]])

    @property
    def count(self) -> int:
        """The number of elements; 0 if the layout is not known."""
        return 0 if self.layout is None else math.prod(self.shape)

    @property
    def is_empty(self) -> bool:
        """True if the tensor has no elements."""
        return self.layout is not None and 0 in self.shape

    @property
    def overlaps_itself(self) -> bool:
        """True if elements of the tensor share memory. False if the layout is not known."""
        if self.layout is None or not self.is_certain:
            return False
        return not self.is_empty and not has_own_places(self.layout[2])

    def is_same(self, other: Region) -> bool:
        """True if both tensors have the same dtype and shape, and the same element at each place."""
        if self.layout is None or other.layout is None or self.memories != other.memories:
            return False
        (dtype, offset, axes), (dtype_2, offset_2, axes_2) = self.layout, other.layout
        if dtype != dtype_2 or self.shape != other.shape:
            return False
        if self.is_empty:
            return True
        return offset == offset_2 and all(
            a == b for (size, a), (_, b) in zip(axes, axes_2, strict=True) if size > 1
        )

    def overlaps(self, other: Region) -> bool:
        """True unless the tensors are known to have no element in common."""
        if self.is_empty or other.is_empty or not self.memories & other.memories:
            return False
        if self.layout is None or other.layout is None:
            return True
        first, last = self._bytes()
        first_2, last_2 = other._bytes()
        return first < last_2 and first_2 < last and not self._alternates_with(other)

    def _alternates_with(self, other: Region) -> bool:
        """True if the tensors share no element although their ranges overlap, such as two columns."""
        if self.unit != other.unit or max(self.count, other.count) > _MOST_COMPARED:
            return False
        first, last = (bound // self.unit for bound in self._bytes())
        if last - first > 16 * _MOST_COMPARED:
            return False
        mine = np.zeros(last - first, np.bool_)
        mine[self._places() - first] = True
        its = other._places() - first
        return not mine[its[(its >= 0) & (its < len(mine))]].any()

    def _places(self) -> np.ndarray[Any, Any]:
        return places(self.offset, self.shape, self.strides)

    def _bytes(self) -> tuple[int, int]:
        assert self.layout is not None
        _, offset, axes = self.layout
        last = offset + sum((size - 1) * stride for size, stride in axes if stride > 0)
        first = offset + sum((size - 1) * stride for size, stride in axes if stride < 0)
        return first * self.unit, (last + 1) * self.unit


def in_memory(
    memory: Hashable,
    dtype: Any,
    unit: int,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int = 0,
    is_certain: bool = True,
) -> Region:
    """Returns the memory of a tensor with this layout."""
    axes = tuple(zip(map(int, shape), map(int, strides), strict=True))
    return Region(frozenset((memory,)), (dtype, int(offset), axes), unit, is_certain)


def anywhere_in(memories: frozenset[Hashable]) -> Region:
    """Returns the memory of a tensor that lies in one of these storages."""
    return Region(memories)
