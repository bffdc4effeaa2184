"""Observers as plain data: which ones configurations accept and tensors get, and the resulting scales."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tosaic
from tosaic import _core
from tosaic.annotation import (
    ByUse,
    Call,
    CallGraph,
    Edge,
    Entropy,
    GraphPort,
    LeastError,
    LeastErrorBehind,
    MinMax,
    MovingAverage,
    Observed,
    Observer,
    Operand,
    Output,
    Percentile,
    Plan,
    WholeNumbers,
    choose_observers,
)

OBSERVERS = [
    MinMax(),
    MovingAverage(0.1),
    Percentile(99.0),
    LeastError(eps=0.5),
    Entropy(),
    WholeNumbers(),
    ByUse(),
]
NAMES = {
    "minmax": MinMax(),
    "moving_average": MovingAverage(),
    "percentile": Percentile(),
    "mse": LeastError(),
    "entropy": Entropy(),
}
INT8: dict[str, Any] = {"qmin": -128, "qmax": 127, "symmetric_zero_point": None, "least_scale": 1e-9}
SYMMETRIC: dict[str, Any] = INT8 | {"qmin": -127, "symmetric_zero_point": 0}


def samples_of(name: str, count: int = 20_000) -> np.ndarray[Any, np.dtype[np.float32]]:
    rng = np.random.default_rng(3)
    draws = {
        "normal": lambda: rng.standard_normal(count),
        "outliers": lambda: np.append(rng.standard_normal(count), [90.0, -70.0]),
        "relu": lambda: np.maximum(rng.standard_normal(count), 0),
        "uniform": lambda: rng.uniform(-1, 1, count),
        "Cauchy": lambda: rng.standard_cauchy(count),
        "few": lambda: rng.standard_normal(9),
    }
    return draws[name]().astype(np.float32)


DRAWS = ("normal", "outliers", "relu", "uniform", "Cauchy", "few")


def histogram_of(samples: Any) -> _core.Histogram:
    histogram = _core.Histogram()
    histogram.observe(samples)
    return histogram


@pytest.mark.parametrize("observer", OBSERVERS)
def test_observers_are_values(observer: Observer) -> None:
    names = {type(each).__name__: type(each) for each in OBSERVERS}
    assert eval(repr(observer), names) == observer
    assert pickle.loads(pickle.dumps(observer)) == observer
    assert hash(type(observer)(**vars(observer))) == hash(observer)
    assert len({*OBSERVERS, observer}) == len(OBSERVERS)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MinMax(eps=0), "'eps' is wrong: expected a positive number that a float32 can hold, got 0"),
        (lambda: MinMax(eps=float("nan")), "'eps' is wrong"),
        (
            lambda: MovingAverage(2),
            "'weight' is wrong: expected a number above 0, and 1 at most, got 2",
        ),
        (lambda: Percentile(100.5), "'percent' is wrong: expected a number above 0, and 100 at most"),
        (lambda: Percentile("99"), "'percent' is wrong"),
        (lambda: LeastErrorBehind(), "'reader' is wrong: expected the name of a node"),
        (
            lambda: Observed(observer=MinMax),
            "the observer is wrong: expected what makes an observer of torchao",
        ),
        (lambda: Observed(observer=MinMax(), dynamic=True), "dynamic=False for an observer as data"),
        (
            lambda: Observed(scheme="per_channel_symmetric", axis=0, observer=Entropy()),
            "MinMax() or LeastError() for a scheme per channel",
        ),
        (lambda: tosaic.QConfig.int8(observer="precentile"), "got 'precentile'. Did you mean 'percentile'"),
        (lambda: tosaic.QConfig.uint8(observer=5), "unknown value of 'observer'"),
        (lambda: tosaic.QConfig.int16x8(weight_observer="entropy"), "expected 'minmax' or 'mse'"),
        (lambda: tosaic.QConfig.int8(weight_observer=Percentile()), "unknown value of 'weight_observer'"),
    ],
)
def test_wrong_observers_are_refused(make: Any, text: str) -> None:
    with pytest.raises(tosaic.InvalidGraph) as error:
        make()
    assert text in str(error.value)


def test_there_are_no_other_observers() -> None:
    with pytest.raises(tosaic.UnsupportedOp, match="no other observers can be defined"):
        type("Mine", (Observer,), {})


@pytest.mark.parametrize("make", [tosaic.QConfig.int8, tosaic.QConfig.uint8, tosaic.QConfig.int16x8])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_observer_with_its_defaults(make: Any, name: str) -> None:
    config = make(observer=name)
    assert config == make(observer=NAMES[name])
    assert config.precision.activation.observer == NAMES[name]
    assert config != make()
    if name in ("minmax", "mse"):
        assert make(weight_observer=name).precision.weight.observer == NAMES[name]


def test_equal_observers_of_a_plan_do_not_contradict_each_other() -> None:
    add = Call("add", "call", operands=(Operand("args[0]", "x"), Operand("args[1]", "y")))
    plan = Plan(CallGraph([Call("x", "placeholder"), Call("y", "placeholder"), add]))
    plan[Output("add")] = Observed(observer=Percentile(99.0))
    plan[Output("add")] = Observed(observer=Percentile(99.0))
    assert plan.history == ()
    plan[Output("add")] = Observed(observer=Percentile(98.0))
    assert len(plan.history) == 1


def test_observers_follow_from_the_use_of_a_tensor() -> None:
    conv = Call("conv", "call", operands=(Operand("args[0]", "x"),))
    silu = Call("silu", "call", operands=(Operand("args[0]", "conv"),))
    out = Call("output", "output", operands=(Operand("args[0]", "silu"),))
    graph = CallGraph([Call("x", "placeholder"), conv, silu, out], inputs=[GraphPort("x", "x")])
    plan = Plan(graph, author=_core.BEFORE_FUNCTION)
    spec = Observed(observer=ByUse(eps=0.25))
    plan[Edge("x", "conv")] = plan[Output("conv")] = spec
    with plan.authored_by("another rule"):
        plan[Output("silu")] = spec
    assert choose_observers(plan) == {
        Edge("x", "conv"): MinMax(0.25),
        Output("conv"): LeastErrorBehind("silu", 0.25),
        Output("silu"): LeastError(0.25),
    }
    assert choose_observers(plan, exact=[Output("silu")])[Output("silu")] == MinMax(0.25)
    plan[Output("conv")] = Observed(observer=Entropy())
    plan[Output("silu")] = Observed()
    plan[Edge("x", "conv")] = Observed(observer=print)
    assert choose_observers(plan) == {Output("conv"): Entropy(), Output("silu"): MinMax()}


def test_a_scale_of_whole_numbers_is_a_power_of_two() -> None:
    for least, greatest in [(-3, 12), (-12, 0), (0, 255), (-64, 191), (-1, 0), (0, 1), (-255, 0), (-7, 248)]:
        for options, (low, high) in ((INT8, (least, greatest)), (SYMMETRIC, (least / 2, greatest / 2))):
            samples = _core.ObservedRange(*map(float, map(int, (low, high))), 9)
            scale, zero_point = WholeNumbers.qparams(samples, **options)
            assert math.frexp(scale)[0] == 0.5
            for number in (samples.least, 0, samples.greatest):
                integer = number / scale + zero_point
                assert integer == int(integer)
                assert options["qmin"] <= integer <= options["qmax"]
    assert WholeNumbers.qparams(_core.ObservedRange(-200.0, 200.0, 9), **INT8) is None
    assert WholeNumbers.qparams(_core.ObservedRange(), **INT8) is None


def test_whole_numbers_are_observed_as_such() -> None:
    plan = Plan(
        CallGraph([Call("x", "placeholder"), Call("round", "call", operands=(Operand("args[0]", "x"),))]),
        author=_core.WHOLE_NUMBERS,
    )
    plan[Output("round")] = Observed(observer=ByUse(eps=0.25))
    assert choose_observers(plan) == {Output("round"): WholeNumbers(0.25)}


def test_observers_need_no_torch() -> None:
    code = (
        "import sys, tosaic\n"
        "from tosaic.annotation import choose_observers, planner_fields\n"
        "config = tosaic.QConfig.int8(observer='entropy')\n"
        "assert planner_fields(config.precision, None)[0][-1] == config.precision.activation.observer\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("percent", [60.0, 99.0, 99.99, 100.0])
def test_percentiles_are_numpys_quantiles(draw: str, percent: float) -> None:
    samples = samples_of(draw)
    histogram = histogram_of(samples)
    width = 2.0**histogram.exponent / 2048
    fraction = percent / 100
    wide = samples.astype(np.float64)
    low, high = np.quantile(wide, [(1 - fraction) / 2, (1 + fraction) / 2])
    low, high = min(low, 0), max(high, 0)
    scale, zero_point = _core.percentile_qparams(histogram, fraction, **INT8)
    assert scale * 255 == pytest.approx(high - low, rel=1e-6, abs=2 * width)
    assert (-128 - zero_point) * scale == pytest.approx(low, abs=width + 0.51 * scale)
    scale, _ = _core.percentile_qparams(histogram, fraction, **SYMMETRIC)
    assert scale * 127 == pytest.approx(np.quantile(np.abs(wide), fraction), rel=1e-6, abs=width)


def bins_of(histogram: _core.Histogram) -> tuple[Any, Any, Any]:
    """Returns the means, counts and widths of the bins, as kernels/histogram_block.h numbers them."""
    places, counts = (np.array(each) for each in zip(*histogram.counts, strict=True))
    number = np.abs(places) - 1
    width = np.where(number < 64 * 17, 2.0 ** (number // 64 - 17), 1.0) * 2.0**histogram.exponent / 2048
    return np.array(histogram.means), counts.astype(float), np.where(places == 0, 0.0, width)


def divergence(histogram: _core.Histogram, scale: float, zero_point: int, options: dict[str, Any]) -> float:
    """Returns the Kullback-Leibler divergence of the bins, each step on its own."""
    means, counts, widths = bins_of(histogram)
    low, high = (options[bound] - zero_point for bound in ("qmin", "qmax"))
    slack = 0.5 + 1e-6 * (high - low)
    inside = np.flatnonzero((means >= (low - slack) * scale) & (means <= (high + slack) * scale))
    if not len(inside):
        return float("inf")
    first, last = inside[0], inside[-1]
    p = counts.copy()
    p[first] += counts[:first].sum()
    p[last] += counts[last + 1 :].sum()
    steps = np.clip(np.rint(means / scale), low, high)
    total = 0.0
    for step in np.unique(steps[inside]):
        at = inside[(steps[inside] == step) & (widths[inside] > 0)]
        q = counts[at].sum() * widths[at] / widths[at].sum() if len(at) else counts[at]
        total += float((p[at] * np.log(p[at] / q)).sum())
    at = inside[widths[inside] == 0]
    total += float((p[at] * np.log(p[at] / counts[at])).sum())
    return total / counts.sum()


@pytest.mark.parametrize("options", [INT8, SYMMETRIC, INT8 | {"qmin": -8, "qmax": 7}])
@pytest.mark.parametrize("draw", DRAWS)
def test_no_range_of_a_grid_has_a_smaller_divergence(draw: str, options: dict[str, Any]) -> None:
    histogram = histogram_of(samples_of(draw, 3000))
    scale, zero_point, found = _core.least_entropy_qparams(histogram, **options)
    assert found == pytest.approx(divergence(histogram, scale, zero_point, options), abs=1e-9)
    least, greatest = histogram.range.least, histogram.range.greatest
    shares = 0.9 ** np.arange(0, 60, 2)
    others = []
    for below in shares if options is not SYMMETRIC else [1.0]:
        for above in shares:
            bounds = _core.ObservedRange(min(least, 0) * below, max(greatest, 0) * above, 1)
            if options is SYMMETRIC:
                most = max(-least, greatest) * above
                bounds = _core.ObservedRange(-most, most, 1)
            others.append(divergence(histogram, *_core.range_qparams(bounds, **options), options))
    # The search ends at steps of a hundredth, and does not look below the median.
    assert found <= min(others) * 1.15 + 1e-4


def test_the_least_divergence_clips_outliers_and_no_even_spread() -> None:
    for options in (INT8, SYMMETRIC):
        scale, _, _ = _core.least_entropy_qparams(histogram_of(samples_of("outliers")), **options)
        assert 6 < scale * 255 < 10
        scale, _, _ = _core.least_entropy_qparams(histogram_of(samples_of("uniform")), **options)
        assert 1.97 < scale * 255 < 2.02


def test_ranges_do_not_depend_on_the_order_of_merging() -> None:
    samples = samples_of("outliers")
    whole = histogram_of(samples)
    for seed in range(3):
        parts = np.array_split(np.random.default_rng(seed).permutation(samples), 7)
        merged = _core.Histogram()
        for part in parts:
            merged.merge(histogram_of(part))
        for options in (INT8, SYMMETRIC):
            assert _core.percentile_qparams(merged, 0.99, **options) == _core.percentile_qparams(
                whole, 0.99, **options
            )
            assert _core.least_entropy_qparams(merged, **options) == _core.least_entropy_qparams(
                whole, **options
            )
