"""Writes the tensors and kernel calls of a method's host, for the rows of `tosaic.pte.kernels`.

Most kernels of ExecuTorch read and write row-major tensors; elementwise kernels, resizing and max pools also
take channels last. A reshape is not a call: the result has the bytes of its operand, at the same place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.base.dim_order import is_same_order, orders_of_formats
from tosaic.base.dtypes import BITS, is_float
from tosaic.pte.file_writer import ReadArray
from tosaic.pte.method_writer import MethodWriter, Slot

_COPY = "dim_order_ops::_to_dim_order_copy"


@dataclass(frozen=True)
class Held:
    """A tensor of the host.

    Attributes
    ----------
    slot : Slot
    dtype : str
    shape : tuple of int
    order : tuple of int
        The dim order of the tensor.
    elements : callable, optional
        Returns the elements of a constant, which are in memory only while they are used.
    """

    slot: Slot
    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    elements: ReadArray | None = None

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)


def _row_major(rank: int) -> tuple[int, ...]:
    return tuple(range(rank))


def is_channels_last(order: Sequence[int]) -> bool:
    """True for the dim order of torch's formats channels last, of rank 4 and 5."""
    return is_kernel_order(order) and tuple(order) != _row_major(len(order))


def is_kernel_order(order: Sequence[int]) -> bool:
    """True for the dim orders between which a kernel of ExecuTorch copies."""
    return tuple(order) in orders_of_formats(len(order))


class Host:
    """Writes the tensors and kernel calls of a method."""

    def __init__(self, writer: MethodWriter) -> None:
        self.writer = writer
        self._order: tuple[int, ...] | None = None

    @contextmanager
    def computing_in(self, order: tuple[int, ...] | None) -> Iterator[None]:
        """Gives results of `call` this dim order if they have its rank; None: row-major."""
        before, self._order = self._order, order
        try:
            yield
        finally:
            self._order = before

    # ---- tensors ----

    def new(self, dtype: str, shape: Sequence[int], order: Sequence[int] | None = None) -> Held:
        """Returns a new tensor, whose memory is planned."""
        axes = _row_major(len(shape)) if order is None or len(order) != len(shape) else tuple(order)
        return Held(self.writer.tensor(dtype, shape, axes), dtype, tuple(shape), axes)

    def constant(self, array: np.ndarray[Any, Any], dtype: str) -> Held:
        """Returns a constant."""
        return self.constant_of(lambda: array, dtype, array.shape)

    def weight(self, constant: _core.Constant) -> Held:
        """Returns a constant of a graph."""
        return self.constant_of(lambda: constant.array, constant.dtype, constant.shape)

    def constant_of(self, read: ReadArray, dtype: str, shape: Sequence[int]) -> Held:
        """Returns a constant whose elements a function returns."""
        slot = self.writer.constant_of(read, dtype, shape)
        return Held(slot, dtype, tuple(shape), _row_major(len(shape)), read)

    def call(
        self,
        kernel: str,
        operands: Sequence[Any],
        dtype: str,
        shape: Sequence[int],
        order: Sequence[int] | None = None,
    ) -> Held:
        """Writes a call with one result. `kernel` is name and overload: ``aten::add.out``."""
        made = self.new(dtype, shape, self._order if order is None else order)
        self.write(kernel, operands, [made])
        return made

    def calls(
        self, kernel: str, operands: Sequence[Any], types: Sequence[tuple[str, Sequence[int]]]
    ) -> list[Held]:
        """Writes a call with several results, each an argument of its own."""
        made = [self.new(dtype, shape, self._order) for dtype, shape in types]
        self.write(kernel, operands, made)
        return made

    def write(
        self, kernel: str, operands: Sequence[Any], results: Sequence[Held], *, listed: bool = False
    ) -> None:
        """Writes a call with given results; if `listed`, they are one argument, a list."""
        name, _, overload = kernel.partition(".")
        self.writer.call(
            name, overload, [_plain(each) for each in operands], [r.slot for r in results], listed=listed
        )

    def optional_tensors(self, tensors: Sequence[Held | None]) -> Slot:
        """Returns a list of tensors that may be absent, as an argument."""
        return self.writer.optional_tensors([None if each is None else each.slot for each in tensors])

    # ---- the same elements in another form ----

    def reshape(self, held: Held, shape: Sequence[int]) -> Held:
        """Returns the elements with other extents."""
        held = self.in_order(held, _row_major(held.rank))
        if tuple(shape) == held.shape:
            return held
        read = held.elements
        elements = None if read is None else lambda: read().reshape(tuple(shape))
        return self._at(held, shape, _row_major(len(shape)), elements)

    def permute(self, held: Held, perm: Sequence[int]) -> Held:
        """Returns the elements with permuted axes, row-major."""
        held = self.in_order(held, _row_major(held.rank))
        if tuple(perm) == _row_major(held.rank):
            return held
        shape = [held.shape[axis] for axis in perm]
        read = held.elements
        if read is not None:
            return self.constant_of(lambda: read().transpose(perm), held.dtype, shape)
        return self.call("aten::permute_copy.out", [held, list(perm)], held.dtype, shape)

    def in_order(self, held: Held, order: tuple[int, ...]) -> Held:
        """Returns the tensor in a dim order, copied if its elements are in another one.

        A kernel copies between row-major and channels last. To other orders, the axes are permuted, and the
        bytes are then read as the tensor in that order.
        """
        if len(order) != held.rank or held.order == order:
            return held
        if is_same_order(held.shape, held.order, order):
            return self._at(held, held.shape, order, held.elements)
        if is_kernel_order(held.order) and is_kernel_order(order):
            return self.call(f"{_COPY}.out", [held, False, list(order)], held.dtype, held.shape, order)
        rows = _row_major(held.rank)
        if held.order != rows:
            held = self.permute(self.physical(held), [held.order.index(axis) for axis in rows])
            return self.in_order(held, order)
        moved = self.permute(held, order)
        return self._at(moved, held.shape, order)

    def physical(self, held: Held) -> Held:
        """Returns the bytes as a row-major tensor, with the axes of the dim order."""
        return self._at(held, [held.shape[axis] for axis in held.order], _row_major(held.rank))

    def logical(self, held: Held, order: Sequence[int]) -> Held:
        """Returns the bytes of a row-major tensor as a tensor whose axes are in a dim order."""
        return self._at(held, [held.shape[list(order).index(axis)] for axis in range(held.rank)], order)

    def _at(
        self,
        held: Held,
        shape: Sequence[int],
        order: Sequence[int],
        elements: ReadArray | None = None,
    ) -> Held:
        """Returns the bytes of a tensor as another tensor."""
        slot = self.writer.view(held.slot, shape, order)
        return Held(slot, held.dtype, tuple(shape), tuple(order), elements)

    def spread(self, held: Held, order: tuple[int, ...]) -> Held:
        """Gives a tensor of one element the rank and the dim order `order`; returns others as they are."""
        if math.prod(held.shape) != 1 or held.order == order:
            return held
        return self._at(held, (1,) * len(order), order, held.elements)

    def cast(self, held: Held, dtype: str) -> Held:
        """Returns the elements in another dtype. Signed and unsigned integers are different dtypes here."""
        if held.dtype == dtype:
            return held
        return self.call(f"{_COPY}.out", [held, False, list(held.order)], dtype, held.shape, held.order)

    def in_storage(self, held: Held, dtype: str) -> Held:
        """Returns the elements in another dtype; integers of the same size have the same bytes."""
        same_bytes = BITS[held.dtype] == BITS[dtype] and not is_float(dtype) and not is_float(held.dtype)
        return held if same_bytes else self.cast(held, dtype)

    def copy(self, held: Held) -> Held:
        """Returns a copy, with its own memory."""
        kernel = "dim_order_ops::_clone_dim_order.out"
        if not is_kernel_order(held.order):
            return self.logical(self.copy(self.physical(held)), held.order)
        return self.call(kernel, [held, False, list(held.order)], held.dtype, held.shape, held.order)


def _plain(value: Any) -> Any:
    """Returns an argument with the slots of tensors in place of `Held`, also in lists."""
    if isinstance(value, Held):
        return value.slot
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value
