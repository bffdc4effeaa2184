"""Lowers exported programs with ExecuTorch's TOSA backend, and runs its files on two engines.

In its files, a depthwise convolution has one weight zero point per channel, which the specification does not
allow. Our reader accepts them if they are all equal. The reference model accepts them too.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import tosaic
from executorch.exir.lowered_backend_module import get_lowered_submodules
from tosaic import _core
from tosaic.comparing.compare_programs import fit_to_ports
from tosaic.executorch import run_payloads

from models.zoo import quiet

__all__ = [
    "WithDelegates",
    "delegates_of",
    "lower_with_executorch",
    "operators_of",
    "run_file",
    "run_file_on_reference_model",
    "transposes_of",
]

Arrays = list[np.ndarray[Any, Any]]


def lower_with_executorch(
    exported: torch.export.ExportedProgram, target: str
) -> torch.export.ExportedProgram:
    """Returns the program with the delegates that Arm's partitioner makes.

    Their `.tosa` files are included.
    """
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
    from executorch.exir import to_edge_transform_and_lower

    with quiet(), contextlib.redirect_stdout(io.StringIO()):
        partitioner = TOSAPartitioner(TosaCompileSpec(target))
        edge = to_edge_transform_and_lower(exported, partitioner=[partitioner])
    return edge.exported_program()


def delegates_of(program: torch.export.ExportedProgram) -> list[bytes]:
    """Returns the `.tosa` files in the program."""
    return [module.processed_bytes for _, module, _ in get_lowered_submodules(program.graph_module)]


class WithDelegates:
    """Runs ExecuTorch's program: delegates with the function `run`, all other calls with torch."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        run: Callable[[bytes, Sequence[torch.Tensor]], Arrays] | None = None,
    ) -> None:
        self._program = program
        self._run = run or run_file

    def run(self, *args: torch.Tensor) -> Arrays:
        backends = {each.backend_id for _, each, _ in get_lowered_submodules(self._program.graph_module)}
        outputs = run_payloads(self._program, args, engines=dict.fromkeys(backends, self._run_arrays))
        return [tensor.numpy() for tensor in outputs]

    def _run_arrays(self, file: bytes, arrays: Arrays) -> Arrays:
        return self._run(file, [torch.from_numpy(array) for array in arrays])


def run_file(file: bytes, args: Sequence[torch.Tensor]) -> Arrays:
    """Runs a `.tosa` file on our executor."""
    program = tosaic.program.from_graph(_core.deserialize(file))
    return program.run_arrays(fit_to_ports([a.detach().numpy() for a in args], program.inputs))


def run_file_on_reference_model(file: bytes, args: Sequence[torch.Tensor]) -> Arrays:
    """Runs a `.tosa` file on the reference model.

    Raises
    ------
    RuntimeError
        The status of the run is not VALID.
    """
    import tosa_reference_model

    outputs, status = tosa_reference_model.run(
        file, [a.detach().contiguous().numpy() for a in args], tosa_level="NONE"
    )
    if status != tosa_reference_model.GraphStatus.TOSA_VALID:
        raise RuntimeError(f"the reference model's status is {status.name}")
    return [np.ascontiguousarray(output) for output in outputs]


def operators_of(file: bytes) -> int:
    """Returns the number of operators of a `.tosa` file, without CONST and CONST_SHAPE."""
    from tosa.Op import Op

    ops = [block.Operators(i).Op() for block in _blocks(file) for i in range(block.OperatorsLength())]
    return sum(op not in (Op.CONST, Op.CONST_SHAPE) for op in ops)


def transposes_of(file: bytes) -> list[tuple[int, int]]:
    """Returns, for each TRANSPOSE of a `.tosa` file: the number of elements, and the bits of one element."""
    from tosa.DType import DType
    from tosa.Op import Op

    bits = {getattr(DType, name): size for name, size in _BITS.items()}
    out = []
    for block in _blocks(file):
        tensors = [block.Tensors(i) for i in range(block.TensorsLength())]
        by_name = {tensor.Name(): tensor for tensor in tensors}
        for i in range(block.OperatorsLength()):
            operator = block.Operators(i)
            if operator.Op() != Op.TRANSPOSE:
                continue
            moved = by_name[operator.Outputs(0)]
            out.append((int(np.prod(moved.ShapeAsNumpy())), bits[moved.Type()]))
    return out


_BITS = {"BOOL": 8, "INT4": 4, "INT8": 8, "INT16": 16, "INT32": 32, "INT48": 48}
_BITS |= {"FP16": 16, "BF16": 16, "FP32": 32}


def _blocks(file: bytes) -> list[Any]:
    from tosa.TosaGraph import TosaGraph

    graph = TosaGraph.GetRootAsTosaGraph(file)
    return [
        graph.Regions(i).Blocks(j)
        for i in range(graph.RegionsLength())
        for j in range(graph.Regions(i).BlocksLength())
    ]
