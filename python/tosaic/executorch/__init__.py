"""The bridge to ExecuTorch. Only this folder imports ExecuTorch, and only when a function needs it."""

from tosaic.executorch.conversions import ConversionsOutside, conversion

__all__ = ["ConversionsOutside", "conversion"]
