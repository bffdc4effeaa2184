"""Paths: the movements that find the elements of one tensor in another tensor with the same memory.

    t = torch.empty(4, 6)
    t[:, 2]              slice axis 1 from 2 to 3, reshape to (4,)
    t.view(-1)[3:10]     reshape to (24,), slice from 3 to 10
    t.diagonal()         reshape to (24,), elements 0, 7, 14, 21

A path follows only from the memory of the two tensors, however many views are between them. It is exact: a
place in memory is a number whose digits are the positions on the axes, outermost first, and each axis of the
view changes one digit, without a carry. If there are no such digits, the path lists the elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from tosaic.torch_operators.memory_regions import Region
from tosaic.torch_operators.places import has_own_places, places, positions

_MOST_LISTED = 1 << 22  # paths list no more elements

_Axes = Sequence[tuple[int, int]]  # sizes and strides, greatest stride first


class Moves(Protocol):
    """Writes the nodes of a path."""

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """Reshapes `x`."""

    def permute(self, x: Any, perm: Sequence[int]) -> Any:
        """Axis i of the result is axis ``perm[i]``."""

    def expand(self, x: Any, shape: Sequence[int]) -> Any:
        """Repeats axes of extent 1."""

    def slice(self, x: Any, axis: int, start: int, end: int, step: int = 1) -> Any:
        """Takes every `step`-th element of [start, end) on an axis."""

    def slice_scatter(self, x: Any, source: Any, axis: int, start: int, end: int, step: int) -> Any:
        """Replaces the elements that `slice` takes."""

    def take(self, x: Any, axis: int, indices: Any) -> Any:
        """Selects the positions of an axis that `indices` lists."""

    def put(self, x: Any, indices: Any, source: Any) -> Any:
        """Replaces elements of an `x` with one axis."""


class _Reshape(NamedTuple):
    before: tuple[int, ...]
    after: tuple[int, ...]

    def apply(self, m: Moves, x: Any) -> Any:
        return m.reshape(x, self.after)

    def undo(self, m: Moves, y: Any) -> Any:
        return m.reshape(y, self.before)


class _Permute(NamedTuple):
    perm: tuple[int, ...]

    def apply(self, m: Moves, x: Any) -> Any:
        return m.permute(x, self.perm)

    def undo(self, m: Moves, y: Any) -> Any:
        return m.permute(y, [self.perm.index(axis) for axis in range(len(self.perm))])


class _Expand(NamedTuple):
    shape: tuple[int, ...]

    def apply(self, m: Moves, x: Any) -> Any:
        return m.expand(x, self.shape)


class _Slice(NamedTuple):
    axis: int
    start: int
    end: int
    step: int

    def apply(self, m: Moves, x: Any) -> Any:
        return m.slice(x, *self)

    def write(self, m: Moves, x: Any, y: Any) -> Any:
        return m.slice_scatter(x, y, *self)


@dataclass(frozen=True, eq=False)
class _Take:
    indices: np.ndarray[Any, Any]

    def apply(self, m: Moves, x: Any) -> Any:
        return m.take(x, 0, self.indices)

    def write(self, m: Moves, x: Any, y: Any) -> Any:
        return m.put(x, self.indices, y)


@dataclass(frozen=True, eq=False)
class _Repeat:
    """Takes elements more than once. In a write, the first of several elements for one place counts."""

    indices: np.ndarray[Any, Any]
    first: np.ndarray[Any, Any]

    def apply(self, m: Moves, x: Any) -> Any:
        return m.take(x, 0, self.indices)

    def undo(self, m: Moves, y: Any) -> Any:
        return m.take(y, 0, self.first)


@dataclass(frozen=True)
class Path:
    """The movements from a tensor to a view of its memory.

    Attributes
    ----------
    steps : tuple
        In the order in which a read makes them.
    """

    steps: tuple[Any, ...]

    @property
    def is_whole(self) -> bool:
        """True if the view has all elements of the tensor."""
        return not any(isinstance(step, _Slice | _Take) for step in self.steps)

    def read(self, m: Moves, x: Any) -> Any:
        """Returns the view of `x`."""
        for step in self.steps:
            x = step.apply(m, x)
        return x

    def write(self, m: Moves, x: Any, view: Any) -> Any:
        """Returns `x` with the elements of the view replaced."""
        return _written(self.steps, m, x, view)


def _written(steps: tuple[Any, ...], m: Moves, x: Any, view: Any) -> Any:
    if not steps:
        return view
    step, rest = steps[0], steps[1:]
    needs_old = any(isinstance(each, _Slice | _Take) for each in rest)
    inner = _written(rest, m, step.apply(m, x) if needs_old else None, view)
    return step.write(m, x, inner) if isinstance(step, _Slice | _Take) else step.undo(m, inner)


def path_between(
    outer: Region, inner: Region, is_written: bool = False, is_one_number: bool = False
) -> Path | None:
    """Returns the path from tensor `outer` to tensor `inner`, which is in the memory of `outer`.

    Parameters
    ----------
    outer, inner : Region
        With layouts.
    is_written : bool
        Whether elements are to be replaced; else they are only read.
    is_one_number : bool
        Whether all elements are to be replaced by the same number: then `inner` may repeat elements.

    Returns
    -------
    Path or None
        None if `inner` has another dtype; if it has an element that `outer` lacks; if it repeats elements and
        is to be written with different numbers; or if only a list of elements would do, which is too long.
    """
    if outer.layout is None or inner.layout is None or outer.memories != inner.memories:
        return None
    if outer.layout[0] != inner.layout[0] or outer.is_empty or inner.is_empty:
        return None
    if is_written and not has_own_places(outer.layout[2]):
        return None
    if is_written and not has_own_places(inner.layout[2]):
        return _by_repeated_list(outer, inner) if is_one_number else None
    if outer.is_same(inner):
        return Path(())
    return _by_digits(outer, inner) or _by_list(outer, inner)


# ---- digits ----


class _Digit(NamedTuple):
    """A part of an axis of the tensor as a separate axis, and the positions of it that the view has."""

    size: int
    start: int
    taken: int
    step: int


def _by_digits(outer: Region, inner: Region) -> Path | None:
    own, order = _in_memory_order(outer)
    its, inner_order = _in_memory_order(inner)
    distance = inner.offset - outer.offset
    if not (has_own_places(own) and has_own_places(its)) or distance < 0:
        return None
    natural = _digits(own, _split(its, own), distance)
    if natural is not None and all(len(each) == 1 for each in natural):
        steps = _along_axes(outer, order, [each[0] for each in natural])
    else:
        runs = _merged(own)
        found = natural or _digits(runs, its, distance) or _digits(runs, _merged(its), distance)
        if found is None:
            return None
        steps = _in_digits(outer, order, [digit for each in found for digit in each])
    steps += _arranged(_shape_behind(steps, outer.shape), inner, inner_order)
    return Path(
        tuple(step for step in steps if not (isinstance(step, _Reshape) and step.before == step.after))
    )


def _in_memory_order(region: Region) -> tuple[_Axes, tuple[int, ...]]:
    """Returns sizes and strides of axes with several elements, greatest stride first, and their indices."""
    axes = [
        axis
        for axis, (size, stride) in enumerate(zip(region.shape, region.strides, strict=True))
        if size > 1 and stride != 0
    ]
    axes.sort(key=lambda axis: -region.strides[axis])
    return [(region.shape[axis], region.strides[axis]) for axis in axes], tuple(axes)


def _split(axes: _Axes, own: _Axes) -> _Axes:
    """Splits axes of the view that span several axes of the tensor."""
    found: list[tuple[int, int]] = []
    for size, stride in axes:
        parts: list[tuple[int, int]] = []
        for _, step in reversed(own):
            if stride < step < stride * size and step % stride == 0 and size % (step // stride) == 0:
                parts.append((step // stride, stride))
                size, stride = size // (step // stride), step
        parts.append((size, stride))
        found += reversed(parts)
    return found


def _merged(axes: _Axes) -> _Axes:
    """Merges adjacent axes that are dense in memory."""
    found: list[tuple[int, int]] = []
    for size, stride in axes:
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return found


def _digits(own: _Axes, its: _Axes, distance: int) -> list[list[_Digit]] | None:
    """Returns the digits of each axis of the tensor; None if an axis of the view fits in no digit."""
    starts = []
    for _, stride in own:
        starts.append(distance // stride)
        distance %= stride
    moving: list[list[tuple[int, int]]] = [[] for _ in own]
    for size, stride in its:
        at = next((i for i, (_, step) in enumerate(own) if step <= stride), None)
        if at is None or stride % own[at][1] != 0:
            return None
        moving[at].append((size, stride // own[at][1]))
    found = [
        _digits_of_axis(size, start, axes) for (size, _), start, axes in zip(own, starts, moving, strict=True)
    ]
    if distance or any(each is None for each in found):
        return None
    return [each for each in found if each is not None]


def _digits_of_axis(size: int, start: int, axes: _Axes) -> list[_Digit] | None:
    if not axes:
        return [_Digit(size, start, 1, 1)] if start < size else None
    (count, step), rest = axes[0], axes[1:]
    if not rest:
        return [_Digit(size, start, count, step)] if start + (count - 1) * step < size else None
    weight = math.gcd(size, step)
    span = sum((extent - 1) * stride for extent, stride in rest) + 1
    if start % weight + span > weight or start // weight + (count - 1) * (step // weight) >= size // weight:
        return None
    below = _digits_of_axis(weight, start % weight, rest)
    return None if below is None else [_Digit(size // weight, start // weight, count, step // weight), *below]


def _along_axes(outer: Region, order: Sequence[int], digits: Sequence[_Digit]) -> list[Any]:
    """Slices the axes of the tensor itself, and permutes the rest into the order of memory."""
    steps: list[Any] = []
    shape = list(outer.shape)
    for axis, digit in sorted(zip(order, digits, strict=True)):
        steps += _sliced(axis, digit)
        shape[axis] = digit.taken
    return [*steps, *_brought(shape, [axis for axis in order if shape[axis] > 1])]


def _brought(shape: Sequence[int], order: Sequence[int]) -> list[Any]:
    """Permutes the axes with several elements into this order, if they have another one."""
    if list(order) == sorted(order):
        return []
    kept = [axis for axis, size in enumerate(shape) if size > 1]
    small = tuple(shape[axis] for axis in kept)
    return [_Reshape(tuple(shape), small), _Permute(tuple(kept.index(axis) for axis in order))]


def _in_digits(outer: Region, order: Sequence[int], digits: Sequence[_Digit]) -> list[Any]:
    """Permutes the tensor's axes into the order of memory, makes an axis of each digit, and slices."""
    steps = _brought(outer.shape, order)
    ordered = tuple(outer.shape[axis] for axis in order) if steps else outer.shape
    steps.append(_Reshape(ordered, tuple(digit.size for digit in digits)))
    return [*steps, *(step for axis, digit in enumerate(digits) for step in _sliced(axis, digit))]


def _sliced(axis: int, digit: _Digit) -> list[_Slice]:
    if digit.taken == digit.size:
        return []
    step = digit.step if digit.taken > 1 else 1
    return [_Slice(axis, digit.start, digit.start + (digit.taken - 1) * step + 1, step)]


def _arranged(shape: tuple[int, ...], inner: Region, order: Sequence[int]) -> list[Any]:
    """Reshapes, permutes and expands elements in the order of memory to the axes of the view."""
    once = tuple(1 if stride == 0 else size for size, stride in zip(inner.shape, inner.strides, strict=True))
    steps: list[Any] = []
    kept = sorted(order)
    if list(order) != kept:
        moving = tuple(inner.shape[axis] for axis in order)
        steps = [_Reshape(shape, moving), _Permute(tuple(list(order).index(axis) for axis in kept))]
        shape = tuple(inner.shape[axis] for axis in kept)
    if shape != once:
        steps.append(_Reshape(shape, once))
    if once != inner.shape:
        steps.append(_Expand(inner.shape))
    return steps


def _shape_behind(steps: Sequence[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    for step in steps:
        if isinstance(step, _Reshape):
            shape = step.after
        elif isinstance(step, _Permute):
            shape = tuple(shape[axis] for axis in step.perm)
        else:
            count = len(range(step.start, step.end, step.step))
            shape = (*shape[: step.axis], count, *shape[step.axis + 1 :])
    return shape


# ---- lists ----


def _by_list(outer: Region, inner: Region) -> Path | None:
    """Returns a path that lists the elements; None if one is missing, or if there are too many."""
    shape = tuple(size if stride else 1 for size, stride in zip(inner.shape, inner.strides, strict=True))
    count, total = math.prod(shape), outer.count
    if max(count, total) > _MOST_LISTED:
        return None
    wanted = places(inner.offset, shape, inner.strides)
    found = positions(wanted, outer.offset, outer.shape, outer.strides)
    if found is None:
        return None
    steps = (_Reshape(outer.shape, (total,)), _Take(found), _Reshape((count,), shape))
    return Path(steps if shape == inner.shape else (*steps, _Expand(inner.shape)))


def _by_repeated_list(outer: Region, inner: Region) -> Path | None:
    """Returns a path that lists each element once, and then repeats it."""
    if max(inner.count, outer.count) > _MOST_LISTED:
        return None
    wanted = places(inner.offset, inner.shape, inner.strides)
    found = positions(wanted, outer.offset, outer.shape, outer.strides)
    if found is None:
        return None
    once, first, indices = np.unique(found, return_index=True, return_inverse=True)
    listed = (_Reshape(outer.shape, (outer.count,)), _Take(once), _Repeat(indices.reshape(-1), first))
    return Path((*listed, _Reshape((inner.count,), inner.shape)))
