"""The weights and constants of an archive, as constants over the mapped file.

Nothing is copied, except tensors that are not dense, and states.

    model_weights_config.json    "conv.weight" -> entry weight_0, dtype, sizes, strides, offset
    weight_0                     the bytes of a storage, which several tensors may share
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosaic import _core
from tosaic.base.diagnostics import Diagnostics
from tosaic.base.dtypes import NUMPY
from tosaic.pt2.archive import Archive
from tosaic.pt2.checked import beyond, damaged
from tosaic.pt2.nodes import Classes
from tosaic.pt2.values import Symbolic, TensorMeta
from tosaic.torch_operators.dtypes import CODE
from tosaic.torch_operators.numbers import number_array
from tosaic.torch_operators.program_reader import InputSpec
from tosaic.torch_operators.value import Ref

_BITS: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the archive.

    Attributes
    ----------
    name : str
    meta : TensorMeta
        Its sizes, strides and offset are numbers.
    entry : str
        The path of its storage in the archive.
    """

    name: str
    meta: TensorMeta
    entry: str

    @property
    def code(self) -> int:
        """The position of the dtype in DTYPES; -1 for complex and other dtypes."""
        return self.meta.dtype.code


class Weights:
    """Makes one constant for each distinct tensor of an archive, and for each distinct number.

    Parameters
    ----------
    archive : Archive
    model : str
        The name of the program in the archive.
    diagnostics : Diagnostics
    """

    def __init__(self, archive: Archive, model: str, diagnostics: Diagnostics) -> None:
        self._archive = archive
        self._diagnostics = diagnostics
        self._weights = _core.Pt2Weights(archive.index, archive.changed, Classes)
        for folder, kind in (("data/weights/", "weights"), ("data/constants/", "constants")):
            name = f"{folder}{model}_{kind}_config.json"
            if name not in archive:
                raise beyond(f"there is no entry '{name}', as in files of older versions of torch")
            self._weights.add(folder, _core.Json(archive.bytes_of(name), name), name)
        self._tied: dict[tuple[Any, ...], _core.Constant] = {}
        self._numbers: dict[tuple[int, str], _core.Constant] = {}

    def stored(self, name: str) -> Stored:
        """Returns the tensor of that name.

        Raises
        ------
        InvalidGraph
            The tensor does not exist, is damaged, or is not inside its storage.
        UnsupportedOp
            The tensor is pickled, or not strided on the CPU.
        """
        entry, meta = self._find(name)
        if meta.device != "cpu" or not meta.is_strided:
            raise beyond(f"'{name}' has no plain memory on the CPU")
        if meta.is_symbolic or type(meta.offset) is Symbolic:
            raise beyond(f"'{name}' has a symbolic size")
        found = Stored(name, meta, entry)
        self._require_memory(found)
        return found

    def _find(self, name: str) -> tuple[str, TensorMeta]:
        """Returns the path of the storage of a tensor, and its type."""
        found = self._weights.find(name)
        if found is None:
            raise damaged(f"there is no tensor '{name}'")
        path, meta = found
        if meta is None:
            raise beyond(f"'{name}' is pickled")
        return path, meta

    def add_views(
        self, builder: _core.GraphBuilder, env: dict[Any, Any], nodes: list[Any], specs: list[InputSpec]
    ) -> int:
        """Adds the constants of weights over the mapped memory, and sets the values of their nodes in `env`.

        Stops at the first weight that needs `constant`, `parts` or `snapshot`, which copy or refuse it.
        Returns the number of the weights before it.

        Raises
        ------
        InvalidGraph
            A tensor is damaged.
        """
        return self._weights.add_views(builder, env, Ref, nodes, specs)

    def _require_memory(self, stored: Stored) -> None:
        meta = stored.meta
        size = len(self._archive.bytes_of(stored.entry))
        if meta.offset < 0:
            raise damaged(f"'{stored.name}' begins before its storage", got=str(meta.offset))
        if 0 in meta.shape:
            return
        if not size:
            raise beyond(f"the storage of '{stored.name}' is empty")
        last = meta.offset
        for count, stride in zip(meta.shape, meta.stride(), strict=True):
            last += (count - 1) * stride
        needed = (last + 1) * meta.dtype.size
        if needed > size:
            raise damaged(
                f"'{stored.name}' is not inside of its storage",
                expected=f"at least {needed} bytes",
                got=f"{size} bytes",
            )

    def constant(self, stored: Stored, kind: str) -> _core.Constant:
        """Returns a constant over the memory of a tensor; tied tensors share one constant."""
        meta = stored.meta
        key = (stored.entry, meta.offset, stored.code, meta.shape, meta.stride())
        known = self._tied.get(key)
        if known is not None:
            return known
        if stored.code < 0:
            raise self._no_dtype(stored)
        data = self._archive.bytes_of(stored.entry)
        count, is_dense = _count(meta.shape, meta.stride())
        if not count:
            # As in torch, empty tensors are not tied.
            return self._made(stored, kind, np.empty(meta.shape, _carrier(stored)))
        address = data.ctypes.data + meta.offset * meta.dtype.size
        if not is_dense or address % meta.dtype.size:
            if not is_dense:
                self._diagnostics.note(
                    "copied-weight",
                    f"'{stored.name}' is not dense (strides {meta.stride()}) and was copied",
                    stored.name,
                )
            constant = self._made(stored, kind, self.copied(stored))
        else:
            size = count * meta.dtype.size
            changed = self._changed_of(stored.name)
            constant = _core.Constant(
                stored.name, kind, stored.code, meta.shape, address, size, data, changed
            )
        self._tied[key] = constant
        return constant

    def _changed_of(self, name: str) -> Callable[[], str]:
        archive = self._archive

        def changed() -> str:
            found = archive.changed()
            return f"the memory of '{name}': {found}; open it again" if found else ""

        return changed

    @staticmethod
    def _no_dtype(stored: Stored) -> Exception:
        return beyond(f"'{stored.name}' has a dtype without a counterpart", got=str(stored.meta.dtype))

    def snapshot(self, stored: Stored, kind: str) -> _core.Constant:
        """Returns a copy of a weight that the program writes: its initial value."""
        if stored.code < 0:
            raise self._no_dtype(stored)
        return self._made(stored, kind, self.copied(stored))

    @staticmethod
    def _made(
        stored: Stored, kind: str, array: NDArray[Any], name: str = "", code: int = -1
    ) -> _core.Constant:
        """Returns a constant over an array that no other code writes."""
        code = stored.code if code < 0 else code
        address = array.ctypes.data
        return _core.Constant(
            name or stored.name, kind, code, stored.meta.shape, address, array.nbytes, array
        )

    def parts(self, stored: Stored, kind: str) -> tuple[_core.Constant, _core.Constant]:
        """Returns the real and the imaginary part of a complex tensor, as copies."""
        code = stored.meta.dtype.real
        if code < 0:
            raise self._no_dtype(stored)
        array = self.copied(stored)
        real, imag = (np.ascontiguousarray(part).reshape(array.shape) for part in (array.real, array.imag))
        return (
            self._made(stored, kind, real, f"{stored.name}.real", code),
            self._made(stored, kind, imag, f"{stored.name}.imag", code),
        )

    def copied(self, stored: Stored) -> NDArray[Any]:
        """Returns the elements in row-major order. Dtypes that numpy lacks have the dtype of their bits."""
        meta = stored.meta
        size = meta.dtype.size
        self._archive.reserve(math.prod(meta.shape) * size, f"'{stored.name}'")
        data = self._archive.bytes_of(stored.entry)
        if 0 in meta.shape:
            return np.empty(meta.shape, _carrier(stored))
        strides = tuple(stride * size for stride in meta.stride())
        view: NDArray[Any] = np.ndarray(meta.shape, _carrier(stored), data.data, meta.offset * size, strides)
        return np.array(view, order="C")

    def number(self, value: bool | int | float, code: int) -> _core.Constant:
        """Returns a rank-0 constant; equal numbers of one dtype share one constant."""
        key = (code, value.hex() if isinstance(value, float) else repr(value))
        constant = self._numbers.get(key)
        if constant is None:
            array = number_array(value, code)
            if array is None and code == CODE["bf16"]:
                array = _bfloat16(value)
            if array is None:
                raise beyond(f"a number in {_core.DTYPES[code]} is needed")
            constant = _core.Constant("scalar", "lifted", code, (), array.ctypes.data, array.nbytes, array)
            self._numbers[key] = constant
        return constant


def _count(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, bool]:
    """Returns the number of elements, and whether they lie densely in row-major order."""
    count, is_dense = 1, True
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        is_dense = is_dense and (size == 1 or stride == count)
        count *= size
    return count, is_dense


def _carrier(stored: Stored) -> np.dtype[Any]:
    dtype = stored.meta.dtype
    if dtype.real >= 0:
        complex_dtype: np.dtype[Any] = np.dtype(dtype.name)
        return complex_dtype
    name: str = _core.DTYPES[dtype.code]
    if name in NUMPY:
        return NUMPY[name]
    return _BITS[dtype.size]


def _bfloat16(value: bool | int | float) -> NDArray[Any]:
    """Returns the bits of the nearest bfloat16; ties go to the even one."""
    with np.errstate(over="ignore"):
        bits = int(np.array(value, np.float32).view(np.uint32))
    if (bits & 0x7FFFFFFF) > 0x7F800000:
        return np.array(0x7FC0, np.uint16)
    return np.array((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, np.uint16)
