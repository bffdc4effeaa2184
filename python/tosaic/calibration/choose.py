"""Chooses the qparams of all slots of a plan: from statistics, from weights, or as the plan fixes them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.annotation.bias import (
    fitting_bias_scales,
    fitting_weight_scales,
    lost_bits,
    note_crowded_addends,
)
from tosaic.annotation.factors import scaled_by
from tosaic.annotation.joins import Scale, takers
from tosaic.annotation.observers import (
    Entropy,
    LeastErrorBehind,
    MaskRange,
    MinMax,
    MovingAverage,
    Observer,
    Percentile,
    WholeNumbers,
)
from tosaic.annotation.plan import Group
from tosaic.annotation.specs import (
    GRAPH_NAMES,
    Derived,
    Edge,
    Fixed,
    Float,
    Observed,
    Slot,
    integers_of,
    is_symmetric,
)
from tosaic.base.quantization import QParams
from tosaic.calibration.functions import function_of_reader
from tosaic.calibration.observations import Observations, observations
from tosaic.calibration.plan_program import PlannedProgram
from tosaic.calibration.weights import weight_qparams

_LOG = logging.getLogger(__name__)
_NOTED_BITS = 2
_MOST_SEARCHED = 255  # the most steps for which a search measures the error of a function's result


def chosen_qparams(
    planned: PlannedProgram,
    observed: Observations,
    statistics: Sequence[Any],
    known: dict[Any, QParams] | None = None,
    held: Mapping[Slot, QParams] | None = None,
    bounds: Mapping[int, tuple[float, float]] | None = None,
) -> dict[Slot, QParams]:
    """Returns the qparams of each slot of the plan.

    Parameters
    ----------
    planned : PlannedProgram
    observed : Observations
    statistics : sequence of Histogram or ObservedRange
        Statistics of all samples.
    known : dict, optional
        Qparams that were chosen for the same samples and weights, under another plan of the same graph. The
        function adds the qparams of this plan.
    held : mapping of Slot to QParams, optional
        Qparams that do not change: an accuracy tool has already rounded these weights.
    bounds : mapping of int to (float, float), optional
        By position of a group: the range that replaces the choice of its observer. See
        `tosaic.calibration.relevant`.

    Notes
    -----
    The scales of weights are raised where a bias would not fit in its integers: see `tosaic.annotation.bias`.
    A product or quotient by a number has the integers of its operand: see `tosaic.annotation.factors`.

    Raises
    ------
    QuantMismatch
        The range of integers of a symmetric spec does not include its zero point.
    """
    chosen: dict[Slot, QParams] = {}
    derived: list[Group] = []
    known = {} if known is None else known
    for at, group in enumerate(planned.groups):
        if isinstance(group.spec, Float):
            continue
        if isinstance(group.spec, Derived):
            derived.append(group)
            continue
        if isinstance(group.spec, Fixed):
            found = _fixed(group.spec)
        else:
            choice = _Choice(planned, group, observed.observers[at], (bounds or {}).get(at))
            if choice.key not in known:
                of_group = [statistics[i] for i in observed.statistics_of.get(at, ())]
                known[choice.key] = choice.of_tensors(of_group) if of_group else choice.of_weight()
            found = known[choice.key]
        chosen |= dict.fromkeys(group.slots, found)
    _share_at_joins(planned, chosen)
    _scale_results(planned, chosen)
    chosen |= held or {}
    for group in derived:
        for bias in _biases(planned, group):
            _raise_weight_scales(planned, bias, chosen, held or {})
    for group in derived:
        chosen |= dict.fromkeys(group.slots, _product(planned, group, chosen))
    if planned.every_operator:
        note_crowded_addends(planned.plan, partial(_constant, planned), chosen)
    return chosen


def infinite_masks(
    planned: PlannedProgram, chosen: Mapping[Slot, QParams], statistics: Sequence[Any]
) -> dict[Slot, float]:
    """Returns masks of scores that hide by minus infinity only, with the number up to which integers do so.

    Parameters
    ----------
    planned : PlannedProgram
    chosen : mapping of Slot to QParams
    statistics : sequence
        Statistics of all samples; none: no mask is known to hide with minus infinity.
    """
    found: dict[Slot, float] = {}
    observed = observations(planned)
    for at, group in enumerate(planned.groups):
        of_group = observed.statistics_of.get(at, ()) if statistics else ()
        if not of_group or not isinstance(observed.observers[at], MaskRange):
            continue
        for slot in group.slots:
            qparams = chosen.get(slot)
            bound = None
            if qparams is not None and planned.plan.meets_scores(slot):
                bound = MaskRange.infinite_below(statistics[of_group[0]], qparams.scale * qparams.qmin)
            if bound is not None:
                found[slot] = bound
    return found


def _share_at_joins(planned: PlannedProgram, chosen: dict[Slot, QParams]) -> None:
    """Gives operands of joins the qparams of the result if their ranges nearly agree."""
    groups = planned.groups
    observed = {
        slot: at
        for at, group in enumerate(groups)
        if isinstance(group.spec, Observed)
        for slot in group.slots
        if slot in chosen and chosen[slot].axis is None
    }
    joined = [(observed[a], observed[b]) for a, b in planned.joined if a in observed and b in observed]
    scales = {at: _scale_of(chosen[groups[at].slots[0]]) for pair in joined for at in pair}
    for taker, giver in takers(joined, scales).items():
        chosen |= dict.fromkeys(groups[taker].slots, chosen[groups[giver].slots[0]])


def _scale_results(planned: PlannedProgram, chosen: dict[Slot, QParams]) -> None:
    """Gives products and quotients by numbers the integers of their operands."""
    for operand, result, factor in planned.scaled:
        if operand not in chosen or result not in chosen:
            continue
        group = planned.group_of(result)
        if not isinstance(group.spec, Observed) or group.slots[0] != result:
            continue
        made = scaled_by(_scale_of(chosen[operand]), factor, is_symmetric=is_symmetric(group.spec))
        own = chosen[result]
        if made is not None and (made.dtype, made.qmin, made.qmax) == (own.dtype, own.qmin, own.qmax):
            chosen |= dict.fromkeys(
                group.slots, replace(own, scales=(made.scale,), zero_points=(made.zero_point,))
            )


def _scale_of(qparams: QParams) -> Scale:
    return Scale(qparams.scale, qparams.zero_point, qparams.dtype, qparams.qmin, qparams.qmax)


# ---- specs ----


def _storage(spec: Observed | Fixed | Derived) -> tuple[str, int, int]:
    """Returns the dtype by its name in graphs, and the bounds of the integers."""
    return GRAPH_NAMES.get(spec.dtype, spec.dtype), *integers_of(spec)


def _fixed(spec: Fixed) -> QParams:
    dtype, qmin, qmax = _storage(spec)
    return QParams(dtype, (float(spec.scale),), (int(spec.zero_point),), qmin, qmax)


def _options(spec: Observed, observer: Observer) -> dict[str, Any]:
    dtype, qmin, qmax = _storage(spec)
    zero_point = None
    if is_symmetric(spec):
        zero_point = (qmin + qmax) // 2 if dtype.startswith("u") else 0
    return {
        "qmin": qmin,
        "qmax": qmax,
        "symmetric_zero_point": zero_point,
        "least_scale": float(observer.eps),
    }


# ---- biases ----


class _Bias:
    """A constant that is added to the products of data and weight."""

    def __init__(self, planned: PlannedProgram, slot: Slot, spec: Derived) -> None:
        self.slot = slot
        self.elements = _constant(planned, slot)
        weights = [each for each in spec.slots if _constant(planned, each) is not None]
        self.weight = weights[0] if len(weights) == 1 else None
        self.data = [each for each in spec.slots if each != self.weight]


def _constant(planned: PlannedProgram, slot: Slot) -> Any:
    value = planned.value_of(slot)
    constant = planned.graph.values[value].constant if value >= 0 else None
    return None if constant is None else np.asarray(constant.array, np.float32)


def _biases(planned: PlannedProgram, group: Group) -> Iterator[_Bias]:
    spec = group.spec
    assert isinstance(spec, Derived)
    for slot in group.slots:
        found = _Bias(planned, slot, spec)
        if found.elements is not None and found.elements.ndim == 1 and found.elements.size:
            yield found


def _raise_weight_scales(
    planned: PlannedProgram, bias: _Bias, chosen: dict[Slot, QParams], held: Mapping[Slot, QParams]
) -> None:
    """Raises the scales of a weight until its bias fits, and copies them to slots that share its scales."""
    weight = bias.weight
    if weight is None or weight in held or isinstance(planned.group_of(weight).spec, Fixed):
        return
    found = chosen[weight]
    before = np.asarray(found.scales, np.float32)
    has_elements = np.abs(_constant(planned, weight)).max(initial=0.0) > before.max() / 2
    after = fitting_weight_scales(
        before,
        float(np.prod([np.float32(chosen[each].scale) for each in bias.data])),
        bias.elements,
        has_elements=bool(has_elements),
        unit_of_sums=planned.every_operator,
    )
    if np.array_equal(before, after):
        return
    raised = replace(found, scales=tuple(map(float, np.where(after > before, after, found.scales))))
    chosen |= dict.fromkeys(planned.group_of(weight).slots, raised)
    if has_elements and before.size != bias.elements.size and lost_bits(before, after) > _NOTED_BITS:
        _LOG.warning(
            "the weight of '%s' loses %.0f bits: it has one scale for all channels, and the bias of channel "
            "%d is %.3g. Scales per channel keep them",
            weight.user if isinstance(weight, Edge) else weight.node,
            lost_bits(before, after),
            channel := int(np.abs(bias.elements).argmax()),
            bias.elements[channel],
        )


def _product(planned: PlannedProgram, group: Group, chosen: Mapping[Slot, QParams]) -> QParams:
    """Returns the qparams of a bias: the product of the scales of data and weight, as float32.

    A bias that does not fit with them gets its own scale, unless the target does not support this.
    """
    spec = group.spec
    assert isinstance(spec, Derived)
    dtype, qmin, qmax = _storage(spec)
    scales = np.ones(1, np.float32)
    for slot in spec.slots:
        scales = scales * np.asarray(chosen[slot].scales, np.float32)
    if dtype == "i32" and not planned.every_operator:
        for bias in _biases(planned, group):
            scales = fitting_bias_scales(scales, bias.elements)
    zeros = (0,) * len(scales)
    axis = None if len(scales) == 1 else 0 if spec.axis is None else spec.axis
    return QParams(dtype, tuple(map(float, scales)), zeros, qmin, qmax, axis=axis)


# ---- groups of slots ----


class _Choice:
    """The choice of the qparams of a group of slots with an observed spec."""

    def __init__(
        self,
        planned: PlannedProgram,
        group: Group,
        observer: Observer,
        bounds: tuple[float, float] | None,
    ) -> None:
        assert isinstance(group.spec, Observed)
        self._bounds = bounds
        self._graph = planned.graph
        self._observer = observer
        self._spec = group.spec
        self._slots = group.slots
        self._meets_scores = isinstance(observer, MaskRange) and all(
            map(planned.plan.meets_scores, group.slots)
        )
        self._storage = _storage(group.spec)
        self._options = _options(group.spec, observer)
        self._values = sorted({planned.value_of(slot) for slot in group.slots} - {-1})
        behind = group.decided_by if isinstance(observer, LeastErrorBehind) else None
        self._before_function = -1 if behind is None else planned.value_of(behind)

    @property
    def key(self) -> tuple[Any, ...]:
        """A key with everything that the choice depends on, for one graph and its samples."""
        spec = self._spec
        shape = (spec.axis, spec.group_size, self._storage, tuple(self._options.items()))
        observer = (type(self._observer), self._observer, self._before_function)
        return (*shape, *observer, self._bounds, tuple(self._values))

    def of_tensors(self, statistics: Sequence[Any]) -> QParams:
        """Chooses from the samples: from the tensors' common statistic, or the union of their ranges."""
        observer, options = self._observer, self._options
        statistic = statistics[0]
        whole: tuple[float, int] | None = None
        if isinstance(observer, WholeNumbers):
            samples = self._range(statistic)
            whole = observer.qparams(samples, **options)
            if whole is None and (what := observer.coarse(samples, **options)):
                _LOG.warning("%s %s", " and ".join(map(repr, self._slots)), what)
        if whole is not None:
            scale, zero_point = whole
        elif self._bounds is not None:
            scale, zero_point = self._within_bounds(statistic)
        elif isinstance(observer, MinMax | MovingAverage):
            union = _core.ObservedRange()
            for each in statistics:
                union.merge(each)
            scale, zero_point = _core.range_qparams(union, **options)
        elif isinstance(observer, MaskRange):
            for what in filter(
                None, (observer.coarse(statistic), observer.infinite(statistic, restored=self._meets_scores))
            ):
                _LOG.warning("the mask %s %s", " and ".join(map(repr, self._slots)), what)
            scale, zero_point = _core.mask_qparams(statistic, **options)
        elif isinstance(observer, Percentile):
            scale, zero_point = _core.percentile_qparams(statistic, observer.fraction, **options)
        elif isinstance(observer, Entropy):
            scale, zero_point, _ = _core.least_entropy_qparams(statistic, **options)
        else:
            scale, zero_point = self._least_error(statistic)
        dtype, qmin, qmax = self._storage
        return QParams(dtype, (float(scale),), (int(zero_point),), qmin, qmax)

    def _range(self, histogram: Any) -> _core.ObservedRange:
        return _core.ObservedRange(*self._bounds, 1) if self._bounds is not None else histogram.range

    def _within_bounds(self, statistic: Any) -> tuple[float, int]:
        """Returns the qparams of the bounds, or the result of a search if it has a lower error.

        The error is measured at the result of the function that reads the tensor; samples beyond the bounds
        count as the bounds, since no reader distinguishes them. The search starts with the range of all
        samples, and may find better bounds if the given ones still include most of it.
        """
        of_bounds = _core.range_qparams(self._range(statistic), **self._options)
        _, qmin, qmax = self._storage
        function = self._function_behind() if qmax - qmin <= _MOST_SEARCHED else None
        if function is None:
            return of_bounds
        means = np.clip(statistic.means, *self._bounds)  # type: ignore[misc]
        results = function(means.tolist())
        if results is None:
            return of_bounds
        scale, zero_point, _ = _core.least_error_behind(statistic, results, **self._options)
        counts = np.array([count for _, count in statistic.counts], np.float64)

        def error(chosen: tuple[float, int]) -> float:
            integers = np.clip(np.rint(means / chosen[0]) + chosen[1], qmin, qmax)
            found = function(((integers - chosen[1]) * chosen[0]).tolist())
            return math.inf if found is None else float((counts * (found - results) ** 2).sum())

        return min(of_bounds, (scale, zero_point), key=error)

    def _function_behind(self) -> Callable[[Sequence[float]], Any] | None:
        return function_of_reader(self._graph, self._before_function) if self._before_function >= 0 else None

    def _least_error(self, histogram: Any) -> tuple[float, int]:
        function = self._function_behind()
        results = None if function is None else function(histogram.means)
        if results is None:
            scale, zero_point, _ = _core.least_error_qparams(histogram, **self._options)
        else:
            scale, zero_point, _ = _core.least_error_behind(histogram, results, **self._options)
        return scale, zero_point

    def of_weight(self) -> QParams:
        """Chooses from the elements of the constants."""
        spec = self._spec
        dtype, qmin, qmax = self._storage
        if self._bounds is not None:
            scale, zero_point = _core.range_qparams(_core.ObservedRange(*self._bounds, 1), **self._options)
            return QParams(dtype, (float(scale),), (int(zero_point),), qmin, qmax)
        constants = [self._graph.values[each].constant for each in self._values]
        arrays = [np.asarray(each.array, np.float32) for each in constants if each is not None]
        scales, zero_points, groups = weight_qparams(
            arrays, spec.axis, spec.group_size, self._observer, self._options
        )
        axis = None if spec.axis is None else spec.axis % arrays[0].ndim
        return QParams(dtype, scales, zero_points, qmin, qmax, axis=axis, groups=groups)
