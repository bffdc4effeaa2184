"""Which tensors of a planned program are observed, and with which statistic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tosaic.annotation.choice import choose_observers
from tosaic.annotation.observers import MaskRange, MinMax, MovingAverage, Observer
from tosaic.annotation.specs import Observed
from tosaic.base.options import shown, unsupported
from tosaic.calibration.plan_program import PlannedProgram


@dataclass(frozen=True)
class Observations:
    """Which tensors feed which statistic.

    Attributes
    ----------
    watches : tuple of (str, int)
        Names of values, and the index of the statistic of each.
    kinds : tuple of tuple
        The kinds of the statistics, as `tosaic.calibration.worker.Job` has them.
    statistics_of : dict of int to tuple of int
        By position of the group in the plan: the indices of its statistics. A group has one statistic. But it
        has a moving average for each tensor: one average over several tensors would tend to the mean of their
        ranges. Groups of weights have none.
    observers : dict of int to Observer
        By position of the group: its observer.
    """

    watches: tuple[tuple[str, int], ...]
    kinds: tuple[tuple[Any, ...], ...]
    statistics_of: dict[int, tuple[int, ...]]
    observers: dict[int, Observer]


def observations(planned: PlannedProgram) -> Observations:
    """Returns what to observe for the slots of a plan: one statistic for the tensors of a sharing group.

    Raises
    ------
    UnsupportedOp
        A spec has a constructor of torchao's observers.
    """
    watches: list[tuple[str, int]] = []
    kinds: list[tuple[Any, ...]] = []
    statistics_of: dict[int, tuple[int, ...]] = {}
    observers: dict[int, Observer] = {}
    values = planned.graph.values
    chosen = choose_observers(planned.plan)
    for at, group in enumerate(planned.groups):
        if not isinstance(group.spec, Observed) or group.decided_by is None:
            continue
        observers[at] = _data(group.spec, chosen.get(group.decided_by))
        members = sorted({planned.value_of(slot) for slot in group.slots} - {-1})
        if all(values[each].kind == "constant" for each in members):
            continue
        first, kind = len(kinds), _kind_of(observers[at])
        if isinstance(observers[at], MovingAverage):
            watches += [(values[each].name, first + i) for i, each in enumerate(members)]
            kinds += [kind] * len(members)
        else:
            watches += [(values[each].name, first) for each in members]
            kinds.append(kind)
        statistics_of[at] = tuple(range(first, len(kinds)))
    return Observations(tuple(watches), tuple(kinds), statistics_of, observers)


def _data(spec: Observed, observer: Observer | None) -> Observer:
    if observer is not None:
        return observer
    raise unsupported(
        "quantize",
        "a spec has a constructor of torchao's observers, which run in torch only",
        expected="an observer of tosaic.annotation, such as MinMax()",
        got=shown(spec.observer),
    )


def _kind_of(observer: Observer) -> tuple[Any, ...]:
    if isinstance(observer, MinMax):
        return ("range",)
    if isinstance(observer, MovingAverage):
        return ("moving_range", observer.weight)
    if isinstance(observer, MaskRange):
        return ("mask_range",)
    return ("histogram",)
