"""Makes quantized inputs and outputs of ExecuTorch's edge programs integers."""

from __future__ import annotations

import copy
from typing import Any

from tosaic import _core
from tosaic.base.options import shown
from tosaic.ports.io_quant import IoQuant

__all__ = ["edge_operator", "extract_from_edge"]


def edge_operator(name: str) -> Any:
    """Returns an operator of ``quantized_decomposed`` in the edge dialect."""
    from executorch.exir.dialects._ops import ops

    return getattr(ops.edge.quantized_decomposed, name).default


def extract_from_edge(
    manager: Any, method: str, inputs: Any, outputs: Any, in_place: bool
) -> tuple[Any, IoQuant]:
    """See `tosaic.extract_io_quant`.

    Parameters
    ----------
    manager : executorch.exir.EdgeProgramManager
        Its other methods are not changed. A changed copy shares their programs with `manager`.
    """
    from tosaic.fx.io.io_quantization import extract_from_exported

    methods = dict(getattr(manager, "_edge_programs", {}))
    if method not in methods:
        raise _core.make_error(
            _core.InvalidGraph,
            where="extract_io_quant",
            what=f"the program has no method '{method}'",
            expected=" or ".join(map(repr, sorted(methods))) or "an EdgeProgramManager",
            got=shown(method),
        )
    program, io = extract_from_exported(
        methods[method], method, inputs, outputs, in_place, _operators_of(methods[method])
    )
    if in_place:
        return manager, io
    changed = copy.copy(manager)
    changed._edge_programs = {**methods, method: program}
    changed._config_methods = copy.copy(getattr(manager, "_config_methods", None))
    return changed, io


def _operators_of(program: Any) -> Any:
    from tosaic.fx.io.io_quantization import aten_operator

    return edge_operator if str(program.dialect) == "EDGE" else aten_operator
