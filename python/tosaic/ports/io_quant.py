"""The qparams of a program's inputs and outputs as data: `IoQuant`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tosaic.base.json_fields import Fields, qparams_from_json, qparams_to_json, read_json
from tosaic.base.options import quant_mismatch, shown
from tosaic.base.quantization import QParams
from tosaic.ports.port_names import near_names, position_of

FORMAT = "tosaic io quantization"
VERSION = 1


@dataclass(frozen=True)
class PortQuant:
    """One input or output that holds integers, and the numbers that these integers represent.

    Attributes
    ----------
    index : int
        Position among the user's inputs (outputs). Weights, states and new values of states do not count.
    path : str
        Place in the call or in the result, such as ``batch['x']`` or ``out[0]``.
    name : str
        Name of the value in the graph.
    qparams : QParams
        Scales, zero points, range, dtype and axis of the integers.
    """

    index: int
    path: str
    name: str
    qparams: QParams


@dataclass(frozen=True)
class IoQuant:
    """The inputs and outputs that `tosaic.extract_io_quant` made integers.

    Attributes
    ----------
    inputs, outputs : tuple of PortQuant
        In the order of the call and of the result. Inputs and outputs that stay floats are not in the list.
    method : str
        The method of the program.

    Examples
    --------
    >>> image = PortQuant(0, "image", "image", QParams("i8", (0.5,), (3,), -128, 127))
    >>> io = IoQuant((image,), ())
    >>> io.input("image").quantize([0.0, 1.0]).tolist()
    [3, 5]
    >>> IoQuant.from_json(io.to_json()) == io
    True
    """

    inputs: tuple[PortQuant, ...]
    outputs: tuple[PortQuant, ...]
    method: str = "forward"

    def input(self, key: str | int) -> QParams:
        """Returns the qparams of an input by path, name or index.

        Raises
        ------
        QuantMismatch
            There is no such input among those with integers.
        """
        return _qparams_of("inputs", self.inputs, key)

    def output(self, key: str | int) -> QParams:
        """Returns the qparams of an output by path, name or index.

        Raises
        ------
        QuantMismatch
            There is no such output among those with integers.
        """
        return _qparams_of("outputs", self.outputs, key)

    def to_json(self) -> str:
        """Returns the parameters as JSON text."""
        data = {"format": FORMAT, "version": VERSION, **self.fields()}
        return json.dumps(data, indent=1, allow_nan=False)

    def fields(self) -> dict[str, Any]:
        """Returns the parameters as a value of dicts, lists, strings and numbers."""
        return {
            "method": self.method,
            "inputs": [_port_to_json(port) for port in self.inputs],
            "outputs": [_port_to_json(port) for port in self.outputs],
        }

    @classmethod
    def from_json(cls, text: str) -> IoQuant:
        """Reads what `to_json` returned.

        Raises
        ------
        InvalidGraph
            The text is not JSON, or not of this format and version, or an entry is missing or has a wrong
            type.
        """
        fields = read_json("io quantization", text)
        fields.require_format(FORMAT, VERSION)
        return cls(
            tuple(map(_port_from_json, fields.each("inputs"))),
            tuple(map(_port_from_json, fields.each("outputs"))),
            fields.text("method"),
        )


def _qparams_of(side: str, ports: Sequence[PortQuant], key: str | int) -> QParams:
    found = None
    if isinstance(key, str):
        position = position_of(key, [(port.path, port.name) for port in ports])
        found = None if position is None else ports[position]
    else:
        found = next((port for port in ports if port.index == key), None)
    if found is None:
        named = [(port.path, port.name) for port in ports]
        raise quant_mismatch(
            "io quantization",
            f"no such entry among the {side} that hold integers",
            expected=", ".join(f"{port.path or port.name!r} ({port.index})" for port in ports) or "none",
            got=shown(key),
            hint=near_names(key, named),
        )
    return found.qparams


def _port_to_json(port: PortQuant) -> dict[str, Any]:
    return {
        "index": port.index,
        "path": port.path,
        "name": port.name,
        "qparams": qparams_to_json(port.qparams),
    }


def _port_from_json(fields: Fields) -> PortQuant:
    return PortQuant(
        fields.count("index"),
        fields.text("path"),
        fields.text("name"),
        qparams_from_json(fields.at("qparams")),
    )
