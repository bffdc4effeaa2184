"""Which tensors of a planned program are observed, and what is remembered of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tosaic.annotation.observers import MinMax, MovingAverage
from tosaic.annotation.plan import Group
from tosaic.annotation.specs import Edge, Observed
from tosaic.calibration.plan_program import DEFAULT_OBSERVER, PlannedProgram

__all__ = ["Observations", "observations"]


@dataclass(frozen=True)
class Observations:
    """Which tensors feed which statistic.

    Attributes
    ----------
    watches : tuple of (str, int)
        Names of values, and the index of the statistic of each.
    kinds : tuple of tuple
        The kinds of the statistics, as `tosaic.calibration.worker.Job` has them.
    statistic_of : dict of int to int
        By position of the group in the plan: the index of its statistic. Groups of weights have none.
    observers : dict of int to object
        By position of the group: its observer.
    """

    watches: tuple[tuple[str, int], ...]
    kinds: tuple[tuple[Any, ...], ...]
    statistic_of: dict[int, int]
    observers: dict[int, Any]


def observations(planned: PlannedProgram) -> Observations:
    """Returns what to observe for the slots of a plan: each sharing group has one statistic."""
    watches: list[tuple[str, int]] = []
    kinds: list[tuple[Any, ...]] = []
    statistic_of: dict[int, int] = {}
    observers: dict[int, Any] = {}
    values = planned.graph.values
    for at, group in enumerate(planned.groups):
        if not isinstance(group.spec, Observed):
            continue
        observers[at] = _observer(planned, group)
        members = sorted({planned.value_of(slot) for slot in group.slots} - {-1})
        if all(values[each].kind == "constant" for each in members):
            continue
        statistic_of[at] = len(kinds)
        watches += [(values[each].name, len(kinds)) for each in members]
        kinds.append(_kind_of(observers[at]))
    return Observations(tuple(watches), tuple(kinds), statistic_of, observers)


def _observer(planned: PlannedProgram, group: Group) -> Any:
    """Returns the observer of a group. By default, inputs of the program keep the range of all samples.

    More of a program's inputs lie beyond that range than of a few samples, and no later operator can recover
    what clipping removes.
    """
    assert isinstance(group.spec, Observed)
    observer = group.spec.observer
    decided = group.decided_by
    if observer is not DEFAULT_OBSERVER or decided is None:
        return observer
    inputs = {port.node for port in planned.plan.graph.inputs}
    producer = decided.producer if isinstance(decided, Edge) else decided.node
    return MinMax() if producer in inputs else observer


def _kind_of(observer: Any) -> tuple[Any, ...]:
    if isinstance(observer, MinMax):
        return ("range",)
    if isinstance(observer, MovingAverage):
        return ("moving_range", observer.weight)
    return ("histogram",)
