"""Delegates of `TosaicPartitioner`: lowering, `.pte` files, and what has to hold of payloads.

The checks know nothing of how the partitioner chose the calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tosaic
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.lowered_backend_module import get_lowered_submodules
from tosaic.executorch import run_payloads

from models.delegates import run_file, run_file_on_reference_model
from models.wrapped import lower
from models.zoo import quiet

__all__ = [
    "delegates_in_file",
    "differing_from_reference_model",
    "differing_payloads",
    "file_of",
    "lower",
    "modules_of",
    "program_made",
    "run",
]

Arrays = list[np.ndarray[Any, Any]]


def modules_of(manager: Any) -> list[Any]:
    """Returns the lowered modules of all methods, in order."""
    return [
        module
        for method in sorted(manager.methods)
        for _, module, _ in get_lowered_submodules(manager.exported_program(method).graph_module)
    ]


def file_of(manager: Any) -> bytes:
    """Returns the `.pte` file."""
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bytes(manager.to_executorch().buffer)


def delegates_in_file(file: bytes) -> list[tuple[str, bytes]]:
    """Returns the backend ids and payloads of a `.pte` file, as ExecuTorch's deserialiser finds them."""
    program = deserialize_pte_binary(file).program
    found = []
    for plan in sorted(program.execution_plan, key=lambda each: each.name):
        for delegate in plan.delegates:
            assert delegate.processed.location.name == "INLINE"
            data = program.backend_delegate_data[delegate.processed.index].data
            found.append((delegate.id, bytes(data)))
    return found


def program_made(module: Any, target: str) -> bytes:
    """Returns the program of a delegate, lowered by `tosaic.lower` with its dim orders."""
    program = module.original_module
    nodes = {node.name: node for node in program.graph.nodes}
    sides = {"inputs": program.graph_signature.user_inputs, "outputs": program.graph_signature.user_outputs}
    orders: Any = {
        side: {i: tuple(nodes[name].meta["val"].dim_order()) for i, name in enumerate(names)}
        for side, names in sides.items()
    }
    return tosaic.lower(program, target=target, orders=orders).to_bytes()


def run(manager: Any, inputs: Sequence[Any], *, on: str = "tosaic", method: str = "forward") -> Arrays:
    """Runs a lowered program with its TOSA payloads on tosaic's executor, or on the reference model."""
    engine = run_file if on == "tosaic" else run_file_on_reference_model

    def run_arrays(file: bytes, arrays: Arrays) -> Arrays:
        import torch

        return engine(file, [torch.from_numpy(array) for array in arrays])

    with quiet():
        found = run_payloads(manager, tuple(inputs), engines={"TOSABackend": run_arrays}, method=method)
    return [each.detach().numpy() for each in found]


def differing_from_reference_model(manager: Any, inputs: Sequence[Any], *, method: str = "forward") -> int:
    """Returns the elements of the outputs that the reference model computes otherwise."""
    ours = run(manager, inputs, method=method)
    theirs = run(manager, inputs, on="reference", method=method)
    return sum(int((a != b).sum()) for a, b in zip(ours, theirs, strict=True))


def differing_payloads(manager: Any, target: str) -> int:
    """Returns the number of TOSA payloads that differ from `tosaic.lower`'s file of the same program."""
    return sum(bytes(each.processed_bytes) != program_made(each, target) for each in modules_of(manager))
