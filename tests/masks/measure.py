"""Quantizes and lowers an attention, and compares both with floats on inputs that calibration did not see."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tosaic

from masks.networks import VALUES, images, masks, network, samples_of

DOORS = ("quantize", "Quantizer")
FLOOR_DB = 6.0  # below the same network with a mask of bools


@dataclass(frozen=True)
class Accuracy:
    """SQNR in dB against the results of the float network: of the quantized and of the lowered program."""

    quantized: float
    lowered: float


def decibels(found: Any, exact: Any) -> float:
    exact = np.asarray(exact, np.float64)
    noise = np.square(np.asarray(found, np.float64) - exact).sum()
    return float(10 * np.log10(np.square(exact).sum() / noise)) if noise > 0 else float("inf")


def quantized(model: torch.nn.Module, samples: Sequence[tuple[Any, ...]], door: str, config: Any) -> Any:
    exported = torch.export.export(model, samples[0])
    if door == "quantize":
        return tosaic.quantize(exported, list(samples), config=config, progress=False)
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(exported.module(), tosaic.Quantizer(config))
        for sample in samples:
            prepared(*sample)
        return torch.export.export(convert_pt2e(prepared), samples[0])


def accuracy(
    model: torch.nn.Module,
    samples: Sequence[tuple[Any, ...]],
    tests: Sequence[tuple[Any, ...]],
    door: str,
    config: Any = None,
) -> Accuracy:
    """Quantizes on the samples and measures on the tests. The worst test counts."""
    config = config or tosaic.QConfig.int8()
    program = quantized(model, samples, door, config)
    wide = config.precisions()[0].activation.dtype == "int16"
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+int16" if wide else "TOSA-1.0+INT")
    runs = program.run if door == "quantize" else program.module()
    worst = Accuracy(float("inf"), float("inf"))
    for test in tests:
        with torch.no_grad():
            exact = model(*test).numpy()
            found = runs(*test)
        worst = Accuracy(
            min(worst.quantized, decibels(found if door == "quantize" else found.detach().numpy(), exact)),
            min(worst.lowered, decibels(lowered.run(*test), exact)),
        )
    return worst


def of_spelling(spelling: str, value: str, is_input: bool, door: str, config: Any = None) -> Accuracy:
    """The accuracy of a spelling: calibrated on three masks, and measured on two others."""
    number = VALUES[value]
    hiding = masks(spelling, number, 5)
    if is_input:
        calls = samples_of(images(5), hiding)
        return accuracy(network(spelling, number), calls[:3], calls[3:], door, config)
    calls = samples_of(images(5), None)
    return accuracy(network(spelling, number, hiding[0]), calls[:3], calls[3:], door, config)


def of_bools(door: str, config: Any = None) -> Accuracy:
    """The accuracy if the padding mask is a bool tensor, with which other spellings are compared."""
    return of_spelling("scores.masked_fill(bool, value)", "finfo.min", True, door, config)
