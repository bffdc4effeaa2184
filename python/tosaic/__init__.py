"""tosaic: from torch.export to verified TOSA.

`import tosaic` imports none of its submodules: each public name is loaded when it is first used. The package
needs numpy only. Only `tosaic.fx` imports torch, and only when it reads a program of torch (or the demo
runs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from tosaic.api import check, compare, from_exported, from_graph, lower, open_program, partition
    from tosaic.archive import load
    from tosaic.calibration.quantize_program import quantize
    from tosaic.calibration.quantized_program import QuantizedProgram
    from tosaic.calibration.sensitivity import sensitivity
    from tosaic.comparison import CompareRow, Comparison, Metrics, ModelRow
    from tosaic.explanation import (
        FloatOperator,
        QuantizationExplanation,
        QuantizedValue,
        explain_quantization,
    )
    from tosaic.exporting.call import export_model
    from tosaic.exporting.checks import StageCheck
    from tosaic.exporting.result import CheckError, ExportResult
    from tosaic.exporting.scenario import Scenario, load_scenario
    from tosaic.extract_io import extract_io_quant
    from tosaic.foreign import ForeignOp, QuantizedArray, TensorSpec
    from tosaic.fx import compose_quantizers, fold_norms, wrap_quantizer
    from tosaic.fx.annotations.quantizer import Quantizer
    from tosaic.io_quant import IoQuant, PortQuant
    from tosaic.lowered import Lowered
    from tosaic.memory.plan import MemoryArena, MemoryBuffer, MemoryComparison, MemoryPlan
    from tosaic.model_keys import Nodes
    from tosaic.models import GraphCall, NodeCall
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
    from tosaic.pipeline import Pass, Pipeline, Rewriter, Step
    from tosaic.ports import Port, PortTensor
    from tosaic.prepared import Prepared
    from tosaic.problems import CheckResult, Problem
    from tosaic.profiling.lowering import LoweringProfile, LoweringStep
    from tosaic.profiling.peak import MachinePeak
    from tosaic.profiling.profile import Profile, ProfileRun, ProfileShare
    from tosaic.profiling.steps import NodeOrigin, ProfiledNode, ProfiledStep
    from tosaic.program import Program
    from tosaic.pte.file import PteFile, PteMethod, load_pte
    from tosaic.pte.method_writer import PtePayload
    from tosaic.pte.plain import PteDelegate, PteTensor
    from tosaic.pte.save import save_pte
    from tosaic.quantization import QParams
    from tosaic.reading import MissingFileError, ReadError
    from tosaic.recipes.recipe import Recipe
    from tosaic.registration.kernels import BackendUse, Kernel, KernelList, KernelUse, KernelVariant
    from tosaic.registration.listing import kernel_list
    from tosaic.report import Report
    from tosaic.samplers import custom_samplers, rgba, rgba_pass
    from tosaic.sensitivities import LayerSensitivity, Mix, Sensitivity
    from tosaic.tosa_file import load_tosa
    from tosaic.writing import WriteError

_HOME = {
    "check": "api",
    "compare": "api",
    "from_exported": "api",
    "from_graph": "api",
    "lower": "api",
    "open_program": "api",
    "partition": "api",
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
    "quantize": "calibration.quantize_program",
    "QuantizedProgram": "calibration.quantized_program",
    "sensitivity": "calibration.sensitivity",
    "LayerSensitivity": "sensitivities",
    "Mix": "sensitivities",
    "Sensitivity": "sensitivities",
    "compose_quantizers": "fx",
    "fold_norms": "fx",
    "wrap_quantizer": "fx",
    "load": "archive",
    "load_tosa": "tosa_file",
    "load_pte": "pte.file",
    "kernel_list": "registration.listing",
    "KernelList": "registration.kernels",
    "Kernel": "registration.kernels",
    "KernelUse": "registration.kernels",
    "KernelVariant": "registration.kernels",
    "BackendUse": "registration.kernels",
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
    "explain_quantization": "explanation",
    "extract_io_quant": "extract_io",
    "custom_samplers": "samplers",
    "rgba": "samplers",
    "rgba_pass": "samplers",
    "IoQuant": "io_quant",
    "PortQuant": "io_quant",
    "FloatOperator": "explanation",
    "QuantizationExplanation": "explanation",
    "QuantizedValue": "explanation",
    "ForeignOp": "foreign",
    "QuantizedArray": "foreign",
    "TensorSpec": "foreign",
    "Pipeline": "pipeline",
    "Pass": "pipeline",
    "Step": "pipeline",
    "Rewriter": "pipeline",
    "Program": "program",
    "Lowered": "lowered",
    "CheckResult": "problems",
    "Problem": "problems",
    "Prepared": "prepared",
    "MemoryArena": "memory.plan",
    "MemoryBuffer": "memory.plan",
    "MemoryComparison": "memory.plan",
    "MemoryPlan": "memory.plan",
    "Nodes": "model_keys",
    "NodeCall": "models",
    "GraphCall": "models",
    "Profile": "profiling.profile",
    "ProfileRun": "profiling.profile",
    "ProfileShare": "profiling.profile",
    "ProfiledStep": "profiling.steps",
    "ProfiledNode": "profiling.steps",
    "NodeOrigin": "profiling.steps",
    "MachinePeak": "profiling.peak",
    "LoweringProfile": "profiling.lowering",
    "LoweringStep": "profiling.lowering",
    "Port": "ports",
    "PortTensor": "ports",
    "QParams": "quantization",
    "QConfig": "annotation.config",
    "Quantizer": "fx.annotations.quantizer",
    "Comparison": "comparison",
    "CompareRow": "comparison",
    "Metrics": "comparison",
    "ModelRow": "comparison",
    "Report": "report",
    "ReadError": "reading",
    "MissingFileError": "reading",
    "WriteError": "writing",
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
    from tosaic.extras import naming_extras

    with naming_extras(f"tosaic.{name}"):
        found = globals()[name] = getattr(import_module(f"tosaic.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES})
