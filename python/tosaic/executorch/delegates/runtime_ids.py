"""`set_runtime_ids`: writes into delegates the ids of the runtimes that read their payloads.

::

    partition ─▶ preprocess (found by the class name) ─▶ id of the runtime ─▶ to_executorch

ExecuTorch writes into the file the name of the class that lowered a delegate, but a runtime looks for its own
id. ``to_edge_transform_and_lower`` shows the lowered program to each partitioner after all delegates are
made: then `TosaicPartitioner` calls this function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tosaic.base.options import checked, invalid, shown
from tosaic.devices.registry import payloads


@checked
def set_runtime_ids(program: Any) -> int:
    """Gives the delegates of a `TosaicPartitioner` the ids of their runtimes.

    ``to_edge_transform_and_lower`` does it by itself. With ``to_edge`` and ``to_backend``, call it between
    ``to_backend`` and ``to_executorch``.

    Parameters
    ----------
    program : executorch.exir.EdgeProgramManager or torch.export.ExportedProgram
        The program is changed. Delegates of other partitioners are not changed.

    Returns
    -------
    int
        The number of delegates that got an id, without delegates that had it already.

    Raises
    ------
    InvalidGraph
        `program` is neither of the two.

    Examples
    --------
    >>> edge = to_edge(exported)  # doctest: +SKIP
    >>> partitioner.remember(edge.exported_program())  # doctest: +SKIP
    >>> edge = edge.to_backend(partitioner)  # doctest: +SKIP
    >>> tosaic.executorch.set_runtime_ids(edge)  # doctest: +SKIP
    1
    """
    from tosaic.executorch.delegates.specs import read_compile_specs

    ours = {each.backend for each in payloads().values()}
    count = 0
    for module in delegates_of(program):
        if module.backend_id in ours:
            module._backend_id = read_compile_specs(module.compile_specs).runtime
            count += 1
    return count


def delegates_of(program: Any) -> Iterator[Any]:
    """Yields the lowered modules of a program, also those in bodies of control flow."""
    if hasattr(program, "methods") and hasattr(program, "exported_program"):
        programs = [program.exported_program(method) for method in sorted(program.methods)]
    elif hasattr(program, "graph_module") and hasattr(program, "graph_signature"):
        programs = [program]
    else:
        raise invalid(
            "set_runtime_ids",
            "'program' is no program of ExecuTorch",
            expected="an EdgeProgramManager or an ExportedProgram",
            got=shown(program),
        )
    from executorch.exir.lowered_backend_module import LoweredBackendModule

    for each in programs:
        for module in each.graph_module.modules():
            if isinstance(module, LoweredBackendModule):
                yield module
