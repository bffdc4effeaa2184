"""Strategies for arguments: shapes of ranks 0 to 6 with empty and size-1 axes, dtypes, values, attributes.

The strategy of a row (`checking.Row`) draws ``(args, kwargs)`` or ``(args, kwargs, keep)``; `keep` has the
indices of the results to use. Tensors shrink to rank 0 or axes of size 1, f32, normal values and seed 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from operators.values import T

__all__ = [
    "ANY", "FLOAT", "FUNCTION", "INTEGER", "NUMBER", "PLAIN", "arguments", "axis", "axis_list", "elementwise",
    "maybe", "number", "shape", "spread", "tensor", "unary",
]  # fmt: skip

Draw = Callable[[SearchStrategy[Any]], Any]

FLOAT = ("f32", "f32", "f16", "bf16", "f32", "f16", "bf16", "f64")
INTEGER = ("i32", "i64", "i8", "u8", "i16")
NUMBER = (*FLOAT, "i32", "i64", "i8", "u8", "i16")
ANY = (*NUMBER, "bool")

FUNCTION = (
    "normal", "unit", "positive", "ties", "integers", "small", "tiny", "huge", "wide", "medium", "special",
)  # fmt: skip
"""Kinds of values for elementwise functions."""
PLAIN = ("normal", "unit", "positive", "integers", "small", "ties", "nan", "inf", "tiny")
"""Kinds of values whose sums do not overflow."""

_MOST_ELEMENTS = 600
_SIDES = (1, 2, 3, 4, 5, 7, 1, 2, 3, 8, 17)


@st.composite
def shape(draw: Draw, low: int = 0, high: int = 6, *, empty: bool = True, least: int = 1) -> tuple[int, ...]:
    """Draws a shape of `low` to `high` axes. With `empty`, one shape of sixteen has an empty axis."""
    rank = draw(st.integers(low, high))
    found: list[int] = []
    for _ in range(rank):
        room = _MOST_ELEMENTS // max(1, math.prod(found))
        sides = [side for side in _SIDES if least <= side <= max(room, least)]
        found.append(draw(st.sampled_from(sides)))
    if empty and found and draw(st.integers(0, 15)) == 15:
        found[draw(st.integers(0, rank - 1))] = 0
    return tuple(found)


@st.composite
def tensor(
    draw: Draw,
    of: Any,
    dtypes: Sequence[str] = FLOAT,
    kinds: Sequence[str] = ("normal",),
    *,
    const: bool | None = False,
) -> T:
    """Draws a tensor of the shape `of`, which may be a strategy. `const=None`: a buffer or an input."""
    sides = of if isinstance(of, tuple) else draw(of)
    constant = draw(st.booleans()) if const is None else const
    return T(
        sides,
        draw(st.sampled_from(dtypes)),
        draw(st.sampled_from(kinds)),
        draw(st.integers(0, 3)),
        const=constant,
    )


def indices(of: tuple[int, ...], size: int, seed: int, *, dtype: str = "i64", negative: bool = False) -> T:
    """Draws an integer tensor of shape `of` with positions on an axis of this size."""
    return T(of, dtype, "range", seed, low=-size if negative else 0, high=max(size, 1))


@st.composite
def narrowed(draw: Draw, of: tuple[int, ...]) -> tuple[int, ...]:
    """Draws a shape that broadcasts to this one."""
    kept = of[draw(st.integers(0, len(of))) :] if draw(st.booleans()) else of
    return tuple(1 if draw(st.integers(0, 4)) == 4 else side for side in kept)


@st.composite
def axis(draw: Draw, rank: int) -> int:
    """Draws an axis of a tensor of this rank; may be negative (counted from the end)."""
    return draw(st.integers(-max(rank, 1), max(rank, 1) - 1))


@st.composite
def axis_list(draw: Draw, rank: int, *, least: int = 0) -> list[int]:
    """Draws a list of distinct axes of a tensor of this rank; some may be negative."""
    chosen = draw(
        st.lists(st.integers(0, rank - 1), unique=True, min_size=min(least, rank)) if rank else st.just([])
    )
    return [a - rank if draw(st.booleans()) else a for a in chosen]


def number(*floats: float) -> SearchStrategy[Any]:
    """Draws a Python number: a small integer or fraction, or one of `floats`."""
    plain = (2, 0.5, -1.5, 3, 1, -2, 0.1)
    return st.sampled_from((*plain, *floats))


def maybe(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Draws None, or a value of the strategy."""
    return st.one_of(st.none(), strategy)


@st.composite
def spread(draw: Draw, n: int, low: int, high: int) -> list[int]:
    """Draws a list of one number for each of `n` spatial axes."""
    return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))


@st.composite
def arguments(
    draw: Draw, args: Sequence[SearchStrategy[Any]], kwargs: dict[str, SearchStrategy[Any]] | None = None
) -> Any:
    """Draws arguments independently of each other. Each keyword argument is omitted half of the time."""
    found = {k: draw(v) for k, v in (kwargs or {}).items() if draw(st.booleans())}
    return tuple(draw(a) for a in args), found


def unary(
    dtypes: Sequence[str] = ANY,
    kinds: Sequence[str] = FUNCTION,
    args: Sequence[SearchStrategy[Any]] = (),
    kwargs: dict[str, SearchStrategy[Any]] | None = None,
    ranks: tuple[int, int] = (0, 6),
) -> SearchStrategy[Any]:
    """Draws the arguments of an operator on one tensor of any shape: the tensor, then `args` and `kwargs`."""
    return arguments([tensor(shape(*ranks), dtypes, kinds), *args], kwargs)


@st.composite
def elementwise(
    draw: Draw,
    count: int,
    dtypes: Sequence[str] = ANY,
    kinds: Sequence[str] = FUNCTION,
    kwargs: dict[str, SearchStrategy[Any]] | None = None,
    *,
    mixed: bool = True,
    then: Sequence[SearchStrategy[Any]] = (),
    first: Sequence[str] | None = None,
) -> Any:
    """Draws the arguments of an operator on `count` tensors that broadcast, followed by `then`.

    They have one dtype or, if `mixed`, sometimes several. `first` has the dtypes of the first tensor, if they
    differ from `dtypes`.
    """
    whole = draw(shape())
    dtype = draw(st.sampled_from(dtypes))
    mixes = mixed and draw(st.booleans())
    found = []
    for i in range(count):
        own = draw(st.sampled_from(dtypes)) if mixes else dtype
        if i == 0 and first is not None:
            own = draw(st.sampled_from(first))
        found.append(draw(tensor(draw(narrowed(whole)), (own,), kinds)))
    attributes = {k: draw(v) for k, v in (kwargs or {}).items() if draw(st.booleans())}
    return (*found, *(draw(s) for s in then)), attributes
