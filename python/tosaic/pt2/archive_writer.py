"""Writes the nodes of the calls of a ``.pt2`` graph. Rows see an `ArchiveWriter` as a `Call`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosaic import _core
from tosaic.base.arrays import dtype_name
from tosaic.base.options import unsupported
from tosaic.pt2.sizes import Sizes
from tosaic.pt2.tensors import Stored, Weights
from tosaic.pt2.values import MemoryFormat, TensorMeta
from tosaic.torch_operators import node_writer
from tosaic.torch_operators.dtypes import CODE
from tosaic.torch_operators.node_writer import NodeWriter
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.value import Complex, Ref

_INT = frozenset({int})


@dataclass(frozen=True)
class Shared(node_writer.Shared):
    """State that the writers of a program and of its nested graphs share."""

    weights: Weights
    sizes: Sizes


def code_of(meta: TensorMeta, what: str) -> int:
    """Returns the position of a dtype in DTYPES. If it has none, raises UnsupportedOp, which names `what`."""
    if meta.dtype.code < 0:
        raise unsupported("import", f"{what} has a dtype without a counterpart", got=str(meta.dtype))
    return meta.dtype.code


class ArchiveWriter(NodeWriter):
    """Writes the nodes of one call after another into a builder."""

    shared: Shared

    # ---- the call ----

    def expect(self, node: Any, row: OperatorRow) -> None:
        """Sets the result types that the file records. A complex result has the type of a part."""
        recorded = node.meta.get("val")
        self.is_complex = False
        if type(recorded) is TensorMeta:
            self.dtype, self.shape = recorded.dtype.code, recorded.shape
            if self.dtype < 0 or not _INT.issuperset(map(type, self.shape)):
                self.is_complex = recorded.dtype.real >= 0
                self.dtype, self.shape = self.type_of(recorded)
            if not row.single:
                self.types = [(self.dtype, self.shape)]
            return
        if recorded is None and row.single:
            raise self.error(_core.InvalidGraph, "the node records no result", expected="a tensor")
        self.dtype = -1
        items = recorded if isinstance(recorded, list | tuple) else ()
        self.types = [self.type_of(item) if isinstance(item, TensorMeta) else (-1, ()) for item in items]
        if self.types:
            self.dtype, self.shape = self.types[0]

    def type_of(self, recorded: Any) -> tuple[int, Sequence[int]]:
        """Returns dtype and shape of a recorded tensor; of a complex one, of a part."""
        dtype = recorded.dtype
        code = dtype.real if dtype.real >= 0 else code_of(recorded, f"a result of '{self.node.name}'")
        return code, self.shared.sizes.shape(recorded.shape)

    # ---- constants ----

    def constant(self, value: bool | int | float, code: int) -> Ref:
        """Adds a rank-0 constant."""
        return Ref(self.builder.add_constant(self.shared.weights.number(value, code)), code, ())

    def complex_constant(self, stored: Stored, kind: str) -> Complex:
        """Adds both parts of a complex tensor of the program as copied constants."""
        code = stored.meta.dtype.real
        real, imag = (
            Ref(self.builder.add_constant(part), code, stored.meta.shape)
            for part in self.shared.weights.parts(stored, kind)
        )
        return Complex(real, imag)

    def lifted(self, elements: NDArray[Any]) -> Ref:
        """Adds a constant whose elements were computed while reading."""
        array = np.ascontiguousarray(elements).reshape(np.shape(elements))
        code = CODE[dtype_name(array.dtype)]
        address = array.ctypes.data
        constant = _core.Constant(self.name(), "lifted", code, array.shape, address, array.nbytes, array)
        value = self.builder.add_constant(constant)
        return Ref(value, code, array.shape, value)

    def known_elements(self, ref: Ref) -> NDArray[Any] | None:
        """Returns the elements of a constant as 64-bit numbers, or None for other values."""
        constant = None if ref.held is None else self.builder.constant(ref.held)
        return None if constant is None else constant.numbers()

    def order_of_format(self, memory_format: Any, rank: int) -> tuple[int, ...] | None:
        """Returns the dim order that a memory format asks for; None for other formats and other values."""
        return memory_format.order(rank) if isinstance(memory_format, MemoryFormat) else None
