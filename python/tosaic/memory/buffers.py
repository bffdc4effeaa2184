"""The parts of a memory plan as data: `MemoryBuffer` and `MemoryArena`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tosaic.base.dtypes import type_text

CALLER = "caller"
CONSTANTS = "constants"


def alignment_of(offsets: Iterable[int], most: int) -> int:
    """Returns the greatest power of two, at most `most`, that divides all offsets."""
    return math.gcd(most, *offsets)


@dataclass(frozen=True)
class MemoryArena:
    """Memory that a program needs while it runs.

    Attributes
    ----------
    name : str
    nbytes : int
        The size.
    alignment : int
        The first byte of the arena and of each buffer in it is a multiple of this number. The scratch of
        groups is aligned to 64 bytes at least.
    lower_bound : int
        A proven lower bound of the size. For each step, the sizes of the buffers that are
        needed at that step are added up; the bound is the greatest sum, or more if a search proves it.
    """

    name: str
    nbytes: int
    alignment: int
    lower_bound: int

    @property
    def gap(self) -> int:
        """Bytes between the size and the bound."""
        return self.nbytes - self.lower_bound


@dataclass(frozen=True)
class MemoryBuffer:
    """A tensor, or the scratch of a step, and its place.

    Attributes
    ----------
    name : str
    part : str
        ``host``, or the group that makes it.
    kind : str
        ``input``, ``output``, ``state``, ``activation``, ``scratch``, or ``internal`` for a tensor inside the
        scratch of a group.
    path : str
        The place of an input, state or output in the call or in the result.
    dtype : str
        Empty for scratch.
    shape : tuple of int
    nbytes : int
    first, last : int
        The steps from which and until which it is needed, both inclusive.
    arena : str
        Name of the arena; ``caller`` for memory of the caller, ``constants`` for a view of a constant.
    offset : int
        First byte: in the arena; for ``caller``, in the caller's array; for ``constants``, in the constant.
    alias : str
        ``none``; ``view`` of the same bytes; ``in_place``: written over a buffer that is not read
        afterwards; or ``part``: written into the result of a concatenation.
    alias_of : str
        The buffer with which it shares memory; empty if there is none.
    """

    name: str
    part: str
    kind: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    first: int
    last: int
    arena: str
    offset: int
    alias: str = "none"
    alias_of: str = ""

    @property
    def type_text(self) -> str:
        """Dtype and shape as text: ``f32[1,3,8,8]``; empty for scratch."""
        return type_text(self.dtype, self.shape) if self.dtype else ""
