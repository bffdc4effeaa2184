"""`run_payloads`: runs a program with delegates without ExecuTorch's runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.options import checked, invalid, is_mapping, layout_mismatch, refusal, shown

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]


@checked
def run_payloads(
    program: Any,
    inputs: Sequence[Any],
    *,
    engines: Mapping[str, Callable[[bytes, list[Array]], Sequence[Array]]] | None = None,
    method: str = "forward",
) -> list[torch.Tensor]:
    """Runs a program that ExecuTorch lowered: the payload of each delegate, and all other calls with torch.

    Torch alone would run the original module of a delegate, and not the payload that its backend made.

    Parameters
    ----------
    program : executorch.exir.EdgeProgramManager or torch.export.ExportedProgram
        With its delegates.
    inputs : sequence
        The arguments of the program.
    engines : mapping of str to callable, optional
        By backend, the function that runs its payloads: it gets the payload and arrays, and returns arrays.
        They are row-major in physical shapes: the extents in dim order. Payloads of ``TOSABackend``, which
        are ``.tosa`` files, run on tosaic's executor unless there is another entry.
    method : str
        The method of an EdgeProgramManager.

    Returns
    -------
    list of torch.Tensor
        The outputs of the user. New values of mutated buffers are not among them, and the program keeps the
        old ones.

    Raises
    ------
    LayoutMismatch
        A tensor does not have the dtype, the shape or the memory order that the program or a delegate
        declares. ExecuTorch's runtime does not check the order.
    UnsupportedOp
        Nothing runs the payloads of a backend.
    InvalidGraph
        There is no such method, or an argument has another form.

    Examples
    --------
    >>> outputs = tosaic.executorch.run_payloads(edge, (image,))  # doctest: +SKIP
    """
    from tosaic.executorch.delegates.payloads import run_payloads_of

    where = "run_payloads"
    if not isinstance(inputs, tuple | list):
        raise refusal(where, "inputs", "a sequence of the arguments", inputs)
    if engines is not None and not (is_mapping(engines) and all(map(callable, engines.values()))):
        raise refusal(where, "engines", "a mapping of backends to functions", engines)
    if hasattr(program, "methods"):
        if method not in program.methods:
            raise refusal(where, "method", " or ".join(map(repr, sorted(program.methods))), method)
        program = program.exported_program(method)
    if not hasattr(program, "graph_signature"):
        raise invalid(
            where,
            "'program' is no program of ExecuTorch",
            expected="an EdgeProgramManager or an ExportedProgram",
            got=shown(program),
        )
    return run_payloads_of(where, program, inputs, {"TOSABackend": _run_tosa, **(engines or {})})


def _run_tosa(payload: bytes, arrays: list[Array]) -> Sequence[Array]:
    from tosaic.comparing.compare_programs import fit_to_ports
    from tosaic.program.program import from_graph

    program = from_graph(_core.deserialize(payload))
    for array, port in zip(arrays, program.inputs, strict=True):
        if array.shape != tuple(port.shape):
            raise layout_mismatch(
                "run_payloads",
                f"input '{port.name}' of a payload has another shape than its delegate declares",
                expected=str(array.shape),
                got=str(tuple(port.shape)),
            )
    return program.run_arrays(fit_to_ports(arrays, program.inputs))
