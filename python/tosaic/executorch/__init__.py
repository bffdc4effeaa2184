"""The bridge to ExecuTorch. Only this folder imports ExecuTorch, and only when a function needs it."""

from tosaic.executorch.conversions import ConversionsOutside, conversion
from tosaic.executorch.decomposition import decompose_for_arm

__all__ = ["ConversionsOutside", "conversion", "decompose_for_arm"]
