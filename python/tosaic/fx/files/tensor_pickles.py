"""Reads what `torch.save` writes of tensors, without a pickle being executed: `read_tensors`.

torch's own unpickler for tensors, ``weights_only=True``, runs no code of a stranger's file. But
``bytearray(n)`` takes as much memory as the pickle says, a storage may claim more elements than its entry has
and so expose the memory after it, and containers that contain each other never end. So this module interprets
the few instructions that tensors and containers need, and compares every size with the bytes of the entry::

    pickle                                          here
    torch.FloatStorage, entry '0', 12 elements      the bytes of data/0, at least 48 of them
    _rebuild_tensor_v2(storage, 0, (3, 4), (4, 1))  a tensor over them, if all its elements are inside
    a list that holds itself, 2 ** 40 leaves        refused

Anything else is refused: other functions, classes, instructions.
"""

from __future__ import annotations

import collections
import io
import math
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_MOST_ITEMS = 1 << 20
_DEEPEST = 100
_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_MADE = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
_KEYS = (str, int, float, bool, type(None), torch.dtype)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True)
class _Function:
    """A function that a pickle may call, and the Python function that computes its result here."""

    name: str
    make: Callable[..., Any]


@dataclass(frozen=True)
class _StorageType:
    """The dtype of a storage class that a pickle names; None for a storage of bytes."""

    dtype: torch.dtype | None


@dataclass(frozen=True)
class _Storage:
    """A storage of an entry, and the dtype of its tensors; None if each tensor names its own."""

    bytes: torch.UntypedStorage
    dtype: torch.dtype | None


def read_tensors(data: bytes, reserve: Callable[[int], None]) -> Any:
    """Returns tensors, numbers, strings and containers of them that `torch.save` wrote.

    Parameters
    ----------
    data : bytes
        A zip archive.
    reserve : callable
        Gets the number of bytes of memory that are needed, before they are taken, and raises if there are too
        many.

    Raises
    ------
    ValueError
        The data is something else, or damaged. Damaged archives raise any error of `zipfile`, too.
    """
    if not data.startswith(b"PK"):
        raise ValueError("it is no archive of torch.save")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        reserve(sum(each.file_size for each in archive.infolist()))
        (name,) = (each for each in archive.namelist() if each.endswith("/data.pkl"))
        root = name.removesuffix("data.pkl")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("it was written on a machine with another order of bytes")
        found = _Reader(lambda key: archive.read(f"{root}data/{key}"), reserve).read(archive.read(name))
    _require_tree(found)
    return found


def _require_tree(value: Any) -> None:
    """Refuses containers that hold themselves, or many containers in few bytes."""
    pending, count = [(value, 0)], 0
    while pending:
        item, depth = pending.pop()
        count += 1
        if count > _MOST_ITEMS or depth > _DEEPEST:
            raise ValueError(
                f"it holds more than {_MOST_ITEMS} values, or more than {_DEEPEST} in one another"
            )
        if isinstance(item, dict):
            pending.extend((each, depth + 1) for pair in item.items() for each in pair)
        elif isinstance(item, list | tuple | set) and not isinstance(item, torch.Size):
            pending.extend((each, depth + 1) for each in item)


class _Reader:
    """Interprets a pickle."""

    def __init__(self, entry: Callable[[str], bytes], reserve: Callable[[int], None]) -> None:
        self._entry = entry
        self._reserve = reserve
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._storages: dict[str, torch.UntypedStorage] = {}

    def read(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            self._step(opcode.name, argument)
        (value,) = self._stack
        return value

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _MADE:
            stack.append(_MADE[name]())
        elif name in ("PROTO", "FRAME", "STOP"):
            return
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        else:
            self._make(name, argument)

    def _make(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _TUPLES:
            stack.append(tuple(self._popped(_TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(self._marked()))
        elif name in ("APPEND", "APPENDS"):
            items = self._marked() if name == "APPENDS" else self._popped(1)
            self._top(list).extend(items)
        elif name == "ADDITEMS":
            items = self._marked()
            self._top(set).update(map(_key, items))
        elif name in ("SETITEM", "SETITEMS"):
            items = self._marked() if name == "SETITEMS" else self._popped(2)
            self._top(dict).update(zip(map(_key, items[::2]), items[1::2], strict=True))
        elif name == "GLOBAL":
            stack.append(_global(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            stack.append(_global(*map(str, self._popped(2))))
        elif name == "BINPERSID":
            (key,) = self._popped(1)
            stack.append(self._storage(*key))
        elif name == "REDUCE":
            function, arguments = self._popped(2)
            stack.append(self._called(function, arguments))
        else:
            raise ValueError(f"it has the instruction {name}")

    def _popped(self, count: int) -> list[Any]:
        items = self._stack[-count:]
        if len(items) < count:
            raise ValueError("its stack is empty")
        del self._stack[-count:]
        return items

    def _marked(self) -> list[Any]:
        at = len(self._stack) - 1
        while at >= 0 and self._stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise ValueError("it has no mark")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise ValueError(f"it adds to something that is no {kind.__name__}")
        return self._stack[-1]

    def _called(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, _Function) or not isinstance(arguments, tuple):
            raise ValueError("it calls something that is no function")
        if function.name == "_rebuild_tensor_v2":
            return self._tensor(*arguments[:5])
        if function.name == "_rebuild_tensor_v3":  # for dtypes without a storage class
            return self._tensor(*arguments[:5], *arguments[6:7])
        if function.name == "_rebuild_from_type_v2":  # for tensors with attributes, which are left out
            inner, kind, inner_arguments, _ = arguments
            if not isinstance(kind, _Function) or kind.name not in _CLASSES:
                raise ValueError("it is a tensor of a class of its own")
            return self._called(inner, inner_arguments)
        return function.make(*arguments)

    def _storage(self, kind: Any, made: Any, key: Any, _: Any, count: Any) -> _Storage:
        if kind != "storage" or not isinstance(made, _StorageType) or type(key) is not str:
            raise ValueError("it refers to something that is no storage")
        found = self._storages.get(key)
        if found is None:
            data = bytearray(self._entry(key))
            found = torch.frombuffer(data, dtype=torch.uint8).untyped_storage() if data else _empty()
            self._storages[key] = found
        size = made.dtype.itemsize if made.dtype else 1
        if type(count) is not int or not 0 <= count * size <= found.nbytes():
            raise ValueError(f"its storage '{key}' claims {count} elements and has {found.nbytes()} bytes")
        return _Storage(found, made.dtype)

    def _tensor(
        self, storage: Any, offset: Any, shape: Any, strides: Any, needs_grad: Any, dtype: Any = None
    ) -> torch.Tensor:
        numbers = (offset, *shape, *strides)
        dtype = dtype or getattr(storage, "dtype", None)
        if not isinstance(storage, _Storage) or not isinstance(dtype, torch.dtype) or dtype in _QUANTIZED:
            raise ValueError("it has a tensor without a plain storage")
        if any(type(each) is not int or not 0 <= each < 1 << 62 for each in numbers):
            raise ValueError("it has a tensor whose sizes are no numbers")
        count = math.prod(shape)
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if count and (last + 1) * dtype.itemsize > storage.bytes.nbytes():
            raise ValueError(f"it has a tensor of shape {shape} that is not inside of its storage")
        if count * dtype.itemsize > storage.bytes.nbytes():
            self._reserve(count * dtype.itemsize)  # strides repeat elements, and a later copy writes each
        made = torch.empty(0, dtype=dtype).set_(storage.bytes, offset, shape, strides)
        differentiable = dtype.is_floating_point or dtype.is_complex
        return made.requires_grad_() if needs_grad is True and differentiable else made


def _empty() -> torch.UntypedStorage:
    return torch.empty(0, dtype=torch.uint8).untyped_storage()


def _parameter(data: Any, needs_grad: Any, *_: Any) -> torch.nn.Parameter:
    if not isinstance(data, torch.Tensor):
        raise ValueError("it has a parameter without a tensor")
    return torch.nn.Parameter(data.detach(), requires_grad=needs_grad is True)


def _key(key: Any) -> Any:
    """Checks a key of a dict or an element of a set, and returns it.

    Deep tuples are refused: Python computes the hash of a tuple by nested C calls without a limit, which ends
    the process. And it computes the hash again for each place that refers to the same tuple.
    """
    parts = key if type(key) in (tuple, torch.Size) and len(key) <= _DEEPEST else (key,)
    if any(type(each) not in _KEYS for each in parts):
        raise ValueError("it has a key that is no string and no number")
    if any(type(each) is int and abs(each) >= 1 << 63 for each in parts):
        raise ValueError("it has a key of more than 64 bits")
    return key


def _ordered(items: Any = ()) -> Any:
    return collections.OrderedDict((_key(key), value) for key, value in items)


def _set(items: Any = ()) -> Any:
    return set(map(_key, items))


def _layout(name: Any) -> torch.layout:
    if name != "torch.strided":
        raise ValueError(f"it has the layout {name}")
    return torch.strided


_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
_STORAGES = {name: dtype for dtype, name in torch.storage._dtype_to_storage_type_map().items()}
_CLASSES = {"Tensor", "Parameter", "Buffer"}
_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch.serialization", "_get_layout"): _layout,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("collections", "OrderedDict"): _ordered,
    ("builtins", "complex"): complex,
    ("builtins", "set"): _set,
}
_OWN = {
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("torch", "Tensor"),
    ("torch.nn.parameter", "Parameter"),
    ("torch.nn.parameter", "Buffer"),
}
"""Functions and classes that `_Reader._called` interprets itself."""


def _refused_call(*_: Any) -> Any:
    raise ValueError("it calls a class")


def _global(module: str, name: str) -> Any:
    """Returns what a global name in a pickle stands for. Nothing is imported."""
    module = {"__builtin__": "builtins"}.get(module, module)
    if (module, name) in _FUNCTIONS:
        return _Function(name, _FUNCTIONS[module, name])
    if (module, name) in _OWN:
        return _Function(name, _refused_call)
    if (module, name) == ("torch.storage", "UntypedStorage"):
        return _StorageType(None)
    if module == "torch":
        if isinstance(found := vars(torch).get(name), torch.dtype):
            return found
        if name in _STORAGES:
            return _StorageType(_STORAGES[name])
    raise ValueError(f"it has {module}.{name}")
