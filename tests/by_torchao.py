"""A module that torchao's flow quantizes with `tosaic.Quantizer`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import tosaic
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

__all__ = ["quantized_by_torchao"]


def quantized_by_torchao(
    module: nn.Module, calls: Sequence[tuple[torch.Tensor, ...]], config: tosaic.QConfig | None = None
) -> Any:
    """Returns the exported program of the module, calibrated with the calls and converted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(torch.export.export(module, calls[0]).module(), tosaic.Quantizer(config))
        for call in calls:
            prepared(*call)
        return torch.export.export(convert_pt2e(prepared), calls[0])
