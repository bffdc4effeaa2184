"""The bridge to ExecuTorch. Only this folder imports ExecuTorch, and only when a function needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosaic.executorch.conversions import ConversionsOutside, conversion
from tosaic.executorch.decomposition import decompose_for_arm
from tosaic.executorch.payload_runs import run_payloads
from tosaic.executorch.runtime_ids import set_runtime_ids
from tosaic.executorch.wrapping import combine_partitioners, order_conversions, wrap_partitioner

if TYPE_CHECKING:
    from tosaic.executorch.tosaic_partitioner import TosaicPartitioner

__all__ = [
    "ConversionsOutside",
    "TosaicPartitioner",
    "combine_partitioners",
    "conversion",
    "decompose_for_arm",
    "order_conversions",
    "run_payloads",
    "set_runtime_ids",
    "wrap_partitioner",
]


def __getattr__(name: str) -> Any:
    if name != "TosaicPartitioner":
        raise AttributeError(f"module 'tosaic.executorch' has no attribute {name!r}")
    from tosaic.executorch.tosaic_partitioner import TosaicPartitioner

    return TosaicPartitioner
