"""Vision transformers with random weights. They move much data: patches, windows and heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from layouts.modules import Sized

__all__ = ["VISION_TRANSFORMERS", "vision_transformer"]


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(pixel_values=pixels).logits
        return logits


def _segformer() -> tuple[nn.Module, int]:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return SegformerForSemanticSegmentation(SegformerConfig()), 128


def _mobilevit() -> tuple[nn.Module, int]:
    from transformers import MobileViTConfig, MobileViTForImageClassification

    return MobileViTForImageClassification(MobileViTConfig()), 256


def _swin() -> tuple[nn.Module, int]:
    from transformers import SwinConfig, SwinForImageClassification

    return SwinForImageClassification(SwinConfig()), 224


VISION_TRANSFORMERS: dict[str, Callable[[], tuple[nn.Module, int]]] = {
    "segformer_b0": _segformer,
    "mobilevit_s": _mobilevit,
    "swin_tiny": _swin,
}


def vision_transformer(name: str) -> Sized:
    """Returns the network of this name, with a random image of the size that it expects."""
    torch.manual_seed(0)
    model, size = VISION_TRANSFORMERS[name]()
    return Sized(name, _Logits(model.eval()).eval(), (torch.randn(1, 3, size, size),))
