"""The backends that ExecuTorch calls for delegates of a `TosaicPartitioner`: one class for each payload kind.

ExecuTorch requires a class for each, and finds it by its name among the subclasses of `BackendDetails`.
"""

from __future__ import annotations

from typing import Any, final

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult

from tosaic.executorch.delegates.lowering import lower_delegate
from tosaic.executorch.delegates.specs import read_compile_specs

__all__ = ["TosaicEthosUBackend", "TosaicTosaBackend", "TosaicVgfBackend"]


def _payload(edge_program: Any, compile_specs: Any) -> PreprocessResult:
    """Lowers the program of a delegate, and compiles the result for its runtime."""
    spec = read_compile_specs(compile_specs)
    lowered = lower_delegate(edge_program, spec.target)
    return PreprocessResult(processed_bytes=spec.kind.compile(lowered.to_bytes(), spec.flags))


def _same(edge_program: Any, _: Any) -> Any:
    """Returns the program itself, without a copy: lowering does not change it."""
    return edge_program


@final
class TosaicTosaBackend(BackendDetails):  # type: ignore[misc]
    """Payloads are ``.tosa`` files."""

    preprocess = staticmethod(_payload)
    copy_exported_program_for_preprocess = staticmethod(_same)


@final
class TosaicVgfBackend(BackendDetails):  # type: ignore[misc]
    """Payloads are VGF files, for ``VgfBackend``."""

    preprocess = staticmethod(_payload)
    copy_exported_program_for_preprocess = staticmethod(_same)


@final
class TosaicEthosUBackend(BackendDetails):  # type: ignore[misc]
    """Payloads are streams of what Vela compiled, for ``EthosUBackend``."""

    preprocess = staticmethod(_payload)
    copy_exported_program_for_preprocess = staticmethod(_same)
