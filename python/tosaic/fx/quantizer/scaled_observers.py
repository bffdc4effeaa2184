"""Observers of products and quotients by numbers, which have the integers of their operands.

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
from tosaic.fx.quantizer.joined_observers import has_seen_samples


class ScaledObservers:
    """The observers of a graph between which factors are.

    Parameters
    ----------
    results : sequence of (slot, slot, float)
        An operand, the result of its product by a number, each the first slot of its sharing group, and the
        number.
    known : mapping of slot to Scale
        The scales of operands that have no observer.
    """

    def __init__(self, results: Sequence[tuple[Slot, Slot, float]], known: Mapping[Slot, Scale]) -> None:
        self.operands = {result: (operand, factor) for operand, result, factor in results}
        self.known = dict(known)
        self.observers: dict[Slot, Any] = {}

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots whose observers take part."""
        found = dict.fromkeys((*self.operands, *(operand for operand, _ in self.operands.values())))
        return tuple(slot for slot in found if slot not in self.known)

    def constructor(self, slot: Slot, made: Any) -> Any:
        """Returns a constructor of torchao's form, whose observer takes part."""
        return _Constructor(self, slot, made)

    def qparams(self, observer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the scale and zero point that an observer has among the others."""
        scale, zero_point = observer.own_qparams()
        slot = next((slot for slot, each in self.observers.items() if each is observer), None)
        made = None if slot is None else self._scaled(slot)
        if made is None:
            return scale, zero_point
        return torch.full_like(scale, made.scale), torch.full_like(zero_point, made.zero_point)

    def _scaled(self, slot: Slot) -> Scale | None:
        """Returns the scale of a result that follows from its operand's scale."""
        operand, factor = self.operands.get(slot, (None, 1.0))
        source = None if operand is None else self._scale(operand)
        own = _own_scale(self.observers.get(slot))
        if source is None or own is None:
            return None
        is_symmetric = "symmetric" in str(self.observers[slot].qscheme)
        made = scaled_by(source, factor, is_symmetric=is_symmetric)
        is_alike = made is not None and (made.dtype, made.qmin, made.qmax) == (own.dtype, own.qmin, own.qmax)
        return made if is_alike else None

    def _scale(self, slot: Slot) -> Scale | None:
        return self.known.get(slot) or self._scaled(slot) or _own_scale(self.observers.get(slot))


def _own_scale(observer: Any) -> Scale | None:
    if observer is None or not has_seen_samples(observer):
        return None
    scale, zero_point = observer.own_qparams()
    return Scale(float(scale), int(zero_point), str(observer.dtype), observer.quant_min, observer.quant_max)


class _Constructor:
    """What torchao's prepare calls as ``constructor.with_args(dtype=..., ...)()``."""

    def __init__(self, scaled: ScaledObservers, slot: Slot, made: Any) -> None:
        self._scaled, self._slot, self._made = scaled, slot, made
        self.__name__ = "Scaled"

    def with_args(self, **options: Any) -> _Constructor:
        """Returns the constructor with further options."""
        return _Constructor(self._scaled, self._slot, self._made.with_args(**options))

    def __call__(self, **options: Any) -> Any:
        """Makes an observer."""
        observer = self._made(**options)
        observer.joins = self._scaled
        self._scaled.observers[self._slot] = observer
        return observer

    def __deepcopy__(self, _: Any) -> _Constructor:
        """Returns itself: torchao copies the fields of specs, and the observers belong to one graph."""
        return self
