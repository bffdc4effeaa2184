"""Observers of operands and results of joins (cat, stack): a join's tensors share a scale if ranges agree.

Each observer sees its own tensor. When `convert_pt2e` asks for scales, all observers of a graph know theirs,
and `tosaic.annotation.joins.takers` decides which take the scale of the result::

    joins = JoinedScales([(Output("conv"), Output("cat"))])
    QuantizationSpec(torch.int8, joins.constructor(Output("conv"), TosaicHistogramObserver))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tosaic.annotation.joins import Scale, takers
from tosaic.annotation.specs import Slot


class RelatedObservers:
    """Observers of a graph whose scales depend on one another.

    Attributes
    ----------
    observers : dict of slot to observer
        Those that torchao has made.
    name : str
        The ``__name__`` of the constructors, for reports.
    """

    name = ""

    def __init__(self) -> None:
        self.observers: dict[Slot, Any] = {}

    def constructor(self, slot: Slot, made: Any) -> Any:
        """Wraps a constructor of torchao's form: it registers each observer that it makes for the slot."""
        return _Constructor(self, slot, made)

    def slot_of(self, observer: Any) -> Slot | None:
        """Returns the slot of a registered observer, else None."""
        return next((slot for slot, each in self.observers.items() if each is observer), None)


class JoinedScales(RelatedObservers):
    """The observers of a graph's joins, some of which take the scale of another one.

    Parameters
    ----------
    pairs : sequence of (slot, slot)
        An operand of a join and its result, each the first slot of its sharing group.
    """

    name = "Joined"

    def __init__(self, pairs: Sequence[tuple[Slot, Slot]]) -> None:
        super().__init__()
        self.pairs = tuple(pairs)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots whose observers are registered."""
        return tuple(dict.fromkeys(slot for pair in self.pairs for slot in pair))

    def qparams(self, observer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the scale and zero point of an observer: its own, or those that it takes from another."""
        known = {slot: own_scale(each) for slot, each in self.observers.items()}
        scales = {slot: scale for slot, scale in known.items() if scale is not None}
        own = self.slot_of(observer)
        chosen = None if own is None else takers(self.pairs, scales).get(own)
        found = observer if chosen is None else self.observers[chosen]
        qparams: tuple[torch.Tensor, torch.Tensor] = found.own_qparams()
        return qparams


def own_scale(observer: Any) -> Scale | None:
    """Returns the scale that follows from the samples of an observer; None without samples."""
    if not observer.min_val <= observer.max_val:
        return None
    scale, zero_point = observer.own_qparams()
    return Scale(float(scale), int(zero_point), str(observer.dtype), observer.quant_min, observer.quant_max)


class _Constructor:
    """A constructor that torchao's prepare calls as ``constructor.with_args(dtype=..., ...)()``."""

    def __init__(self, related: RelatedObservers, slot: Slot, made: Any) -> None:
        self._related, self._slot, self._made = related, slot, made
        self.__name__ = related.name

    def with_args(self, **options: Any) -> _Constructor:
        """Returns the constructor with further options."""
        return _Constructor(self._related, self._slot, self._made.with_args(**options))

    def __call__(self, **options: Any) -> Any:
        """Makes an observer."""
        observer = self._made(**options)
        observer.joins = self._related
        self._related.observers[self._slot] = observer
        return observer

    def __deepcopy__(self, _: Any) -> _Constructor:
        """Returns itself: torchao copies the fields of specs, and the observers belong to one graph."""
        return self
