"""Rows for calls that write or reduce values at positions of one axis: scatter, scatter_reduce, index_add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tosaic.torch_operators.arguments import OP, axis_of, fit
from tosaic.torch_operators.call import Call, Rows
from tosaic.torch_operators.compound_movement import Movements, along, within
from tosaic.torch_operators.dtypes import CATEGORY, CODE
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on
_I64 = CODE["i64"]


def _covered(m: Movements, index: Ref, source: Ref) -> Ref:
    """Returns the part of the source that the index covers."""
    for axis, extent in enumerate(index.shape):
        source = m.slice(source, axis, 0, extent)
    return source


def _filled_like(c: Call, value: Any, x: Ref, shape: Sequence[int]) -> Ref:
    return Movements(c).expand(c.constant(fit(value, x.dtype), x.dtype), shape)


@on("scatter.src")
def scatter(c: Call, x: Ref, dim: int, index: Ref, source: Ref) -> Ref:
    """Reads only the part of the source that the index covers; a tensor of rank 0 is a single element."""
    m = Movements(c)
    if not x.shape:
        return m.done(m.reshape(source, []))
    axis = axis_of(dim, len(x.shape))
    index = within(c, index, x.shape[axis])
    return c.emit(OP["scatter"], {"axis": axis}, (x.id, index.id, _covered(m, index, source).id))


@on("scatter.value")
def scatter_value(c: Call, x: Ref, dim: int, index: Ref, value: Any) -> Ref:
    return scatter(c, x, dim, index, _filled_like(c, value, x, index.shape))


# ---- reductions ----


def _coordinates(m: Movements, axis: int, index: Ref) -> list[Ref]:
    """Returns one index tensor per axis: where each element of `index` points to on that axis."""
    rank = len(index.shape)
    own = [
        m.constant(np.arange(extent).reshape([-1 if i == place else 1 for i in range(rank)]))
        for place, extent in enumerate(index.shape)
    ]
    return [index if place == axis else own[place] for place in range(rank)]


def _added(m: Movements, x: Ref, axis: int, index: Ref, source: Ref, *, last: bool = False) -> Ref:
    """Adds an accumulating index_put with index tensors for every axis."""
    return m.index_put(x, _coordinates(m, axis, index), _covered(m, index, source), True, last=last)


@on("scatter_add")
def scatter_add(c: Call, x: Ref, dim: int, index: Ref, source: Ref) -> Ref:
    m = Movements(c)
    if not x.shape:
        x, index, source = (m.reshape(t, [1]) for t in (x, index, source))
        return m.done(_added(m, x, 0, index, source))
    axis = axis_of(dim, len(x.shape))
    return _added(m, x, axis, within(c, index, x.shape[axis]), source, last=True)


_NAMES = {"add": "sum", "multiply": "prod"}


@on("scatter.reduce", "scatter_reduce.two")
def scatter_reduce(
    c: Call, x: Ref, dim: int, index: Ref, source: Ref, reduce: str, include_self: bool = True
) -> Ref | None:
    """Reduces the values of each position and, with `include_self`, the element that was there."""
    reduce = _NAMES.get(reduce, reduce)
    if reduce == "sum" and include_self:
        return scatter_add(c, x, dim, index, source)
    if CATEGORY[x.dtype] == 0:
        return None
    m = Movements(c)
    if not x.shape:
        x, index, source = (m.reshape(t, [1]) for t in (x, index, source))
    axis = axis_of(dim, len(x.shape))
    index = within(c, index, x.shape[axis])
    source = _covered(m, index, source)
    if reduce in ("sum", "mean"):
        return m.done(_averaged(c, m, x, axis, index, source, reduce == "mean", include_self))
    attrs = {"axis": axis, "reduction": reduce, "include_self": include_self}
    return m.done(c.emit_inferred(OP["scatter_reduce"], attrs, (x.id, index.id, source.id)))


def _averaged(
    c: Call, m: Movements, x: Ref, axis: int, index: Ref, source: Ref, divides: bool, include_self: bool
) -> Ref:
    """Returns sums or means of the values of each position; a position without a value keeps its element.

    Means of integers are rounded down.
    """
    empty = c.emit_inferred(OP["full"], {"shape": list(x.shape), "value": 0, "dtype": _I64}, ())
    one = c.emit_inferred(OP["full"], {"shape": list(index.shape), "value": 1, "dtype": _I64}, ())
    counts = _added(m, empty, axis, index, one)
    none = c.emit_inferred(OP["eq"], None, (counts.id, c.constant(0, _I64).id))
    start = x
    if not include_self:
        zero = c.constant(fit(0, x.dtype), x.dtype)
        start = c.emit_inferred(OP["where"], None, (none.id, x.id, zero.id))
    y = _added(m, start, axis, index, source)
    if not divides:
        return y
    if include_self:
        counts = c.emit_inferred(OP["add"], {"alpha": 1}, (counts.id, c.constant(1, _I64).id))
    else:
        counts = c.emit_inferred(OP["maximum"], None, (counts.id, c.constant(1, _I64).id))
    rounding = "none" if CATEGORY[y.dtype] == 2 else "floor"
    return c.emit_inferred(OP["div"], {"rounding": rounding}, (y.id, m.cast(counts, y.dtype).id))


@on("scatter.value_reduce")
def scatter_value_reduce(c: Call, x: Ref, dim: int, index: Ref, value: Any, reduce: str) -> Ref | None:
    return scatter_reduce(c, x, dim, index, _filled_like(c, value, x, index.shape), reduce)


@on("index_reduce")
def index_reduce(
    c: Call, x: Ref, dim: int, index: Ref, source: Ref, reduce: str, include_self: bool = True
) -> Ref | None:
    """Each element of the index is the position of a whole slice of the source."""
    m = Movements(c)
    if not x.shape:
        x, index, source = (m.reshape(t, [1]) for t in (x, index, source))
    axis = axis_of(dim, len(x.shape))
    count = math.prod(index.shape)
    lined = m.reshape(index, [count if i == axis else 1 for i in range(len(x.shape))])
    return scatter_reduce(c, x, axis, m.expand(lined, source.shape), source, reduce, include_self)


@on("index_add")
def index_add(c: Call, x: Ref, dim: int, index: Ref, source: Ref, alpha: Any) -> Ref:
    m = Movements(c)
    if alpha != 1:
        source = c.emit_inferred(OP["mul"], None, (source.id, c.number(alpha, source).id))
    if not x.shape:
        flat = m.index_put(
            m.reshape(x, [1]), [m.reshape(index, [1])], m.reshape(source, [1]), True, last=False
        )
        return m.done(flat)
    axis = axis_of(dim, len(x.shape))
    places = m.reshape(within(c, index, x.shape[axis]), [math.prod(index.shape)])
    return m.index_put(x, along(axis, places), source, True)


# ---- writes to the flattened tensor ----


@on("put")
def put(c: Call, x: Ref, index: Ref, source: Ref, accumulate: bool) -> Ref:
    """Writes the elements of the source at positions of the flattened tensor."""
    m = Movements(c)
    flat, count = m.reshape(x, [math.prod(x.shape)]), math.prod(index.shape)
    places, values = m.reshape(index, [count]), m.reshape(source, [count])
    return m.done(m.index_put(flat, [places], values, accumulate, last=False))


@on("masked_scatter")
def masked_scatter(c: Call, x: Ref, mask: Ref, source: Ref) -> Ref | None:
    """Writes element k of the source to the k-th true position: k is the count of true ones so far, less one.

    torch refuses a source that is too short when the program runs; here its last element is repeated.
    """
    m = Movements(c)
    total, length = math.prod(c.shape), math.prod(source.shape)
    if length == 0 or total == 0:
        return m.done(m.expand(x, c.shape)) if total == 0 else None
    wide = m.reshape(m.expand(mask, c.shape), [total])
    rank = c.emit_inferred(OP["cumsum"], {"axis": 0, "dtype": _I64}, (wide.id,))
    place = c.emit_inferred(OP["sub"], {"alpha": 1}, (rank.id, c.constant(1, _I64).id))
    bounded = c.emit_inferred(OP["clamp"], {"min": 0, "max": length - 1}, (place.id,))
    picked = c.emit_inferred(OP["index_select"], {"axis": 0}, (m.reshape(source, [length]).id, bounded.id))
    values = m.reshape(picked, c.shape)
    shaped = m.reshape(wide, c.shape)
    return c.emit(OP["where"], None, (shaped.id, values.id, m.expand(x, c.shape).id))
