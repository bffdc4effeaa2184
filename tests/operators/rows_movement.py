"""Operators that move, copy or select elements. They do no arithmetic, so results must be equal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from tosaic.base.dim_order import channels_last

from operators.checking import Row, add_rows
from operators.draw import (
    ANY,
    FLOAT,
    NUMBER,
    arguments,
    axis,
    axis_list,
    indices,
    maybe,
    narrowed,
    shape,
    tensor,
)
from operators.values import T

Draw = Callable[[Any], Any]
KINDS = ("normal", "special", "medium", "wide")
ROWS: dict[str, Row] = {}


def some(low: int = 0, high: int = 6, dtypes: Any = ANY, *, empty: bool = True, least: int = 1) -> Any:
    return tensor(shape(low, high, empty=empty, least=least), dtypes, KINDS)


rows = partial(add_rows, ROWS)

# ---- shapes ----


@st.composite
def regrouped(draw: Draw, of: tuple[int, ...]) -> list[int]:
    """Draws a shape with as many elements as `of`. One extent may be -1, which torch computes."""
    count = math.prod(of)
    if count == 0:
        return list(of)
    found: list[int] = []
    while count > 1 and len(found) < 5:
        side = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        found.append(side)
        count //= side
    if count > 1:
        found.append(count)
    if found and draw(st.booleans()):
        found[draw(st.integers(0, len(found) - 1))] = -1
    return found


@st.composite
def viewed(draw: Draw) -> Any:
    x = draw(some())
    return (x, draw(regrouped(x.shape))), {}


rows("view reshape", viewed())


@st.composite
def viewed_unsafely(draw: Draw) -> Any:
    (x, sides), _ = draw(viewed())
    return (x, sides), {}


ROWS["_unsafe_view"] = Row(viewed_unsafely())
VIEWS = {
    "f32": torch.int32,
    "f16": torch.int16,
    "i32": torch.float32,
    "f64": torch.int64,
    "bf16": torch.int16,
}


@st.composite
def view_of_bits(draw: Draw) -> Any:
    x = draw(some(0, 4, ("f32", "f16", "i32", "bf16")))
    own = getattr(torch, {"f32": "float32", "f16": "float16", "i32": "int32", "bf16": "bfloat16"}[x.dtype])
    return (x, draw(st.sampled_from([own, own, VIEWS[x.dtype]]))), {}


ROWS["view.dtype"] = Row(view_of_bits())


@st.composite
def flattened(draw: Draw) -> Any:
    x = draw(some())
    a, b = sorted(draw(axis(len(x.shape))) % max(len(x.shape), 1) for _ in range(2))
    return (x, a, b - len(x.shape) if draw(st.booleans()) and x.shape else b), {}


ROWS["flatten.using_ints"] = Row(flattened())


@st.composite
def unflattened(draw: Draw) -> Any:
    x = draw(some(1, 4, empty=False))
    dim = draw(axis(len(x.shape)))
    parts = draw(regrouped((x.shape[dim],)).filter(lambda parts: len(parts) < 5))  # at most 8 axes in all
    return (x, dim, parts or [1]), {}


ROWS["unflatten.int"] = Row(unflattened())


@st.composite
def along(draw: Draw, *more: Any, low: int = 0, high: int = 6) -> Any:
    """Draws a tensor, one of its axes, and `more` arguments."""
    x = draw(some(low, high))
    return (x, draw(axis(len(x.shape))), *(draw(m) for m in more)), {}


@st.composite
def unsqueezed(draw: Draw) -> Any:
    x = draw(some(0, 5))
    return (x, draw(st.integers(-len(x.shape) - 1, len(x.shape)))), {}


@st.composite
def over_axes(draw: Draw, *, every: bool = False) -> Any:
    x = draw(some())
    axes = draw(st.permutations(range(len(x.shape)))) if every else draw(axis_list(len(x.shape)))
    return (x, [a - len(x.shape) if draw(st.booleans()) else a for a in axes] if every else axes), {}


@st.composite
def two_axes(draw: Draw) -> Any:
    x = draw(some())
    return (x, draw(axis(len(x.shape))), draw(axis(len(x.shape)))), {}


@st.composite
def moved(draw: Draw) -> Any:
    x = draw(some())
    source = draw(axis_list(len(x.shape)))
    return (x, source, draw(st.permutations(range(len(x.shape))))[: len(source)]), {}


rows("squeeze alias detach lift_fresh_copy", arguments([some()]))
ROWS["squeeze.dim"] = Row(along())
ROWS["squeeze.dims"] = Row(over_axes())
ROWS["unsqueeze"] = Row(unsqueezed())
ROWS["permute"] = Row(over_axes(every=True))
ROWS["transpose.int"] = ROWS["movedim.int"] = Row(two_axes())
ROWS["movedim.intlist"] = Row(moved())
ROWS["t"] = Row(arguments([some(0, 2)]))
ROWS["flip"] = Row(over_axes())


@st.composite
def expanded(draw: Draw) -> Any:
    whole = draw(shape())
    x = draw(tensor(narrowed(whole), ANY, KINDS))
    kept = len(whole) - len(x.shape)
    sides = [-1 if i >= kept and draw(st.integers(0, 3)) == 3 else side for i, side in enumerate(whole)]
    return (x, [x.shape[i - kept] if s == -1 and i < kept else s for i, s in enumerate(sides)]), {}


@st.composite
def repeated(draw: Draw) -> Any:
    x = draw(some(0, 4))
    front = draw(st.integers(0, 2))
    return (x, [draw(st.sampled_from([1, 2, 3, 1, 0])) for _ in range(front + len(x.shape))]), {}


@st.composite
def interleaved(draw: Draw, form: str) -> Any:
    if form == "Tensor":
        repeats = draw(tensor(shape(1, 1, empty=False), ("i64", "i32"), ("positive",), const=None))
        return (repeats,), {}
    x = draw(some(0, 4))
    dim = draw(maybe(axis(len(x.shape))))
    if form == "int":
        return (x, draw(st.integers(0, 3)), dim), {}
    count = math.prod(x.shape) if dim is None else x.shape[dim] if x.shape else 1
    return (x, draw(tensor((count,), ("i64",), ("positive",), const=None)), dim), {}


ROWS["expand"] = Row(expanded())
ROWS["repeat"] = Row(repeated())
ROWS["repeat_interleave.self_int"] = Row(interleaved("int"))
ROWS["repeat_interleave.self_Tensor"] = Row(interleaved("self"))
ROWS["repeat_interleave.Tensor"] = Row(interleaved("Tensor"))

# ---- copies and casts ----

DTYPES = st.sampled_from(
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.int8,
        torch.float64,
    ]
)
FORMATS = st.sampled_from([torch.contiguous_format, torch.preserve_format, torch.channels_last])
CPU = torch.device("cpu")


@st.composite
def in_an_order(draw: Draw, formats: Any) -> Any:
    """Draws a tensor and a memory format. channels_last needs a tensor of rank 4."""
    memory_format = draw(formats)
    x = draw(some(4, 4) if memory_format is torch.channels_last else some())
    return (replace(x, order="last" if draw(st.booleans()) else ""),), {"memory_format": memory_format}


ROWS["contiguous"] = Row(in_an_order(st.sampled_from([torch.contiguous_format, torch.channels_last])))
ROWS["clone"] = Row(in_an_order(FORMATS))


@st.composite
def converted(draw: Draw, form: str) -> Any:
    """Draws a tensor and a dtype to cast to.

    If the dtype is an integer, all floats are in its range: C++, and so torch, does not define the result of
    a cast for floats out of range.
    """
    dtype = draw(DTYPES)
    floats = dtype.is_floating_point
    x = draw(tensor(shape(), ANY, KINDS if floats else ("normal", "unit", "integers", "ties")))
    if not floats and x.dtype not in FLOAT:
        x = replace(x, kind="positive")
    copy = draw(st.booleans())
    if form == "device":
        return (x, CPU, dtype), {"copy": copy}
    if form == "dtype":
        return (x, dtype), {"copy": copy}
    if form == "other":
        name = {v: k for k, v in _CODES.items()}[dtype]
        return (x, T((1,), name)), {}
    return (x,), {"dtype": dtype} if draw(st.booleans()) else {}


_CODES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32,
    "i64": torch.int64, "bool": torch.bool, "i8": torch.int8, "f64": torch.float64,
}  # fmt: skip
ROWS["to.device"] = Row(converted("device"))
ROWS["to.dtype"] = Row(converted("dtype"))
ROWS["to.other"] = Row(converted("other"))
ROWS["to.dtype_layout"] = ROWS["_to_copy"] = Row(converted("layout"))


@st.composite
def in_dim_order(draw: Draw, *, cast: bool) -> Any:
    rank = draw(st.integers(0, 5))
    x = draw(some(rank, rank))
    order = [*channels_last(rank)] if rank >= 4 and draw(st.booleans()) else list(range(rank))
    options: dict[str, Any] = {"dim_order": draw(st.sampled_from([None, order]))}
    if cast:
        options["dtype"] = draw(
            st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64])
        )
    return (x,), options


ROWS["dim_order_ops::_clone_dim_order"] = Row(in_dim_order(cast=False))
ROWS["dim_order_ops::_to_dim_order_copy"] = Row(in_dim_order(cast=True))

# ---- cat, stack, split, slices ----


@st.composite
def joined(draw: Draw, *, same: bool) -> Any:
    """Draws tensors of equal shape (`same`, for stack), or equal except for one axis (cat).

    Dtypes may differ.
    """
    first = draw(some(0 if same else 1, 5))
    rank = len(first.shape)
    dim = draw(st.integers(-rank - 1, rank)) if same else draw(axis(rank))
    tensors = [first]
    for _ in range(draw(st.integers(0, 3))):
        sides = list(first.shape)
        if not same:
            sides[dim] = draw(st.integers(0, 4))
        dtype = draw(st.sampled_from(ANY)) if draw(st.integers(0, 3)) == 3 else first.dtype
        tensors.append(draw(tensor(tuple(sides), (dtype,), KINDS)))
    return (tensors, dim), {}


ROWS["cat"] = Row(joined(same=False))
ROWS["stack"] = Row(joined(same=True))


@st.composite
def parted(draw: Draw, form: str) -> Any:
    x = draw(some(1, 5))
    dim = draw(axis(len(x.shape)))
    side = x.shape[dim]
    if form == "sizes":
        cut = draw(st.integers(0, side))
        return (x, [cut, side - cut], dim), {}
    return (x, draw(st.integers(1, max(side, 1))), dim), {}


rows("split.Tensor chunk", parted("count"))
rows("split.sizes split_with_sizes", parted("sizes"))


@st.composite
def unbound(draw: Draw) -> Any:
    x = draw(some(1, 5, empty=False))
    return (x, draw(axis(len(x.shape)))), {}


ROWS["unbind.int"] = Row(unbound())


@st.composite
def part(draw: Draw, form: str) -> Any:
    """Draws the arguments of select, slice and narrow, and of the forms that write a part back (scatter)."""
    x = draw(some(1, 5, empty=False))
    dim = draw(axis(len(x.shape)))
    side = x.shape[dim]
    if form.startswith("select"):
        index = draw(st.integers(-side, side - 1))
        if form == "select":
            return (x, dim, index), {}
        rest = x.shape[: dim % len(x.shape)] + x.shape[dim % len(x.shape) + 1 :]
        return (x, draw(tensor(rest, (x.dtype,), KINDS)), dim, index), {}
    if form.startswith("narrow"):
        start = draw(st.integers(0, side))
        length = draw(st.integers(0, side - start))
        return (x, dim, T((), "i64", [start], const=True) if form == "narrow.Tensor" else start, length), {}
    start, end = draw(maybe(st.integers(-side - 1, side))), draw(maybe(st.integers(-side, side + 2)))
    step = draw(st.integers(1, 3))
    if form == "slice":
        return (x, dim, start, end, step), {}
    sides = list(x.shape)
    sides[dim] = len(range(side)[slice(start, end, step)])
    return (x, draw(tensor(tuple(sides), (x.dtype,), KINDS)), dim, start, end, step), {}


for _name, _form in (
    ("select.int", "select"), ("select_scatter", "select back"), ("slice.Tensor", "slice"),
    ("slice_scatter", "slice back"), ("narrow", "narrow"), ("narrow.Tensor", "narrow.Tensor"),
):  # fmt: skip
    ROWS[_name] = Row(part(_form))


@st.composite
def rolled(draw: Draw) -> Any:
    x = draw(some(0, 5))
    if not x.shape or draw(st.integers(0, 3)) == 3:
        return (x, [draw(st.integers(-5, 5))]), {}
    dims = draw(axis_list(len(x.shape), least=1))
    return (x, [draw(st.integers(-5, 9)) for _ in dims], dims), {}


ROWS["roll"] = Row(rolled())

# ---- padding ----


@st.composite
def padded(draw: Draw, mode: str, *, n: int = 0, named: bool = False) -> Any:
    """Draws a pad of the last `n` axes of a tensor of rank n + 1 or n + 2.

    The mode ``constant`` has any rank and number of axes, and negative widths, which crop.
    """
    if mode == "constant":
        x = draw(some(0, 5))
        n = draw(st.integers(0, len(x.shape)))
        widths = [draw(st.integers(-min(1, x.shape[-1 - i // 2] // 2), 2)) for i in range(2 * n)]
        value = draw(st.sampled_from([0, 1, 2.5, -1])) if x.dtype in FLOAT else draw(st.sampled_from([0, 1]))
        if named:
            return (x, widths, "constant", value), {}
        return (x, widths, value), {}
    n = n or draw(st.integers(1, 3))
    sides = [draw(st.integers(2, 5)) for _ in range(n)]
    front = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(1, 2)))]
    dtypes = FLOAT if mode != "circular" else (*FLOAT, "i32", "i64")
    x = draw(tensor((*front, *sides), dtypes, KINDS))
    widths = [draw(st.integers(0, x.shape[-1 - i // 2] - 1)) for i in range(2 * n)]
    return (x, widths, mode) if named else (x, widths), {}


ROWS["constant_pad_nd"] = Row(padded("constant"))
ROWS["pad"] = Row(
    st.one_of(*(padded(mode, named=True) for mode in ("constant", "reflect", "replicate", "circular")))
)
for _n in (1, 2, 3):
    ROWS[f"reflection_pad{_n}d"] = Row(padded("reflect", n=_n))
    ROWS[f"replication_pad{_n}d"] = Row(padded("replicate", n=_n))
ROWS["_pad_circular"] = Row(padded("circular"))

# ---- by index ----


@st.composite
def gathered(draw: Draw, form: str) -> Any:
    """Draws the arguments of gather and of the scatters.

    The index has the same rank as the tensor, and no larger extent on any axis other than `dim`.
    """
    x = draw(some(1, 4, empty=False))
    dim = draw(axis(len(x.shape)))
    sides = [draw(st.integers(1, side)) for side in x.shape]
    if form == "gather":
        sides[dim] = draw(st.integers(1, 5))
        return (x, dim, indices(tuple(sides), x.shape[dim], draw(st.integers(0, 3)))), {}
    # results for equal indices are undefined, so each line along the axis has every position at most once
    index = T(tuple(sides), "i64", _distinct(sides, dim % len(sides)), const=draw(st.booleans()))
    if form in ("value", "value_reduce"):
        value: Any = (
            draw(st.sampled_from([0, 1, 3])) if x.dtype not in FLOAT else draw(st.sampled_from([0.5, -1, 2]))
        )
        return (x, dim, index, value), {} if form == "value" else {
            "reduce": draw(st.sampled_from(["add", "multiply"]))
        }
    source = draw(tensor(tuple(sides), (x.dtype,), KINDS))
    return (x, dim, index, source), {} if form == "src" else {
        "reduce": draw(st.sampled_from(["add", "multiply"]))
    }


def _distinct(sides: list[int], dim: int) -> list[int]:
    """Returns indices that count down to 0 along `dim`."""
    inner = math.prod(sides[dim + 1 :])
    return [sides[dim] - 1 - (i // inner) % sides[dim] for i in range(math.prod(sides))]


ROWS["gather"] = Row(gathered("gather"))
for _form in ("src", "value", "reduce", "value_reduce"):
    ROWS[f"scatter.{_form}"] = Row(gathered(_form))


FACTORS = ("unit", "normal", "small", "integers")
"""Kinds whose products and sums of a few elements do not overflow."""


@st.composite
def reduced(draw: Draw, form: str) -> Any:
    """Draws the arguments of the reductions at positions, which may repeat."""
    x = draw(tensor(shape(1, 4, empty=False), NUMBER, FACTORS))
    dim = draw(axis(len(x.shape)))
    at = dim % len(x.shape)
    seed, const = draw(st.integers(0, 3)), draw(st.booleans())
    if form.startswith("index"):
        count = draw(st.integers(1, 5))
        index = replace(indices((count,), x.shape[at], seed), const=const)
        sides = tuple(count if i == at else side for i, side in enumerate(x.shape))
    else:
        sides = tuple(draw(st.integers(1, 6 if i == at else side)) for i, side in enumerate(x.shape))
        index = replace(indices(sides, x.shape[at], seed), const=const)
    args = (x, dim, index, draw(tensor(sides, (x.dtype,), FACTORS)))
    if form.endswith("add"):
        return args, {"alpha": draw(st.sampled_from([1, 2, -3]))} if form == "index_add" else {}
    reductions = ["prod", "mean", "amax", "amin"] + (["sum"] if form == "scatter_reduce" else [])
    return (*args, draw(st.sampled_from(reductions))), {"include_self": draw(st.booleans())}


for _form in ("scatter_add", "index_add"):
    ROWS[_form] = Row(reduced(_form), scale="terms")
ROWS["scatter_reduce.two"] = Row(reduced("scatter_reduce"), scale="terms", expanded=True)
ROWS["index_reduce"] = Row(reduced("index_reduce"), scale="terms", expanded=True)


@st.composite
def flatly_put(draw: Draw) -> Any:
    x = draw(some(0, 4, empty=False))
    total = math.prod(x.shape)
    count = draw(st.integers(1, min(total, 6)))
    chosen = draw(st.lists(st.integers(0, total - 1), min_size=count, max_size=count, unique=True))
    index = T((count,), "i64", chosen, const=draw(st.booleans()))
    return (x, index, draw(tensor((count,), (x.dtype,), FACTORS)), draw(st.booleans())), {}


ROWS["put"] = Row(flatly_put(), scale="terms")


@st.composite
def masked(draw: Draw) -> Any:
    x = draw(some(0, 4, empty=False))
    mask = draw(tensor(narrowed(x.shape), ("bool",), ("normal",)))
    total = math.prod(x.shape)
    return (x, mask, draw(tensor((total + draw(st.integers(0, 3)),), (x.dtype,), KINDS))), {}


ROWS["masked_scatter"] = Row(masked())


@st.composite
def selected(draw: Draw) -> Any:
    x = draw(some(0, 5, empty=False))
    dim = draw(axis(len(x.shape)))
    count = draw(st.integers(0, 5)) if x.shape else 1
    dtype = draw(st.sampled_from(["i64", "i32"]))
    size = x.shape[dim] if x.shape else 1
    index = indices((count,), size, draw(st.integers(0, 3)), dtype=dtype)
    return (x, dim, replace(index, const=draw(st.booleans()))), {}


ROWS["index_select"] = Row(selected())


@st.composite
def indexed(draw: Draw, *, put: bool) -> Any:
    """Draws a tensor and a list of index tensors that broadcast; None for axes that are not indexed.

    Positions may be negative. With `put`, also the values to write, and `accumulate`.
    """
    x = draw(some(1, 4, empty=False))
    count = draw(st.integers(1, len(x.shape)))
    common = draw(shape(0, 2, empty=False))
    common = tuple(min(side, 4) for side in common)
    constant = draw(st.booleans())
    seed = draw(st.integers(0, 3))
    listed: list[Any] = []
    for at in range(count):
        if draw(st.integers(0, 3)) == 3 and at + 1 < count:
            listed.append(None)
            continue
        # not (): torch.export infers a wrong shape if only some of the index tensors have rank 0
        of = draw(narrowed(common)) or (1,) * len(common)
        index = indices(of, x.shape[at], seed, negative=draw(st.booleans()))
        listed.append(replace(index, const=constant))
    if not put:
        return (x, listed), {}
    listed = [None if i is None else replace(i, shape=(), low=0, high=1) for i in listed]
    used = [i for i, index in enumerate(listed) if index is not None]
    rest = tuple(side for i, side in enumerate(x.shape) if i not in used)
    accumulate = draw(st.booleans()) and x.dtype in FLOAT
    return (x, listed, draw(tensor(narrowed(rest), (x.dtype,), KINDS)), accumulate), {}


ROWS["index.Tensor"] = Row(indexed(put=False))
ROWS["index_put"] = Row(indexed(put=True), scale="terms")


@st.composite
def embedded(draw: Draw) -> Any:
    rows_, width = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    of = draw(shape(0, 4))
    index = indices(of, rows_, draw(st.integers(0, 3)), dtype=draw(st.sampled_from(["i64", "i32"])))
    padding = draw(st.integers(0, rows_ - 1))
    weight = draw(tensor((rows_, width), FLOAT, KINDS, const=None))
    return (weight, index), {"padding_idx": padding} if draw(st.booleans()) else {}


ROWS["embedding"] = Row(embedded())

# ---- windows, diagonals ----


@st.composite
def unfolded(draw: Draw) -> Any:
    x = draw(some(1, 5, empty=False))
    dim = draw(axis(len(x.shape)))
    return (x, dim, draw(st.integers(1, x.shape[dim])), draw(st.integers(1, 3))), {}


@st.composite
def columns(draw: Draw) -> Any:
    front = [draw(st.integers(1, 2))] if draw(st.booleans()) else []
    kernel, dilation = ([draw(st.integers(1, 3)) for _ in range(2)] for _ in range(2))
    padding, stride = [draw(st.integers(0, 2)) for _ in range(2)], [draw(st.integers(1, 3)) for _ in range(2)]
    sides = [d * (k - 1) + 1 + draw(st.integers(0, 3)) for k, d in zip(kernel, dilation, strict=True)]
    x = draw(tensor((*front, draw(st.integers(1, 3)), *sides), FLOAT, KINDS))
    return (x, kernel, dilation, padding, stride), {}


@st.composite
def strided(draw: Draw) -> Any:
    """Draws a row-major view of the whole tensor in another shape; one time in four other strides."""
    x = draw(some(0, 4))
    sides = draw(regrouped(x.shape))
    count = math.prod(x.shape)
    sides = [count // -math.prod(sides) if s == -1 else s for s in sides]
    strides = [math.prod(sides[i + 1 :]) for i in range(len(sides))]
    if count and sides and draw(st.integers(0, 3)) == 3:
        strides = [draw(st.integers(0, 1)) for _ in sides]
        sides = [1 if stride and side > 1 else side for side, stride in zip(sides, strides, strict=True)]
    return (x, sides, strides), {}


@st.composite
def diagonal(draw: Draw) -> Any:
    x = draw(some(2, 5))
    a, b = draw(st.permutations(range(len(x.shape))))[:2]
    rank = len(x.shape)
    return (x, draw(st.integers(-3, 3)), a, b - rank if draw(st.booleans()) else b), {}


@st.composite
def triangle(draw: Draw) -> Any:
    return (draw(some(2, 5)), draw(st.integers(-4, 4))), {}


ROWS["unfold"] = Row(unfolded())
ROWS["im2col"] = Row(columns())
ROWS["as_strided"] = Row(strided())
ROWS["diagonal"] = Row(diagonal())
rows("tril triu", triangle())
