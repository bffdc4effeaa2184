"""Sorts, medians, quantiles, modes, extrema up to each element, positions in boundaries, histograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from operators.checking import Row
from operators.draw import ANY, NUMBER, axis, maybe, shape, tensor
from operators.values import T

Draw = Callable[[Any], Any]
ROWS: dict[str, Row] = {}
ORDERED = ("normal", "unit", "ties", "integers", "small", "huge", "special", "nan", "inf")
DISTINCT = ("normal", "medium", "huge", "small")
"""Kinds with few equal elements: torch leaves the positions of equal ones open, except in stable sorts."""
WHOLE = ("f32", "f64")
"""Dtypes in which the numbers of these kinds hardly ever coincide."""


@st.composite
def ordered(
    draw: Draw,
    form: str,
    dtypes: Sequence[str] = NUMBER,
    kinds: Sequence[str] = ORDERED,
    *,
    results: int = 2,
    stable: bool = False,
) -> Any:
    """Draws a tensor and an axis. `form` says which arguments follow.

    Values, positions or both are used: positions where equal elements are rare, or if the call is stable.
    """
    x = draw(tensor(shape(0, 4, empty=False), dtypes, kinds))
    dim = draw(axis(len(x.shape)))
    args: tuple[Any, ...] = (x, dim)
    kwargs: dict[str, Any] = {}
    count = x.shape[dim] if x.shape else 1
    if form in ("kth", "topk"):
        args = (x, draw(st.integers(1, count)), dim)
    if form in ("kth", "keepdim") or form == "topk" or form == "sort":
        args += (draw(st.booleans()),)
    elif form == "stable":
        args = (x,)
        kwargs = {"stable": True, "dim": dim, "descending": draw(st.booleans())}
    if results == 1:
        return args, kwargs
    positions = stable or (x.dtype in WHOLE and x.kind in DISTINCT)  # torch leaves equal elements open
    return args, kwargs, draw(st.sampled_from([(0,), (1,), (0, 1)])) if positions else (0,)


ROWS["sort"] = Row(ordered("sort", ANY))
ROWS["sort.stable"] = Row(ordered("stable", ANY, stable=True))
ROWS["argsort"] = Row(ordered("sort", WHOLE, DISTINCT, results=1))
ROWS["argsort.stable"] = Row(ordered("stable", ANY, results=1))
ROWS["topk"] = Row(ordered("topk"))
ROWS["kthvalue"] = Row(ordered("kth"))
ROWS["median.dim"] = ROWS["nanmedian.dim"] = Row(ordered("keepdim"))
ROWS["mode"] = Row(ordered("keepdim", NUMBER, ("integers", "ties", "unit", "normal", "inf")))
ROWS["cummax"] = ROWS["cummin"] = Row(ordered("", ANY, stable=True))


@st.composite
def whole(draw: Draw, dtypes: Sequence[str] = NUMBER) -> Any:
    return (draw(tensor(shape(0, 4, empty=False), dtypes, ORDERED)),), {}


ROWS["msort"] = Row(whole(ANY))
ROWS["median"] = ROWS["nanmedian"] = Row(whole())

_HOW = ("linear", "lower", "higher", "midpoint", "nearest")


@st.composite
def quantile(draw: Draw, *, several: bool) -> Any:
    kinds = ("normal", "unit", "ties", "integers", "small", "nan", "medium")
    x = draw(tensor(shape(0, 4, empty=False), ("f32", "f32", "f64"), kinds))
    dim = draw(maybe(axis(len(x.shape))))
    share = st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.75, 0.9, 1.0])
    q: Any = draw(share)
    if several:
        shares = draw(st.lists(share, min_size=1, max_size=3))
        q = T((len(shares),), x.dtype, shares, const=True)
    return (x, q, dim, draw(st.booleans())), {"interpolation": draw(st.sampled_from(_HOW))}


for _name in ("quantile", "nanquantile"):
    ROWS[_name] = Row(quantile(several=True), scale="terms")
    ROWS[f"{_name}.scalar"] = Row(quantile(several=False), scale="terms")


# ---- counting ----


@st.composite
def searched(draw: Draw, *, number: bool) -> Any:
    """Draws sorted boundaries, for each row of the values or for all, and values."""
    rows = () if number else draw(shape(0, 2, empty=False))
    count = draw(st.integers(1, 7))
    dtype = draw(st.sampled_from(["f32", "f64", "i32", "i64"]))
    line = sorted(draw(st.lists(st.integers(-4, 4), min_size=count, max_size=count)))
    total = 1
    for extent in rows:
        total *= extent
    boundaries = replace(draw(tensor((*rows, count), (dtype,), ("integers",), const=None)), kind=line * total)
    if number:
        value: Any = draw(st.sampled_from([0, 1, -3, 9]))
    elif rows:
        value = draw(tensor((*rows, draw(st.integers(1, 5))), (dtype,), ("integers", "normal")))
    else:
        value = draw(tensor(draw(shape(0, 3, empty=False)), (dtype,), ("integers", "normal", "nan", "inf")))
    return (boundaries, value), {"right": draw(st.booleans()), "out_int32": draw(st.booleans())}


ROWS["searchsorted.Tensor"] = Row(searched(number=False))
ROWS["searchsorted.Scalar"] = Row(searched(number=True))


@st.composite
def bucketized(draw: Draw, *, number: bool) -> Any:
    dtype = draw(st.sampled_from(["f32", "f64", "i32", "i64"]))
    line = sorted(draw(st.lists(st.integers(-4, 4), min_size=1, max_size=7)))
    boundaries = T((len(line),), dtype, line, const=draw(st.booleans()))
    kinds = ("integers", "normal", "nan", "inf")
    value: Any = draw(st.sampled_from([0, 1, -3, 9]))
    if not number:
        value = draw(tensor(shape(0, 3, empty=False), (dtype,), kinds))
    return (value, boundaries), {"right": draw(st.booleans()), "out_int32": draw(st.booleans())}


ROWS["bucketize.Tensor"] = Row(bucketized(number=False))
ROWS["bucketize.Scalar"] = Row(bucketized(number=True))


@st.composite
def histogram(draw: Draw) -> Any:
    x = draw(tensor(shape(0, 3, empty=False), ("f32", "f64"), ("normal", "unit", "positive", "integers")))
    bounds = draw(st.sampled_from([(0, 0), (0, 1), (-1, 1), (-2.5, 3.5), (0.25, 0.75)]))
    return (x, draw(st.integers(1, 9)), *bounds), {}


ROWS["histc"] = Row(histogram())
