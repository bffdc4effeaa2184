"""Quantized programs as ExecuTorch's Cortex-M backend computes them, and as tosaic does for this backend.

ExecuTorch's passes choose the multipliers, shifts, tables and zero points of each operator, and its Python
implementations of the operators compute the results. Nothing of tosaic is involved.
"""

from __future__ import annotations

import numpy as np
import torch
import tosaic
from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo
from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
from executorch.backends.cortex_m.passes.decompose_mean_pass import DecomposeMeanPass
from executorch.backends.cortex_m.target_config import CortexM, CortexMTargetConfig
from executorch.exir import to_edge
from tosaic import _core

__all__ = [
    "TARGET",
    "allocated",
    "backend_of",
    "called",
    "lowered",
    "of_executorch",
    "of_tosaic",
    "transformed",
]

TARGET = "TOSA-1.0+INT+doubleround"


def _annotated(program: torch.export.ExportedProgram, *arrays: torch.Tensor) -> torch.export.ExportedProgram:
    """Returns the program as the backend's quantizer leaves it.

    Means are average pools, and the nodes between quantize and dequantize nodes are marked as quantized.
    """
    module = DecomposeMeanPass().call(program.module(check_guards=False)).graph_module
    out = torch.export.export(module, arrays)
    for node in out.graph.nodes:
        if node.op == "call_function" and "quantized_decomposed" not in str(node.target):
            mark = {ArmAnnotationInfo.CUSTOM_META_KEY: dict(ArmAnnotationInfo(quantized=True))}
            node.meta["custom"] = node.meta.get("custom", {}) | mark
    return out


def transformed(
    program: torch.export.ExportedProgram, *arrays: torch.Tensor, cpu: CortexM = CortexM.M55
) -> torch.export.ExportedProgram:
    """Returns the program after the passes of the Cortex-M backend."""
    return backend_of(_annotated(program, *arrays), cpu)


def backend_of(
    program: torch.export.ExportedProgram, cpu: CortexM = CortexM.M55
) -> torch.export.ExportedProgram:
    """Returns a program of the Cortex-M quantizer after the passes of the backend."""
    edge = to_edge(program, compile_config=cortex_m_edge_compile_config())
    target = CortexMTargetConfig(cpu=cpu)
    return CortexMPassManager(edge.exported_program(), target_config=target).transform()


def called(program: torch.export.ExportedProgram) -> list[str]:
    """Returns the names of the operators that a transformed program calls, without their overloads."""
    names = (str(node.target) for node in program.graph.nodes if node.op == "call_function")
    return [name.removeprefix("<EdgeOpOverload: ").split(">")[0].rsplit(".", 1)[0] for name in names]


def of_executorch(
    program: torch.export.ExportedProgram, *arrays: torch.Tensor
) -> tuple[list[str], np.ndarray]:
    """Returns the operators that the Cortex-M backend calls, and the integers that it computes."""
    backend = transformed(program, *arrays)
    with torch.no_grad():
        result = backend.module(check_guards=False)(*arrays)
    return called(backend), np.asarray(result)


def lowered(program: torch.export.ExportedProgram, semantics: str = "cmsis-nn") -> _core.LoweredGraphs:
    """Returns the program lowered with the arithmetic of a backend."""
    return _core.lower(tosaic.from_exported(program).graph, pipeline=TARGET, semantics=semantics)


def of_tosaic(
    program: torch.export.ExportedProgram, *arrays: torch.Tensor, semantics: str = "cmsis-nn"
) -> np.ndarray:
    """Returns the integers that the lowered program computes."""
    (result,) = _core.Session(lowered(program, semantics).tosa).run([array.numpy() for array in arrays])
    return np.asarray(result)


def allocated(program: torch.export.ExportedProgram, cpu: CortexM) -> list[int]:
    """Returns the bytes that the passes allocate for each call of a kernel of a quantized program."""
    return [
        sum(buffer.meta["val"].nbytes for buffer in node.all_input_nodes if "alloc" in str(buffer.target))
        for node in backend_of(program, cpu).graph.nodes
        if node.op == "call_function" and "cortex_m" in str(node.target)
    ]
