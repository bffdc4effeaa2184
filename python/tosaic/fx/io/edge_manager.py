"""Makes quantized inputs and outputs of one method of ExecuTorch's edge programs integers."""

from __future__ import annotations

import copy
from typing import Any

from tosaic.base.options import invalid, shown
from tosaic.fx.dialects import dialect_of
from tosaic.fx.io.io_quantization import extract_from_exported
from tosaic.ports.io_quant import IoQuant


def extract_from_edge(
    manager: Any, method: str, inputs: Any, outputs: Any, in_place: bool
) -> tuple[Any, IoQuant]:
    """See `tosaic.extract_io_quant`.

    Parameters
    ----------
    manager : executorch.exir.EdgeProgramManager
        Its other methods are not changed. A changed copy shares their programs with `manager`.
    """
    methods = dict(getattr(manager, "_edge_programs", {}))
    if method not in methods:
        raise invalid(
            "extract_io_quant",
            f"the program has no method '{method}'",
            expected=" or ".join(map(repr, sorted(methods))) or "an EdgeProgramManager",
            got=shown(method),
        )
    program, io = extract_from_exported(
        methods[method], method, inputs, outputs, in_place, dialect_of(methods[method])
    )
    if in_place:
        return manager, io
    changed = copy.copy(manager)
    changed._edge_programs = {**methods, method: program}
    changed._config_methods = copy.copy(getattr(manager, "_config_methods", None))
    return changed, io
