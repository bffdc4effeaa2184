"""The records of an archive about values: types of tensors, and arguments that are not tensors.

These objects have those attributes of torch's objects that the readers of `tosaic.torch_operators` use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tosaic import _core
from tosaic.base.dim_order import channels_last, contiguous_strides


@dataclass(frozen=True)
class Named:
    """A layout or another object of torch without structure; its text is torch's."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Dtype:
    """A dtype of torch.

    Attributes
    ----------
    name : str
        ``float32``.
    code : int
        The position of the dtype in ``DTYPES``; -1 if graphs have no such dtype.
    real : int
        For a complex dtype, the position of the dtype of a part.
    size : int
        Bytes of an element.
    """

    name: str
    code: int
    real: int
    size: int

    def __str__(self) -> str:
        return f"torch.{self.name}"


@dataclass(frozen=True)
class MemoryFormat:
    """A memory format of torch: ``channels_last``."""

    name: str

    def __str__(self) -> str:
        return f"torch.{self.name}"

    def order(self, rank: int) -> tuple[int, ...] | None:
        """Returns the dim order that the format asks for; None if it asks for none."""
        if self.name == "contiguous_format":
            return tuple(range(rank))
        return channels_last(rank) if self.name.startswith("channels_last") else None


@dataclass(frozen=True)
class Device:
    """A device of torch: ``cpu``, ``cuda:0``."""

    kind: str
    index: int | None = None

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"


@dataclass(frozen=True)
class Symbolic:
    """A size, a float or a truth value that is an expression of symbols, as the archive writes it."""

    expression: str
    kind: str = "int"


DTYPES: dict[int, Dtype] = {
    number: Dtype(name, code, real, size) for number, name, code, real, size in _core.PT2_DTYPES
}
"""The dtypes by their numbers in the archive."""

MEMORY_FORMATS: dict[int, MemoryFormat] = {
    1: MemoryFormat("contiguous_format"),
    2: MemoryFormat("channels_last"),
    3: MemoryFormat("channels_last_3d"),
    4: MemoryFormat("preserve_format"),
}
"""The memory formats by their numbers in the archive."""

LAYOUTS: dict[int, Named] = {
    1: Named("torch.sparse_coo"),
    2: Named("torch.sparse_csr"),
    3: Named("torch.sparse_csc"),
    4: Named("torch.sparse_bsr"),
    5: Named("torch.sparse_bsc"),
    6: Named("torch._mkldnn"),
    7: Named("torch.strided"),
}
"""The layouts by their numbers in the archive."""
_STRIDED = 7
_INT = frozenset({int})


class TensorMeta:
    """The type and the memory of a tensor, as torch recorded them. The core makes these objects.

    Attributes
    ----------
    dtype : Dtype
    shape : tuple
        Numbers and `Symbolic` sizes.
    offset : int or Symbolic
        In elements.
    device : str
        The type of the device.
    layout : int
        The number of the layout in the archive.
    """

    __slots__ = ("_strides", "device", "dtype", "layout", "offset", "shape")

    dtype: Dtype
    shape: tuple[Any, ...]
    _strides: tuple[Any, ...]
    offset: Any
    device: str
    layout: int

    def stride(self) -> Sequence[Any]:
        """Returns the strides in elements."""
        return self._strides

    def storage_offset(self) -> Any:
        """Returns 0: a program of `torch.export.load` also has no storage offsets of values."""
        return 0

    def dim(self) -> int:
        """Returns the rank."""
        return len(self.shape)

    def is_complex(self) -> bool:
        """True for a complex dtype."""
        return self.dtype.name.startswith("complex")

    @property
    def is_symbolic(self) -> bool:
        """True if a size or a stride is an expression of symbols."""
        return not (_INT.issuperset(map(type, self.shape)) and _INT.issuperset(map(type, self._strides)))

    @property
    def is_strided(self) -> bool:
        """True for a dense layout."""
        return self.layout == _STRIDED

    def is_contiguous(self, memory_format: MemoryFormat = MEMORY_FORMATS[1]) -> bool:
        """True if the elements lie densely in the order of the format."""
        order = memory_format.order(len(self.shape))
        if order is None or len(order) != len(self.shape):
            order = tuple(range(len(self.shape)))
        shape = [self.shape[axis] for axis in order]
        plain = contiguous_strides(shape)
        strides = [self._strides[axis] for axis in order]
        return 0 in shape or all(
            size == 1 or a == b for size, a, b in zip(shape, strides, plain, strict=True)
        )
