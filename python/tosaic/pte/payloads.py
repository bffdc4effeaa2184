"""The formats of payloads, and what a payload says about its inputs and outputs."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tosaic import _core
from tosaic.base.visible import one_line
from tosaic.devices.vela_stream import unpack_vela

if TYPE_CHECKING:
    from tosaic.program.program import Program

__all__ = ["Place", "Sizes", "is_tosa", "kind_of_payload", "program_of_payload", "sides_of_payload"]

_KINDS = ((4, b"TOSA", "TOSA"), (0, b"VGF1", "VGF"), (0, b"vela_bin_stream\0", "Vela"))
"""Kinds of payloads by the bytes at a place."""


def kind_of_payload(payload: bytes) -> str:
    """Returns the format of a payload, ``TOSA``, ``VGF`` or ``Vela``; empty for other formats."""
    for at, magic, kind in _KINDS:
        if payload[at : at + len(magic)] == magic:
            return kind
    return ""


def is_tosa(payload: bytes) -> bool:
    """True for the bytes of a ``.tosa`` file."""
    return kind_of_payload(payload) == "TOSA"


@dataclass(frozen=True)
class Place:
    """Where a delegate is, for errors."""

    method: str
    index: int
    backend: str

    def __str__(self) -> str:
        return one_line(f"delegate {self.index} ('{self.backend}') of method '{self.method}'")

    def located(self, error: _core.Error, what: str = "") -> Exception:
        """Returns an error of a payload, or of `what`, with the delegate in front."""
        parts = error.parts
        said = {name: parts[name] for name in ("expected", "got", "node", "hint")}
        subject = ": ".join(filter(None, (str(self), what, parts["what"])))
        return _core.make_error(type(error), where="pte", what=subject, **said)

    def fault(self, what: str, expected: str, got: str, kind: type[Exception] | None = None) -> Exception:
        """Returns an error that is located at the delegate."""
        return _core.make_error(
            kind or _core.InvalidGraph, where="pte", what=f"{self}: {what}", expected=expected, got=got
        )


Sizes: TypeAlias = Sequence[int | None]
"""The bytes of each tensor; None where the payload does not say them."""


def sides_of_payload(place: Place, payload: bytes, part: Program | None) -> tuple[Sizes, Sizes] | None:
    """Returns the inputs and outputs of a payload; None if neither it nor `part` says how many there are.

    Raises
    ------
    InvalidGraph
        The payload is a VGF file or a stream of Vela, and is damaged.
    UnsupportedOp
        The payload is a VGF file of another version.
    """
    kind = kind_of_payload(payload)
    if kind == "Vela":
        try:
            stream = unpack_vela(payload)
        except _core.InvalidGraph as error:
            raise place.located(error, "the payload") from error
        inputs, outputs = (
            [math.prod(each.shape) * each.element_bytes for each in side]
            for side in (stream.inputs, stream.outputs)
        )
        return inputs, outputs
    if kind == "VGF":
        _refuse_damaged_vgf(place, payload)
    return None if part is None else ([None] * len(part.inputs), [None] * len(part.outputs))


_VGF_HEADER = struct.Struct("<4s4xBBBx4x8Q")
"""Magic, version (major, minor, patch), then the offset and the size of each of four sections."""


def _refuse_damaged_vgf(place: Place, payload: bytes) -> None:
    """Raises an error for a VGF file of another version, or one that is cut off."""
    least = _VGF_HEADER.size
    if len(payload) < least:
        raise place.fault("the VGF payload is truncated", f"a header of {least} bytes", str(len(payload)))
    _, major, _, _, *sections = _VGF_HEADER.unpack_from(payload)
    if major != 0:
        raise place.fault(
            "the VGF payload has an unknown version", "major version 0", str(major), kind=_core.UnsupportedOp
        )
    for offset, size in zip(sections[::2], sections[1::2], strict=True):
        if offset + size > len(payload):
            wanted = f"{size} bytes from byte {offset}"
            raise place.fault("the VGF payload is truncated", wanted, f"{len(payload)} bytes")


def program_of_payload(place: Place, payload: bytes) -> Program | None:
    """Returns the program of a ``.tosa`` payload; None for other payloads.

    Raises
    ------
    InvalidGraph, UnsupportedOp
        The ``.tosa`` file is damaged.
    """
    from tosaic.program.program import Program

    if not is_tosa(payload):
        return None
    try:
        return Program(_core.deserialize(payload))
    except _core.Error as error:
        raise place.located(error, "the payload") from error
