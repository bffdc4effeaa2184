"""`layout_pass`: applies a layout plan as a pass of ExecuTorch.

ExecuTorch's passes recompute the strides of every call, so a plan that only annotates strides would be lost.
This pass inserts conversions (`tosaic.fx.apply_layout` with mode ``convert``): the planned orders of later
calls then follow from their operands, also through quantize and dequantize nodes.
"""

from __future__ import annotations

from typing import Any

from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult

from tosaic.fx.calls import apply_layout
from tosaic.fx.layouts.applied import AppliedLayout


class LayoutPass(ExportedProgramPassBase):  # type: ignore[misc]
    """What `tosaic.executorch.layout_pass` returns.

    Attributes
    ----------
    applied : list of AppliedLayout
        For each program that the pass was run on, the plan and the conversions.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.applied: list[AppliedLayout] = []

    def call(self, exported_program: Any) -> ExportedProgramPassResult:
        """Returns a program with the conversions of its layout plan."""
        applied = apply_layout(exported_program, mode="convert", **self._options)
        self.applied.append(applied)
        return ExportedProgramPassResult(applied.program, bool(applied.conversions or applied.changed))
