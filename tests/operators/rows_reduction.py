"""Reductions over one axis, several axes or all elements, with keepdim and dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from operators.checking import Row
from operators.draw import (
    ANY,
    FLOAT,
    FUNCTION,
    NUMBER,
    PLAIN,
    axis,
    axis_list,
    elementwise,
    maybe,
    shape,
    tensor,
)

Draw = Callable[[Any], Any]
ROWS: dict[str, Row] = {}
CHOSEN = ("normal", "unit", "ties", "integers", "small", "huge", "special", "nan", "inf")
"""Kinds for reductions that choose an element."""
NO_INTEGERS = ("nan", "inf", "special", "huge", "wide")
"""Kinds with values whose conversion to integers is undefined in C++."""
NORM = ("normal", "unit", "positive", "integers", "small", "medium", "nan", "inf")


@st.composite
def reduction(
    draw: Draw,
    dim: str,
    dtypes: Sequence[str] = ANY,
    kinds: Sequence[str] = PLAIN,
    *,
    keepdim: bool = True,
    dtype: Sequence[str] = (),
    ranks: tuple[int, int] = (0, 6),
    empty: bool = True,
    options: dict[str, Any] | None = None,
) -> Any:
    """Draws a tensor, and its axes according to `dim`, followed by keepdim.

    `dim` is ``none`` (no such argument), ``one`` (an axis) or ``list`` (axes); ``one?`` and ``list?`` may
    also be None.
    """
    x = draw(tensor(shape(*ranks, empty=empty), dtypes, kinds))
    rank = len(x.shape)
    args: tuple[Any, ...] = (x,)
    if dim == "one":
        args += (draw(axis(rank)),)
    elif dim == "list":
        args += (draw(axis_list(rank, least=1)),)
    elif dim == "list?":
        args += (draw(maybe(axis_list(rank))),)
    elif dim == "one?":
        args += (draw(maybe(axis(rank))),)
    if dim != "none" and keepdim:
        args += (draw(st.booleans()),)
    kwargs = {k: draw(v) for k, v in (options or {}).items() if draw(st.booleans())}
    if dtype and draw(st.integers(0, 3)) == 3:
        wanted = getattr(torch, draw(st.sampled_from(list(dtype))))
        if wanted.is_floating_point or x.kind not in NO_INTEGERS:
            kwargs["dtype"] = wanted
    return args, kwargs


FACTORS = ("unit", "normal", "small", "nan", "inf")
"""Without subnormal numbers: TOSA may flush them to zero, which would make the whole product zero."""
WIDE = ("float32", "float32", "float16", "bfloat16", "int64", "int32")
FLOATS = ("float32", "float16", "bfloat16", "float64")
ROWS["sum"] = Row(reduction("none", dtype=WIDE), scale="terms")
ROWS["sum.dim_IntList"] = Row(reduction("list?", dtype=WIDE), scale="terms")
ROWS["mean"] = Row(reduction("none", FLOAT, dtype=FLOATS), scale="terms")
ROWS["mean.dim"] = Row(reduction("list?", FLOAT, dtype=FLOATS), scale="terms")
ROWS["prod"] = Row(reduction("none", kinds=FACTORS, dtype=WIDE), scale="terms")
ROWS["prod.dim_int"] = Row(reduction("one", kinds=FACTORS, dtype=WIDE), scale="terms")
for _name in ("amax", "amin"):
    ROWS[_name] = Row(reduction("list?", ANY, CHOSEN))
for _name in ("max", "min"):
    ROWS[_name] = Row(reduction("none", ANY, CHOSEN))
    ROWS[f"{_name}.other"] = Row(elementwise(2, ANY))


@st.composite
def value_and_index(draw: Draw) -> Any:
    """The value, the index or both are used.

    The kinds have few equal elements, since torch may return the index of any of them.
    """
    args, _ = draw(reduction("one", NUMBER, ("normal", "medium", "huge", "small")))
    keep = (0,) if args[0].dtype not in ("f32", "f64") else draw(st.sampled_from([(0,), (1,), (0, 1)]))
    return args, {}, keep


ROWS["max.dim"] = ROWS["min.dim"] = Row(value_and_index())
for _name in ("argmax", "argmin"):
    ROWS[_name] = Row(reduction("one?", ("f32", "f64", "f32"), ("normal", "medium", "huge", "small", "nan")))
for _name in ("any", "all"):
    ROWS[_name] = Row(reduction("none", ANY, FUNCTION))
    ROWS[f"{_name}.dim"] = Row(reduction("one", ANY, FUNCTION))
    ROWS[f"{_name}.dims"] = Row(reduction("list?", ANY, FUNCTION))
ROWS["cumsum"] = Row(reduction("one", ANY, keepdim=False, dtype=WIDE), scale="terms")
ROWS["logsumexp"] = Row(reduction("list", FLOAT, NORM), scale="conditioned", unit=1)

CORRECTION = {"correction": maybe(st.sampled_from([0, 1, 2, 0.5])), "keepdim": st.booleans()}
for _name in ("var", "std", "var_mean", "std_mean"):
    # Without infinities for means: torch's running update of the mean is NaN for them; ours is infinite.
    _kinds = [kind for kind in NORM if kind != "inf" or "mean" not in _name]
    ROWS[_name] = Row(
        reduction("none", FLOAT, _kinds, options={"unbiased": st.booleans()}), scale="conditioned"
    )
    ROWS[f"{_name}.dim"] = Row(
        reduction(
            "list?",
            FLOAT,
            _kinds,
            keepdim=False,
            options={"unbiased": st.booleans(), "keepdim": st.booleans()},
        ),
        scale="conditioned",
    )
    ROWS[f"{_name}.correction"] = Row(
        reduction("list?", FLOAT, _kinds, keepdim=False, options=CORRECTION), scale="conditioned"
    )
for _name in ("var", "std"):
    ROWS[_name] = Row(
        st.tuples(reduction("none", FLOAT, NORM), st.booleans()).map(lambda d: ((d[0][0][0], d[1]), {})),
        scale="conditioned",
    )

ORDERS = st.sampled_from([2, 1, 0, 3, 0.5, float("inf"), float("-inf"), 2.5])


@st.composite
def norms(draw: Draw, form: str) -> Any:
    """Draws the arguments of linalg_vector_norm and of the forms of norm: order, axes, keepdim, dtype."""
    x = draw(tensor(shape(empty=False), FLOAT, NORM))
    order = draw(ORDERS)
    dims = draw(axis_list(len(x.shape), least=1))
    wide = torch.float64 if x.dtype == "f64" else torch.float32
    if form == "vector":
        kwargs = {"keepdim": draw(st.booleans())}
        if draw(st.integers(0, 3)) == 3:
            kwargs["dtype"] = wide
        return (x, order, draw(st.sampled_from([None, dims])) if x.shape else None), kwargs
    if form == "all":
        return (x, order), {}
    if form == "all dtype":
        return (x, order), {"dtype": wide}
    return (x, order, dims, draw(st.booleans())), {"dtype": wide} if form == "dim dtype" else {}


ROWS["linalg_vector_norm"] = Row(norms("vector"), scale="conditioned")
ROWS["norm.Scalar"] = Row(norms("all"), scale="conditioned")
ROWS["norm.ScalarOpt_dim"] = Row(norms("dim"), scale="conditioned")
ROWS["norm.ScalarOpt_dim_dtype"] = Row(norms("dim dtype"), scale="conditioned")
ROWS["norm.ScalarOpt_dtype"] = Row(norms("all dtype"), scale="conditioned")
