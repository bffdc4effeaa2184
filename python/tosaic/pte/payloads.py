"""The formats of payloads, and the inputs and outputs that a payload records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tosaic import _core
from tosaic.base.visible import one_line
from tosaic.devices.built_in import TOSA_PAYLOAD
from tosaic.devices.device import Payload, Sizes
from tosaic.devices.registry import payloads

if TYPE_CHECKING:
    from tosaic.program.program import Program


def payload_format(payload: bytes) -> Payload | None:
    """Returns the format of a payload; None if it is not a format of a device."""
    for each in payloads().values():
        if each.magic and payload[each.magic_at : each.magic_at + len(each.magic)] == each.magic:
            return each
    return None


def kind_of_payload(payload: bytes) -> str:
    """Returns the format of a payload: ``TOSA`` or the name of a device's format; empty for other formats."""
    found = payload_format(payload)
    return "" if found is None else found.shown


def is_tosa(payload: bytes) -> bool:
    """True for the bytes of a ``.tosa`` file."""
    return payload_format(payload) is TOSA_PAYLOAD


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


def sides_of_payload(place: Place, payload: bytes, part: Program | None) -> tuple[Sizes, Sizes] | None:
    """Returns the inputs and outputs of a payload; None if neither the payload nor `part` records them.

    Raises
    ------
    InvalidGraph
        The payload has a format of a device, and is damaged.
    UnsupportedOp
        The payload is a file of another version of its format.
    """
    found = payload_format(payload)
    if found is not None and found.sizes is not None:
        try:
            sizes = found.sizes(payload)
        except _core.Error as error:
            raise place.located(error) from error
        if sizes is not None:
            return sizes
    return None if part is None else ([None] * len(part.inputs), [None] * len(part.outputs))


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
