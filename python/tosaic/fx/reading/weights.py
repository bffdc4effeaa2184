"""Constants that point into torch's memory. Nothing is copied, except tensors that are not dense.

Torch can free, swap, resize or overwrite the memory of a tensor in many ways. These are the traces that can
be found afterwards::

    module.half(), .to_empty(), p.data = ..., swap_tensors()    another pointer of the parameter
    untyped_storage().resize_(), share_memory_()                another pointer or size of the storage
    optimizer.step(), load_state_dict(), p.mul_(2)              another version
    p.data.mul_(2), a numpy view, untyped_storage().fill_()     nothing

A constant therefore holds a reference to its storage, and is refused once a pointer, a size or the version
differs. The changes in the last row cannot be detected: against them, a program copies all constants when it
is first used, and a lowering copies the constants that it holds. Elements that the import itself read, or
copied because they were not dense, are compared in full at that moment. So a program never mixes numbers of
the import with numbers of a later moment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from tosaic import _core
from tosaic.base.diagnostics import Diagnostics
from tosaic.base.dtypes import TORCH
from tosaic.base.options import invalid, unsupported
from tosaic.torch_operators.dtypes import CODE
from tosaic.torch_operators.numbers import number_array

# The builder identifies dtypes by their positions in DTYPES.
CODE_OF: dict[torch.dtype, int] = {getattr(torch, own): CODE[name] for name, own in TORCH.items()}
# A complex tensor is a pair of tensors of this dtype.
REAL_OF: dict[torch.dtype, torch.dtype] = {torch.complex64: torch.float32, torch.complex128: torch.float64}
COMPLEX_OF: dict[torch.dtype, torch.dtype] = {real: dtype for dtype, real in REAL_OF.items()}
TORCH_OF: dict[int, torch.dtype] = {code: dtype for dtype, code in CODE_OF.items()}
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_AGAIN = "import the program again"
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype_code(dtype: torch.dtype, what: str) -> int:
    """Returns the position of a dtype in DTYPES. If it has none, raises UnsupportedOp, which names `what`."""
    code = CODE_OF.get(dtype)
    if code is None:
        raise unsupported(
            "import", f"{what} has a dtype without a counterpart", expected=", ".join(TORCH), got=str(dtype)
        )
    return code


def is_wrapper(tensor: Any) -> bool:
    """True for a tensor that consists of others, such as a quantized weight of torchao."""
    return type(tensor) not in _PLAIN_TENSORS and hasattr(tensor, "__tensor_flatten__")


def _watch(tensor: torch.Tensor, name: str, memory: _Memory | None = None) -> Callable[[], str]:
    """Makes a check that the tensor still has its memory and, where torch counts writes, was not written.

    The check holds a reference to the storage, so that the storage is not freed when the parameter gets other
    memory.
    """
    storage, start, size, address, _, _ = memory or _require_memory(tensor, name)
    try:
        version = tensor._version
    except RuntimeError:  # tensors of inference mode have no version
        version = None

    def changed() -> str:
        if storage.data_ptr() != start or storage.nbytes() != size:
            return f"the memory of '{name}' was freed, moved or resized after import; {_AGAIN}"
        try:
            moved = tensor.data_ptr() != address
        except RuntimeError:  # the tensor has no memory any more
            moved = True
        if moved:
            return f"'{name}' was given other memory after import; {_AGAIN}"
        if version is not None and tensor._version != version:
            return _written(name)
        return ""

    return changed


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if all elements are bitwise equal, NaN included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    bits = _BITS[a.element_size()]
    return torch.equal(a.resolve_neg().view(bits), b.resolve_neg().view(bits))


@dataclass(frozen=True)
class _Copy:
    """A tensor that the import has read, and a copy of its elements for a later comparison."""

    name: str
    tensor: torch.Tensor
    elements: torch.Tensor
    changed: Callable[[], str]

    def verify(self) -> None:
        message = self.changed()
        if not message and not _same_bits(self.tensor.detach(), self.elements):
            message = _written(self.name)
        _require_unchanged(self.name, message)


@dataclass(frozen=True)
class _Numbers:
    """The elements of a constant that the import has read, for a later comparison."""

    constant: _core.Constant
    numbers: NDArray[Any]
    changed: Callable[[], str]

    def verify(self) -> None:
        name = self.constant.name
        message = self.changed()
        if not message and self.constant.numbers().tobytes() != self.numbers.tobytes():
            message = _written(name)
        _require_unchanged(name, message)


def _written(name: str) -> str:
    return f"'{name}' was changed in place after import; {_AGAIN}"


def _require_unchanged(name: str, message: str) -> None:
    if message:
        raise invalid(
            "import", f"constant '{name}' was changed after import: {message}", hint="Import the model again"
        )


def _no_memory(tensor: Any, name: str) -> Exception:
    got = type(tensor).__name__
    hint = "Move the module to the CPU before exporting it"
    if isinstance(tensor, torch.Tensor):
        got += f", {tensor.layout}, on {tensor.device}"
        if tensor.device.type == "cpu" and hasattr(tensor, "__tensor_flatten__"):
            hint = "Call ep.run_decompositions() first, which takes tensor subclasses apart"
    return unsupported(
        "import",
        f"the constant '{name}' has no plain memory on the CPU",
        expected="a strided torch.Tensor on cpu",
        got=got,
        hint=hint,
    )


# The storage of a tensor, its address and its size in bytes; the address of the tensor, the bytes of its
# elements, and whether these are dense, that is in the order of their indices.
_Memory = tuple[Any, int, int, int, int, bool]


def _require_memory(tensor: Any, name: str) -> _Memory:
    """Returns the memory of a tensor; refuses one that is not strided on the CPU, or was freed or cut."""
    if type(tensor) not in _PLAIN_TENSORS or not tensor.is_cpu or tensor.layout is not torch.strided:
        raise _no_memory(tensor, name)
    storage, address, is_dense = tensor.untyped_storage(), tensor.data_ptr(), tensor.is_contiguous()
    start, found, size = storage.data_ptr(), storage.nbytes(), tensor.nbytes
    span = size
    if not is_dense and size:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        span = (1 + sum((count - 1) * stride for count, stride in steps)) * tensor.itemsize
    if span and address + span > start + found:
        raise invalid(
            "import",
            f"the memory of the constant '{name}' was freed or cut",
            expected=f"a storage of at least {tensor.storage_offset() * tensor.itemsize + span} bytes",
            got=f"{found} bytes",
            hint="Export the module while it has its weights",
        )
    return storage, start, found, address, size, is_dense


def _key(tensor: torch.Tensor, address: int, code: int, is_dense: bool) -> tuple[Any, ...]:
    """Returns what is equal for tensors that share all of their elements."""
    return address, code, tensor.shape, tensor.is_neg(), None if is_dense else tensor.stride()


class Weights:
    """Makes one constant for each distinct tensor and each distinct number, however often they are used."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._tensors: dict[int, _core.Constant] = {}
        self._tied: dict[tuple[Any, ...], _core.Constant] = {}
        self._numbers: dict[tuple[int, bytes], _core.Constant] = {}
        self._changes: dict[int, Callable[[], str]] = {}  # by id of a tensor
        self._copies: dict[int, _Copy] = {}
        self._read: dict[int, _Numbers] = {}

    def tensor(self, tensor: Any, name: str, kind: str) -> _core.Constant:
        """Returns a constant over the tensor's memory; tied tensors share one constant."""
        known = self._tensors.get(id(tensor))
        if known is not None:
            return known
        memory = _require_memory(tensor, name)
        code = CODE_OF.get(tensor.dtype)
        if code is None:
            code = dtype_code(tensor.dtype, f"'{name}'")
        _, _, _, address, size, is_dense = memory
        key = _key(tensor, address, code, is_dense)
        _, _, shape, is_negated, _ = key
        if address and key in self._tied:
            return self._tied[key]
        changed = _watch(tensor, name, memory)
        owner = tensor
        if is_negated or not is_dense:
            owner = tensor.detach().resolve_neg().contiguous()
            address = owner.data_ptr()
            self._copies[id(tensor)] = _Copy(name, tensor, owner, changed)
            self._diagnostics.note(
                "copied-weight",
                f"'{name}' is not dense (strides {tuple(tensor.stride())}) and was copied",
                name,
            )
        constant = _core.Constant(name, kind, code, shape, address, size, owner, changed)
        self._tensors[id(tensor)] = self._tied[key] = constant
        self._changes[id(tensor)] = changed
        return constant

    def parts(self, tensor: torch.Tensor, name: str, kind: str) -> tuple[_core.Constant, _core.Constant]:
        """Returns the real and the imaginary part of a complex tensor, as copies."""
        _require_memory(tensor, name)
        self.read(tensor, name)
        real, imag = (part.detach().contiguous() for part in (tensor.real, tensor.resolve_conj().imag))
        return self._private(real, f"{name}.real", kind), self._private(imag, f"{name}.imag", kind)

    def snapshot(self, tensor: Any, name: str, kind: str) -> _core.Constant:
        """Returns a copy of a buffer that the program writes, its initial value.

        Later writes do not affect it.
        """
        _require_memory(tensor, name)
        copy = tensor.detach().clone(memory_format=torch.contiguous_format).resolve_neg()
        return self._private(copy, name, kind)

    @staticmethod
    def _private(tensor: torch.Tensor, name: str, kind: str) -> _core.Constant:
        """Returns a constant over dense memory that nobody else refers to."""
        code = dtype_code(tensor.dtype, f"'{name}'")
        return _core.Constant(name, kind, code, tensor.shape, tensor.data_ptr(), tensor.nbytes, tensor)

    def read(self, tensor: torch.Tensor, name: str = "") -> None:
        """Records that the import read the elements of a tensor, so that `verify` refuses later changes."""
        if id(tensor) in self._copies:
            return
        if not name:
            constant = self._constant_of(tensor)
            if constant is None:  # the import itself made the tensor
                return
            name = constant.name
        self._copies[id(tensor)] = _Copy(name, tensor, tensor.detach().clone(), _watch(tensor, name))

    def _constant_of(self, tensor: torch.Tensor) -> _core.Constant | None:
        key = _key(tensor, tensor.data_ptr(), CODE_OF[tensor.dtype], tensor.is_contiguous())
        return self._tensors.get(id(tensor)) or self._tied.get(key)

    def numbers(self, tensor: torch.Tensor) -> NDArray[Any]:
        """Returns the elements of a tensor for which `tensor` was called before, in its shape.

        They are 64-bit numbers: float64 for floats, and int64 for all others. Records that the import
        depends on them.
        """
        known = self._read.get(id(tensor))
        if known is None:
            constant = self._constant_of(tensor)
            assert constant is not None
            changed = self._changes.get(id(tensor)) or _watch(tensor, constant.name)
            known = self._read[id(tensor)] = _Numbers(constant, constant.numbers(), changed)
        return known.numbers

    def verify(self) -> None:
        """Compares everything that the import has read with the current elements, in full.

        Raises
        ------
        InvalidGraph
            Something was changed; the message names it.
        """
        for copy in self._copies.values():
            copy.verify()
        for read in self._read.values():
            read.verify()

    def number(self, value: bool | int | float, code: int) -> _core.Constant:
        """Returns a rank-0 constant; equal numbers of one dtype share one constant."""
        key = (code, struct.pack("<d", value) if isinstance(value, float) else repr(value).encode())
        constant = self._numbers.get(key)
        if constant is None:
            constant = self._numbers[key] = _make_number(value, code)
        return constant


def _make_number(value: bool | int | float, code: int) -> _core.Constant:
    array = number_array(value, code)
    if array is None:
        tensor = torch.tensor(value, dtype=TORCH_OF[code])
        return _core.Constant("scalar", "lifted", code, (), tensor.data_ptr(), tensor.element_size(), tensor)
    return _core.Constant("scalar", "lifted", code, (), array.ctypes.data, array.nbytes, array)
