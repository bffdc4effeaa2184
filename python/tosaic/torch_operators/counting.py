"""Rows for calls that count: positions in sorted boundaries, and histograms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.call import Call, Emit, Rows
from tosaic.torch_operators.compound_movement import Movements
from tosaic.torch_operators.dtypes import CATEGORY, CODE
from tosaic.torch_operators.pooling import with_factors
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on
_I64 = CODE["i64"]
_MOST_PAIRS = 1 << 24  # pairs of a boundary and a value: more are not compared one by one
_FEW_PAIRS = 1 << 18


@on("searchsorted.Tensor")
def searchsorted(
    c: Call, boundaries: Ref, x: Ref, _out_int32: bool, right: bool, side: str | None, sorter: Ref | None
) -> Ref | None:
    """The number of boundaries in front of each value: those below it, or with `right` those not above it.

    A NaN comes after all boundaries, so the comparison is the negation of "not in front".
    """
    if math.prod(x.shape) * boundaries.shape[-1] > _MOST_PAIRS:
        return None
    m = Movements(c)
    right = right or side == "right"
    if sorter is not None:
        axis = len(boundaries.shape) - 1
        boundaries = c.emit_inferred(OP["gather"], {"axis": axis}, (boundaries.id, sorter.id))
    lead = list(boundaries.shape[:-1])
    values = m.reshape(x, [*x.shape[: len(lead)], math.prod(x.shape[len(lead) :]), 1])
    behind = c.emit_inferred(
        OP["gt" if right else "ge"],
        None,
        (m.reshape(boundaries, [*lead, 1, boundaries.shape[-1]]).id, values.id),
    )
    before = c.emit_inferred(OP["logical_not"], None, (behind.id,))
    attrs = {"axes": [len(lead) + 1], "keepdim": False}
    count = c.emit_inferred(OP["sum"], attrs, (before.id,))
    return m.done(m.cast(count, c.dtype))


@on("bucketize.Tensor")
def bucketize(c: Call, x: Ref, boundaries: Ref, out_int32: bool, right: bool) -> Ref | None:
    """Compares all pairs; if there are too many, the call is decomposed into a binary search."""
    if math.prod(x.shape) * boundaries.shape[-1] > _FEW_PAIRS:
        return None
    return searchsorted(c, boundaries, x, out_int32, right, None, None)


@on("searchsorted.Scalar")
def searchsorted_number(c: Call, boundaries: Ref, value: Any, *rest: Any) -> Ref | None:
    return searchsorted(c, boundaries, c.number(value, boundaries), *rest)


@on("histc")
def histc(c: Call, x: Ref, bins: int, low: Any, high: Any) -> Ref | None:
    """Adds 1 to the bin of each element; an extra last bin takes the elements outside the range.

    If the call has no range, the range is from the least element to the greatest. If all elements are equal,
    it is extended by 1 at both ends.
    """
    m = Movements(c)
    total = math.prod(x.shape)
    if CATEGORY[x.dtype] != 2 or total == 0:
        return None

    def number(value: float) -> Ref:
        return m.number(float(value), x)

    emit = m.emit
    x = m.reshape(x, [total])
    if low == high:
        attrs = {"axes": [0], "keepdim": False}
        first, last = emit("amin", attrs, x), emit("amax", attrs, x)
        equal = emit("eq", None, first, last)
        one = number(1)
        first = emit("where", None, equal, emit("sub", {"alpha": 1}, first, one), first)
        last = emit("where", None, equal, emit("add", {"alpha": 1}, last, one), last)
    else:
        first, last = number(low), number(high)
    offset = emit("sub", {"alpha": 1}, x, first)
    share = emit(
        "div",
        {"rounding": "none"},
        emit("mul", None, offset, number(bins)),
        emit("sub", {"alpha": 1}, last, first),
    )
    inside = emit("logical_and", None, emit("ge", None, x, first), emit("le", None, x, last))
    share = emit("where", None, inside, share, number(bins))
    place = emit("minimum", None, m.cast(share, _I64), c.constant(bins - 1, _I64))
    place = emit("where", None, inside, place, c.constant(bins, _I64))
    empty = emit("full", {"shape": [bins + 1], "value": 0.0, "dtype": x.dtype})
    counted = m.index_put(empty, [place], m.expand(number(1), [total]), True, last=False)
    return m.done(m.slice(counted, 0, 0, bins))


# ---- resampling with a filter as wide as the step ----


def _filter(x: Any, cubic: bool) -> Any:
    """The filter as a function of distance: triangle, or cubic convolution, a = -0.5 (Keys, 1981)."""
    x = np.abs(x)
    if not cubic:
        return np.clip(1 - x, 0, None)
    a = -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _weights(extent: int, size: int, cubic: bool, align_corners: bool, factor: float | None) -> Any:
    """The weights of the input positions for each output position, of shape (size, extent)."""
    if align_corners:
        step = (extent - 1) / (size - 1) if size > 1 else 0.0
    else:
        step = 1 / factor if factor else extent / size
    width = max(step, 1.0)
    support = (4 if cubic else 2) * 0.5 * width
    table = np.zeros((size, extent))
    for i in range(size):
        centre = step * (i + 0.5)
        start = max(int(centre - support + 0.5), 0)
        end = min(int(centre + support + 0.5), extent)
        at = np.arange(start, end)
        weights = _filter((at - centre + 0.5) / width, cubic)
        table[i, start:end] = weights / weights.sum() if weights.sum() != 0 else weights
    return table


def _smooth(cubic: bool) -> Emit:
    def emit(
        c: Call, x: Ref, _size: Any, corners: bool, scale_h: float | None, scale_w: float | None
    ) -> Ref | None:
        """Multiplies by two matrices of weights, along the last axis first.

        Results of width 1 are left to torch's decomposition, which computes each of their rows from the same
        row of the input.
        """
        if CATEGORY[x.dtype] != 2 or c.shape[3] == 1:
            return None
        m = Movements(c)
        columns = _weights(x.shape[3], c.shape[3], cubic, corners, scale_w)
        rows = _weights(x.shape[2], c.shape[2], cubic, corners, scale_h)
        kind = np.float64 if x.dtype == CODE["f64"] else np.float32
        wide = m.cast(x, CODE["f64"] if x.dtype == CODE["f64"] else CODE["f32"])
        right = c.lifted(np.ascontiguousarray(columns.T.astype(kind)))
        y = m.permute(m.emit("matmul", None, wide, right), [0, 1, 3, 2])
        y = m.emit("matmul", None, y, c.lifted(np.ascontiguousarray(rows.T.astype(kind))))
        return m.done(m.cast(m.permute(y, [0, 1, 3, 2]), c.dtype))

    return emit


for _name, _emit in {
    "_upsample_bilinear2d_aa": _smooth(False),
    "_upsample_bicubic2d_aa": _smooth(True),
}.items():
    ROWS[_name] = _emit
    ROWS[f"{_name}.vec"] = with_factors(_emit)
