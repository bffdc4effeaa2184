"""smooth and correct_bias: ranges move from activations into weights, and mean errors into biases."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn
from tosaic import _core

from quant.accuracy_cases import Array, Case, cases, exported

CASES = cases()


def results(graph: _core.Graph, *inputs: Array) -> list[Array]:
    graph.verify()
    return [np.asarray(each) for each in _core.Session(graph).run(list(inputs))]


def magnitudes(graph: _core.Graph, *inputs: Array) -> dict[str, _core.ChannelAbsMax]:
    """Observes the inputs of all linear layers."""
    names = {
        node.operands[0].name for node in graph.nodes if node.op == "linear" and node.operands[0].producer
    }
    outputs = _core.Session(graph).trace(list(inputs), nodes=sorted(names))["values"]
    found = {}
    for name in names:
        value = np.asarray(outputs[name])
        found[name] = _core.ChannelAbsMax(value.shape[-1])
        found[name].observe(value, -1)
    return found


class Block(nn.Module):
    """A layer of a transformer with gates, as in many language models."""

    def __init__(self, norm: nn.Module, width: int = 16) -> None:
        super().__init__()
        self.norm = norm
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 24), nn.Linear(width, 24)
        self.down = nn.Linear(24, width)
        self.gelu_in, self.gelu_out = nn.Linear(width, 24), nn.Linear(24, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        attention = torch.softmax(self.q(y) @ self.k(y).transpose(1, 2), -1)
        x = x + self.out(attention @ self.v(y))
        x = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return x + self.gelu_out(nn.functional.gelu(self.gelu_in(x)))


def block(norm: nn.Module, seed: int = 0) -> tuple[_core.Graph, Array]:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    graph = exported(Block(norm), torch.zeros(2, 5, 16))
    return graph, (rng.normal(size=(2, 5, 16)) * np.exp(rng.normal(size=16))).astype(np.float32)


def affine_norm() -> nn.LayerNorm:
    torch.manual_seed(3)
    norm = nn.LayerNorm(16)
    with torch.no_grad():
        norm.weight.copy_(torch.exp(2 * torch.randn(16)))
        norm.bias.copy_(torch.randn(16))
    return norm


@pytest.mark.parametrize(
    "norm",
    [affine_norm(), nn.LayerNorm(16, elementwise_affine=False), nn.LayerNorm(16, bias=False), nn.RMSNorm(16)],
    ids=["weight and bias", "no parameters", "weight only", "rms_norm"],
)
@pytest.mark.parametrize("alpha", [0.5, 0.8])
def test_ranges_move_into_weights_and_the_result_is_unchanged(norm: nn.Module, alpha: float) -> None:
    graph, x = block(norm)
    smoothed, rows = _core.smooth(graph, magnitudes(graph, x), alpha)
    np.testing.assert_allclose(results(smoothed, x)[0], results(graph, x)[0], rtol=1e-4, atol=1e-4)
    done = {tuple(row["readers"]): row for row in rows if not row["skipped"]}
    # All layers that read a value are in one row: they share its scales.
    assert set(done) == {("linear", "linear_1", "linear_2"), ("linear_3",), ("linear_6",)}
    assert done["linear_3",]["source"] == "linear_2"  # through the product with the attention
    assert done["linear_6",]["source"] == "linear_5"  # through the product with the gate
    for row in done.values():
        wanted = row["input_before"] ** alpha / row["weight_before"] ** (1 - alpha)
        np.testing.assert_allclose(row["scales"], wanted)
        np.testing.assert_allclose(row["input_after"], row["input_before"] / wanted)
        np.testing.assert_allclose(row["weight_after"], row["weight_before"] * wanted)
    after = magnitudes(smoothed, x)
    first = graph_value(graph, "linear")
    np.testing.assert_allclose(
        after[first].most, done["linear", "linear_1", "linear_2"]["input_after"], rtol=1e-3
    )


def graph_value(graph: _core.Graph, node: str) -> str:
    (found,) = [each for each in graph.nodes if each.name == node]
    return found.operands[0].name


def test_what_cannot_be_smoothed_is_skipped_with_the_reason() -> None:
    graph, x = block(affine_norm())
    _, rows = _core.smooth(graph, magnitudes(graph, x))
    skipped = {row["readers"][0]: row["skipped"] for row in rows if row["skipped"]}
    assert skipped == {
        "linear_4": "scales cannot move through 'add' (add)",
        "linear_5": "scales cannot move through 'add' (add)",
        "linear_7": "scales cannot move through 'add_1' (add)",
        "linear_8": "scales cannot move through 'gelu' (gelu)",
    }


def test_a_product_with_a_constant_in_front_is_divided_and_a_residual_is_not() -> None:
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.shift = nn.Parameter(torch.rand(6) + 0.5), nn.Parameter(torch.rand(6))
            self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(torch.tanh(x) * self.gain + self.shift)
            return self.second(y) + y + self.third(x)

    torch.manual_seed(3)
    graph = exported(Products(), torch.zeros(4, 6))
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    state = _core.ChannelAbsMax(6)
    state.observe(x, 1)
    smoothed, rows = _core.smooth(graph, magnitudes(graph, x) | {"x": state})
    np.testing.assert_allclose(results(smoothed, x)[0], results(graph, x)[0], rtol=1e-5, atol=1e-5)
    assert [(row["source"], row["readers"], row["skipped"]) for row in rows] == [
        ("mul", ["linear"], ""),
        ("", ["linear_1"], "'linear' (linear) could be scaled, but 'add_1' (add) reads it"),
        ("", ["linear_2"], "'x' is an input of the program"),
    ]


def test_wrong_magnitudes_are_refused() -> None:
    graph, x = block(affine_norm())
    found = magnitudes(graph, x)
    with pytest.raises(_core.QuantMismatch, match=r"alpha: expected 0 to 1, got 2"):
        _core.smooth(graph, found, 2)
    with pytest.raises(_core.InvalidGraph, match="no value of this name: got absent"):
        _core.smooth(graph, {"absent": _core.ChannelAbsMax(16)})
    name = graph_value(graph, "linear")
    with pytest.raises(_core.LayoutMismatch, match=r"expected 16 channels, got 3 \(node 'linear"):
        _core.smooth(graph, {name: _core.ChannelAbsMax(3)})


# ---- statistics of channels ----


def test_magnitudes_do_not_depend_on_order_or_split_and_leave_out_what_is_not_finite() -> None:
    x = np.random.default_rng(1).normal(size=(6, 3, 5)).astype(np.float32)
    x[0, 1, 2], x[3, 0, 0] = np.nan, -np.inf
    whole, first, second = (_core.ChannelAbsMax(3) for _ in range(3))
    whole.observe(x, 1)
    first.observe(x[4:], 1)
    second.observe(x[:4], 1)
    first.merge(pickle.loads(pickle.dumps(second)))
    assert first == whole
    np.testing.assert_array_equal(whole.most, np.abs(np.where(np.isfinite(x), x, 0)).max((0, 2)))
    with pytest.raises(_core.LayoutMismatch, match="3 channels"):
        whole.observe(x, 0)
    with pytest.raises(_core.InvalidGraph, match="damaged"):
        _core.ChannelAbsMax.from_bytes(b"1")


def test_sums_are_exact_and_do_not_depend_on_order_or_split() -> None:
    x = np.random.default_rng(2).normal(size=(40, 3, 7)).astype(np.float32)
    bounds = _core.ObservedRange()
    bounds.observe(x)
    exponent = _core.sums_exponent(bounds)
    assert 2 ** (exponent - 1) <= np.abs(x).max() < 2**exponent
    assert _core.sums_exponent(bounds, differences=True) == exponent + 1
    whole, merged = _core.ChannelSums(3, exponent), _core.ChannelSums(3, exponent)
    whole.observe(x, 1)
    for part in np.random.default_rng(3).permutation(40):
        each = _core.ChannelSums(3, exponent)
        each.observe(x[part], 0)
        merged.merge(_core.ChannelSums.from_bytes(each.to_bytes()))
    assert merged == whole
    assert merged.count == 280
    unit = 2.0 ** (exponent - 30)
    exact = np.rint(x.astype(np.float64) / unit).sum((0, 2)) * unit / 280
    np.testing.assert_array_equal(whole.means(), exact)
    np.testing.assert_allclose(whole.means(), x.astype(np.float64).mean((0, 2)), atol=unit)


def test_samples_beyond_the_range_of_exact_sums_are_refused_before_any_is_added() -> None:
    sums = _core.ChannelSums(2, 3)
    for bad in (9.0, np.nan, -np.inf):
        with pytest.raises(_core.QuantMismatch, match=r"a magnitude of at most 2\^3"):
            sums.observe(np.array([[1.0, bad]]), 1)
    assert sums == _core.ChannelSums(2, 3)
    with pytest.raises(_core.QuantMismatch, match="equal exponents"):
        sums.merge(_core.ChannelSums(2, 4))
    with pytest.raises(_core.InvalidGraph, match="damaged"):
        _core.ChannelSums.from_bytes(sums.to_bytes()[:-1])


# ---- biases ----


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_result_is_less_by_the_error_of_each_channel(case: Case) -> None:
    graph, node, contraction = case.open()
    rng = np.random.default_rng(4)
    errors = rng.normal(size=contraction.groups * contraction.channels)
    corrected = _core.correct_bias(graph, node, errors)
    x = rng.normal(size=case.shape).astype(np.float32)
    before, after = results(graph, x)[0], results(corrected, x)[0]
    axis = 1 if "conv" in case.name else before.ndim - (2 if "left" in case.name else 1)
    shape = [1] * before.ndim
    shape[axis] = -1
    np.testing.assert_allclose(after, before - errors.reshape(shape), atol=1e-5)
    assert corrected.nodes[-1].results[0].name == node


def test_mean_errors_of_rounded_weights_vanish() -> None:
    torch.manual_seed(5)
    conv = nn.Conv2d(4, 6, 3, bias=False)
    graph = exported(conv, torch.zeros(3, 4, 9, 9))
    conv.weight = nn.Parameter(torch.round(conv.weight.detach() * 8) / 8)
    rounded = exported(conv, torch.zeros(3, 4, 9, 9))
    x = np.random.default_rng(6).random(size=(3, 4, 9, 9)).astype(np.float32)
    wanted, found = results(graph, x)[0], results(rounded, x)[0]
    sums = _core.ChannelSums(6, 6)
    sums.observe(found - wanted, 1)
    corrected = results(_core.correct_bias(rounded, "conv2d", sums.means()), x)[0]
    assert np.abs((corrected - wanted).mean((0, 2, 3))).max() < 1e-6
    assert ((corrected - wanted) ** 2).mean() < 0.9 * ((found - wanted) ** 2).mean()


def test_addmm_without_its_bias_gets_a_sum() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))

        def forward(self, x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
            return torch.addmm(unused, x, self.weight, beta=0)

    graph = exported(Scaled(), torch.zeros(2, 4), torch.zeros(3))
    x, unused = np.random.default_rng(7).normal(size=(2, 4)).astype(np.float32), np.ones(3, np.float32)
    corrected = _core.correct_bias(graph, "addmm", [1.0, 2.0, 3.0])
    np.testing.assert_allclose(
        results(corrected, x, unused)[0], results(graph, x, unused)[0] - [1.0, 2.0, 3.0], atol=1e-6
    )


def test_wrong_errors_and_unknown_biases_are_refused() -> None:
    graph, node, _ = CASES[0].open()
    with pytest.raises(_core.LayoutMismatch, match=r"the number of errors: expected 5 channels, got 2"):
        _core.correct_bias(graph, node, [1.0, 2.0])
    weight = nn.Parameter(torch.randn(3, 4))

    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.weight, bias)

    graph = exported(Given(), torch.zeros(2, 4), torch.zeros(3))
    with pytest.raises(_core.InvalidGraph, match=r"the bias is no constant.*got 'bias' \(node 'linear"):
        _core.correct_bias(graph, "linear", [1.0, 2.0, 3.0])
