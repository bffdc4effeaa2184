"""Networks that other projects' quantizers convert with the PT2E flow of torchao."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

__all__ = ["QUANTIZERS", "converted", "laid_out_as_converted"]


def _xnnpack(*, per_channel: bool) -> Any:
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=per_channel))


def _arm() -> Any:
    from executorch.backends.arm.quantizer import TOSAQuantizer, get_symmetric_quantization_config
    from executorch.backends.arm.tosa import TosaSpecification

    quantizer = TOSAQuantizer(TosaSpecification.create_from_string("TOSA-1.0+INT"))
    return quantizer.set_global(get_symmetric_quantization_config(is_per_channel=True))


def _cortex_m() -> Any:
    from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer

    return CortexMQuantizer()


QUANTIZERS: dict[str, Callable[[], Any]] = {
    "xnnpack": lambda: _xnnpack(per_channel=True),
    "xnnpack per tensor": lambda: _xnnpack(per_channel=False),
    "arm": _arm,
    "cortex-m": _cortex_m,
}
"""By name: a function that creates a quantizer with its usual int8 configuration."""


def converted(module: nn.Module, samples: Sequence[tuple[torch.Tensor, ...]], quantizer: str) -> Any:
    """Calibrates the module on the samples, converts it, and returns the exported program.

    The Cortex-M quantizer accepts only convolutions in channels-last order, so module and samples are
    converted to channels last for it.
    """
    if quantizer == "cortex-m":
        module = module.to(memory_format=torch.channels_last)
        samples = [laid_out_as_converted(sample, quantizer) for sample in samples]
    return converted_with(module, samples, QUANTIZERS[quantizer]())


def converted_with(module: nn.Module, samples: Sequence[tuple[torch.Tensor, ...]], quantizer: Any) -> Any:
    """Does the same with a quantizer, an object."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.export.export(module.eval(), samples[0]).module(check_guards=False)
        prepared = prepare_pt2e(traced, quantizer)
        for sample in samples:
            prepared(*sample)
        return torch.export.export(convert_pt2e(prepared), samples[0])


def laid_out_as_converted(sample: tuple[torch.Tensor, ...], quantizer: str) -> tuple[torch.Tensor, ...]:
    """Returns the sample with the strides with which `converted` exports a program."""
    return tuple(map(_channels_last, sample)) if quantizer == "cortex-m" else sample


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
