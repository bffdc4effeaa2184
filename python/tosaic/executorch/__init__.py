"""The bridge to ExecuTorch. Only this folder imports ExecuTorch, and only when a function needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosaic.base.extras import naming_extras
from tosaic.executorch.conversions import ConversionsOutside, conversion
from tosaic.executorch.cortex_m.program import cortex_m_program
from tosaic.executorch.decomposition import decompose_for_arm
from tosaic.executorch.delegates.payload_runs import run_payloads
from tosaic.executorch.delegates.runtime_ids import set_runtime_ids
from tosaic.executorch.export_recipe import export_recipe
from tosaic.executorch.saving import save_pte
from tosaic.executorch.wrapping.partitioners import (
    combine_partitioners,
    layout_pass,
    order_conversions,
    wrap_partitioner,
)
from tosaic.partitions.kernel_plan import KernelNode, KernelProgram
from tosaic.pte.sidecar import PteSidecar, SidecarDelegate, SidecarMethod, pte_sidecar

if TYPE_CHECKING:
    from tosaic.executorch.delegates.tosaic_partitioner import TosaicPartitioner
from tosaic.executorch.sampler_shaders import sampler_shaders

__all__ = [
    "ConversionsOutside",
    "KernelNode",
    "KernelProgram",
    "SidecarDelegate",
    "SidecarMethod",
    "PteSidecar",
    "TosaicPartitioner",
    "combine_partitioners",
    "conversion",
    "cortex_m_program",
    "decompose_for_arm",
    "export_recipe",
    "layout_pass",
    "order_conversions",
    "pte_sidecar",
    "run_payloads",
    "save_pte",
    "set_runtime_ids",
    "sampler_shaders",
    "wrap_partitioner",
]


def __getattr__(name: str) -> Any:
    if name != "TosaicPartitioner":
        raise AttributeError(f"module 'tosaic.executorch' has no attribute {name!r}")
    with naming_extras("tosaic.executorch.TosaicPartitioner"):
        from tosaic.executorch.delegates.tosaic_partitioner import TosaicPartitioner

    return TosaicPartitioner
