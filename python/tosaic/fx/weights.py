"""Constants that point into torch's memory: nothing is copied, unless it is not dense."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tosaic import _core
from tosaic.fx.diagnostics import Diagnostics

__all__ = ["CATEGORY", "CODE_OF", "COMPLEX_OF", "REAL_OF", "TORCH_OF", "Weights", "dtype_code"]

_NAMES = {
    "bool": torch.bool,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "u16": torch.uint16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
# Positions in DTYPES, which is how the builder takes dtypes.
CODE_OF: dict[torch.dtype, int] = {dtype: _core.DTYPES.index(name) for name, dtype in _NAMES.items()}
# A complex tensor is a pair of these.
REAL_OF: dict[torch.dtype, torch.dtype] = {torch.complex64: torch.float32, torch.complex128: torch.float64}
COMPLEX_OF: dict[torch.dtype, torch.dtype] = {real: dtype for dtype, real in REAL_OF.items()}
TORCH_OF: dict[int, torch.dtype] = {code: dtype for dtype, code in CODE_OF.items()}
# torch's promotion categories: bool 0, integer 1, float 2.
CATEGORY = tuple(0 if name == "bool" else 2 if name.startswith(("f", "bf")) else 1 for name in _core.DTYPES)
_NUMPY_OF = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.uint16: np.uint16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float64,
}


_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


def dtype_code(dtype: torch.dtype, what: str) -> int:
    """Position in DTYPES. Raises UnsupportedOp naming `what`."""
    code = CODE_OF.get(dtype)
    if code is None:
        raise _core.make_error(
            _core.UnsupportedOp,
            where="import",
            what=f"{what} has a dtype without a counterpart",
            expected=", ".join(_NAMES),
            got=str(dtype),
        )
    return code


def _watch(tensor: torch.Tensor, name: str) -> Callable[[], str] | None:
    """A check that the tensor has not been written to since now; None where torch keeps no count."""
    if tensor.is_inference():
        return None
    version = tensor._version

    def changed() -> str:
        if tensor._version == version:
            return ""
        return f"'{name}' was changed in place after import; import the program again"

    return changed


def _no_memory(tensor: Any, name: str) -> Exception:
    got = type(tensor).__name__
    hint = "Move the module to the CPU before exporting it"
    if isinstance(tensor, torch.Tensor):
        got += f", {tensor.layout}, on {tensor.device}"
        if tensor.device.type == "cpu" and hasattr(tensor, "__tensor_flatten__"):
            hint = "Call ep.run_decompositions() first, which takes tensor subclasses apart"
    return _core.make_error(
        _core.UnsupportedOp,
        where="import",
        what=f"the constant '{name}' has no plain memory on the CPU",
        expected="a strided torch.Tensor on cpu",
        got=got,
        hint=hint,
    )


class Weights:
    """Makes each tensor and each number a constant once."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._tensors: dict[int, _core.Constant] = {}
        self._tied: dict[tuple[Any, ...], _core.Constant] = {}
        self._numbers: dict[tuple[int, bytes], _core.Constant] = {}

    def tensor(self, tensor: Any, name: str, kind: str) -> _core.Constant:
        """A constant over the tensor's memory; tied tensors give the same one."""
        kept = self._tensors.get(id(tensor))
        if kept is not None:
            return kept
        if type(tensor) not in _PLAIN_TENSORS or not tensor.is_cpu or tensor.layout is not torch.strided:
            raise _no_memory(tensor, name)
        code = CODE_OF.get(tensor.dtype)
        if code is None:
            code = dtype_code(tensor.dtype, f"'{name}'")
        shape = tensor.shape
        address = tensor.data_ptr()
        key = (address, code, shape, tensor.stride(), tensor.is_neg())
        if address and key in self._tied:
            return self._tied[key]
        owner = tensor
        if not tensor.is_contiguous() or tensor.is_neg():
            owner = tensor.detach().resolve_neg().contiguous()
            address = owner.data_ptr()
            self._diagnostics.note(
                "copied-weight",
                f"'{name}' is not dense (strides {tuple(tensor.stride())}) and was copied",
                name,
            )
        constant = _core.Constant(name, kind, code, shape, address, owner.nbytes, owner, _watch(tensor, name))
        self._tensors[id(tensor)] = self._tied[key] = constant
        return constant

    def snapshot(self, tensor: Any, name: str, kind: str) -> _core.Constant:
        """A copy of a buffer that the program writes: where it starts, whatever the module does later."""
        return Weights(self._diagnostics).tensor(
            tensor.detach().clone(memory_format=torch.contiguous_format), name, kind
        )

    def number(self, value: bool | int | float, code: int) -> _core.Constant:
        """A rank-0 constant; equal ones of one dtype are shared."""
        key = (code, struct.pack("<d", value) if isinstance(value, float) else repr(value).encode())
        constant = self._numbers.get(key)
        if constant is None:
            constant = self._numbers[key] = _make_number(value, code)
        return constant


def _make_number(value: bool | int | float, code: int) -> _core.Constant:
    dtype = TORCH_OF[code]
    numpy_type = _NUMPY_OF.get(dtype)
    if numpy_type is None:
        tensor = torch.tensor(value, dtype=dtype)
        return _core.Constant("scalar", "lifted", code, (), tensor.data_ptr(), tensor.element_size(), tensor)
    if isinstance(value, int) and CATEGORY[code] == 1:  # torch wraps, numpy refuses
        array = np.array(value, np.int64).astype(numpy_type)
    else:
        with np.errstate(over="ignore"):
            array = np.array(value, numpy_type)
    return _core.Constant("scalar", "lifted", code, (), array.ctypes.data, array.nbytes, array)
