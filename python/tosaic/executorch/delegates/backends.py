"""The backend classes that ExecuTorch calls for delegates of a `TosaicPartitioner`: one per payload kind.

ExecuTorch finds the class of a backend by its name among the subclasses of `BackendDetails`. The names are
those of `tosaic.devices.Payload`.
"""

from __future__ import annotations

from typing import Any

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult

from tosaic.devices.registry import payloads
from tosaic.executorch.delegates.lowering import lower_delegate
from tosaic.executorch.delegates.specs import read_compile_specs

_made: dict[str, type] = {}
"""The classes by name. They must stay referenced, since ExecuTorch searches the live subclasses."""


def _payload(edge_program: Any, compile_specs: Any) -> PreprocessResult:
    """Lowers the program of a delegate, and compiles the result for its runtime."""
    spec = read_compile_specs(compile_specs)
    lowered = lower_delegate(edge_program, spec.target)
    return PreprocessResult(processed_bytes=spec.payload.compile(lowered.to_bytes(), spec.flags))


def _same(edge_program: Any, _: Any) -> Any:
    """Returns the program itself, without a copy: lowering does not change it."""
    return edge_program


def require_backends() -> None:
    """Makes the classes of all kinds of payloads."""
    for each in payloads().values():
        backend_named(each.backend)


def backend_named(name: str) -> Any:
    """Returns the class for a kind of payload, made on first use; `name` is `Payload.backend`."""
    if name not in _made:
        _made[name] = type(
            name,
            (BackendDetails,),
            {
                "__doc__": "Lowers a delegate with tosaic.",
                "preprocess": staticmethod(_payload),
                "copy_exported_program_for_preprocess": staticmethod(_same),
            },
        )
    return _made[name]
