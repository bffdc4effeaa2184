"""`describe`: makes the report of a result, with the function for the class of the result.

The function is imported when a result of the class is first shown, so only needed reports are loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tosaic.base.reportable import Reportable
    from tosaic.report.document import Report

DESCRIPTIONS = {
    "CheckResult": ("tosaic.report.check", "describe_check"),
    "Comparison": ("tosaic.report.comparison", "describe_comparison"),
    "DeviceCost": ("tosaic.report.cost", "describe_device_cost"),
    "ExportResult": ("tosaic.report.exporting", "describe_export"),
    "Io": ("tosaic.report.program", "describe_io"),
    "KernelList": ("tosaic.report.kernels", "describe_kernels"),
    "KernelProgram": ("tosaic.report.kernel_program", "describe_kernel_program"),
    "Layout": ("tosaic.report.layout", "describe_layout"),
    "Lowered": ("tosaic.report.program", "describe_lowered"),
    "LoweringProfile": ("tosaic.report.profile", "describe_lowering_profile"),
    "MemoryComparison": ("tosaic.report.memory", "describe_memory_comparison"),
    "MemoryPlan": ("tosaic.report.memory", "describe_memory_plan"),
    "NodePlace": ("tosaic.report.partition", "describe_place"),
    "PartitionPlan": ("tosaic.report.partition", "describe_partition"),
    "Pipeline": ("tosaic.report.pipeline", "describe_pipeline"),
    "Profile": ("tosaic.report.profile", "describe_profile"),
    "Program": ("tosaic.report.program", "describe_program"),
    "PteFile": ("tosaic.report.pte", "describe_pte"),
    "PteMethod": ("tosaic.report.pte", "describe_pte_method"),
    "QuantizationExplanation": ("tosaic.report.explanation", "describe_quantization"),
    "QuantizedProgram": ("tosaic.report.quantized", "describe_quantized"),
    "Resolution": ("tosaic.report.annotation", "describe_annotation"),
    "Sensitivity": ("tosaic.report.sensitivity", "describe_sensitivity"),
    "SplitLowered": ("tosaic.report.partition", "describe_split"),
}
"""By name of a tosaic class: the module and the name of its report function."""


def describe(result: Reportable) -> Report:
    """Makes the report of a result; `Reportable.report` calls this function.

    A class without an entry has the report of its base class.
    """
    kinds = (kind.__name__ for kind in type(result).__mro__ if kind.__module__.startswith("tosaic."))
    module, function = next(DESCRIPTIONS[name] for name in kinds if name in DESCRIPTIONS)
    return cast("Report", getattr(import_module(module), function)(result))
