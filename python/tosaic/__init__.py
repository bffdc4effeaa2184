"""tosaic: from torch.export to verified TOSA.

`import tosaic` loads the table of verbs alone: each public name is loaded when it is first used. The package
needs numpy only. Only `tosaic.fx` imports torch, and only when it reads a program of torch (or the demo
runs).
"""

from __future__ import annotations

from tosaic import verbs  # noqa: F401 - binds what methods of classes call

TYPE_CHECKING = False  # that of `typing`, which takes longer to load than the rest

if TYPE_CHECKING:
    from typing import Any

    from tosaic._core import (
        Constant,
        Error,
        Graph,
        InternalError,
        InvalidGraph,
        LayoutMismatch,
        Node,
        QuantMismatch,
        SpecViolation,
        UnsupportedOp,
        Value,
        __version__,
    )
    from tosaic.annotation.config import QConfig
    from tosaic.api.calls import check, compare, from_exported, from_graph, lower, open_program, partition
    from tosaic.base.problems import CheckResult, Problem
    from tosaic.base.quantization import QParams
    from tosaic.base.reading import MissingFileError, ReadError
    from tosaic.base.writing import WriteError
    from tosaic.exporting.call import export_model
    from tosaic.exporting.checks import StageCheck
    from tosaic.exporting.result import CheckError, ExportResult
    from tosaic.exporting.scenario import Scenario, load_scenario
    from tosaic.fx import compose_quantizers, fold_norms, wrap_quantizer
    from tosaic.fx.io.extract_io import extract_io_quant
    from tosaic.fx.quantizer.quantizer import Quantizer
    from tosaic.lowering.lowered import Lowered
    from tosaic.lowering.pipeline import Pass, Pipeline, Step
    from tosaic.lowering.rewriter import Rewriter
    from tosaic.lowering.samplers import custom_samplers, rgba, rgba_pass
    from tosaic.lowering.tosa_file import load_tosa
    from tosaic.memory.buffers import MemoryArena, MemoryBuffer
    from tosaic.memory.plan import MemoryComparison, MemoryPlan
    from tosaic.partitions.claimant import Claimant, ClaimantRule, Reason, Verdict
    from tosaic.partitions.plan import (
        Border,
        Group,
        NodePlace,
        PartitionPlan,
        QuantizationPlace,
        Refusal,
    )
    from tosaic.partitions.split_folder import load_split
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.ports.foreign import ForeignOp, QuantizedArray, TensorSpec
    from tosaic.ports.io_quant import IoQuant, PortQuant
    from tosaic.ports.ports import Port, PortTensor
    from tosaic.profiling.lowering import LoweringProfile, LoweringStep
    from tosaic.profiling.peak import MachinePeak
    from tosaic.profiling.profile import Profile, ProfileRun, ProfileShare
    from tosaic.profiling.steps import NodeOrigin, ProfiledNode, ProfiledStep
    from tosaic.program.archive import load
    from tosaic.program.comparison import CompareRow, Comparison, Metrics, ModelRow
    from tosaic.program.model_keys import Nodes
    from tosaic.program.models import GraphCall, NodeCall
    from tosaic.program.prepared import Prepared
    from tosaic.program.program import Program
    from tosaic.pte.file import PteFile, PteMethod, load_pte
    from tosaic.pte.kernel_names import BackendUse, Kernel, KernelList, KernelUse, KernelVariant
    from tosaic.pte.method_writer import PtePayload
    from tosaic.pte.plain import PteDelegate, PteTensor
    from tosaic.pte.save import save_pte
    from tosaic.quantizing.explanation import (
        FloatOperator,
        QuantizationExplanation,
        QuantizedValue,
        explain_quantization,
    )
    from tosaic.quantizing.quantize_program import quantize
    from tosaic.quantizing.quantized_program import QuantizedProgram
    from tosaic.quantizing.sensitivities import LayerSensitivity, Mix, Sensitivity
    from tosaic.quantizing.sensitivity import sensitivity
    from tosaic.recipes.recipe import Recipe
    from tosaic.registration.listing import kernel_list
    from tosaic.report.document import Report

_HOME = {
    "check": "api.calls",
    "compare": "api.calls",
    "from_exported": "api.calls",
    "from_graph": "api.calls",
    "lower": "api.calls",
    "open_program": "api.calls",
    "partition": "api.calls",
    "Border": "partitions.plan",
    "Claimant": "partitions.claimant",
    "Verdict": "partitions.claimant",
    "Reason": "partitions.claimant",
    "ClaimantRule": "partitions.claimant",
    "Group": "partitions.plan",
    "NodePlace": "partitions.plan",
    "PartitionPlan": "partitions.plan",
    "QuantizationPlace": "partitions.plan",
    "Refusal": "partitions.plan",
    "SplitLowered": "partitions.split_lowered",
    "quantize": "quantizing.quantize_program",
    "QuantizedProgram": "quantizing.quantized_program",
    "sensitivity": "quantizing.sensitivity",
    "LayerSensitivity": "quantizing.sensitivities",
    "Mix": "quantizing.sensitivities",
    "Sensitivity": "quantizing.sensitivities",
    "compose_quantizers": "fx",
    "fold_norms": "fx",
    "wrap_quantizer": "fx",
    "load": "program.archive",
    "load_tosa": "lowering.tosa_file",
    "load_pte": "pte.file",
    "kernel_list": "registration.listing",
    "KernelList": "pte.kernel_names",
    "Kernel": "pte.kernel_names",
    "KernelUse": "pte.kernel_names",
    "KernelVariant": "pte.kernel_names",
    "BackendUse": "pte.kernel_names",
    "PtePayload": "pte.method_writer",
    "save_pte": "pte.save",
    "PteFile": "pte.file",
    "PteMethod": "pte.file",
    "PteDelegate": "pte.plain",
    "PteTensor": "pte.plain",
    "load_split": "partitions.split_folder",
    "export_model": "exporting.call",
    "load_scenario": "exporting.scenario",
    "CheckError": "exporting.result",
    "ExportResult": "exporting.result",
    "Scenario": "exporting.scenario",
    "StageCheck": "exporting.checks",
    "Recipe": "recipes.recipe",
    "explain_quantization": "quantizing.explanation",
    "extract_io_quant": "fx.io.extract_io",
    "custom_samplers": "lowering.samplers",
    "rgba": "lowering.samplers",
    "rgba_pass": "lowering.samplers",
    "IoQuant": "ports.io_quant",
    "PortQuant": "ports.io_quant",
    "FloatOperator": "quantizing.explanation",
    "QuantizationExplanation": "quantizing.explanation",
    "QuantizedValue": "quantizing.explanation",
    "ForeignOp": "ports.foreign",
    "QuantizedArray": "ports.foreign",
    "TensorSpec": "ports.foreign",
    "Pipeline": "lowering.pipeline",
    "Pass": "lowering.pipeline",
    "Step": "lowering.pipeline",
    "Rewriter": "lowering.rewriter",
    "Program": "program.program",
    "Lowered": "lowering.lowered",
    "CheckResult": "base.problems",
    "Problem": "base.problems",
    "Prepared": "program.prepared",
    "MemoryArena": "memory.buffers",
    "MemoryBuffer": "memory.buffers",
    "MemoryComparison": "memory.plan",
    "MemoryPlan": "memory.plan",
    "Nodes": "program.model_keys",
    "NodeCall": "program.models",
    "GraphCall": "program.models",
    "Profile": "profiling.profile",
    "ProfileRun": "profiling.profile",
    "ProfileShare": "profiling.profile",
    "ProfiledStep": "profiling.steps",
    "ProfiledNode": "profiling.steps",
    "NodeOrigin": "profiling.steps",
    "MachinePeak": "profiling.peak",
    "LoweringProfile": "profiling.lowering",
    "LoweringStep": "profiling.lowering",
    "Port": "ports.ports",
    "PortTensor": "ports.ports",
    "QParams": "base.quantization",
    "QConfig": "annotation.config",
    "Quantizer": "fx.quantizer.quantizer",
    "Comparison": "program.comparison",
    "CompareRow": "program.comparison",
    "Metrics": "program.comparison",
    "ModelRow": "program.comparison",
    "Report": "report.document",
    "ReadError": "base.reading",
    "MissingFileError": "base.reading",
    "WriteError": "base.writing",
    "Graph": "_core",
    "Node": "_core",
    "Value": "_core",
    "Constant": "_core",
    "Error": "_core",
    "InvalidGraph": "_core",
    "UnsupportedOp": "_core",
    "SpecViolation": "_core",
    "QuantMismatch": "_core",
    "LayoutMismatch": "_core",
    "InternalError": "_core",
    "__version__": "_core",
}
_SUBMODULES = (
    "accuracy",
    "annotation",
    "api",
    "archive",
    "cli",
    "comparison",
    "demo",
    "executorch",
    "exporting",
    "fx",
    "layout",
    "pipeline",
    "program",
    "recipes",
    "reference_model",
    "report",
    "testing",
)

__all__ = [
    "from_exported",
    "from_graph",
    "lower",
    "check",
    "compare",
    "explain_quantization",
    "export_model",
    "quantize",
    "sensitivity",
    "custom_samplers",
    "extract_io_quant",
    "kernel_list",
    "load",
    "load_pte",
    "load_scenario",
    "load_split",
    "load_tosa",
    "save_pte",
    "open_program",
    "partition",
    "rgba",
    "rgba_pass",
    "wrap_quantizer",
    "compose_quantizers",
    "fold_norms",
    "ForeignOp",
    "QuantizedArray",
    "TensorSpec",
    "Pipeline",
    "Pass",
    "Step",
    "Rewriter",
    "Program",
    "Lowered",
    "SplitLowered",
    "Claimant",
    "ClaimantRule",
    "Verdict",
    "Reason",
    "PartitionPlan",
    "Group",
    "Border",
    "NodePlace",
    "QuantizationPlace",
    "Refusal",
    "Prepared",
    "Profile",
    "ProfileRun",
    "ProfileShare",
    "ProfiledStep",
    "ProfiledNode",
    "NodeOrigin",
    "MachinePeak",
    "LoweringProfile",
    "LoweringStep",
    "PteFile",
    "PteMethod",
    "PteDelegate",
    "PtePayload",
    "PteTensor",
    "KernelList",
    "Kernel",
    "KernelUse",
    "KernelVariant",
    "BackendUse",
    "MemoryPlan",
    "MemoryBuffer",
    "MemoryArena",
    "MemoryComparison",
    "Nodes",
    "NodeCall",
    "GraphCall",
    "CheckResult",
    "Problem",
    "FloatOperator",
    "IoQuant",
    "PortQuant",
    "Port",
    "PortTensor",
    "QConfig",
    "QParams",
    "QuantizationExplanation",
    "QuantizedValue",
    "QuantizedProgram",
    "Sensitivity",
    "LayerSensitivity",
    "Mix",
    "Quantizer",
    "Comparison",
    "CompareRow",
    "ModelRow",
    "Metrics",
    "ExportResult",
    "StageCheck",
    "CheckError",
    "Scenario",
    "Recipe",
    "Report",
    "Graph",
    "Node",
    "Value",
    "Constant",
    "Error",
    "InvalidGraph",
    "UnsupportedOp",
    "SpecViolation",
    "QuantMismatch",
    "LayoutMismatch",
    "ReadError",
    "MissingFileError",
    "WriteError",
    "InternalError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None and name not in _SUBMODULES:
        raise AttributeError(f"module 'tosaic' has no attribute {name!r}")
    from importlib import import_module

    if home is None:
        return import_module(f"tosaic.{name}")
    from tosaic.base.extras import naming_extras

    with naming_extras(f"tosaic.{name}"):
        found = globals()[name] = getattr(import_module(f"tosaic.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES})
