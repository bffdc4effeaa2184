"""The bridge to ExecuTorch: the only folder that imports it, and not before it is asked to."""

from tosaic.executorch.conversions import ConversionsOutside, conversion

__all__ = ["ConversionsOutside", "conversion"]
