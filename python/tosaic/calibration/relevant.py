"""Limits ranges to the numbers that the readers of a tensor distinguish.

    masked = torch.where(hidden, c, x)      samples: c is -1e9, x is in -3..3
    masked.amax(1)                          results are in 0.5..3

With one scale for -1e9..3, all numbers of x become 0. No result depends on how far a number is below 0.5, so
the range of `masked` and of `c` is limited to a little below 0.5: lesser numbers saturate there. Which
numbers a reader distinguishes follows from its operator, from the ranges of its operands and results, and
from the step of its result (`analysis/ranges` of the core). The same holds for a constant with one scale,
such as addends below 0.1 and one addend of -3 whose sum a ReLU makes 0. Only ranges with an irrelevant part
are limited: other ranges come from the samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.annotation.bias import addends
from tosaic.annotation.observers import MaskRange
from tosaic.annotation.specs import Fixed, Observed, integers_of, is_symmetric
from tosaic.calibration.observations import Observations
from tosaic.calibration.plan_program import PlannedProgram

_WORTHWHILE = 1.25  # a range is limited only if that shortens it by this factor, about 2 dB

# Results with the same range as an operand, or from whose range no bound of an operand follows.
_NOT_BOUNDING = frozenset(("reshape", "permute", "expand", "clone", "slice", "conv", "linear", "matmul"))

Bounds = tuple[float, float]


def unobserved_values(planned: PlannedProgram, observed: Observations) -> list[str]:
    """Returns the names of values that have no statistic of their own, but whose ranges bound others."""
    tensors = Counter(index for _, index in observed.watches)
    together = {name for name, index in observed.watches if tensors[index] > 1}
    watched = {name for name, _ in observed.watches}
    unrounded = [
        result.name
        for node in planned.graph.nodes
        if node.op not in _NOT_BOUNDING
        for result in node.results
        if result.dtype == "f32" and result.name not in watched
    ]
    return [*sorted(together), *unrounded]


def relevant_bounds(
    planned: PlannedProgram,
    observed: Observations,
    statistics: Sequence[Any],
    ranges: Mapping[str, Any],
) -> dict[int, Bounds]:
    """Returns limited ranges of sharing groups whose samples have numbers far beyond those that matter.

    Parameters
    ----------
    planned : PlannedProgram
    observed : Observations
    statistics : sequence
        Statistics of all samples, by index.
    ranges : mapping of str to ObservedRange
        The ranges of further values, by name.

    Returns
    -------
    dict of int to (float, float)
        By position of the group in the plan.
    """
    values = planned.graph.values
    samples: list[Bounds | None] = [None] * len(values)
    levels = [0.0] * len(values)
    for at, value in enumerate(values):
        samples[at] = _bounds(ranges.get(value.name))
    added = set(addends(planned.plan))
    members: dict[int, list[int]] = {}
    of_group: dict[int, Bounds] = {}
    for at, group in enumerate(planned.groups):
        if not isinstance(group.spec, Observed | Fixed):
            continue
        own = sorted({planned.value_of(slot) for slot in group.slots} - {-1})
        union = _united([_bounds(statistics[i]) for i in observed.statistics_of.get(at, ())])
        are_constants = all(values[each].kind == "constant" for each in own)
        if are_constants and not added.issuperset(group.slots):
            continue  # weights
        if are_constants:
            union = _of_constants(planned, group.spec, own)
        qmin, qmax = integers_of(group.spec)
        for each in own:
            levels[each] = max(levels[each], float(qmax - qmin))
            samples[each] = samples[each] or union
        if not are_constants:  # constants among tensors do not matter: all share one range
            own = [each for each in own if values[each].kind != "constant"]
        if union is not None and not isinstance(observed.observers.get(at), MaskRange):
            members[at], of_group[at] = own, union
    relevant = _core.relevant_numbers(planned.graph, samples, levels)
    found = {
        at: _clipped(of_group[at], [relevant[each] for each in own], is_symmetric(planned.groups[at].spec))
        for at, own in members.items()
    }
    return {at: bounds for at, bounds in found.items() if bounds != of_group[at]}


def _of_constants(planned: PlannedProgram, spec: Any, members: Sequence[int]) -> Bounds | None:
    """Returns the range of constants that have one scale; None for other constants."""
    constants = [planned.graph.values[each].constant for each in members]
    known = [np.asarray(each.array) for each in constants if each is not None]
    if not isinstance(spec, Observed) or spec.axis is not None or len(known) < len(members):
        return None
    return _united([_of_elements(each) for each in known])


def _of_elements(elements: Any) -> Bounds | None:
    if elements.dtype.kind != "f" or not elements.size or not np.isfinite(elements).all():
        return None
    return float(elements.min()), float(elements.max())


def _clipped(samples: Bounds, relevant: Sequence[Bounds | None], is_symmetric: bool) -> Bounds:
    needed = _united(relevant)
    if needed is None:
        return samples
    least, greatest = needed if any(needed) else (-1.0, 1.0)
    low, high = (min(max(each, least), greatest) for each in samples)
    before, after = (_extent(bounds, is_symmetric) for bounds in (samples, (low, high)))
    return (low, high) if before > _WORTHWHILE * after else samples


def _extent(bounds: Bounds, is_symmetric: bool) -> float:
    """Returns a length proportional to the scale of a range, which is extended to 0."""
    low, high = min(bounds[0], 0.0), max(bounds[1], 0.0)
    return 2 * max(-low, high) if is_symmetric else high - low


def _bounds(found: Any) -> Bounds | None:
    if found is None or isinstance(found, _core.ObservedMask):
        return None
    found = found.range if isinstance(found, _core.Histogram) else found
    return (found.least, found.greatest) if found.finite else None


def _united(each: Sequence[Bounds | None]) -> Bounds | None:
    known = [bounds for bounds in each if bounds is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None
