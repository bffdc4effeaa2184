"""Rows for calls that move elements: windows, diagonals, rolls, index_put, resampling.

A call that only moves elements becomes several canonical movement nodes, whose names all derive from the
call's name. Lists of indices that follow from shapes are constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.torch_operators.arguments import OP, axis_of, fit, ids, spread
from tosaic.torch_operators.call import Call, Emit, Rows
from tosaic.torch_operators.dtypes import CATEGORY, CODE
from tosaic.torch_operators.places import FEW_PLACES, places, positions
from tosaic.torch_operators.pooling import max_pool, with_factors
from tosaic.torch_operators.value import Ref

__all__ = ["ROWS", "Movements", "along", "within"]

ROWS = Rows()
on = ROWS.on

_MOST_AXES = 6  # the maximal rank of TOSA's level 8K
_I64 = CODE["i64"]
_FEW_TAPS = 1 << 24  # the most taps of all windows, for a pooling whose indices are used
_FAR = 1 << 62  # addresses beyond this are refused, since sums with them could exceed 64 bits


class Movements:
    """Short names for the nodes that represent one call; `done` checks the type of the last one."""

    def __init__(self, call: Call) -> None:
        self._c = call

    def emit(self, op: str, attrs: dict[str, Any] | None, *operands: Ref) -> Ref:
        """Adds a node in front of the call's own node."""
        return self._c.emit_inferred(OP[op], attrs, tuple(operand.id for operand in operands))

    def number(self, value: Any, like: Ref) -> Ref:
        """Adds a rank-0 constant with the dtype of another value."""
        return self._c.constant(fit(value, like.dtype), like.dtype)

    def reshape(self, x: Ref, shape: Sequence[int]) -> Ref:
        """Reshapes, unless `x` has the shape already."""
        return x if tuple(x.shape) == tuple(shape) else self.emit("reshape", {"shape": list(shape)}, x)

    def permute(self, x: Ref, perm: Sequence[int]) -> Ref:
        """Axis i of the result is axis ``perm[i]``."""
        return x if list(perm) == list(range(len(perm))) else self.emit("permute", {"perm": list(perm)}, x)

    def expand(self, x: Ref, shape: Sequence[int]) -> Ref:
        """Repeats axes of extent 1 and adds new axes in front."""
        return x if tuple(x.shape) == tuple(shape) else self.emit("expand", {"shape": list(shape)}, x)

    def slice(self, x: Ref, axis: int, start: int, end: int, step: int = 1) -> Ref:
        """Takes every `step`-th element of [start, end) on an axis."""
        if (start, end, step) == (0, x.shape[axis], 1):
            return x
        return self.emit("slice", {"axis": axis, "start": start, "end": end, "step": step}, x)

    def cat(self, parts: Sequence[Ref], axis: int) -> Ref:
        """Concatenates the parts, without empty parts."""
        kept = [part for part in parts if part.shape[axis] != 0] or parts[:1]
        return kept[0] if len(kept) == 1 else self.emit("cat", {"axis": axis}, *kept)

    def pad(self, x: Ref, before: Sequence[int], after: Sequence[int]) -> Ref:
        """Adds zeros around `x`; negative numbers remove elements."""
        if not any(before) and not any(after):
            return x
        attrs = {"before": list(before), "after": list(after), "mode": "constant", "value": fit(0, x.dtype)}
        return self.emit("pad", attrs, x)

    def pad_axis(self, x: Ref, axis: int, before: int, after: int) -> Ref:
        """Pads one axis, as `pad` does."""
        zeros = [0] * len(x.shape)
        return self.pad(
            x,
            [before if i == axis else 0 for i, _ in enumerate(zeros)],
            [after if i == axis else 0 for i, _ in enumerate(zeros)],
        )

    def slice_scatter(self, x: Ref, source: Ref, axis: int, start: int, end: int, step: int) -> Ref:
        """Replaces the elements that `slice` takes."""
        return self.emit("slice_scatter", {"axis": axis, "start": start, "end": end, "step": step}, x, source)

    def put(self, x: Ref, indices: Any, source: Ref) -> Ref:
        """Replaces elements of an `x` with one axis."""
        return self.index_put(x, [self.constant(indices)], source, False, last=False)

    def cast(self, x: Ref, dtype: int) -> Ref:
        """Casts, unless `x` has the dtype already."""
        return x if x.dtype == dtype else self.emit("cast", {"dtype": dtype}, x)

    def take(self, x: Ref, axis: int, indices: Any) -> Ref:
        """Selects the positions of an axis that `indices` lists."""
        listed = np.asarray(indices, np.int64).reshape(-1)
        if listed.size == x.shape[axis] and bool((listed == np.arange(listed.size)).all()):
            return x
        return self.emit("index_select", {"axis": axis}, x, self.constant(listed))

    def require(self, made: Sequence[int], indices: int | None = None) -> None:
        """Compares what a call makes with what torch recorded, before anything of that size is computed.

        Parameters
        ----------
        made : sequence of int
            The shape by the arguments of the call.
        indices : int, optional
            The length of the longest list of indices that is about to be made. Default: that of the result.

        Raises
        ------
        InvalidGraph
            The shapes differ, or a long list of indices would be needed for a result of fewer elements.
        """
        shape = self._c.shape
        if tuple(made) != tuple(shape):
            raise self._c.error(
                _core.InvalidGraph,
                "the result is not what torch recorded",
                expected=str(tuple(shape)),
                got=str(tuple(made)),
            )
        if indices is not None and indices > max(FEW_PLACES, math.prod(shape)):
            raise self._c.error(
                _core.InvalidGraph,
                "the call needs more indices than its result has elements",
                expected=f"at most {max(FEW_PLACES, math.prod(shape))}",
                got=str(indices),
            )

    def constant(self, values: Any) -> Ref:
        """Adds integers as an i64 constant."""
        return self._c.lifted(np.asarray(values, dtype=np.int64))

    def index_put(
        self, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool, *, last: bool = True
    ) -> Ref:
        """Adds the node of the call's result or, if `last` is False, a node in front of it."""
        for axis, index in enumerate(indices):
            if index is not None:
                within(self._c, index, x.shape[axis], counts_from_end=True)
        wide = [index if index is None else self.cast(index, _I64) for index in indices]
        emit = self._c.emit if last else self._c.emit_inferred
        return emit(OP["index_put"], {"accumulate": accumulate}, ids(x, values, *wide))

    def done(self, x: Ref) -> Ref:
        """Adds the last node of the call: a reshape of `x` to the recorded shape."""
        return self._c.emit(OP["reshape"], {"shape": self._c.shape}, (x.id,))


# ---- products and scans with several axes ----


@on("kron")
def kron(c: Call, a: Ref, b: Ref) -> Ref:
    """Multiplies after views that interleave the axes or, if these are too many, after repeats."""
    m, rank = Movements(c), max(len(a.shape), len(b.shape))
    a, b = m.cast(a, c.dtype), m.cast(b, c.dtype)
    pairs = list(zip(*([1] * (rank - len(x.shape)) + list(x.shape) for x in (a, b)), strict=True))
    axes: list[tuple[int, int]] = []  # for each axis, extents of a and of b, one of which is 1
    alone = (each for p, q in pairs for each in ((p, 1), (1, q)))
    for p, q in (each for each in alone if each != (1, 1)):
        if axes and (axes[-1][0] == p == 1 or axes[-1][1] == q == 1):
            axes[-1] = (axes[-1][0] * p, axes[-1][1] * q)
        else:
            axes.append((p, q))
    if len(axes) <= _MOST_AXES:
        a, b = m.reshape(a, [p for p, _ in axes]), m.reshape(b, [q for _, q in axes])
    else:
        a, b = m.reshape(a, [p for p, _ in pairs]), m.reshape(b, [q for _, q in pairs])
        for axis, (p, q) in enumerate(pairs):
            if p != 1 and q != 1:
                a, b = _repeated(m, a, axis, (p, 1), q), _repeated(m, b, axis, (1, q), p)
    return m.done(c.emit_inferred(OP["mul"], None, (a.id, b.id)))


def _repeated(m: Movements, x: Ref, axis: int, extents: tuple[int, int], times: int) -> Ref:
    """Repeats each element of an axis `times` times, or the axis as a whole: along the 1 in `extents`."""
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    both = [times if each == 1 else each for each in extents]
    y = m.expand(m.reshape(x, [outer, *extents, inner]), [outer, *both, inner])
    return m.reshape(y, [*x.shape[:axis], math.prod(both), *x.shape[axis + 1 :]])


@on("cumprod")
def cumprod(c: Call, x: Ref, dim: int, _dtype: Any) -> Ref:
    """Multiplies the elements of each prefix: element i contributes to result j if i <= j."""
    if not x.shape:
        return c.emit(OP["cast"], {"dtype": c.dtype}, (x.id,))
    m, axis = Movements(c), axis_of(dim, len(x.shape))
    n, outer, inner = x.shape[axis], math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    m.require(x.shape)
    places = m.constant(np.arange(n))
    counts = c.emit_inferred(OP["le"], None, (m.reshape(places, [n, 1]).id, places.id))
    counts = m.reshape(counts, [n, n, 1])
    one = c.constant(fit(1, x.dtype), x.dtype)
    spread_out = m.reshape(x, [outer, n, 1, inner])
    prefixes = c.emit_inferred(OP["where"], None, (counts.id, spread_out.id, one.id))
    attrs = {"axes": [1], "keepdim": False, "dtype": c.dtype}
    return m.done(c.emit_inferred(OP["prod"], attrs, (prefixes.id,)))


# ---- windows ----


@on("unfold")
def unfold(c: Call, x: Ref, dim: int, size: int, step: int) -> Ref:
    """Moves windows along an axis to a new last axis.

    Overlapping windows are looked up, others are sliced.
    """
    if not x.shape:
        return Movements(c).done(x)
    m, axis = Movements(c), axis_of(dim, len(x.shape))
    count = (x.shape[axis] - size) // step + 1
    if step >= size:
        reach = min(count * step, x.shape[axis])
        y = m.pad_axis(m.slice(x, axis, 0, reach), axis, 0, count * step - reach)
        y = m.reshape(y, [*x.shape[:axis], count, step, *x.shape[axis + 1 :]])
        y = m.slice(y, axis + 1, 0, size)
    else:
        m.require([*x.shape[:axis], count, *x.shape[axis + 1 :], size], count * size)
        starts = step * np.arange(count)
        y = m.take(x, axis, starts[:, None] + np.arange(size))
        y = m.reshape(y, [*x.shape[:axis], count, size, *x.shape[axis + 1 :]])
    rank = len(y.shape)
    return m.done(m.permute(y, [i for i in range(rank) if i != axis + 1] + [axis + 1]))


def _window_count(extent: int, kernel: int, dilation: int, padding: int, stride: int) -> int:
    return (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _window_starts(extent: int, kernel: int, dilation: int, padding: int, stride: int) -> Any:
    """Returns positions in the padded extent, of shape (kernel, windows)."""
    count = _window_count(extent, kernel, dilation, padding, stride)
    return dilation * np.arange(kernel)[:, None] + stride * np.arange(count)


@on("im2col")
def im2col(c: Call, x: Ref, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Ref:
    """Turns (N, C, H, W) into (N, C * kernel, windows), with one lookup along each spatial axis."""
    m, batched = Movements(c), len(x.shape) == 4
    pads, kernels = spread(padding, 2), spread(kernel, 2)
    n, channels = (x.shape[0] if batched else 1), x.shape[-3]
    y = m.pad(m.reshape(x, [n, channels, *x.shape[-2:]]), [0, 0, *pads], [0, 0, *pads])
    windows = [
        (x.shape[len(x.shape) - 2 + i], kernels[i], spread(dilation, 2)[i], pads[i], spread(stride, 2)[i])
        for i in range(2)
    ]
    counts = [_window_count(*each) for each in windows]
    made = [channels * math.prod(kernels), math.prod(counts)]
    m.require([n, *made] if batched else made, max(map(math.prod, zip(kernels, counts, strict=True))))
    for i, each in enumerate(windows):
        y = m.take(y, 2 + i, _window_starts(*each))
    y = m.reshape(y, [n * channels, kernels[0], counts[0], kernels[1], counts[1]])
    return m.done(m.permute(y, [0, 1, 3, 2, 4]))


@on("col2im")
def col2im(c: Call, x: Ref, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Ref:
    """Turns (N, C * kernel, windows) into (N, C, H, W): each position sums what im2col reads from it."""
    m, pads, kernels = Movements(c), spread(padding, 2), spread(kernel, 2)
    padded = [extent + 2 * pad for extent, pad in zip(size, pads, strict=True)]
    windows = [(size[i], kernels[i], spread(dilation, 2)[i], pads[i], spread(stride, 2)[i]) for i in range(2)]
    counts = math.prod(_window_count(*each) for each in windows)
    if tuple(x.shape[-2:]) != (c.shape[-3] * math.prod(kernels), counts):
        raise c.error(
            _core.InvalidGraph,
            "the operand has not the windows that the call reads",
            expected=str((c.shape[-3] * math.prod(kernels), counts)),
            got=str(tuple(x.shape[-2:])),
        )
    rows, columns = (_window_starts(*each) for each in windows)
    places = rows[:, None, :, None] * padded[1] + columns[None, :, None, :]  # shape (kernel, windows)
    images = math.prod(c.shape) // max(1, math.prod(c.shape[-2:]))
    values = m.permute(m.reshape(x, [images, places.size]), [1, 0])
    empty = c.emit_inferred(
        OP["full"],
        {"shape": [padded[0] * padded[1], images], "value": 0.0, "dtype": x.dtype},
        (),
    )
    y = m.index_put(empty, [m.constant(places.reshape(-1))], values, True, last=False)
    y = m.reshape(m.permute(y, [1, 0]), [images, *padded])
    for i in range(2):
        y = m.slice(y, 1 + i, pads[i], pads[i] + size[i])
    return m.done(y)


# ---- diagonals ----


def _diagonal_in_front(offset: int, columns: int) -> int:
    """Returns the position of the first element of a diagonal in a row-major matrix."""
    return offset if offset >= 0 else -offset * columns


def _diagonal_length(rows: int, columns: int, offset: int) -> int:
    return max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))


@on("diagonal")
def diagonal(c: Call, x: Ref, offset: int, dim1: int, dim2: int) -> Ref:
    """Takes every (columns + 1)-th element of the matrix flattened to one axis."""
    m, rank = Movements(c), len(x.shape)
    a, b = axis_of(dim1, rank), axis_of(dim2, rank)
    rest = [i for i in range(rank) if i not in (a, b)]
    rows, columns = x.shape[a], x.shape[b]
    y = m.permute(x, [*rest, a, b])
    y = m.reshape(y, [*(x.shape[i] for i in rest), rows * columns])
    length = _diagonal_length(rows, columns, offset)
    start = _diagonal_in_front(offset, columns) if length else 0
    end = start + (length - 1) * (columns + 1) + 1 if length else 0
    return m.done(m.slice(y, len(rest), start, end, columns + 1))


@on("diag_embed")
def diag_embed(c: Call, x: Ref, offset: int, dim1: int, dim2: int) -> Ref:
    """Places elements columns + 1 apart in a flat matrix, then reshapes it into two axes."""
    m, rank = Movements(c), len(x.shape) + 1
    a, b = axis_of(dim1, rank), axis_of(dim2, rank)
    if a > b:
        offset, a, b = -offset, b, a
    length = x.shape[-1]
    extent = length + abs(offset)
    lead = list(x.shape[:-1])
    y = m.pad_axis(m.reshape(x, [*x.shape, 1]), rank - 1, 0, extent)
    y = m.reshape(y, [*lead, length * (extent + 1)])
    start = _diagonal_in_front(offset, extent)
    y = m.pad_axis(y, rank - 2, start, extent * extent - start - length * (extent + 1))
    y = m.reshape(y, [*lead, extent, extent])
    axes = list(range(rank - 2))
    axes.insert(a, rank - 2)
    axes.insert(b, rank - 1)
    return m.done(m.permute(y, axes))


@on("diagonal_scatter")
def diagonal_scatter(c: Call, x: Ref, source: Ref, offset: int, dim1: int, dim2: int) -> Ref:
    """Becomes an index_put at constant positions, with the matrix flattened to one axis in front."""
    m, rank = Movements(c), len(x.shape)
    a, b = axis_of(dim1, rank), axis_of(dim2, rank)
    rest = [i for i in range(rank) if i not in (a, b)]
    perm = [a, b, *rest]
    columns = x.shape[b]
    length = _diagonal_length(x.shape[a], columns, offset)
    places = _diagonal_in_front(offset, columns) + (columns + 1) * np.arange(length)
    flat = m.reshape(m.permute(x, perm), [x.shape[a] * columns, *(x.shape[i] for i in rest)])
    values = m.permute(source, [rank - 2, *range(rank - 2)])
    y = m.index_put(flat, [m.constant(places)], m.cast(values, x.dtype), False, last=False)
    y = m.reshape(y, [x.shape[a], columns, *(x.shape[i] for i in rest)])
    return m.done(m.permute(y, [perm.index(i) for i in range(rank)]))


@on("fill_diagonal")
def fill_diagonal(c: Call, x: Ref, value: Any, wrap: bool) -> Ref:
    """Replaces the diagonal by the number; with `wrap`, the diagonal of a tall matrix continues below."""
    places = np.zeros(tuple(x.shape), np.bool_)
    np.fill_diagonal(places, True, wrap)
    filled = c.constant(fit(value, x.dtype), x.dtype)
    return c.emit(OP["where"], None, ids(c.lifted(places), filled, x))


# ---- rolls, repetitions, shuffles ----


@on("roll")
def roll(c: Call, x: Ref, shifts: Any, dims: Any) -> Ref:
    """Swaps two slices along each axis or, without axes, of the flattened tensor."""
    m = Movements(c)
    listed = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    y = x if axes else m.reshape(x, [math.prod(x.shape)])
    for shift, dim in zip(listed, axes or [0], strict=True):
        axis = axis_of(dim, len(y.shape))
        extent = y.shape[axis]
        cut = -shift % extent if extent else 0
        if cut:
            y = m.cat([m.slice(y, axis, cut, extent), m.slice(y, axis, 0, cut)], axis)
    return m.done(y)


@on("repeat_interleave.self_int")
def repeat_interleave(c: Call, x: Ref, repeats: int, dim: int | None, _size: Any) -> Ref:
    m = Movements(c)
    y = m.reshape(x, [math.prod(x.shape)]) if dim is None else x
    axis = axis_of(dim or 0, len(y.shape))
    lead, rest = list(y.shape[: axis + 1]), list(y.shape[axis + 1 :])
    if len(y.shape) == _MOST_AXES:  # an additional axis would exceed the maximal rank
        lead, rest = [math.prod(lead)], [math.prod(rest)]
        return m.done(m.reshape(m.expand(m.reshape(y, [*lead, 1, *rest]), [*lead, repeats, *rest]), c.shape))
    return m.done(m.expand(m.reshape(y, [*lead, 1, *rest]), [*lead, repeats, *rest]))


@on("repeat_interleave.self_Tensor")
def repeat_interleave_each(c: Call, x: Ref, repeats: Ref, dim: int | None, _size: Any) -> Ref | None:
    """Becomes a lookup if the repeats are constant; otherwise the call is opaque."""
    counts = c.known_elements(repeats)
    if counts is None:
        return None
    m = Movements(c)
    y = m.reshape(x, [math.prod(x.shape)]) if dim is None else x
    axis = axis_of(dim or 0, len(y.shape))
    if counts.size not in (1, y.shape[axis]) or (counts < 0).any():
        return None
    each = np.broadcast_to(counts.reshape(-1), (y.shape[axis],))
    length = sum(map(int, each)) if counts.size > 1 else y.shape[axis] * int(counts.sum())
    m.require([*y.shape[:axis], length, *y.shape[axis + 1 :]], length)
    return m.done(m.take(y, axis, np.repeat(np.arange(y.shape[axis]), each)))


@on("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(c: Call, x: Ref, groups: int) -> Ref:
    m = Movements(c)
    n, channels = x.shape[0], x.shape[1]
    y = m.reshape(x, [n, groups, channels // groups, math.prod(x.shape[2:])])
    return m.done(m.permute(y, [0, 2, 1, 3]))


@on("pixel_shuffle")
def pixel_shuffle(c: Call, x: Ref, factor: int) -> Ref:
    """Turns (.., C * r * r, H, W) into (.., C, H * r, W * r), in steps that also fit channels-last images."""
    m, (channels, h, w) = Movements(c), x.shape[-3:]
    images = math.prod(x.shape[:-3])
    y = m.reshape(x, [images, channels // factor**2, factor, factor, h, w])
    return m.done(m.permute(y, [0, 1, 4, 2, 5, 3]))


@on("pixel_unshuffle")
def pixel_unshuffle(c: Call, x: Ref, factor: int) -> Ref:
    m, (channels, h, w) = Movements(c), x.shape[-3:]
    images = math.prod(x.shape[:-3])
    y = m.reshape(x, [images, channels, h // factor, factor, w // factor, factor])
    return m.done(m.permute(y, [0, 1, 3, 5, 2, 4]))


# ---- views of memory ----


@on("as_strided")
def as_strided(c: Call, x: Ref, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Ref | None:
    """Looks up elements of `x`, or reshapes if they are in order. If `x` lacks one, the call is opaque."""
    strides, start = c.memory_of_operand(0)
    if strides is None:
        return None
    m = Movements(c)
    m.require(size)
    first = start if offset is None else offset
    if any(first + (extent - 1) * step >= _FAR for extent, step in zip(size, stride, strict=True)):
        return None
    # an axis of stride 0 repeats elements, so it is looked up once and expanded
    once = [extent if step else min(extent, 1) for extent, step in zip(size, stride, strict=True)]
    found = positions(places(first, once, stride), start, x.shape, strides)
    if found is None:
        return None
    taken = m.take(m.reshape(x, [math.prod(x.shape)]), 0, found)
    return m.done(taken if once == list(size) else m.expand(m.reshape(taken, once), size))


@on("resize")
def resized(c: Call, x: Ref, size: Sequence[int], _format: Any = None) -> Ref | None:
    """Takes the row-major elements from the storage offset of `x`. If `x` lacks some, the call is opaque."""
    _, start = c.memory_of_operand(0)
    strides = [math.prod(size[axis + 1 :]) for axis in range(len(size))]
    return as_strided(c, x, size, strides, start)


# ---- writes at places ----


@on("slice_scatter")
def slice_scatter(
    c: Call, x: Ref, source: Ref, dim: int, start: int | None, end: int | None, step: int
) -> Ref:
    axis = axis_of(dim, len(x.shape))
    first, last, _ = slice(start, end).indices(x.shape[axis])
    m = Movements(c)
    attrs = {"axis": axis, "start": first, "end": max(first, last), "step": step}
    return c.emit(OP["slice_scatter"], attrs, (x.id, m.cast(source, x.dtype).id))


@on("select_scatter")
def select_scatter(c: Call, x: Ref, source: Ref, dim: int, index: int) -> Ref:
    axis = axis_of(dim, len(x.shape))
    extent = x.shape[axis]
    if not -extent <= index < extent:
        raise c.error(
            _core.InvalidGraph,
            "index out of range",
            expected=f"an index in [{-extent}, {extent})",
            got=str(index),
        )
    at = index % extent
    m = Movements(c)
    part = m.reshape(m.cast(source, x.dtype), [*x.shape[:axis], 1, *x.shape[axis + 1 :]])
    return c.emit(OP["slice_scatter"], {"axis": axis, "start": at, "end": at + 1, "step": 1}, (x.id, part.id))


def along(axis: int, index: Ref) -> list[Ref | None]:
    """Returns index tensors that select positions of one axis."""
    return [None] * axis + [index]


@on("index_copy")
def index_copy(c: Call, x: Ref, dim: int, index: Ref, source: Ref) -> Ref:
    m = Movements(c)
    if not x.shape:
        return m.done(source)
    axis = axis_of(dim, len(x.shape))
    places = m.reshape(within(c, index, x.shape[axis]), [math.prod(index.shape)])
    return m.index_put(x, along(axis, places), source, False)


@on("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(c: Call, x: Ref, dim: int, index: Ref, value: Any) -> Ref:
    m = Movements(c)
    rank = len(x.shape)
    axis = axis_of(dim, rank)
    count = math.prod(index.shape)
    shape = [count if i == axis else extent for i, extent in enumerate(x.shape)]
    source = m.expand(m.cast(value, x.dtype) if type(value) is Ref else m.number(value, x), shape)
    if not rank:
        return m.done(source)
    return m.index_put(x, along(axis, m.reshape(index, [count])), source, False)


def whole_indices(c: Call, indices: Sequence[Ref | None]) -> list[Ref | None] | None:
    """Replaces constant masks by the positions where they are true; None if a mask depends on data."""
    m = Movements(c)
    whole: list[Ref | None] = []
    for index in indices:
        if index is None or CATEGORY[index.dtype] == 1:
            whole.append(index)
            continue
        mask = c.known_elements(index)
        if mask is None:
            return None
        whole += [m.constant(places) for places in np.nonzero(np.atleast_1d(mask))]
    return whole


@on("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(
    c: Call, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool, *_: Any
) -> Ref | None:
    """A data-dependent mask with a single value becomes `where`; calls with other such masks are opaque."""
    m = Movements(c)
    values = m.cast(values, x.dtype)
    whole = whole_indices(c, indices)
    if whole is not None:
        if all(index is None for index in whole):
            return None
        return m.index_put(x, whole, values, accumulate)
    masks = [index for index in indices if index is not None]
    if len(masks) != 1 or math.prod(values.shape) != 1 or CATEGORY[masks[0].dtype] != 0:
        return None
    before = next(i for i, index in enumerate(indices) if index is not None)
    behind = len(x.shape) - before - len(masks[0].shape)
    mask = m.reshape(masks[0], [*masks[0].shape, *[1] * behind])
    value = m.reshape(values, [])
    if accumulate:
        value = c.emit_inferred(OP["add"], None, (x.id, value.id))
    return c.emit(OP["where"], None, (mask.id, value.id, x.id))


@on("index.Tensor", "_unsafe_index.Tensor")
def index_tensors(c: Call, x: Ref, indices: Sequence[Ref | None]) -> Ref | None:
    """Returns None, so that the call becomes opaque, if a mask and so the result's size depend on data."""
    whole = whole_indices(c, indices)
    if whole is None or all(index is None for index in whole):
        return None
    return c.emit(OP["index"], None, ids(x, *whole))


# ---- reads at places ----


@on("take")
def take(c: Call, x: Ref, index: Ref) -> Ref:
    flat = Movements(c).reshape(x, [math.prod(x.shape)])
    return c.emit(OP["index"], None, (flat.id, index.id))


@on("take_along_dim")
def take_along_dim(c: Call, x: Ref, index: Ref, dim: int | None) -> Ref:
    """Gathers after broadcasting the other axes or, without an axis, from the flattened tensors."""
    m = Movements(c)
    if dim is None:
        x, index = (m.reshape(t, [math.prod(t.shape)]) for t in (x, index))
    axis = axis_of(dim or 0, len(x.shape))
    common = np.broadcast_shapes(
        *(tuple(1 if i == axis else e for i, e in enumerate(t.shape)) for t in (x, index))
    )
    if dim is not None:
        index = _wrapped(c, index, x.shape[axis])
    x, index = (
        m.expand(t, [t.shape[i] if i == axis else int(e) for i, e in enumerate(common)]) for t in (x, index)
    )
    flat = c.emit_inferred(OP["gather"], {"axis": axis}, (x.id, index.id))
    return m.done(flat)


def _wrapped(c: Call, index: Ref, extent: int) -> Ref:
    """Returns the remainder of each index, which torch reads for an index of any value."""
    known = c.known_elements(index)
    if extent == 0 or 0 in index.shape or (known is not None and np.all((known >= 0) & (known < extent))):
        return index
    if known is not None:
        return c.lifted(np.remainder(known, extent))
    return c.emit_inferred(OP["remainder"], None, (index.id, c.number(extent, index).id))


def within(c: Call, index: Ref, extent: int, counts_from_end: bool = False) -> Ref:
    """Returns an index. If it is constant or computed from constants, checks that torch accepts it.

    Raises
    ------
    InvalidGraph
        A constant index is out of range. The nodes that represent the call would use it as an index in range.
    """
    known = c.known_elements(index)
    if known is None:
        folded = c.builder.folded(index.id)
        known = None if folded is None else folded.numbers()
    if known is not None:
        low = -extent if counts_from_end else 0
        wrong = known[(known < low) | (known >= extent)]
        if wrong.size:
            raise c.error(
                _core.InvalidGraph,
                "index out of range",
                expected=f"an index in [{low}, {extent})",
                got=str(wrong.flat[0]),
                hint="torch refuses this index too when the program runs",
            )
    return index


@on("one_hot")
def one_hot(c: Call, x: Ref, _classes: int) -> Ref:
    m = Movements(c)
    m.require([*x.shape, c.shape[-1] if c.shape else 0], c.shape[-1] if c.shape else 0)
    within(c, x, c.shape[-1])
    classes = m.constant(np.arange(c.shape[-1]))
    equal = c.emit_inferred(OP["eq"], None, (m.reshape(x, [*x.shape, 1]).id, classes.id))
    return c.emit(OP["cast"], {"dtype": c.dtype}, (equal.id,))


# ---- concatenation ----


@on("cat", "concat", "concatenate")
def cat(c: Call, tensors: Sequence[Ref], dim: int) -> Ref:
    """As in torch, empty tensors of rank 1 are skipped and dtypes are promoted."""
    m, rank = Movements(c), len(c.shape)
    kept = [t for t in tensors if len(t.shape) == rank or tuple(t.shape) != (0,)]
    parts = [m.cast(t, c.dtype) for t in kept or tensors]
    return c.emit(OP["cat"], {"axis": axis_of(dim, rank)}, tuple(part.id for part in parts))


@on("stack")
def stack(c: Call, tensors: Sequence[Ref], dim: int) -> Ref:
    m = Movements(c)
    parts = [m.cast(t, c.dtype) for t in tensors]
    return c.emit(OP["stack"], {"axis": axis_of(dim, len(c.shape))}, tuple(part.id for part in parts))


# ---- normalisation ----


@on("instance_norm")
def instance_norm(
    c: Call,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mean: Ref | None,
    variance: Ref | None,
    use_input_stats: bool,
    _momentum: float,
    eps: float,
    _cudnn: bool,
) -> Ref:
    """Becomes a group norm with one group per channel or, with running statistics, a batch norm."""
    if use_input_stats or mean is None or variance is None:
        return c.emit(OP["group_norm"], {"groups": x.shape[1], "eps": eps}, ids(x, weight, bias))
    return c.emit(OP["batch_norm"], {"eps": eps}, ids(x, weight, bias, mean, variance))


# ---- pooling and resampling ----


def _window_places(
    extents: Sequence[int], outs: Sequence[int], windows: Sequence[Sequence[int]]
) -> np.ndarray[Any, Any] | None:
    """Returns flat positions, one row per window; a tap outside repeats the first tap inside the window.

    Taps that are in no window of the input are left out. Returns None if a window is empty, or if there are
    too many taps.
    """
    most = max(_FEW_TAPS, 16 * math.prod(outs))
    places, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), np.bool_)
    for extent, out, (kernel, stride, padding, dilation) in zip(extents, outs, windows, strict=True):
        if dilation < 1:
            return None
        low = max(0, -((out - 1) * stride - padding) // dilation)
        high = min(kernel, (extent - 1 + padding) // dilation + 1)  # skips taps that are never inside
        if max(out, 1) * max(0, high - low) > most:
            return None
        taps = np.arange(low, high)
        at = np.arange(out)[:, None] * stride - padding + taps * dilation
        within = (at >= 0) & (at < extent)
        shape = (len(places) * out, places.shape[1] * len(taps))
        if not len(taps) or math.prod(shape) > most:
            return None
        places = (places[:, None, :, None] * extent + at[None, :, None, :]).reshape(shape)
        inside = (inside[:, None, :, None] & within[None, :, None, :]).reshape(shape)
    if not inside.any(axis=1).all():
        return None
    return np.where(inside, places, np.take_along_axis(places, inside.argmax(axis=1)[:, None], axis=1))


def _max_pool_with_indices(n: int) -> Emit:
    values_only = max_pool(n)

    def emit(c: Call, x: Ref, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
        """Looks up the taps of all windows at once, which needs no extra axis per window axis."""
        if c.only_first():
            return c.first(values_only(c, x, kernel, stride, padding, dilation, ceil))
        windows = [spread(given, n) for given in (kernel, stride or kernel, padding, dilation)]
        places = _window_places(x.shape[-n:], c.types[0][1][-n:], list(zip(*windows, strict=True)))
        if places is None:
            return None
        m, (count, taps) = Movements(c), places.shape
        images = m.reshape(x, [math.prod(x.shape[:-n]), math.prod(x.shape[-n:])])
        rows = m.reshape(m.take(images, 1, places), [images.shape[0], count, taps])
        top = c.emit_inferred(OP["amax"], {"axes": [2], "keepdim": False}, (rows.id,))
        tap = c.emit_inferred(OP["argmax"], {"axis": 2, "keepdim": False}, (rows.id,))
        starts = m.constant(np.arange(count) * taps)
        at = c.emit_inferred(OP["add"], {"alpha": 1}, (tap.id, starts.id))
        found = c.emit_inferred(OP["index"], None, (m.constant(places.reshape(-1)).id, at.id))
        return [
            c.emit_result(i, OP["reshape"], {"shape": c.types[i][1]}, (y.id,))
            for i, y in enumerate((top, found))
        ]

    return emit


for _n in (1, 2, 3):
    ROWS[f"max_pool{_n}d_with_indices"] = _max_pool_with_indices(_n)


def nearest_exact(c: Call, x: Ref, _size: Any, *scales: Any) -> Ref:
    """Takes the element under the center of each pixel, computed in float32 as torch does."""
    m, y = Movements(c), x
    for i, out in enumerate(c.shape[2:]):
        extent = x.shape[2 + i]
        m.require(c.shape, out)
        given = scales[i] if i < len(scales) else None
        ratio = np.float32(1.0 / given) if given else np.float32(extent) / np.float32(out)
        at = np.floor((np.arange(out, dtype=np.float32) + np.float32(0.5)) * ratio)
        y = m.take(y, 2 + i, np.minimum(at.astype(np.int64), extent - 1))
    return m.done(y)


for _n in (1, 2, 3):
    ROWS[f"_upsample_nearest_exact{_n}d"] = nearest_exact
    ROWS[f"_upsample_nearest_exact{_n}d.vec"] = with_factors(nearest_exact)


def _option(c: Call, what: str, number: int, names: Sequence[str]) -> str:
    """Returns the name of an option that torch numbers; refuses other numbers, which 5-d kernels ignore."""
    if not 0 <= number < len(names):
        expected = ", ".join(f"{i} ({name})" for i, name in enumerate(names))
        raise c.error(_core.InvalidGraph, f"an unknown {what}", expected=expected, got=str(number))
    return names[number]


@on("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(c: Call, x: Ref, grid: Ref, mode: int, padding: int, corners: bool) -> Ref:
    attrs = {
        "mode": _option(c, "interpolation_mode", mode, ("bilinear", "nearest", "bicubic")),
        "padding": _option(c, "padding_mode", padding, ("zeros", "border", "reflection")),
        "align_corners": corners,
    }
    return c.emit(OP["grid_sample"], attrs, (x.id, grid.id))


@on("affine_grid_generator")
def affine_grid(c: Call, theta: Ref, size: Sequence[int], corners: bool) -> Ref:
    return c.emit(OP["affine_grid"], {"size": list(size), "align_corners": corners}, (theta.id,))


# ---- contraction ----


def _spelled_out(equation: str) -> str:
    """Removes spaces and adds an implicit result: the letters that occur once, in alphabetical order."""
    equation = equation.replace(" ", "")
    if "->" in equation:
        return equation
    letters = equation.replace("...", "").replace(",", "")
    once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
    return f"{equation}->{'...' if '...' in equation else ''}{''.join(once)}"


@on("einsum")
def einsum(c: Call, equation: str, tensors: Sequence[Ref], _path: Any) -> Ref:
    return c.emit(OP["einsum"], {"equation": _spelled_out(equation)}, tuple(t.id for t in tensors))
