"""Numbers that leave few integers to others with the same scale.

Where each operator has a scale of its own, a selection has one scale with its operands, and observers end
ranges only where few rules say that no reader notices::

    where(hidden, -256, x)     x is in -2..4, so that one step for both is 1: x has 7 integers

The observer of a result, which has a histogram, says so when it chooses its scale at conversion.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.fx import Node

__all__ = ["CrowdedNumbers", "note_crowded_numbers"]

_LOG = logging.getLogger(__name__)
_FEW = 16  # integers, as for the operands of joins
_EACH = 4  # numbers for each integer: fewer are truth values or counts
_LEAST_RATIO = 100.0  # of the squares of numbers to those of their errors: 20 dB


class CrowdedNumbers:
    """A result whose largest numbers may leave few integers to the others, as its observer knows it.

    Parameters
    ----------
    call : str
    """

    def __init__(self, call: str) -> None:
        self._call = call
        self._noted = False

    def note(self, observer: Any, scale: torch.Tensor, zero_point: torch.Tensor) -> None:
        """Warns once if the largest numbers of a histogram leave few integers to all others."""
        histograms: Any = getattr(observer, "histograms", ())
        if self._noted or scale.numel() != 1 or len(histograms) != 1 or not histograms[0].range.finite:
            return
        unit, zero = float(scale), int(zero_point)
        (histogram,) = histograms
        numbers: Any = np.array(histogram.means, np.float64)
        counts: Any = np.array([count for _, count in histogram.counts], np.float64)
        integers = np.clip(np.rint(numbers / unit) + zero, observer.quant_min, observer.quant_max) - zero
        magnitudes = np.abs(numbers)
        largest = integers[magnitudes.argmax()]
        others = (magnitudes < magnitudes.max() / 2) & (integers != largest)
        used = len(np.unique(integers[others]))
        if not 0 < used < _FEW or others.sum() <= _EACH * used:
            return
        numbers, counts, integers = numbers[others], counts[others], integers[others]
        error = float((counts * (numbers - integers * unit) ** 2).sum())
        if float((counts * numbers**2).sum()) >= _LEAST_RATIO * error:
            return
        self._noted = True
        _LOG.warning(
            "the numbers of '%s' from %.3g to %.3g have %d of the %s integers, since others are about %.3g. "
            "If those only hide elements, make them about ten times the largest of the first. A "
            "configuration without every_operator gives operands scales of their own",
            self._call,
            numbers.min(),
            numbers.max(),
            used,
            f"{observer.quant_max - observer.quant_min + 1:,}",
            largest * unit,
        )


def note_crowded_numbers(observers: Mapping[Any, Any]) -> None:
    """Makes the observers of results warn if most of their numbers have few integers.

    Parameters
    ----------
    observers : mapping
        By node, or by edge (node, reader): the observer, or the fake-quantize module that has it.
    """
    known = set()
    for place, module in observers.items():
        node = place if isinstance(place, Node) else place[0]
        observer = getattr(module, "activation_post_process", module)
        if node.op == "call_function" and hasattr(observer, "notes") and id(observer) not in known:
            known.add(id(observer))
            observer.notes = (*observer.notes, CrowdedNumbers(node.name))
