"""Observers of products and quotients by numbers, whose integers are equal to those of their operands.

Each observer sees its own tensor. When `convert_pt2e` asks for scales, the observer of a result takes the
scale of its operand, times the factor (`tosaic.annotation.factors`)::

    scaled = ScaledObservers([(Output("matmul"), Output("mul"), 0.125)], known={})
    QuantizationSpec(torch.int8, scaled.constructor(Output("mul"), TosaicHistogramObserver))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tosaic.annotation.factors import scaled_by
from tosaic.annotation.joins import Scale
from tosaic.annotation.specs import Slot
from tosaic.fx.quantizer.joined_observers import RelatedObservers, own_scale


class ScaledObservers(RelatedObservers):
    """The observers of operands and results of products by a number.

    Parameters
    ----------
    results : sequence of (slot, slot, float)
        The operand, the result and the number of each product. A slot is the first one of its sharing group.
    known : mapping of slot to Scale
        The scales of operands that have no observer.
    """

    name = "Scaled"

    def __init__(self, results: Sequence[tuple[Slot, Slot, float]], known: Mapping[Slot, Scale]) -> None:
        super().__init__()
        self.operands = {result: (operand, factor) for operand, result, factor in results}
        self.known = dict(known)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots whose observers are registered."""
        found = dict.fromkeys((*self.operands, *(operand for operand, _ in self.operands.values())))
        return tuple(slot for slot in found if slot not in self.known)

    def qparams(self, observer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns scale and zero point of an observer: its operand's scale times the factor, or its own."""
        scale, zero_point = observer.own_qparams()
        slot = self.slot_of(observer)
        made = None if slot is None else self._scaled(slot)
        if made is None:
            return scale, zero_point
        return torch.full_like(scale, made.scale), torch.full_like(zero_point, made.zero_point)

    def _scaled(self, slot: Slot) -> Scale | None:
        """Returns the scale of a result if it follows from its operand's scale; else None."""
        operand, factor = self.operands.get(slot, (None, 1.0))
        source = None if operand is None else self._scale(operand)
        own = self._own(slot)
        if source is None or own is None:
            return None
        is_symmetric = "symmetric" in str(self.observers[slot].qscheme)
        made = scaled_by(source, factor, is_symmetric=is_symmetric)
        is_alike = made is not None and (made.dtype, made.qmin, made.qmax) == (own.dtype, own.qmin, own.qmax)
        return made if is_alike else None

    def _scale(self, slot: Slot) -> Scale | None:
        return self.known.get(slot) or self._scaled(slot) or self._own(slot)

    def _own(self, slot: Slot) -> Scale | None:
        observer = self.observers.get(slot)
        return None if observer is None else own_scale(observer)
