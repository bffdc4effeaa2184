"""Scales and zero points of all slots of a plan: from statistics, from weights, or as the plan fixes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.annotation.observers import Entropy, MinMax, MovingAverage, Percentile
from tosaic.annotation.plan import Group
from tosaic.annotation.specs import GRAPH_NAMES, Derived, Fixed, Observed, Output, Slot, range_of
from tosaic.calibration.functions import function_of_reader
from tosaic.calibration.observations import Observations
from tosaic.calibration.plan_program import DEFAULT_OBSERVER, PlannedProgram
from tosaic.calibration.weights import weight_qparams
from tosaic.quantization import QParams

__all__ = ["chosen_qparams"]


def chosen_qparams(
    planned: PlannedProgram, observed: Observations, statistics: Sequence[Any]
) -> dict[Slot, QParams]:
    """Returns the qparams of each slot of the plan.

    Raises
    ------
    QuantMismatch
        The range of integers of a symmetric spec does not include its zero point.
    """
    chosen: dict[Slot, QParams] = {}
    derived: list[Group] = []
    for at, group in enumerate(planned.plan.groups()):
        if isinstance(group.spec, Derived):
            derived.append(group)
            continue
        if isinstance(group.spec, Fixed):
            found = _fixed(group.spec)
        else:
            assert isinstance(group.spec, Observed)
            statistic = observed.statistic_of.get(at)
            observer = observed.observers[at]
            if statistic is None:
                found = _of_weight(planned, group, observer)
            else:
                found = _of_tensor(planned, group, observer, statistics[statistic])
        chosen |= dict.fromkeys(group.slots, found)
    for group in derived:
        chosen |= dict.fromkeys(group.slots, _product(group, chosen))
    return chosen


# ---- specs ----


def _storage(spec: Observed | Fixed | Derived) -> tuple[str, int, int]:
    """Returns the dtype by its name in graphs, and the bounds of the integers."""
    least, greatest = range_of(spec.dtype) or (0, 0)
    return (
        GRAPH_NAMES.get(spec.dtype, spec.dtype),
        least if spec.qmin is None else spec.qmin,
        greatest if spec.qmax is None else spec.qmax,
    )


def _fixed(spec: Fixed) -> QParams:
    dtype, qmin, qmax = _storage(spec)
    return QParams(dtype, (float(spec.scale),), (int(spec.zero_point),), qmin, qmax)


def _options(spec: Observed, observer: Any) -> dict[str, Any]:
    dtype, qmin, qmax = _storage(spec)
    zero_point = None
    if str(spec.scheme).endswith("symmetric"):
        zero_point = (qmin + qmax) // 2 if dtype.startswith("u") else 0
    return {
        "qmin": qmin,
        "qmax": qmax,
        "symmetric_zero_point": zero_point,
        "least_scale": float(observer.eps),
    }


def _product(group: Group, chosen: Mapping[Slot, QParams]) -> QParams:
    """Returns the qparams of a bias: the product of the scales of data and weight, as float32."""
    spec = group.spec
    assert isinstance(spec, Derived)
    dtype, qmin, qmax = _storage(spec)
    scales = np.ones(1, np.float32)
    for slot in spec.slots:
        scales = scales * np.asarray(chosen[slot].scales, np.float32)
    zeros = (0,) * len(scales)
    return QParams(
        dtype, tuple(map(float, scales)), zeros, qmin, qmax, axis=spec.axis if len(scales) > 1 else None
    )


# ---- tensors ----


def _of_tensor(planned: PlannedProgram, group: Group, observer: Any, statistic: Any) -> QParams:
    spec = group.spec
    assert isinstance(spec, Observed)
    dtype, qmin, qmax = _storage(spec)
    options = _options(spec, observer)
    if isinstance(observer, MinMax | MovingAverage):
        scale, zero_point = _core.range_qparams(statistic, **options)
    elif isinstance(observer, Percentile):
        scale, zero_point = _core.percentile_qparams(statistic, observer.percentile / 100, **options)
    elif isinstance(observer, Entropy):
        scale, zero_point = _core.least_entropy_qparams(statistic, **options)
    else:
        scale, zero_point = _least_error(planned, group, observer, statistic, options)
    return QParams(dtype, (float(scale),), (int(zero_point),), qmin, qmax)


def _of_weight(planned: PlannedProgram, group: Group, observer: Any) -> QParams:
    spec = group.spec
    assert isinstance(spec, Observed)
    dtype, qmin, qmax = _storage(spec)
    constants = [
        planned.graph.values[each].constant
        for each in sorted({planned.value_of(slot) for slot in group.slots})
    ]
    arrays = [np.asarray(each.array, np.float32) for each in constants if each is not None]
    scales, zero_points, groups = weight_qparams(
        arrays, spec.axis, spec.group_size, observer, _options(spec, observer)
    )
    axis = None if spec.axis is None else spec.axis % arrays[0].ndim
    return QParams(dtype, scales, zero_points, qmin, qmax, axis=axis, groups=groups)


def _least_error(
    planned: PlannedProgram, group: Group, observer: Any, histogram: Any, options: Mapping[str, Any]
) -> tuple[float, int]:
    results = None
    decided = group.decided_by
    if (
        observer is DEFAULT_OBSERVER
        and isinstance(decided, Output)
        and planned.plan.author(decided) == _core.BEFORE_FUNCTION
    ):
        function = function_of_reader(planned.graph, planned.value_of(decided))
        results = None if function is None else function(histogram.means)
    if results is None:
        scale, zero_point, _ = _core.least_error_qparams(histogram, **options)
    else:
        scale, zero_point, _ = _core.least_error_behind(histogram, results, **options)
    return scale, zero_point
