"""`save_pte`: writes a lowered program as a ``.pte`` file with its sidecar."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from tosaic.base.options import checked, invalid, shown
from tosaic.base.writing import check_place
from tosaic.executorch.delegates.runtime_ids import delegates_of, set_runtime_ids
from tosaic.lowering.sidecar import sidecar_path, write_both
from tosaic.pte.sidecar import SidecarDelegate, SidecarMethod, pte_sidecar_text


@checked
def save_pte(program: Any, path: str | os.PathLike[str], *, config: Any = None) -> int:
    """Writes a lowered program as a ``.pte`` file, and a sidecar next to it: ``m.pte.json`` for ``m.pte``.

    The sidecar has the nested signature, dim orders and qparams of each method, and the digests of the file
    and of the payloads of its delegates. `pte_sidecar` reads it.

    Parameters
    ----------
    program : executorch.exir.EdgeProgramManager
        What ``to_edge_transform_and_lower`` returns. ExecuTorch's ``to_executorch`` changes it.
    path : path
    config : executorch.exir.ExecutorchBackendConfig, optional
        For ``to_executorch``.

    Returns
    -------
    int
        The size of the ``.pte`` file in bytes.

    Raises
    ------
    InvalidGraph
        `program` is not an EdgeProgramManager.
    WriteError
        One of the files cannot be written. Both older files are then unchanged.

    Examples
    --------
    >>> tosaic.executorch.save_pte(edge, "model.pte")  # doctest: +SKIP
    >>> tosaic.executorch.pte_sidecar("model.pte").method().inputs[0].qparams  # doctest: +SKIP
    """
    if not hasattr(program, "to_executorch") or not hasattr(program, "methods"):
        raise invalid(
            "save_pte",
            "'program' is no EdgeProgramManager",
            expected="what to_edge_transform_and_lower returns",
            got=shown(program),
        )
    for place in (path, sidecar_path(path)):
        check_place(place)  # before ExecuTorch changes the program
    set_runtime_ids(program)
    methods = [_method(name, program.exported_program(name)) for name in sorted(program.methods)]
    data = bytes(program.to_executorch(config).buffer)
    text = pte_sidecar_text(methods, data)
    return write_both(path, [data], lambda _: text)


def _method(name: str, program: Any) -> SidecarMethod:
    from tosaic.executorch.delegates.port_qparams import ports_of_program

    ports = ports_of_program(program)
    written = program.graph_signature.buffers_to_mutate.values()
    return SidecarMethod(
        name,
        ports.signature,
        ports.inputs,
        ports.outputs,
        tuple(sorted(written)),
        tuple(map(_delegate, delegates_of(program))),
    )


def _delegate(module: Any) -> SidecarDelegate:
    from tosaic.executorch.delegates.specs import is_ours, read_compile_specs

    spec = read_compile_specs(module.compile_specs) if is_ours(module.compile_specs) else None
    payload = bytes(module.processed_bytes)
    return SidecarDelegate(
        module.backend_id,
        "" if spec is None else spec.claimant,
        "" if spec is None else spec.target,
        len(payload),
        hashlib.sha256(payload).hexdigest(),
    )
