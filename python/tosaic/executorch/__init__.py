"""The bridge to ExecuTorch. Only this folder imports ExecuTorch, and only when a function needs it."""

from tosaic.executorch.conversions import ConversionsOutside, conversion
from tosaic.executorch.decomposition import decompose_for_arm
from tosaic.executorch.payload_runs import run_payloads
from tosaic.executorch.sampler_shaders import sampler_shaders
from tosaic.executorch.wrapping import combine_partitioners, order_conversions, wrap_partitioner

__all__ = [
    "ConversionsOutside",
    "combine_partitioners",
    "conversion",
    "decompose_for_arm",
    "order_conversions",
    "run_payloads",
    "sampler_shaders",
    "wrap_partitioner",
]
