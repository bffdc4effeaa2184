"""Warns of results whose largest numbers leave few integers to the others.

The observer of a result, if it has a histogram, calls `tosaic.annotation.crowded` when it chooses its scale
at conversion. If each operator has a scale of its own (`every_operator`), all results are checked, since a
selection then shares one scale with its operands. Otherwise, only results that combine the numbers of several
operands are checked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from tosaic import _core
from tosaic.annotation.crowded import HIDING_REMEDY, LARGEST_NEAR, crowded_numbers

_LOG = logging.getLogger(__name__)
_ATEN = torch.ops.aten
_SHARING = frozenset(
    (
        _ATEN.add,
        _ATEN.add_,
        _ATEN.cat,
        _ATEN.constant_pad_nd,
        _ATEN.index_fill,
        _ATEN.index_fill_,
        _ATEN.index_put,
        _ATEN.index_put_,
        _ATEN.masked_fill,
        _ATEN.masked_fill_,
        _ATEN.masked_scatter,
        _ATEN.maximum,
        _ATEN.minimum,
        _ATEN.nan_to_num,
        _ATEN.pad,
        _ATEN.scatter,
        _ATEN.scatter_,
        _ATEN.select_scatter,
        _ATEN.slice_scatter,
        _ATEN.stack,
        _ATEN.sub,
        _ATEN.sub_,
        _ATEN.where,
    )
)
_OWN_SCALES = "A configuration without every_operator gives operands scales of their own"
_SEPARATELY = "If they are results, return or read the operands of '{}' separately"


class NoteOfCrowdedNumbers:
    """A result whose largest numbers may leave few integers to the others; its observer refers to it.

    Parameters
    ----------
    call : str
    remedy : str
        A second remedy for the warning, for largest numbers that do not only mask others.
    """

    def __init__(self, call: str, remedy: str) -> None:
        self._call = call
        self._remedy = remedy
        self._near: _core.Histogram | None = None
        self._noted = False

    def watch(self, observer: Any, samples: np.ndarray[Any, Any]) -> None:
        """Counts numbers that the histogram would count as zero next to far larger numbers."""
        is_near = max(-float(samples.min()), float(samples.max())) <= LARGEST_NEAR
        if self._near is None and is_near:
            return
        if self._near is None:
            self._near = _core.Histogram()
            for each in observer.histograms:
                self._near.merge(each)
        self._near.observe(samples if is_near else samples[np.abs(samples) <= LARGEST_NEAR])

    def note(self, observer: Any, scale: torch.Tensor, zero_point: torch.Tensor) -> None:
        """Warns once if the largest numbers of a histogram leave few integers to all others."""
        histograms: Any = getattr(observer, "histograms", ())
        if self._noted or scale.numel() != 1 or len(histograms) != 1:
            return
        integers = observer.quant_min, observer.quant_max
        found = crowded_numbers(histograms[0], float(scale), int(zero_point), *integers, near=self._near)
        if found is None:
            return
        self._noted = True
        _LOG.warning(
            "the numbers of '%s' from %.3g to %.3g have %d of the %s integers, since others are about %.3g. "
            "%s. %s",
            self._call,
            found.least,
            found.greatest,
            found.integers,
            f"{integers[1] - integers[0] + 1:,}",
            found.beside,
            HIDING_REMEDY,
            self._remedy,
        )


def note_crowded_numbers(observers: Mapping[Any, Any], *, every_operator: bool) -> None:
    """Makes the observers of results warn if most of their numbers have few integers.

    Parameters
    ----------
    observers : mapping
        By node, or by edge (node, reader): the observer, or the fake-quantize module that has it.
    every_operator : bool
        Each operator has a scale of its own.
    """
    known = set()
    for place, module in observers.items():
        node = place if isinstance(place, Node) else place[0]
        observer = getattr(module, "activation_post_process", module)
        is_asked = every_operator or getattr(node.target, "overloadpacket", None) in _SHARING
        if node.op != "call_function" or not is_asked or not hasattr(observer, "notes"):
            continue
        if id(observer) not in known:
            known.add(id(observer))
            remedy = _OWN_SCALES if every_operator else _SEPARATELY.format(node.name)
            observer.notes = (*observer.notes, NoteOfCrowdedNumbers(node.name, remedy))
