"""SecondMoments against the products of columns that torch and numpy compute."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tosaic import _core

from quant.accuracy_cases import Array, Case, cases, exported, function

INT8 = {"scale": 0.037, "zero_point": 11, "qmin": -128, "qmax": 127}
INT16 = {"scale": 1e-4, "zero_point": 0, "qmin": -32767, "qmax": 32767}
CASES = cases()


def integers(x: Array, scale: float, zero_point: int, qmin: int, qmax: int) -> Array:
    """Returns the integers of samples minus the zero point, as torch's q/dq graphs round them."""
    q = np.rint(x * np.float32(1 / scale)) + np.float32(zero_point)
    return np.clip(q, qmin, qmax).astype(np.float64) - zero_point


def expected(case: Case, x: Array, grid: dict[str, float]) -> Array:
    columns = case.columns(torch.from_numpy(integers(x, **grid))).numpy()  # type: ignore[arg-type]
    products = np.einsum("gri,grj->gij", columns, columns)
    return np.asarray(products * (grid["scale"] * grid["scale"] / columns.shape[1]))


@pytest.mark.parametrize("grid", [INT8, INT16], ids=["int8", "int16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_moments_are_the_mean_products_of_the_columns_that_torch_reads(
    case: Case, grid: dict[str, float]
) -> None:
    _, _, contraction = case.open()
    x = (3 * np.random.default_rng(1).normal(size=case.shape)).astype(np.float32)
    moments = _core.SecondMoments(contraction, **grid)  # type: ignore[arg-type]
    moments.observe(contraction, x)
    # Sums of integers are exact: only their product with the unit is rounded.
    np.testing.assert_allclose(moments.means(), expected(case, x, grid), rtol=4e-16, atol=0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_columns_times_the_rows_of_the_weight_are_the_result(case: Case) -> None:
    _, _, contraction = case.open()
    x = torch.from_numpy(np.random.default_rng(2).normal(size=case.shape).astype(np.float32))
    rows = contraction.rows_of(case.weight()).astype(np.float64)
    columns = case.columns(x.double()).detach().numpy()
    products = np.einsum("grk,gck->gcr", columns, rows)  # [group, channel, row]
    result = (
        case.module.double()(x.double()).detach() - case.module(torch.zeros(case.shape).double()).detach()
    )
    case.module.float()
    axis = 1 if "conv" in case.name else -2 if "left" in case.name else -1
    factor = 2 if case.name == "addmm" else 1
    by_channel = np.moveaxis(result.numpy(), axis, 0).reshape(rows.shape[0] * rows.shape[1], -1)
    np.testing.assert_allclose(factor * products.reshape(by_channel.shape), by_channel, atol=1e-9)


@pytest.mark.parametrize("grid", [INT8, INT16], ids=["int8", "int16"])
def test_states_do_not_depend_on_order_split_or_workers(grid: dict[str, float]) -> None:
    case = next(each for each in CASES if each.name == "conv with strides and pads")
    _, _, contraction = case.open()
    x = (2 * np.random.default_rng(3).normal(size=(12, *case.shape[1:]))).astype(np.float32)

    def state_of(part: Array) -> _core.SecondMoments:
        state = _core.SecondMoments(contraction, **grid)  # type: ignore[arg-type]
        state.observe(contraction, part)
        return state

    whole = state_of(x)
    with ThreadPoolExecutor(3) as workers:
        parts = list(workers.map(state_of, [x[7:], x[:1], x[4:7], x[1:4]]))
    merged = pickle.loads(pickle.dumps(parts[0]))
    for part in parts[1:]:
        merged.merge(part)
    assert merged == whole
    assert merged.to_bytes() == whole.to_bytes()
    assert merged.rows == whole.rows > 0
    assert state_of(x[:11]) != whole


def test_the_grid_of_a_range_has_sixteen_bits() -> None:
    case = CASES[0]
    _, _, contraction = case.open()
    x = np.random.default_rng(4).normal(size=case.shape).astype(np.float32)
    observed = _core.ObservedRange()
    observed.observe(x)
    moments = _core.SecondMoments.of_range(contraction, observed)
    assert moments.scale == pytest.approx(float(np.abs(x).max()) / 32767)
    moments.observe(contraction, x)
    columns = x.reshape(-1, 12).astype(np.float64)
    np.testing.assert_allclose(
        moments.means()[0], columns.T @ columns / len(columns), atol=float(np.abs(x).max()) ** 2 * 2**-15
    )


def test_numbers_beyond_the_grid_are_clamped_and_nan_counts_as_zero() -> None:
    case = CASES[1]
    _, _, contraction = case.open()
    moments = _core.SecondMoments(contraction, scale=0.5, zero_point=0, qmin=-127, qmax=127)
    moments.observe(contraction, np.array([np.inf, -1e30, np.nan, 1, 0, 0, 0, 0, 0, 0, 0, 0]))
    assert moments.means()[0, :4, :4].tolist() == [
        [63.5**2, -(63.5**2), 0, 63.5],
        [-(63.5**2), 63.5**2, 0, -63.5],
        [0, 0, 0, 0],
        [63.5, -63.5, 0, 1],
    ]


def test_wrong_inputs_grids_and_states_are_refused() -> None:
    graph, _, contraction = CASES[0].open()
    moments = _core.SecondMoments(contraction, **INT8)  # type: ignore[arg-type]
    with pytest.raises(_core.LayoutMismatch, match=r"expected 12 input channels, got \[2,7,11\]"):
        moments.observe(contraction, np.zeros((2, 7, 11)))
    with pytest.raises(_core.QuantMismatch, match="different inputs cannot be merged"):
        moments.merge(_core.SecondMoments(contraction, **INT16))  # type: ignore[arg-type]
    with pytest.raises(_core.QuantMismatch, match="at most 65536 integers that contain the zero point"):
        _core.SecondMoments(contraction, scale=1, zero_point=300, qmin=-128, qmax=127)
    with pytest.raises(_core.QuantMismatch, match="scale of the input"):
        _core.SecondMoments(contraction, scale=0, zero_point=0, qmin=-128, qmax=127)
    with pytest.raises(_core.InvalidGraph, match="the state of second moments is damaged"):
        _core.SecondMoments.from_bytes(moments.to_bytes()[:-8])
    with pytest.raises(_core.InvalidGraph, match="no node of this name: got absent"):
        _core.Contraction(graph, "absent")


def test_a_node_without_a_constant_weight_is_not_a_contraction() -> None:
    graph = exported(function(lambda x, y: torch.relu(x @ y)), torch.zeros(3, 3), torch.zeros(3, 3))
    assert _core.contractions(graph) == []
    for node, op in (("matmul", "matmul"), ("relu", "relu")):
        with pytest.raises(_core.InvalidGraph, match=f"no constant weight that it multiplies.*got {op}"):
            _core.Contraction(graph, node)
