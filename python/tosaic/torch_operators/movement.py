"""Rows for calls that change shapes or move elements and that become one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tosaic.torch_operators.arguments import OP, axis_of, fit, ids, per_overload
from tosaic.torch_operators.call import Call, Emit, Rows, reads_data
from tosaic.torch_operators.dtypes import CODE
from tosaic.torch_operators.elementwise import with_attributes
from tosaic.torch_operators.value import NoValue, Ref

__all__ = ["ROWS"]

ROWS = Rows()
on = ROWS.on


@on(
    *[
        "view",
        "reshape",
        "_unsafe_view",
        "flatten.using_ints",
        "unflatten.int",
        "squeeze",
        "squeeze.dim",
        "squeeze.dims",
        "unsqueeze",
    ],
    *["view_as", "reshape_as", "_reshape_alias", "_reshape_copy", "ravel"],
)
def reshape(c: Call, x: Ref, *_: Any) -> Ref:
    return c.emit(OP["reshape"], {"shape": c.shape}, (x.id,))


@on("view.dtype")
def view_dtype(c: Call, x: Ref, _dtype: Any) -> Ref | None:
    return c.emit(OP["clone"], None, (x.id,)) if x.dtype == c.dtype else None


@on("expand", "expand_as", "broadcast_to")
def expand(c: Call, x: Ref, *_: Any) -> Ref:
    return c.emit(OP["expand"], {"shape": c.shape}, (x.id,))


def _permuted(c: Call, x: Ref, perm: Sequence[int]) -> Ref:
    return c.emit(OP["permute"], {"perm": perm}, (x.id,))


@on("permute")
def permute(c: Call, x: Ref, dims: Sequence[int]) -> Ref:
    rank = len(x.shape)
    return _permuted(c, x, [axis % rank for axis in dims])


@on("transpose.int", "swapaxes", "swapdims")
def transpose(c: Call, x: Ref, a: int, b: int) -> Ref:
    rank = len(x.shape)
    perm = list(range(rank))
    if rank:
        perm[a], perm[b] = perm[b], perm[a]
    return _permuted(c, x, perm)


@on("t", "numpy_T")
def reversed_axes(c: Call, x: Ref) -> Ref:
    return _permuted(c, x, list(reversed(range(len(x.shape)))))


@on("mT", "mH", "adjoint", "matrix_H")
def matrix_transpose(c: Call, x: Ref) -> Ref:
    return transpose(c, x, -1, -2)


@on(*per_overload("movedim moveaxis", "int intlist"))
def movedim(c: Call, x: Ref, source: Any, destination: Any) -> Ref:
    rank = len(x.shape)
    moved = [axis_of(a, rank) for a in ([source] if isinstance(source, int) else source)]
    places = [axis_of(a, rank) for a in ([destination] if isinstance(destination, int) else destination)]
    at = dict(zip(places, moved, strict=True))
    rest = iter(axis for axis in range(rank) if axis not in moved)
    return _permuted(c, x, [at[place] if place in at else next(rest) for place in range(rank)])


repeat = ROWS["repeat"] = with_attributes("repeat", shape="Sequence[int]")


@on("tile")
def tile(c: Call, x: Ref, dims: Sequence[int]) -> Any:
    return repeat(c, x, [1] * (len(x.shape) - len(dims)) + list(dims))


@on(
    *per_overload("split unsafe_split", "Tensor sizes"),
    *per_overload("split_with_sizes unsafe_split_with_sizes chunk unsafe_chunk", "default"),
    *per_overload("tensor_split", "sections indices"),
)
def split(c: Call, x: Ref, _sizes: Any, dim: int) -> list[Ref]:
    axis = axis_of(dim, len(x.shape))
    return c.emit_all(OP["split"], {"axis": axis, "sizes": [shape[axis] for _, shape in c.types]}, (x.id,))


@on("unbind.int")
def unbind(c: Call, x: Ref, dim: int) -> list[Ref]:
    return c.emit_all(OP["unbind"], {"axis": axis_of(dim, len(x.shape))}, (x.id,))


@on("select.int")
@reads_data
def select(c: Call, x: Ref, dim: int, index: int | NoValue) -> Ref:
    axis = axis_of(dim, len(x.shape))
    if isinstance(index, NoValue):
        return c.emit(OP["index"], None, ids(x, *[None] * axis, _position(c, index)))
    return c.emit(
        OP["select"], {"axis": axis, "index": index % x.shape[axis] if index < 0 else index}, (x.id,)
    )


def _position(c: Call, number: NoValue) -> Ref:
    """Returns a rank-0 position that is computed from data."""
    assert number.tensor is not None
    return c.emit_inferred(OP["cast"], {"dtype": CODE["i64"]}, (number.tensor.id,))


@on("slice.Tensor")
def slice_(c: Call, x: Ref, dim: int, start: int | None, end: int | None, step: int) -> Ref:
    axis = axis_of(dim, len(x.shape))
    first, last, _ = slice(start, end).indices(x.shape[axis])
    return c.emit(OP["slice"], {"axis": axis, "start": first, "end": max(first, last), "step": step}, (x.id,))


@on("narrow")
@reads_data
def narrow(c: Call, x: Ref, dim: int, start: int | NoValue, length: int) -> Ref:
    axis = axis_of(dim, len(x.shape))
    if isinstance(start, NoValue):
        return _narrow_from(c, x, axis, _position(c, start), length)
    first = start + x.shape[axis] if start < 0 else start
    return c.emit(OP["slice"], {"axis": axis, "start": first, "end": first + length, "step": 1}, (x.id,))


def _narrow_from(c: Call, x: Ref, axis: int, start: Ref, length: int) -> Ref:
    """Only a negative `start` counts from the end; negative positions that result from it are an error."""
    extent = c.constant(x.shape[axis], start.dtype)
    is_negative = c.emit_inferred(OP["lt"], None, (start.id, c.constant(0, start.dtype).id))
    from_end = c.emit_inferred(OP["add"], None, (start.id, extent.id))
    first = c.emit_inferred(OP["where"], None, (is_negative.id, from_end.id, start.id))
    places = c.emit_inferred(OP["add"], None, (c.lifted(np.arange(length, dtype=np.int64)).id, first.id))
    return c.emit(OP["index_select"], {"axis": axis}, (x.id, places.id))


@on("flip")
def flip(c: Call, x: Ref, dims: Sequence[int]) -> Ref:
    if not x.shape:
        return c.emit(OP["clone"], None, (x.id,))
    return c.emit(OP["flip"], {"axes": sorted(axis_of(axis, len(x.shape)) for axis in dims)}, (x.id,))


@on("fliplr")
def fliplr(c: Call, x: Ref) -> Ref:
    return flip(c, x, [1])


@on("flipud")
def flipud(c: Call, x: Ref) -> Ref:
    return flip(c, x, [0])


@on("pad")
def pad(c: Call, x: Ref, padding: Sequence[int], mode: str, value: float | None) -> Ref:
    """Torch lists (before, after) from the last axis backwards. Modes other than constant crop first."""
    rank = len(x.shape)
    before, after = [0] * rank, [0] * rank
    for i in range(len(padding) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = padding[2 * i], padding[2 * i + 1]
    for axis in range(rank) if mode != "constant" else ():
        first, last = max(0, -before[axis]), x.shape[axis] - max(0, -after[axis])
        if (first, last) != (0, x.shape[axis]):
            cut = {"axis": axis, "start": first, "end": last, "step": 1}
            x = c.emit_inferred(OP["slice"], cut, (x.id,))
        before[axis], after[axis] = max(0, before[axis]), max(0, after[axis])
    value = 0.0 if value is None else value
    ends = list(zip(x.shape, before, after, strict=True))
    if mode == "constant" and min((n + min(a, 0) + min(b, 0) for n, a, b in ends), default=1) == 0:
        # The pads remove all of x.
        attrs = {"shape": [n + a + b for n, a, b in ends], "value": fit(value, x.dtype), "dtype": x.dtype}
        return c.emit(OP["full"], attrs, ())
    attrs = {"before": before, "after": after, "mode": mode, "value": value}
    return c.emit(OP["pad"], attrs, (x.id,))


@on("constant_pad_nd")
def constant_pad(c: Call, x: Ref, padding: Sequence[int], value: Any) -> Ref:
    return pad(c, x, padding, "constant", value)


def _pad(mode: str) -> Emit:
    def emit(c: Call, x: Ref, padding: Sequence[int]) -> Ref:
        return pad(c, x, padding, mode, None)

    return emit


ROWS["_pad_circular"] = _pad("circular")
for _n in (1, 2, 3):
    ROWS[f"reflection_pad{_n}d"] = _pad("reflect")
    ROWS[f"replication_pad{_n}d"] = _pad("replicate")

ROWS["tril"] = with_attributes("tril", diagonal="int")
ROWS["triu"] = with_attributes("triu", diagonal="int")


@on("gather")
def gather(c: Call, x: Ref, dim: int, index: Ref, _sparse: bool) -> Ref:
    """Tensors of rank 0 are treated as rank 1."""
    if not x.shape or not index.shape:
        x, index = (
            t if t.shape else c.emit_inferred(OP["reshape"], {"shape": [1]}, (t.id,)) for t in (x, index)
        )
        picked = c.emit_inferred(OP["gather"], {"axis": 0}, (x.id, index.id))
        return c.emit(OP["reshape"], {"shape": c.shape}, (picked.id,))
    return c.emit(OP["gather"], {"axis": axis_of(dim, len(x.shape))}, (x.id, index.id))


@on("index_select")
def index_select(c: Call, x: Ref, dim: int, index: Ref) -> Ref:
    """A tensor of rank 0 is treated as rank 1."""
    if not x.shape:
        vector = c.emit_inferred(OP["reshape"], {"shape": [1]}, (x.id,))
        rows = c.emit_inferred(OP["index_select"], {"axis": 0}, (vector.id, index.id))
        return c.emit(OP["reshape"], {"shape": c.shape}, (rows.id,))
    return c.emit(OP["index_select"], {"axis": axis_of(dim, len(x.shape))}, (x.id, index.id))


@on("embedding")
def embedding(c: Call, weight: Ref, indices: Ref, *_: Any) -> Ref:
    return c.emit(OP["embedding"], None, (weight.id, indices.id))
