"""The reports of ``.pte`` files: methods, their inputs and outputs, delegates, operators and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tosaic.devices.built_in import TOSA_PAYLOAD
from tosaic.pte.payloads import payload_format
from tosaic.report.document import Report
from tosaic.report.numbers import count, memory
from tosaic.report.parts import Section, table

if TYPE_CHECKING:
    from tosaic.base.quantization import QParams
    from tosaic.pte.file import PteFile, PteMethod
    from tosaic.pte.plain import PteDelegate, PteTensor

_TENSORS = ("value", "name", "type", "kind", "memory", "offset", "bytes")
_RECORDED = ("path", "quantized")  # of inputs and outputs, in the sidecar only
_MOST_SPEC = 60


def describe_pte(file: PteFile) -> Report:
    """Makes a report of a file: the sections of each method."""
    methods = list(file.methods.values())
    weights = sum(t.nbytes for each in methods for t in each.tensors if t.kind in ("constant", "state"))
    facts = [
        ("methods", ", ".join(file.methods) or "none"),
        ("delegates", _backends(file.delegates)),
        ("payloads", memory(sum(len(each.payload) for each in file.delegates))),
        ("weights outside delegates", memory(weights)),
    ]
    if file.named_data:
        named = f"{count(len(file.named_data), 'key')}, {memory(sum(file.named_data.values()))}"
        facts.append(("named data", named))
    sections: list[Section] = []
    for method in methods:
        prefix = f"{method.name}: " if len(methods) > 1 else ""
        sections += _sections(method, prefix)
    return Report(
        title=file.name or "program of ExecuTorch",
        facts=tuple(facts),
        sections=tuple(sections),
        data={"methods": {each.name: _data(each) for each in methods}, "named_data": file.named_data},
    )


def describe_pte_method(method: PteMethod) -> Report:
    """Makes a report of a method."""
    return Report(
        title=method.name,
        facts=(
            ("instructions", str(len(method.instructions))),
            ("delegates", _backends(method.delegates)),
            ("planned memory", memory(sum(method.memories))),
        ),
        sections=tuple(_sections(method, "")),
        data=_data(method),
    )


def _sections(method: PteMethod, prefix: str) -> Iterable[Section]:
    ports = [("input", each) for each in method.inputs] + [("output", each) for each in method.outputs]
    rows: list[tuple[str, ...]] = [
        (side, f"%{each.index}", each.path, each.type_text, each.dynamism, _qparams_text(each.quantized))
        for side, each in ports
    ]
    columns = ("side", "value", "path", "type", "shape", "quantized")
    kept = [i for i, name in enumerate(columns) if name not in _RECORDED or any(row[i] for row in rows)]
    rows = [tuple(row[i] for i in kept) for row in rows]
    yield Section(f"{prefix}inputs and outputs", table([columns[i] for i in kept], rows))
    if method.delegates:
        columns = ("delegate", "backend", "payload", "format", "runs by", "compile specs")
        yield Section(
            f"{prefix}delegates", table(columns, [_delegate_row(each) for each in method.delegates])
        )
    called = Counter(text.partition("(")[0] for text in method.instructions)
    if called:
        yield Section(
            f"{prefix}instructions",
            table(("calls", "times"), [(name, str(times)) for name, times in called.most_common()]),
        )
    sizes = [(str(i), memory(size)) for i, size in enumerate(method.memories) if i]
    if sizes:
        yield Section(f"{prefix}planned memory", table(("memory", "bytes"), sizes))
    yield Section(f"{prefix}program", "\n".join(method.instructions), folded=True)
    yield Section(
        f"{prefix}tensors", table(_TENSORS, [_tensor_row(each) for each in method.tensors]), folded=True
    )


def _qparams_text(quantized: Iterable[QParams]) -> str:
    return ", ".join(
        f"{each.dtype} scale {each.scales[0]:.6g} zp {each.zero_points[0]}"
        + f" and {len(each.scales) - 1} more" * (len(each.scales) > 1)
        for each in quantized
    )


def _delegate_row(delegate: PteDelegate) -> tuple[str, ...]:
    specs = ", ".join(f"{key}={_spec_text(value)}" for key, value in delegate.compile_specs)
    return (
        str(delegate.index),
        delegate.backend,
        memory(len(delegate.payload)),
        delegate.payload_kind or "of the backend",
        _runs_by(delegate),
        specs or "none",
    )


def _runs_by(delegate: PteDelegate) -> str:
    if delegate.has_source:
        return "its TOSA source"
    found = payload_format(delegate.payload)
    if found is TOSA_PAYLOAD:
        return "its payload"
    if found is not None and found.engine is not None:
        return f"its payload, on {found.engine.machine}"
    return "a model"


def _spec_text(value: bytes) -> str:
    """Returns the value of a compile spec: text if it is printable, else its size."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"{len(value)} bytes"
    text = text if text.isprintable() else f"{len(value)} bytes"
    return text if len(text) <= _MOST_SPEC else text[: _MOST_SPEC - 3] + "..."


def _tensor_row(tensor: PteTensor) -> tuple[str, ...]:
    place = ("-", "-") if tensor.memory is None else (str(tensor.memory), str(tensor.offset))
    return (f"%{tensor.index}", tensor.name, tensor.type_text, tensor.kind, *place, str(tensor.nbytes))


def _backends(delegates: Iterable[PteDelegate]) -> str:
    found = Counter(each.backend for each in delegates)
    return ", ".join(f"{times} of {backend}" for backend, times in found.items()) or "none"


def _data(method: PteMethod) -> dict[str, Any]:
    return {
        "inputs": list(method.inputs),
        "outputs": list(method.outputs),
        "operators": list(method.operators),
        "instructions": list(method.instructions),
        "delegates": [
            {
                "index": each.index,
                "backend": each.backend,
                "payload_bytes": len(each.payload),
                "payload_kind": each.payload_kind,
                "has_source": each.has_source,
                "compile_specs": {key: _spec_text(value) for key, value in each.compile_specs},
            }
            for each in method.delegates
        ],
        "memories": list(method.memories),
        "tensors": list(method.tensors),
    }
