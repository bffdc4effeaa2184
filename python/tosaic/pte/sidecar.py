"""The sidecar of a ``.pte`` file: JSON next to it, with what the file lacks.

`tosaic.lowering.sidecar` has the code that all kinds of sidecars share.

A ``.pte`` file has flat tensors without names. The sidecar records for each method the nested signature,
paths, dim orders and qparams of inputs and outputs, and the target of each delegate.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.dtypes import BITS
from tosaic.base.json_fields import Fields, qparams_from_json, qparams_to_json
from tosaic.base.options import file_name, file_path, invalid
from tosaic.base.reading import MissingFileError, read_bytes
from tosaic.lowering.sidecar import FORMAT, VERSION, sidecar_of_file, sidecar_path
from tosaic.ports.ports import Port
from tosaic.ports.signature import Signature
from tosaic.ports.signature_json import signature_from_json, signature_to_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WHERE = "pte_sidecar"
_KIND = "pte"


@dataclass(frozen=True)
class SidecarDelegate:
    """A delegate of a method.

    Attributes
    ----------
    runtime : str
        The id of the runtime that reads the payload.
    claimant, target : str
        The claimant of the calls, and the TOSA target for which they were lowered. Empty for other delegates.
    bytes : int
        The size of the payload.
    sha256 : str
        The digest of the payload.
    """

    runtime: str
    claimant: str
    target: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class SidecarMethod:
    """A method of a ``.pte`` file.

    Attributes
    ----------
    name : str
    signature : Signature
        How nested arguments and results map to `inputs` and `outputs`.
    inputs, outputs : tuple of Port
        The user's tensors, in order. ``quantized`` has the qparams of an integer tensor, or those with which
        a float input is first quantized, or a float output was last dequantized. A dynamic size is -1.
    states : tuple of str
        Names of the buffers that the method writes.
    delegates : tuple of SidecarDelegate
    """

    name: str
    signature: Signature
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[str, ...]
    delegates: tuple[SidecarDelegate, ...]


@dataclass(frozen=True)
class PteSidecar:
    """The contents of the sidecar of a ``.pte`` file.

    Attributes
    ----------
    methods : tuple of SidecarMethod
        Sorted by name.
    """

    methods: tuple[SidecarMethod, ...]

    def method(self, name: str = "forward") -> SidecarMethod:
        """Returns a method.

        Raises
        ------
        InvalidGraph
            There is no such method.
        """
        for method in self.methods:
            if method.name == name:
                return method
        raise invalid(
            _WHERE,
            "the file has no such method",
            expected=", ".join(repr(method.name) for method in self.methods),
            got=repr(name),
        )


# ---- writing ----


def pte_sidecar_text(methods: Sequence[SidecarMethod], data: Buffer) -> str:
    """Returns the sidecar of a ``.pte`` file with these bytes."""
    entry = {
        "format": FORMAT,
        "version": VERSION,
        "kind": _KIND,
        "file": {"bytes": len(memoryview(data)), "sha256": hashlib.sha256(data).hexdigest()},
        "methods": [
            {
                "name": method.name,
                "signature": signature_to_json(method.signature),
                "inputs": list(map(_port_to_json, method.inputs)),
                "outputs": list(map(_port_to_json, method.outputs)),
                "states": list(method.states),
                "delegates": [vars(delegate) for delegate in method.delegates],
            }
            for method in sorted(methods, key=lambda each: each.name)
        ],
    }
    return json.dumps(entry, indent=1, allow_nan=False) + "\n"


def _port_to_json(port: Port) -> dict[str, Any]:
    return {
        "name": port.name,
        "path": port.path,
        "dtype": port.dtype,
        "shape": list(port.shape),
        "order": list(port.dim_order),
        "physical": port.physical,
        "quantized": list(map(qparams_to_json, port.quantized)),
    }


# ---- reading ----


def pte_sidecar(path: str | os.PathLike[str]) -> PteSidecar:
    """Reads the sidecar of a ``.pte`` file, ``m.pte.json`` next to ``m.pte``.

    `tosaic.load_pte` reads both files.

    Parameters
    ----------
    path : path
        The path of the ``.pte`` file.

    Raises
    ------
    InvalidGraph
        There is no sidecar, it is damaged, or it belongs to a file with other bytes.
    ReadError
        The system refuses to read one of the two files.
    """
    file = file_path(_WHERE, path)
    found = read_pte_sidecar(_WHERE, file, read_bytes(_WHERE, file))
    if found is None:
        raise invalid(
            _WHERE,
            f"'{file_name(file)}' has no sidecar",
            expected=f"the file '{file_name(sidecar_path(file))}' next to it",
            hint="tosaic.executorch.save_pte writes both",
        )
    return found


def read_pte_sidecar(where: str, path: Path, data: bytes) -> PteSidecar | None:
    """Returns the sidecar of a ``.pte`` file with these bytes; None if it has none.

    Raises
    ------
    InvalidGraph
        The sidecar is damaged, or belongs to a file with other bytes.
    ReadError
        The system refuses to read it.
    """
    try:
        text = read_bytes(where, sidecar_path(path))
    except MissingFileError:
        return None
    fields = sidecar_of_file(where, path, data, text, _KIND)
    return PteSidecar(tuple(map(_method, fields.each("methods"))))


def _method(fields: Fields) -> SidecarMethod:
    inputs = tuple(map(_port, fields.each("inputs")))
    outputs = tuple(map(_port, fields.each("outputs")))
    states = fields.value("states")
    if not isinstance(states, list) or not all(isinstance(state, str) for state in states):
        raise fields.error("states", "a list of names", states)
    return SidecarMethod(
        fields.text("name"),
        _read_signature(fields, len(inputs), len(outputs)),
        inputs,
        outputs,
        tuple(states),
        tuple(map(_delegate, fields.each("delegates"))),
    )


def _read_signature(fields: Fields, inputs: int, outputs: int) -> Signature:
    try:
        signature = signature_from_json(fields.value("signature"))
        fault = signature.fault(range(inputs), set(range(outputs)))
    except (_core.InvalidGraph, MemoryError):
        raise
    except Exception as error:  # entries of the right type may still contradict each other in many ways
        got = f"{type(error).__name__}: {error}"
        raise fields.error("signature", "the signature of a method", got) from error
    if fault:
        raise fields.error("signature", f"{inputs} inputs and {outputs} outputs", fault)
    return signature


def _port(fields: Fields) -> Port:
    dtype, shape, order = fields.text("dtype"), fields.integers("shape"), fields.axes("order")
    if dtype not in BITS and not dtype.startswith("torch."):  # graphs have no complex numbers, for example
        raise fields.error("dtype", f"one of {', '.join(BITS)}", dtype)
    if sorted(order) != list(range(len(shape))):
        raise fields.error("order", f"a permutation of {len(shape)} axes", list(order))
    if any(size < -1 for size in shape):
        raise fields.error("shape", "sizes, or -1", list(shape))
    quantized = tuple(map(qparams_from_json, fields.each("quantized")))
    return Port(
        fields.text("name"),
        fields.text("path"),
        dtype,
        shape,
        order,
        quantized=quantized,
        physical=fields.flag("physical", otherwise=False),
    )


def _delegate(fields: Fields) -> SidecarDelegate:
    return SidecarDelegate(
        fields.text("runtime"),
        fields.text("claimant"),
        fields.text("target"),
        fields.count("bytes"),
        fields.text("sha256"),
    )
