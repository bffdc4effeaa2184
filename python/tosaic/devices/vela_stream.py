"""The stream of named blocks in which ExecuTorch's Ethos-U backend reads Vela's results.

::

    vela_bin_stream | cmd_data | weight_data | scratch_size | inputs | outputs | vela_end_stream

A block is a header of 32 bytes (a name of 16 bytes, the number of bytes, and reserved bytes) and its bytes,
padded to a multiple of 16. ``inputs`` and ``outputs`` have a count, and for each tensor nine integers: a
shape of six axes, the size of an element, the offset in the scratch memory, and the memory region.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tosaic.base.options import invalid

_HEADER = struct.Struct("<16sIB11x")
_TENSOR = struct.Struct("<9i")
_ALIGNMENT = 16
_FIRST, _LAST = "vela_bin_stream", "vela_end_stream"
_ORDER = (_FIRST, "cmd_data", "weight_data", "scratch_size", "inputs", "outputs", _LAST)
_AXES = 6
_WHERE = "vela stream"


@dataclass(frozen=True)
class VelaTensor:
    """An input or output of a compiled program.

    Attributes
    ----------
    shape : tuple of int
        Six axes.
    element_bytes : int
    offset : int
        In the scratch memory.
    region : int
    """

    shape: tuple[int, ...]
    element_bytes: int
    offset: int
    region: int


@dataclass(frozen=True)
class VelaProgram:
    """A compiled program: commands, weights, and the places of inputs and outputs.

    Attributes
    ----------
    commands, weights : bytes
    scratch_bytes : int
    inputs, outputs : tuple of VelaTensor
    """

    commands: bytes
    weights: bytes
    scratch_bytes: int
    inputs: tuple[VelaTensor, ...]
    outputs: tuple[VelaTensor, ...]


def pack_vela(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Returns the stream of the arrays that Vela writes with ``--output-format=raw``.

    Raises
    ------
    InvalidGraph
        An array is missing, or a number does not fit the stream.
    """
    try:
        blocks = {
            "cmd_data": arrays["cmd_data"].tobytes(),
            "weight_data": arrays["weight_data"].tobytes(),
            "scratch_size": struct.pack("<I", int(arrays["scratch_shape"][0])),
            "inputs": _tensors(arrays, "input"),
            "outputs": _tensors(arrays, "output"),
        }
    except (KeyError, IndexError, ValueError, struct.error) as error:
        raise invalid(
            _WHERE,
            "Vela's arrays are not the arrays of a compiled program",
            expected="commands, weights, scratch, inputs and outputs",
            got=f"{type(error).__name__}: {error}",
        ) from error
    return b"".join(_block(name, blocks.get(name, b"")) for name in _ORDER)


def _block(name: str, data: bytes) -> bytes:
    padding = -len(data) % _ALIGNMENT
    return _HEADER.pack(name.encode("ascii")[:15], len(data), 0) + data + bytes(padding)


def _tensors(arrays: Mapping[str, np.ndarray[Any, Any]], side: str) -> bytes:
    shapes = arrays[f"{side}_shape"]
    packed = [struct.pack("<i", len(shapes))]
    for i, shape in enumerate(shapes):
        if len(shape) != _AXES:
            raise ValueError(f"{len(shape)} axes")
        numbers = (_signed(arrays[f"{side}_{field}"][i]) for field in ("elem_size", "offset", "region"))
        packed.append(_TENSOR.pack(*map(int, shape), *numbers))
    return b"".join(packed)


def _signed(number: Any) -> int:
    """Returns a signed integer; Vela's output has negative numbers as large unsigned ones."""
    return int(np.asarray(number).astype(np.int64))


def unpack_vela(data: bytes) -> VelaProgram:
    """Reads a stream.

    Raises
    ------
    InvalidGraph
        The bytes are not such a stream, or are cut off. Blocks outside of the file are refused, too.
    """
    blocks: dict[str, bytes] = {}
    at = 0
    while at < len(data) and _LAST not in blocks:
        if len(data) - at < _HEADER.size:
            raise _damaged("a header of 32 bytes", f"{len(data) - at} bytes at {at}")
        raw, size, is_outside = _HEADER.unpack_from(data, at)
        name = raw.rstrip(b"\0").decode("latin-1")
        at += _HEADER.size
        if at + size > len(data):
            raise _damaged(f"{size} bytes of block '{name}'", f"{len(data) - at} bytes")
        if is_outside:
            raise _damaged("blocks in the file", f"block '{name}' is a reference to other data")
        if not blocks and name != _FIRST:
            raise _damaged(f"block '{_FIRST}' first", f"block '{name}'")
        blocks[name] = data[at : at + size]
        at += size + -size % _ALIGNMENT
    missing = [name for name in _ORDER if name not in blocks]
    if missing:
        raise _damaged(f"block '{missing[0]}'", f"blocks {', '.join(blocks) or 'none'}")
    if len(blocks["scratch_size"]) != 4:
        raise _damaged("4 bytes of block 'scratch_size'", f"{len(blocks['scratch_size'])}")
    return VelaProgram(
        blocks["cmd_data"],
        blocks["weight_data"],
        struct.unpack("<I", blocks["scratch_size"])[0],
        _read_tensors("inputs", blocks["inputs"]),
        _read_tensors("outputs", blocks["outputs"]),
    )


def _read_tensors(side: str, data: bytes) -> tuple[VelaTensor, ...]:
    count = struct.unpack_from("<i", data)[0] if len(data) >= 4 else -1
    if count < 0 or len(data) != 4 + count * _TENSOR.size:
        raise _damaged(f"a count and 36 bytes for each of the {side}", f"{len(data)} bytes")
    rows = (_TENSOR.unpack_from(data, 4 + i * _TENSOR.size) for i in range(count))
    return tuple(VelaTensor(row[:_AXES], *row[_AXES:]) for row in rows)


def _damaged(expected: str, got: str) -> Exception:
    return invalid(_WHERE, "the stream is damaged", expected=expected, got=got)
