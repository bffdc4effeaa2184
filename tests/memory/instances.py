"""Placement problems of which the least arena is known: rectangles of steps by bytes, cut into buffers.

::

    bytes                               A cut halves a piece in time or in bytes, or splits it into five
      +--------+-----+                  pieces around one in the middle, which no row of halving cuts
      |   a    |  b  |                  makes. All pieces fit into the rectangle from which they were cut,
      |     +--+--+  |                  and at each step they fill it, so it is the least arena.
      +-----+ c   |  |
      |  d  +-----+--+                  `thinned` takes pieces away, but none that is needed at one step,
      |     |   e    |                  at which the rectangle stays full.
      +-----+--------+--> steps

Sizes are multiples of a unit, as buffers are that are aligned to it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Instance", "challenging", "cut"]

Buffer = tuple[int, int, int]
"""Bytes, first step and last step, both inclusive."""


@dataclass(frozen=True)
class Instance:
    """A placement problem.

    Attributes
    ----------
    name : str
    buffers : list of (int, int, int)
        Bytes, first and last step.
    least : int
        The bytes of the least arena.
    alignment : int
    """

    name: str
    buffers: list[Buffer]
    least: int
    alignment: int


def cut(seed: int, count: int, *, steps: int, units: int, unit: int = 1024, kept: float = 1.0) -> Instance:
    """Returns `count` buffers, cut from `steps` times ``units * unit`` bytes.

    Parameters
    ----------
    seed : int
    count : int
        At most ``steps * units``; the number before pieces are taken away.
    steps, units, unit : int
    kept : float
        The share of pieces that stay.
    """
    rng = random.Random(seed)
    pieces = [(0, steps, 0, units)]  # steps from, to; units from, to
    while len(pieces) < count:
        at = max(rng.sample(range(len(pieces)), min(3, len(pieces))), key=lambda i: _area(pieces[i]))
        parts = _parts(rng, pieces[at], count - len(pieces))
        pieces[at : at + 1] = parts
    if kept < 1:
        pieces = _thinned(rng, pieces, kept)
    rng.shuffle(pieces)
    buffers = [((top - low) * unit, begin, end - 1) for begin, end, low, top in pieces]
    return Instance(f"cut {count} seed {seed} kept {kept}", buffers, units * unit, unit)


Piece = tuple[int, int, int, int]


def _area(piece: Piece) -> int:
    begin, end, low, top = piece
    return (end - begin) * (top - low)


def _parts(rng: random.Random, piece: Piece, more: int) -> list[Piece]:
    """Returns the parts of a piece: 1 if it is a single unit, else 2 or 5."""
    begin, end, low, top = piece
    if more >= 4 and end - begin >= 3 and top - low >= 3 and rng.random() < 0.3:
        a, b = sorted(rng.sample(range(begin + 1, end), 2))
        c, d = sorted(rng.sample(range(low + 1, top), 2))
        return [
            (begin, b, d, top),
            (b, end, c, top),
            (a, end, low, c),
            (begin, a, low, d),
            (a, b, c, d),
        ]
    is_wide, is_high = end - begin > 1, top - low > 1
    if is_wide and (not is_high or rng.random() < 0.55):
        at = rng.randrange(begin + 1, end)
        return [(begin, at, low, top), (at, end, low, top)]
    if is_high:
        at = low + max(1, round((top - low) * rng.betavariate(1.2, 2.5)))
        at = min(at, top - 1)
        return [(begin, end, low, at), (begin, end, at, top)]
    return [piece]


def _thinned(rng: random.Random, pieces: list[Piece], kept: float) -> list[Piece]:
    full = rng.randrange(max(end for _, end, _, _ in pieces))
    return [each for each in pieces if each[0] <= full < each[1] or rng.random() < kept]


def challenging() -> list[Instance]:
    """Returns 22 instances as large as published challenging ones: 154 to 454 buffers in 1 MiB."""
    counts = (154, 170, 203, 213, 215, 296, 308, 316, 374, 409, 454)
    full = [cut(100 + i, count, steps=count, units=1024) for i, count in enumerate(counts)]
    thin = [
        cut(200 + i, round(count / 0.9), steps=count, units=1024, kept=0.9) for i, count in enumerate(counts)
    ]
    return full + thin
