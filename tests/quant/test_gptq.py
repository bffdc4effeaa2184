"""gptq, weight_error and group_scales against implementations in numpy and torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tosaic import _core
from tosaic.fx.quantizer.observers import TosaicPerChannelGroupObserver
from tosaic.ports import QParams

from quant.accuracy_cases import Array, Case, cases, correlated, exported

CASES = cases()


def observed(contraction: _core.Contraction, x: Array) -> _core.SecondMoments:
    bounds = _core.ObservedRange()
    bounds.observe(x)
    moments = _core.SecondMoments.of_range(contraction, bounds)
    moments.observe(contraction, x)
    return moments


def per_channel(weight: Array, bits: int, axis: int) -> QParams:
    qmax = 2 ** (bits - 1) - 1
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scales = tuple((np.abs(weight).max(others) / qmax).astype(float).tolist())
    return QParams("i4" if bits == 4 else "i8", scales, (0,) * len(scales), -qmax, qmax, axis)


def grouped(weight: Array, bits: int, axis: int, group_axis: int, size: int) -> QParams:
    qmax = 2 ** (bits - 1) - 1
    scales = _core.group_scales(weight, axis, group_axis, size, qmin=-qmax, qmax=qmax).astype(float).tolist()
    return QParams("i8", tuple(scales), (0,) * len(scales), -qmax, qmax, axis, (group_axis, size))


def scales_of_elements(weight: Array, qparams: QParams) -> Array:
    """Returns the scale of each element of a weight of rank 2 or more."""
    scales = np.array(qparams.scales)
    if qparams.groups is not None:
        assert qparams.axis is not None
        count = weight.shape[qparams.groups.axis] // qparams.groups.size
        scales = scales.reshape(-1, count).repeat(qparams.groups.size, 1)
        shape = [1] * weight.ndim
        shape[qparams.axis], shape[qparams.groups.axis] = scales.shape
        scales = scales if qparams.axis < qparams.groups.axis else scales.T
        return np.broadcast_to(scales.reshape(shape), weight.shape)
    shape = [1] * weight.ndim
    if qparams.axis is not None:
        shape[qparams.axis] = -1
    return np.broadcast_to(scales.reshape(shape), weight.shape)


def nearest(weight: Array, qparams: QParams) -> Array:
    scale = scales_of_elements(weight, qparams)
    q = np.rint(weight * (1 / scale).astype(np.float32))
    return np.asarray(np.clip(q, qparams.qmin, qparams.qmax) * scale.astype(np.float32))


def weight_axis(case: Case) -> int:
    """Returns the axis of the weight that has the channels of the result."""
    return 1 if case.name in ("matmul", "addmm") or "transposed" in case.name else 0


def gptq_by_inverse(
    rows: Array, scales: Array, moment: Array, order: Array, damping: float, qmax: int
) -> Array:
    """GPTQ as its paper writes it: with the Cholesky factor of the inverse of the damped moments."""
    w, out = rows[:, order].copy(), np.zeros_like(rows)
    h = moment[np.ix_(order, order)] + damping * moment.diagonal().mean() * np.eye(len(order))
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    for i in range(len(order)):
        s = scales[:, order[i]]
        q = np.clip(np.rint(w[:, i].astype(np.float32) * (1 / s).astype(np.float32)), -qmax, qmax)
        q = (q.astype(np.float32) * s.astype(np.float32)).astype(np.float64)
        out[:, order[i]] = q
        w[:, i:] -= np.outer((w[:, i] - q) / upper[i, i], upper[i, i:])
    return out


@pytest.mark.parametrize("activation_order", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_equal_the_algorithm_with_the_inverse(case: Case, bits: int, activation_order: bool) -> None:
    _, _, contraction = case.open()
    rng = np.random.default_rng(5)
    shape = (40, *case.shape[1:]) if len(case.shape) > 1 else (12,)
    channels = -2 if "left" in case.name else 1 if "conv" in case.name else -1
    x = correlated(rng, shape, channels % len(shape))
    moments, weight = observed(contraction, x), case.weight()
    qparams = per_channel(weight, bits, weight_axis(case))
    found = _core.gptq(contraction, moments, weight, qparams, block=5, activation_order=activation_order)
    rows = contraction.rows_of(weight).astype(np.float64)
    scales = contraction.rows_of(scales_of_elements(weight, qparams)).astype(np.float64)
    rounded = contraction.rows_of(found["weights"])
    plain = contraction.rows_of(nearest(weight, qparams))
    for group, moment in enumerate(moments.means()):
        order = np.arange(len(moment))
        if activation_order:
            order = np.argsort(-moment.diagonal(), kind="stable")
        wanted = gptq_by_inverse(
            rows[group],
            scales[group].astype(np.float32).astype(np.float64),
            moment,
            order,
            0.01,
            qparams.qmax,
        )
        for got, by_inverse, near, row in zip(rounded[group], wanted, plain[group], rows[group], strict=True):
            cost = [float((row - each) @ moment @ (row - each)) for each in (got, by_inverse, near)]
            if cost[1] < cost[2]:
                np.testing.assert_allclose(got, by_inverse, rtol=1e-5, atol=1e-7)
            else:  # never worse than the nearest weights
                np.testing.assert_array_equal(got, near)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_errors_equal_the_errors_of_torchs_results(case: Case) -> None:
    _, _, contraction = case.open()
    rng = np.random.default_rng(6)
    x = rng.normal(size=case.shape).astype(np.float32)
    moments, weight = observed(contraction, x), case.weight()
    qparams = per_channel(weight, 4, weight_axis(case))
    found = _core.gptq(contraction, moments, weight, qparams)
    error, signal, by_channel = _core.weight_error(contraction, moments, weight, found["weights"])
    columns = case.columns(torch.from_numpy(x).double()).numpy()
    factor = 4 if case.name == "addmm" else 1

    def power(difference: Array) -> float:
        result = np.einsum("grk,gck->gcr", columns, contraction.rows_of(difference).astype(np.float64))
        return factor * float((result**2).mean(-1).sum())

    assert error == pytest.approx(power(weight - found["weights"]), rel=1e-3)  # samples have 16 bits
    assert signal == pytest.approx(power(weight), rel=1e-3)
    assert by_channel.sum() == pytest.approx(error)
    assert found["error_after"] == pytest.approx(error, rel=1e-9)
    before, _, _ = _core.weight_error(contraction, moments, weight, nearest(weight, qparams))
    assert found["error_before"] == pytest.approx(before, rel=1e-9)
    assert found["error_after"] <= found["error_before"]


@pytest.mark.parametrize("options", [{}, {"fit_groups": True}, {"activation_order": False}], ids=str)
@pytest.mark.parametrize("size", [None, 4])
def test_weights_lie_on_the_grid(size: int | None, options: dict[str, Any]) -> None:
    if size is None and options.get("fit_groups"):
        options = {}
    case = CASES[0]
    _, _, contraction = case.open()
    moments, weight = observed(contraction, correlated(np.random.default_rng(7), (50, 12), 1)), case.weight()
    qparams = per_channel(weight, 4, 0) if size is None else grouped(weight, 4, 0, 1, size)
    found = _core.gptq(contraction, moments, weight, qparams, **options)
    grid = found["qparams"]
    if not options.get("fit_groups"):
        assert grid == qparams
    scale = scales_of_elements(weight, grid).astype(np.float32)
    q = np.rint(found["weights"] / scale)
    assert np.abs(q).max() <= qparams.qmax
    np.testing.assert_array_equal(q * scale, found["weights"])
    np.testing.assert_array_equal(nearest(found["weights"], grid), found["weights"])


@pytest.mark.parametrize(
    "name", ["linear", "matmul", "conv", "conv with strides and pads", "transposed conv"]
)
def test_refitted_groups_are_better_than_fixed_ones_on_average(name: str) -> None:
    case = next(each for each in CASES if each.name == name)
    _, _, contraction = case.open()
    weight, axis = case.weight(), weight_axis(case)
    group_axis = 1 - axis
    size = {"linear": 4, "matmul": 4, "conv": 1, "conv with strides and pads": 1, "transposed conv": 1}[name]
    gains = []
    for seed in range(8):
        shape = (40, *case.shape[1:])
        channels = 1 if "conv" in name else len(shape) - 1
        moments = observed(contraction, correlated(np.random.default_rng(seed), shape, channels))
        qparams = grouped(weight, 4, axis, group_axis, size)
        fixed = _core.gptq(contraction, moments, weight, qparams, activation_order=False)
        fitted = _core.gptq(contraction, moments, weight, qparams, activation_order=False, fit_groups=True)
        gains.append(np.log(fixed["error_after"] / fitted["error_after"]))
        assert fitted["error_after"] <= fitted["error_before"]
    assert np.mean(gains) > 0


def test_dead_columns_are_rounded_to_the_nearest_and_singular_moments_are_damped() -> None:
    case = CASES[0]
    _, _, contraction = case.open()
    x = np.random.default_rng(8).normal(size=(3, 12)).astype(np.float32)  # of rank 3
    x[:, 5] = 0
    weight, qparams = case.weight(), per_channel(case.weight(), 4, 0)
    found = _core.gptq(contraction, observed(contraction, x), weight, qparams, damping=0)
    assert found["dead_columns"] == 1
    assert 0 < found["damping"] < 0.1
    np.testing.assert_array_equal(found["weights"][:, 5], nearest(weight, qparams)[:, 5])
    assert found["error_after"] < found["error_before"]
    zeros = _core.gptq(contraction, observed(contraction, 0 * x), weight, qparams)
    np.testing.assert_array_equal(zeros["weights"], nearest(weight, qparams))
    assert (zeros["error_after"], zeros["dead_columns"], zeros["nearest_channels"]) == (0, 12, 5)


def test_independent_columns_get_the_nearest_weights() -> None:
    case = CASES[0]
    _, _, contraction = case.open()
    moments = observed(contraction, np.eye(12, dtype=np.float32))
    qparams = per_channel(case.weight(), 4, 0)
    found = _core.gptq(contraction, moments, case.weight(), qparams)
    np.testing.assert_array_equal(found["weights"], nearest(case.weight(), qparams))


def test_results_do_not_depend_on_the_block_of_columns() -> None:
    weight = np.random.default_rng(9).normal(size=(20, 150)).astype(np.float32)
    graph = exported(linear_of(weight), torch.zeros(1, 150))
    contraction = _core.Contraction(graph, "linear")
    moments = observed(contraction, correlated(np.random.default_rng(10), (400, 150), 1))
    qparams = grouped(weight, 4, 0, 1, 30)
    for fit in (False, True):
        results = [
            _core.gptq(contraction, moments, weight, qparams, block=block, fit_groups=fit)["weights"]
            for block in (1, 7, 64, 128, 1000)
        ]
        for each in results[1:]:
            # A sum in another order may round a near tie to the other side: then later columns differ, too.
            assert (each != results[0]).mean() < 0.02


def linear_of(weight: Array) -> torch.nn.Linear:
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight.data = torch.from_numpy(weight)
    return linear


def test_wrong_options_are_refused() -> None:
    case = CASES[0]
    _, _, contraction = case.open()
    weight = case.weight()
    moments, qparams = observed(contraction, np.eye(12)), per_channel(weight, 4, 0)
    for options, message in (
        ({"damping": -1}, "damping: expected a number of at least 0"),
        ({"block": 0}, "block: expected at least 1, got 0"),
        ({"fit_groups": True}, "fit_groups: expected qparams with a scale for each channel and each group"),
    ):
        with pytest.raises(_core.QuantMismatch, match=message):
            _core.gptq(contraction, moments, weight, qparams, **options)  # type: ignore[arg-type]
    empty = _core.SecondMoments.of_range(contraction, _core.ObservedRange())
    with pytest.raises(_core.QuantMismatch, match="those of at least one sample"):
        _core.gptq(contraction, empty, weight, qparams)
    with pytest.raises(_core.QuantMismatch, match="weights: expected finite numbers, got nan"):
        _core.gptq(contraction, moments, weight * np.nan, qparams)
    with pytest.raises(_core.QuantMismatch):
        _core.gptq(contraction, moments, weight, replace(qparams, scales=(1.0,), zero_points=(0,)))


# ---- scales of groups ----


def squared_errors(weight: Array, axis: int, group_axis: int, size: int, scales: Array) -> Array:
    """Returns the squared error of each group, in f64, of elements that are rounded in f32."""
    qparams = QParams("i8", tuple(scales.tolist()), (0,) * len(scales), -7, 7, axis, (group_axis, size))
    scale = scales_of_elements(weight, qparams).astype(np.float32)
    error = np.clip(np.rint(weight * (np.float32(1) / scale)), -7, 7) * scale - weight
    count = weight.shape[group_axis] // size
    moved = np.moveaxis(error.astype(np.float64) ** 2, (axis, group_axis), (0, 1))
    return np.asarray(moved.reshape(weight.shape[axis], count, -1).sum(-1).reshape(-1))


@pytest.mark.parametrize("search", [True, False])
@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [((64, 96), 0, 32), ((96, 64), 1, 16), ((8, 12, 3, 3), 0, 4), ((12, 8, 3), 1, 6), ((4, 8), 0, 8)],
)
def test_scales_of_groups_equal_the_annotation_observers(
    shape: tuple[int, ...], axis: int, size: int, search: bool
) -> None:
    weight = np.random.default_rng(11).standard_t(4, size=shape).astype(np.float32)
    weight[0, 0] = 0 if len(shape) == 2 else np.zeros(shape[2:])
    observer = TosaicPerChannelGroupObserver(
        size, axis, torch.int8, torch.per_channel_symmetric, quant_min=-7, quant_max=7, search=search
    )
    observer(torch.from_numpy(weight))
    wanted = observer.calculate_qparams()[0].numpy()
    if axis == 1:  # the observer orders blocks as the weight does, groups first
        wanted = wanted.reshape(shape[0] // size, shape[1]).T.reshape(-1)
    found = _core.group_scales(weight, axis, 1 - axis, size, qmin=-7, qmax=7, search=search)
    other = found != wanted
    assert other.mean() < 0.01
    # Where they differ, the observer's sums in f32 did not resolve which error is less.
    errors = [squared_errors(weight, axis, 1 - axis, size, each.astype(float)) for each in (found, wanted)]
    np.testing.assert_allclose(errors[0][other], errors[1][other], rtol=1e-5)
    assert (errors[0] <= errors[1] * (1 + 1e-12)).all()


def test_groups_of_zeros_and_of_nan_get_the_least_scale() -> None:
    weight = np.array([[0, 0, np.nan, np.inf], [1, 2, 3, np.nan]], np.float32)
    scales = _core.group_scales(weight, 0, 1, 2, qmin=-127, qmax=127, search=False)
    np.testing.assert_array_equal(scales, np.array([2**-23, 2**-23, 2 / 127, 3 / 127], np.float32))
    with pytest.raises(_core.LayoutMismatch, match="the groups of a weight"):
        _core.group_scales(weight, 0, 1, 3, qmin=-127, qmax=127)
    with pytest.raises(_core.QuantMismatch, match="qmin < 0 < qmax"):
        _core.group_scales(weight, 0, 1, 2, qmin=0, qmax=127)
