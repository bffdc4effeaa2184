"""Rows for calls that order elements: sorts, medians, quantiles, modes, and extrema up to each element.

A sort becomes ``argsort`` and a ``gather`` of the elements at these positions. All other calls are built from
sorts. Equal elements keep their order, also for calls whose order torch does not specify (``topk``).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tosaic.torch_operators.arguments import OP, axis_of
from tosaic.torch_operators.call import Call, Emit, Rows
from tosaic.torch_operators.compound_movement import Movements
from tosaic.torch_operators.dtypes import CATEGORY, CODE
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on
_I64 = CODE["i64"]
_F32 = CODE["f32"]


class _Nodes(Movements):
    """Short names for the nodes that order elements."""

    def argsort(self, x: Ref, axis: int, descending: bool = False, count: int | None = None) -> Ref:
        return self.emit("argsort", {"axis": axis, "descending": descending, "count": count}, x)

    def gather(self, x: Ref, axis: int, index: Ref) -> Ref:
        return self.emit("gather", {"axis": axis}, x, index)

    def is_nan(self, x: Ref) -> Ref:
        return self.emit("ne", None, x, x)

    def has_nan(self, ordered: Ref, axis: int) -> Ref:
        """True where the last of the ordered elements is NaN. The axis is kept with extent 1."""
        return self.is_nan(self.slice(ordered, axis, ordered.shape[axis] - 1, ordered.shape[axis]))

    def argmax(self, x: Ref, axis: int) -> Ref:
        return self.emit("argmax", {"axis": axis, "keepdim": True}, x)

    def along_axis(self, x: Ref, dim: int) -> tuple[Ref, int]:
        """Returns the tensor with at least one axis, and the axis."""
        return (x, axis_of(dim, len(x.shape))) if x.shape else (self.reshape(x, [1]), 0)

    def results(self, *made: Ref) -> list[Ref | None]:
        """Returns the values as the results of the call, in the recorded shapes; None for unread results."""
        used = self._c.used_results()
        types = self._c.types
        return [
            self._c.emit_result(i, OP["reshape"], {"shape": list(types[i][1])}, (each.id,))
            if i in used or (not used and i == 0)
            else None
            for i, each in enumerate(made)
        ]


# ---- sorts ----


def _sorted(c: Call, x: Ref, dim: int, descending: bool, count: int | None = None) -> list[Ref | None]:
    """Returns the values in order and their positions, or only the first `count` of them."""
    n = _Nodes(c)
    x, axis = n.along_axis(x, dim)
    order = n.argsort(x, axis, descending, count)
    return n.results(n.gather(x, axis, order), order)


@on("sort")
def sort(c: Call, x: Ref, dim: int, descending: bool) -> list[Ref | None]:
    return _sorted(c, x, dim, descending)


@on("sort.stable")
def sort_stable(c: Call, x: Ref, _stable: Any, dim: int, descending: bool) -> list[Ref | None]:
    return _sorted(c, x, dim, descending)


@on("topk")
def topk(c: Call, x: Ref, k: int, dim: int, largest: bool, _order: bool) -> list[Ref | None]:
    return _sorted(c, x, dim, largest, k)


@on("msort")
def msort(c: Call, x: Ref) -> Ref:
    n = _Nodes(c)
    x, axis = n.along_axis(x, 0)
    return n.done(n.gather(x, axis, n.argsort(x, axis)))


@on("argsort")
def argsort(c: Call, x: Ref, dim: int, descending: bool) -> Ref:
    axis = axis_of(dim, max(1, len(x.shape)))
    return c.emit(OP["argsort"], {"axis": axis, "descending": descending, "count": None}, (x.id,))


@on("argsort.stable")
def argsort_stable(c: Call, x: Ref, _stable: bool, dim: int, descending: bool) -> Ref:
    return argsort(c, x, dim, descending)


@on("kthvalue")
def kthvalue(c: Call, x: Ref, k: int, dim: int, _keepdim: bool) -> list[Ref | None]:
    n = _Nodes(c)
    x, axis = n.along_axis(x, dim)
    at = n.slice(n.argsort(x, axis, count=k), axis, k - 1, k)
    return n.results(n.gather(x, axis, at), at)


# ---- medians and modes ----


def _median(n: _Nodes, x: Ref, axis: int, ignore_nan: bool) -> tuple[Ref, Ref]:
    """Returns the lower of the two middle elements and its position. The axis is kept with extent 1.

    If an element is NaN, the first NaN is the median; with `ignore_nan`, NaNs are left out.
    """
    order = n.argsort(x, axis)
    last = x.shape[axis] - 1
    middle = n.slice(order, axis, last // 2, last // 2 + 1)
    if CATEGORY[x.dtype] == 2:
        nan = n.cast(n.is_nan(x), _I64)
        if ignore_nan:
            # Of n elements, m are NaN and come last: the median is at (n - m - 1) // 2, at least at 0.
            count = n.emit("sum", {"axes": [axis], "keepdim": True}, nan)
            rest = n.emit("sub", {"alpha": 1}, n.number(last, count), count)
            rest = n.emit("maximum", None, rest, n.number(0, count))
            place = n.emit("right_shift", None, rest, n.number(1, count))
            middle = n.gather(order, axis, place)
        else:
            any_nan = n.has_nan(n.gather(x, axis, order), axis)
            middle = n.emit("where", None, any_nan, n.argmax(nan, axis), middle)
    return n.gather(x, axis, middle), middle


def _median_rows(name: str, ignore_nan: bool) -> None:
    @on(f"{name}.dim")
    def along_axis(c: Call, x: Ref, dim: int, _keepdim: bool) -> list[Ref | None]:
        n = _Nodes(c)
        return n.results(*_median(n, *n.along_axis(x, dim), ignore_nan))

    @on(name)
    def of_all(c: Call, x: Ref) -> Ref | None:
        n = _Nodes(c)
        if math.prod(x.shape) == 0:
            return None
        return n.done(_median(n, n.reshape(x, [math.prod(x.shape)]), 0, ignore_nan)[0])


_median_rows("median", False)
_median_rows("nanmedian", True)


@on("mode")
def mode(c: Call, x: Ref, dim: int, _keepdim: bool) -> list[Ref | None]:
    """Returns the smallest of the most frequent elements, and the position of its last occurrence.

    In the sorted elements, a run of equal elements has the length position - start + 1 at its end.
    """
    n = _Nodes(c)
    x, axis = n.along_axis(x, dim)
    order = n.argsort(x, axis)
    ordered = n.gather(x, axis, order)
    extent = x.shape[axis]
    if extent == 1:
        return n.results(ordered, order)
    early, late = n.slice(ordered, axis, 0, extent - 1), n.slice(ordered, axis, 1, extent)
    starts = n.cast(n.emit("ne", None, early, late), _I64)
    where = np.arange(1, extent).reshape([-1 if i == axis else 1 for i in range(len(x.shape))])
    start = n.emit("mul", None, starts, c.lifted(where))
    first = n.emit("mul", None, n.slice(start, axis, 0, 1), n.number(0, start))
    start = n.emit("cat", {"axis": axis}, first, start)
    start = n.gather(start, axis, n.emit("cumargmax", {"axis": axis}, start))
    whole = np.arange(extent).reshape([-1 if i == axis else 1 for i in range(len(x.shape))])
    length = n.emit("sub", {"alpha": 1}, c.lifted(whole), start)
    at = n.argmax(length, axis)
    return n.results(n.gather(ordered, axis, at), n.gather(order, axis, at))


# ---- quantiles ----


def _quantile(ignore_nan: bool) -> Emit:
    def emit(c: Call, x: Ref, q: Any, dim: int | None, _keepdim: bool, interpolation: str) -> Ref | None:
        """Interpolates between the sorted elements next to ``q * (extent - 1)``."""
        n = _Nodes(c)
        numbers = np.asarray(q, np.float64) if type(q) is not Ref else c.known_elements(q)
        if numbers is None or math.prod(x.shape) == 0:
            return None
        if dim is None:
            x, axis = n.reshape(x, [math.prod(x.shape)]), 0
        else:
            x, axis = n.along_axis(x, dim)
        ordered = n.gather(x, axis, n.argsort(x, axis))
        found = [_at_rank(n, ordered, axis, float(each), interpolation, ignore_nan) for each in numbers.flat]
        if not numbers.shape:
            return n.done(found[0])
        lead = [n.reshape(each, [1, *each.shape]) for each in found]
        return n.done(lead[0] if len(lead) == 1 else n.emit("cat", {"axis": 0}, *lead))

    return emit


def _at_rank(n: _Nodes, ordered: Ref, axis: int, q: float, interpolation: str, ignore_nan: bool) -> Ref:
    """Returns the quantile `q` of sorted elements. The axis is kept with extent 1."""
    last = ordered.shape[axis] - 1
    nan = n.has_nan(ordered, axis)
    kind = np.float64 if ordered.dtype == CODE["f64"] else np.float32
    if ignore_nan:
        # The rank depends on the count of elements that are not NaN; all NaN counts as one.
        numbers = n.cast(n.emit("eq", None, ordered, ordered), ordered.dtype)
        count = n.emit("sum", {"axes": [axis], "keepdim": True}, numbers)
        rank = n.emit(
            "mul",
            None,
            n.emit("sub", {"alpha": 1}, count, n.number(1, count)),
            n.number(float(kind(q)), count),
        )
        rank = n.emit("maximum", None, rank, n.number(0, rank))
        low = n.emit({"nearest": "round", "higher": "ceil"}.get(interpolation, "floor"), None, rank)
        below = n.gather(ordered, axis, n.cast(low, _I64))
        if interpolation not in ("linear", "midpoint"):
            return below
        above = n.gather(ordered, axis, n.cast(n.emit("ceil", None, rank), _I64))
        weight = n.emit("sub", {"alpha": 1}, rank, low)
        if interpolation == "midpoint":
            weight = n.number(0.5, ordered)
        return n.emit("lerp", None, below, above, weight)
    rank_of_all = float(kind(kind(q) * kind(last)))
    low_at = round(rank_of_all) if interpolation == "nearest" else math.floor(rank_of_all)
    low_at = math.ceil(rank_of_all) if interpolation == "higher" else low_at
    below = n.slice(ordered, axis, low_at, low_at + 1)
    result = below
    if interpolation in ("linear", "midpoint"):
        high_at = math.ceil(rank_of_all)
        above = n.slice(ordered, axis, high_at, high_at + 1)
        share = 0.5 if interpolation == "midpoint" else float(kind(kind(rank_of_all) - kind(low_at)))
        if high_at != low_at or interpolation == "midpoint":
            result = n.emit("lerp", None, below, above, n.number(share, ordered))
    return n.emit("where", None, nan, n.slice(ordered, axis, last, last + 1), result)


ROWS["quantile"] = ROWS["quantile.scalar"] = _quantile(False)
ROWS["nanquantile"] = ROWS["nanquantile.scalar"] = _quantile(True)


# ---- extrema up to each element ----


def _extremum_so_far(op: str) -> Emit:
    def emit(c: Call, x: Ref, dim: int) -> list[Ref | None]:
        n = _Nodes(c)
        x, axis = n.along_axis(x, dim)
        at = n.emit(op, {"axis": axis}, x)
        return n.results(n.gather(x, axis, at), at)

    return emit


ROWS["cummax"] = _extremum_so_far("cumargmax")
ROWS["cummin"] = _extremum_so_far("cumargmin")
