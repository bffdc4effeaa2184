"""The sidecar of a lowered file: JSON next to ``m.tosa``, named ``m.tosa.json``, with what the format lacks.

A ``.tosa`` file records tensors. The sidecar records how a caller's arrays become these tensors: the nested
signature, paths, dtypes and dim orders of the caller's arrays, qparams, and the states that are inputs and
outputs of the file. It names the file by its size and its SHA-256, so that it is never used for another one::

    {"format": "tosaic sidecar", "version": 1, "kind": "tosa",
     "file": {"bytes": 712, "sha256": "..."}, "target": "TOSA-1.0+INT", "method": "forward",
     "signature": {...},
     "inputs": [{"name": "x", "dtype": "i8", "shape": [1,8,8,3], "path": "x", "source": "f32", "range": [0,0],
                 "order": [0,2,3,1], "physical": false, "qparams": {...}, "quantized": [{...}],
                 "initial": null}, ...],
     "outputs": [{..., "mutated_input": null}, ...]}

``qparams`` are those with which a run converts the caller's arrays; ``quantized`` are the program's own
qparams, also if the file has floats. ``kind`` is the kind of the file. Other kinds, such as ``.pte``, can
have the same entries. A reader trusts nothing: a damaged sidecar is an InvalidGraph error.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.dtypes import BITS, WITH_INTEGER_FORM, is_float
from tosaic.base.json_fields import Fields, qparams_from_json, qparams_to_json, read_json
from tosaic.base.json_text import parsed_json
from tosaic.base.options import file_name, invalid
from tosaic.base.reading import MissingFileError, read_bytes
from tosaic.base.writing import append_pieces, whole_file, written
from tosaic.ports.ports import first_inputs
from tosaic.ports.signature_json import signature_from_json, signature_to_json
from tosaic.program.constants_in_text import plain_array
from tosaic.program.program import Program
from tosaic.program.runnable import signature_fault

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tosaic.base.diagnostics import Diagnostic
    from tosaic.base.quantization import QParams
    from tosaic.lowering.lowered import Lowered

FORMAT = "tosaic sidecar"
VERSION = 1
_WHERE = "sidecar"
_MOST_BYTES = 4 << 30  # bound of all states together, since a few bytes may unpack to very many zeros


def sidecar_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of the sidecar of a file."""
    file = Path(path)
    return file.with_name(f"{file.name}.json")


# ---- writing ----


def save_with_sidecar(lowered: Lowered, path: str | os.PathLike[str], pieces: Iterable[Buffer]) -> int:
    """Writes a file and its sidecar; if one of them cannot be written, both old files are unchanged.

    Raises
    ------
    InvalidGraph
        The states are larger than a sidecar's may be.
    """
    initials = [port.initial for port in lowered.graph.inputs if port.initial is not None]
    size = sum(_bytes_of_state(each.dtype, each.shape) for each in initials)
    if size > _MOST_BYTES:
        raise invalid(
            "save",
            f"the states of '{lowered.graph.name}' are too large for a sidecar",
            expected=f"at most {_MOST_BYTES} bytes in all",
            got=f"{size} bytes",
            hint="Save it without a sidecar: then states are inputs of the file, or with a target with "
            "'+variable' variables that the file has",
        )
    return write_both(path, pieces, lambda data: sidecar_text(lowered, data))


def write_both(
    path: str | os.PathLike[str], pieces: Iterable[Buffer], text_of: Callable[[Buffer], str]
) -> int:
    """Writes a file and its sidecar; if one cannot be written, both old files are unchanged.

    `text_of` returns the text of the sidecar for the contents of the file.
    """
    with whole_file(sidecar_path(path)) as beside, whole_file(path) as file:
        size = append_pieces(file, pieces)
        beside.write(text_of(written(file)).encode("utf-8"))
        beside.flush()
        os.fsync(beside.fileno())  # on the disk before the other file is renamed
    return size


def save_without_sidecar(
    path: str | os.PathLike[str], pieces: Iterable[Buffer], check: Callable[[Buffer], None] | None = None
) -> int:
    """Writes a file; removes a sidecar of tosaic's that belongs to the file that is replaced.

    `check` raises an error if the contents are wrong, and then the old file is unchanged.
    """
    with whole_file(path) as file:
        size = append_pieces(file, pieces)
        if check is not None:
            check(written(file))
    beside = sidecar_path(path)
    if _is_sidecar(beside):
        with suppress(OSError):
            beside.unlink()
    return size


def _is_sidecar(path: Path) -> bool:
    try:
        data = parsed_json(read_bytes(_WHERE, path))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and data.get("format") == FORMAT


def sidecar_text(lowered: Lowered, data: Buffer) -> str:
    """Returns the sidecar of a lowered program whose file has these bytes."""
    graph = _core.file_graph(lowered.graph, target=lowered.target)
    reread = _core.deserialize(data)  # the writer inserts copies of outputs that are inputs or repeated
    formats = _core.boundary_formats(graph)
    known = {port.path: port.quantized for port in (*lowered.inputs, *lowered.outputs)}
    entry = {
        "format": FORMAT,
        "version": VERSION,
        "kind": "tosa",
        "file": {"bytes": len(memoryview(data)), "sha256": hashlib.sha256(data).hexdigest()},
        "target": lowered.target,
        "method": lowered.graph.name,
        "signature": signature_to_json(_signature_of(lowered, graph)),
        "inputs": [
            {**_port_to_json(port, value, fields, known), "initial": _initial_to_json(port.initial)}
            for port, value, fields in zip(graph.inputs, _values(reread.inputs), formats[0], strict=True)
        ],
        "outputs": [
            {**_port_to_json(port, value, fields, known), "mutated_input": port.mutated_input}
            for port, value, fields in zip(graph.outputs, _values(reread.outputs), formats[1], strict=True)
        ],
    }
    return json.dumps(entry, indent=1, allow_nan=False) + "\n"


def _signature_of(lowered: Lowered, graph: _core.Graph) -> Any:
    """Returns the signature with indices into the graph of the file, where states may be variables."""
    inputs = dict(zip(first_inputs(lowered.graph), first_inputs(graph), strict=True))
    kept = [i for i, port in enumerate(lowered.graph.outputs) if port.kind == "user"]
    outputs = dict(zip(kept, (i for i, port in enumerate(graph.outputs) if port.kind == "user"), strict=True))
    signature = lowered.signature
    return replace(
        signature,
        input_leaves=tuple(
            leaf if leaf.index is None else replace(leaf, index=inputs[leaf.index])
            for leaf in signature.input_leaves
        ),
        output_leaves=tuple(
            leaf if leaf.index is None else replace(leaf, index=outputs[leaf.index])
            for leaf in signature.output_leaves
        ),
    )


def _values(ports: Sequence[Any]) -> list[_core.Value]:
    return [port.value for port in ports]


def _port_to_json(
    port: Any, value: _core.Value, fields: dict[str, Any], known: Mapping[str, Sequence[QParams]]
) -> dict[str, Any]:
    qparams = fields["qparams"]
    return {
        "name": value.name,
        "dtype": value.dtype,
        "shape": list(value.shape),
        "path": port.path,
        "source": fields["source"],
        "range": list(fields["range"]),
        "order": list(fields["order"]),
        "physical": fields["physical"],
        "qparams": None if qparams is None else qparams_to_json(qparams),
        "quantized": [qparams_to_json(each) for each in known.get(port.path, ())],
    }


def _initial_to_json(initial: _core.Constant | None) -> dict[str, Any] | None:
    if initial is None:
        return None
    data = plain_array(np.ascontiguousarray(initial.array)).tobytes()
    return {
        "dtype": initial.dtype,
        "shape": list(initial.shape),
        "kind": initial.kind,
        "zlib": base64.b64encode(zlib.compress(data)).decode("ascii"),
    }


# ---- reading ----


def read_sidecar(where: str, path: Path, data: bytes) -> Fields | None:
    """Returns the sidecar of a file with these bytes; None if it has none.

    Raises
    ------
    InvalidGraph
        The sidecar is damaged, has another version, or belongs to a file with other bytes.
    ReadError
        The system refuses to read it.
    """
    beside = sidecar_path(path)
    try:
        text = read_bytes(where, beside)
    except MissingFileError:
        return None
    return sidecar_of_file(where, path, data, text, "tosa")


def sidecar_of_file(where: str, path: Path, data: bytes, text: bytes, kind: str) -> Fields:
    """Returns the sidecar of a file, once its format, its kind and the digest of the file are right.

    Raises
    ------
    InvalidGraph
        The sidecar is damaged, has another version or kind, or belongs to a file with other bytes.
    """
    beside = sidecar_path(path)
    fields = read_json(f"{where}: {file_name(beside)}", text)
    fields.require_format(FORMAT, VERSION)
    if fields.text("kind") != kind:
        raise fields.error("kind", repr(kind), fields.text("kind"))
    file = fields.at("file")
    found = hashlib.sha256(data).hexdigest()
    if (file.count("bytes"), file.text("sha256")) != (len(data), found):
        raise invalid(
            where,
            f"'{file_name(beside)}' is the sidecar of another file than '{file_name(path)}'",
            expected=f"a file of {file.count('bytes')} bytes with SHA-256 {file.text('sha256')[:16]}...",
            got=f"{len(data)} bytes with SHA-256 {found[:16]}...",
            hint="Save the lowered program again, or read the file with sidecar=False",
        )
    return fields


def apply_sidecar(graph: _core.Graph, fields: Fields, diagnostics: Sequence[Diagnostic] = ()) -> Program:
    """Returns the program of a graph that was read from a file, with the boundary that its sidecar records.

    Raises
    ------
    InvalidGraph
        The sidecar is damaged, or its entries do not fit the graph.
    """
    return _checked(fields, lambda: _applied(graph, fields, diagnostics))


def _checked(fields: Fields, make: Callable[[], Program]) -> Program:
    """Calls a function; entries that contradict each other or the graph become InvalidGraph errors."""
    try:
        return make()
    except _core.InvalidGraph:
        raise
    except (_core.InternalError, MemoryError):
        raise
    except Exception as error:  # entries of the right type may still contradict each other in many ways
        raise fields.error("", "entries that fit the file", f"{type(error).__name__}: {error}") from error


def _applied(graph: _core.Graph, fields: Fields, diagnostics: Sequence[Diagnostic]) -> Program:
    size = sum(map(_initial_bytes, fields.each("inputs")))
    if size > _MOST_BYTES:
        raise fields.error("inputs", f"states of at most {_MOST_BYTES} bytes in all", f"{size} bytes")
    inputs = [
        {**_boundary(entry, port), "initial": _initial(entry, port)}
        for entry, port in _pairs(fields, "inputs", graph.inputs)
    ]
    outputs = [
        {**_boundary(entry, port), "mutated_input": _mutated_input(entry, inputs)}
        for entry, port in _pairs(fields, "outputs", graph.outputs)
    ]
    made = _core.with_boundaries(graph, inputs=inputs, outputs=outputs)
    signature = signature_from_json(fields.value("signature"))
    fault = signature_fault(made, signature)
    if fault:
        raise fields.error("signature", "the signature of the file", fault)
    program = Program(made, signature, diagnostics=list(diagnostics))
    entries = [*fields.each("inputs"), *fields.each("outputs")]
    program.qparams_of_sidecar = {
        entry.text("path"): tuple(map(qparams_from_json, entry.each("quantized"))) for entry in entries
    }
    return program


def _pairs(fields: Fields, side: str, ports: Any) -> list[tuple[Fields, Any]]:
    entries = list(fields.each(side))
    if len(entries) != len(ports):
        raise fields.error(side, f"{len(ports)} entries, as the file has", len(entries))
    return list(zip(entries, ports, strict=True))


def _boundary(entry: Fields, port: Any) -> dict[str, Any]:
    value = port.value
    shape, order, limits = entry.axes("shape"), entry.axes("order"), entry.integers("range")
    if (entry.text("name"), entry.text("dtype"), shape) != (value.name, value.dtype, tuple(value.shape)):
        found = f"{entry.text('name')}: {entry.text('dtype')}{list(shape)}"
        raise entry.error("name", f"{value.name}: {value.dtype}{list(value.shape)}, as the file has", found)
    if sorted(order) != list(range(len(shape))):
        raise entry.error("order", f"a permutation of {len(shape)} axes", list(order))
    if len(limits) != 2 or limits[0] > limits[1]:
        raise entry.error("range", "two integers in order", list(limits))
    qparams = entry.at_or_none("qparams")
    known = None if qparams is None else qparams_from_json(qparams)
    source = None if entry.value("source") is None else entry.text("source")
    if source is not None and source not in BITS:
        raise entry.error("source", f"one of {', '.join(BITS)}, or null", source)
    is_number = source is not None and is_float(source)
    if is_number and (source not in WITH_INTEGER_FORM or known is None):
        raise entry.error("source", "f32, f16 or bf16 with qparams, or an integer", source)
    are_integers = source is None or (source[0] in "iu" and value.dtype[0] in "iu")
    if not is_number and not are_integers:
        raise entry.error("source", f"an integer dtype that becomes {value.dtype}", source)
    return {
        "path": entry.text("path"),
        "source": source,
        "range": limits,
        "order": order,
        "physical": entry.flag("physical"),
        "qparams": known,
    }


def _initial_bytes(entry: Fields) -> int:
    """Returns how many bytes the initial value of an input has; 0 for an input that is not a state."""
    fields = entry.at_or_none("initial")
    if fields is None:
        return 0
    dtype = fields.text("dtype")
    if dtype not in BITS:
        raise fields.error("dtype", f"one of {', '.join(BITS)}", dtype)
    return _bytes_of_state(dtype, fields.axes("shape"))


def _bytes_of_state(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * max(BITS[dtype] // 8, 1)


def _initial(entry: Fields, port: Any) -> _core.Constant | None:
    """Returns the initial value of an input that is a state."""
    fields = entry.at_or_none("initial")
    if fields is None:
        return None
    dtype, shape = fields.text("dtype"), fields.axes("shape")
    if dtype != port.value.dtype or shape != tuple(port.value.shape):
        raise fields.error("dtype", f"{port.value.dtype}{list(port.value.shape)}", f"{dtype}{list(shape)}")
    size = _initial_bytes(entry)
    try:
        packed = base64.b64decode(fields.text("zlib"), validate=True)
        decompress = zlib.decompressobj()
        data = decompress.decompress(packed, size + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise fields.error("zlib", "compressed bytes", str(error)) from None
    if len(data) != size:
        raise fields.error("zlib", f"{size} bytes", f"{len(data)} or more")
    array = np.frombuffer(data, np.uint8).copy()
    return _core.Constant(port.value.name, "buffer", dtype, shape, array.ctypes.data, array.nbytes, array)


def _mutated_input(entry: Fields, inputs: list[dict[str, Any]]) -> int | None:
    if entry.value("mutated_input") is None:
        return None
    found = entry.count("mutated_input")
    if found >= len(inputs):
        raise entry.error("mutated_input", f"an input below {len(inputs)}", found)
    return found
