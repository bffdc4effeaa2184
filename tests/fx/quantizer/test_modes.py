"""Trained modules leave training mode with all calls that draw numbers or depend on the mode.

The modules are trained for a few steps with fake quantization. In evaluation mode, the prepared module has to
compute what torch computes in eager with the trained parameters, up to quantization, and the lowered program
what the prepared module computes.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from torch import nn
from torchao.quantization.pt2e import (
    disable_observer,
    move_exported_model_to_eval,
    move_exported_model_to_train,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e
from tosaic import recipes

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    pytest.mark.filterwarnings("ignore"),
]


_COVERING = tosaic.QConfig.int8(observer="minmax")


class ByFunction(nn.Module):
    """Calls a function with its operand, and with whether it is in training mode."""

    def __init__(self, function: Callable[[torch.Tensor, bool], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.training)


class Residual(nn.Module):
    """Adds the result of a module on a branch of pictures."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.branch = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.inner, self.head = inner, nn.Linear(8, 3)
        with torch.no_grad():
            self.branch.weight.mul_(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        return self.head((first + self.inner(self.branch(first))).mean((2, 3)))


class Attention(nn.Module):
    """Calls torch's attention with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        dropout = 0.5 if self.training else 0.0
        return self.head(F.scaled_dot_product_attention(q, k, v, dropout_p=dropout))


class MultiHead(nn.Module):
    """A MultiheadAttention with dropout, with or without the weights that it returns."""

    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.need_weights, self.head = need_weights, nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.attention(x, x, x, need_weights=self.need_weights)[0])


class Recurrent(nn.Module):
    """A recurrent network of two layers with dropout between them."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layers = kind(8, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0])


def torchvision_depth(rows: bool) -> Callable[[torch.Tensor, bool], torch.Tensor]:
    def stochastic_depth(x: torch.Tensor, training: bool) -> torch.Tensor:
        if not training:
            return x
        size = [x.shape[0] if rows else 1, *([1] * (x.ndim - 1))]
        noise = torch.empty(size, dtype=x.dtype, device=x.device).bernoulli_(0.7)
        noise.div_(0.7)
        return x * noise

    return stochastic_depth


def timm_depth(scaled: bool) -> Callable[[torch.Tensor, bool], torch.Tensor]:
    def drop_path(x: torch.Tensor, training: bool) -> torch.Tensor:
        if not training:
            return x
        noise = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(0.7)
        if scaled:
            noise.div_(0.7)
        return x * noise

    return drop_path


def transformers_depth(x: torch.Tensor, training: bool) -> torch.Tensor:
    if not training:
        return x
    noise = 0.7 + torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype, device=x.device)
    noise.floor_()
    return x.div(0.7) * noise


def drawn_from_a_tensor(x: torch.Tensor, training: bool) -> torch.Tensor:
    return x * torch.bernoulli(torch.full((x.shape[0], 1, 1, 1), 0.7)).div(0.7) if training else x


def masked(x: torch.Tensor, training: bool) -> torch.Tensor:
    return x * (torch.rand_like(x) > 0.4) / 0.6 if training else x


def _rows(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(x.shape[0], 1, 1, 1)


def stored_over_rows(x: torch.Tensor) -> torch.Tensor:
    y = x / 0.7
    y[torch.rand(x.shape[0]) < 0.3] = 0.0
    return y


_DEPTHS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "comparison and cast": lambda x: x * ((_rows(x) > 0.3).float() / 0.7),
    "comparison, cast to the dtype of x": lambda x: x * (torch.rand_like(x) < 0.7).to(x.dtype).mul(1 / 0.7),
    "comparison as the type of x": lambda x: x * (_rows(x) > 0.3).type_as(x) / 0.7,
    "the other way round": lambda x: x * (1 - (_rows(x) < 0.3).float()) / 0.7,
    "negated": lambda x: (~(_rows(x) < 0.3)).float() * x / 0.7,
    "two masks": lambda x: x * ((_rows(x) > 0.3) & (torch.ones(1) > 0)).float() / 0.7,
    "bernoulli and casts": lambda x: x * torch.bernoulli(torch.full_like(x, 0.7)).bool() / 0.7,
    "factor of a choice": lambda x: x * torch.where(torch.rand_like(x) < 0.3, 0.0, 1 / 0.7),
    "where of 0": lambda x: torch.where(_rows(x) < 0.3, 0.0, x / 0.7),
    "where of x": lambda x: torch.where(torch.rand_like(x) > 0.3, x / 0.7, torch.zeros_like(x)),
    "where of a constant": lambda x: torch.where((_rows(x) < 0.3).expand_as(x), torch.tensor(0.0), x) / 0.7,
    "masked_fill": lambda x: x.masked_fill(_rows(x) < 0.3, 0.0) / 0.7,
    "masked_fill in place": lambda x: (x * 1).masked_fill_(_rows(x) < 0.3, 0.0).div_(0.7),
    "rows overwritten": stored_over_rows,
}


def _picture(inner: nn.Module) -> Callable[[], nn.Module]:
    return lambda: Residual(inner)


def _function(function: Callable[[torch.Tensor, bool], torch.Tensor]) -> Callable[[], nn.Module]:
    return _picture(ByFunction(function))


_PICTURES: dict[str, Callable[[], nn.Module]] = {
    "Dropout": _picture(nn.Dropout(0.5)),
    "Dropout in place": _picture(nn.Dropout(0.5, inplace=True)),
    "Dropout2d": _picture(nn.Dropout2d(0.5)),
    "Dropout2d in place": _picture(nn.Dropout2d(0.5, inplace=True)),
    "AlphaDropout": _picture(nn.AlphaDropout(0.5)),
    "AlphaDropout in place": _picture(nn.AlphaDropout(0.5, inplace=True)),
    "FeatureAlphaDropout": _picture(nn.FeatureAlphaDropout(0.5)),
    "RReLU": _picture(nn.RReLU()),
    "RReLU in place": _picture(nn.RReLU(inplace=True)),
    "dropout1d": _function(lambda x, on: F.dropout1d(x.flatten(2), 0.5, on).reshape(x.shape)),
    "dropout3d": _function(lambda x, on: F.dropout3d(x[None], 0.5, on)[0]),
    "native_dropout": _function(lambda x, on: torch.native_dropout(x, 0.5, on)[0]),
    "depth of torchvision, by row": _function(torchvision_depth(rows=True)),
    "depth of torchvision, by batch": _function(torchvision_depth(rows=False)),
    "depth of timm": _function(timm_depth(scaled=True)),
    "depth of timm, not scaled": _function(timm_depth(scaled=False)),
    "depth of transformers": _function(transformers_depth),
    "depth drawn from a tensor": _function(drawn_from_a_tensor),
    "mask of random numbers": _function(masked),
    **{
        f"depth by {name}": _function(lambda x, on, depth=depth: depth(x) if on else x)  # type: ignore[misc]
        for name, depth in _DEPTHS.items()
    },
}
_SEQUENCES: dict[str, Callable[[], nn.Module]] = {
    "attention": Attention,
    "multi-head attention": lambda: MultiHead(need_weights=False),
    "multi-head attention with weights": lambda: MultiHead(need_weights=True),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "GRU": lambda: Recurrent(nn.GRU),
    "RNN": lambda: Recurrent(nn.RNN),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True),
}


def db(found: Any, exact: Any) -> float:
    found, exact = (np.asarray(torch.as_tensor(each).detach(), np.float64) for each in (found, exact))
    noise = float(np.square(found - exact).sum())
    return float("inf") if noise == 0 else 10 * np.log10(float(np.square(exact).sum()) / noise)


def prepared(network: nn.Module, x: torch.Tensor, *, steps: int = 6) -> Any:
    """Trains a network for a few steps. The ranges of activations cover all numbers that were seen."""
    module = torch.export.export(copy.deepcopy(network).train(), (x,)).module()
    made = prepare_qat_pt2e(module, tosaic.Quantizer(_COVERING, qat=True))
    optimizer = torch.optim.SGD(made.parameters(), lr=1e-3)
    for _ in range(steps):
        made(x + torch.randn_like(x) * 0.1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return made


def evaluated(network: nn.Module, x: torch.Tensor, *, steps: int = 6) -> Any:
    """Trains a network, and moves it to evaluation mode, in which the ranges are fixed."""
    made = move_exported_model_to_eval(prepared(network, x, steps=steps))
    made(x)
    return made.apply(disable_observer)


def eager(network: nn.Module, trained: Any) -> nn.Module:
    """Returns the network in evaluation mode, with the parameters and buffers of what was trained."""
    state = {key: value for key, value in trained.state_dict().items() if key in network.state_dict()}
    twin = copy.deepcopy(network)
    twin.load_state_dict(state)
    return twin.eval()


def _is_right(network: nn.Module, x: torch.Tensor, least_db: float) -> None:
    trained = evaluated(network, x)
    with torch.no_grad():
        found = trained(x)
        assert torch.equal(found, trained(x))
        assert db(found, eager(network, trained)(x)) > least_db
        program = torch.export.export(convert_pt2e(trained), (x,))
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    assert db(lowered.run(x), found) > least_db
    assert tosaic.compare(program, lowered, (x,)).ok


@pytest.mark.parametrize("name", _PICTURES)
def test_a_call_on_pictures_leaves_training_mode(name: str) -> None:
    torch.manual_seed(1)
    _is_right(_PICTURES[name](), torch.randn(4, 3, 6, 6), 28)


@pytest.mark.parametrize("name", _SEQUENCES)
def test_a_call_on_sequences_leaves_training_mode(name: str) -> None:
    torch.manual_seed(1)
    _is_right(_SEQUENCES[name](), torch.randn(4, 5, 8), 22)


_IN_ARMS_FLOW = ["Dropout2d", "AlphaDropout", "depth of torchvision, by row", "depth of timm"]


@pytest.mark.parametrize("name", _IN_ARMS_FLOW)
def test_a_call_leaves_training_mode_in_arms_flow(name: str) -> None:
    torch.manual_seed(1)
    network, x = _PICTURES[name](), torch.randn(4, 3, 6, 6)
    module = torch.export.export(copy.deepcopy(network).train(), (x,)).module()
    quantizer = tosaic.Quantizer(_COVERING, qat=True, compatible_with="arm")
    trained = prepare_qat_pt2e(module, quantizer)
    for _ in range(8):
        trained(x)
    move_exported_model_to_eval(trained)(x)
    with torch.no_grad():
        found = trained.apply(disable_observer)(x)
        assert db(found, network.eval()(x)) > 25
        program = torch.export.export(convert_pt2e(trained), (x,))
    assert db(tosaic.lower(program, target="TOSA-1.0+INT").run(x), found) > 25


@pytest.mark.parametrize("name", ["Dropout2d", "depth of timm", "depth of transformers"])
def test_a_call_leaves_training_mode_with_a_wrapped_quantizer(name: str) -> None:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack

    torch.manual_seed(1)
    network, x = _PICTURES[name](), torch.randn(4, 3, 6, 6)
    module = torch.export.export(copy.deepcopy(network).train(), (x,)).module()
    inner = xnnpack.XNNPACKQuantizer().set_global(xnnpack.get_symmetric_quantization_config(is_qat=True))
    trained = prepare_qat_pt2e(module, tosaic.wrap_quantizer(inner, rules=[]))
    for _ in range(8):
        trained(x)
    move_exported_model_to_eval(trained)
    with torch.no_grad():
        found = trained.apply(disable_observer)(x)
        assert torch.equal(found, trained(x))
        assert db(found, eager(network, trained)(x)) > 12  # moving averages do not cover all numbers yet
        program = torch.export.export(convert_pt2e(trained), (x,))
    assert db(tosaic.lower(program, target="TOSA-1.0+INT+FP").run(x), found) > 25


def test_noise_that_a_constant_scales_is_not_an_operand_of_evaluation() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.full((1, 1, 1, 1), 1 / 0.7))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (torch.empty(1, 1, 1, 1).bernoulli_(0.7) * self.scale) if self.training else x

    torch.manual_seed(1)
    _is_right(Residual(Scaled()), torch.randn(1, 3, 6, 6), 28)


def test_a_module_that_goes_back_to_training_draws_with_its_own_probability() -> None:
    torch.manual_seed(1)
    network, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Dropout1d(0.1)), torch.randn(500, 4)
    trained = prepared(network, x)
    for _ in range(2):
        move_exported_model_to_eval(trained)
        assert (trained(x) == 0).float().mean() < 0.1
        move_exported_model_to_train(trained)
        assert 0.12 < (trained(x) == 0).float().mean() < 0.35


def test_a_module_that_is_exported_in_evaluation_mode_can_be_trained() -> None:
    torch.manual_seed(1)
    network, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout1d(0.5)), torch.randn(500, 4)
    module = torch.export.export(network.eval(), (x,)).module()
    made = prepare_qat_pt2e(module, tosaic.Quantizer(qat=True))
    assert (made(x) == 0).float().mean() < 0.1
    move_exported_model_to_train(made)
    assert (made(x) == 0).float().mean() > 0.4


def test_conversion_leaves_training_mode_if_nobody_did_before() -> None:
    torch.manual_seed(1)
    x = torch.randn(4, 3, 6, 6)
    network = _PICTURES["Dropout2d"]()
    trained = prepared(network, x, steps=20)
    exact = eager(network, trained)(x)
    program = torch.export.export(convert_pt2e(trained), (x,))
    assert db(tosaic.lower(program, target="TOSA-1.0+INT").run(x), exact) > 28


def test_a_converted_graph_has_no_calls_of_modules_and_no_random_numbers() -> None:
    torch.manual_seed(1)
    x = torch.randn(4, 3, 6, 6)
    for name in ("Dropout2d", "depth of torchvision, by row", "depth of transformers"):
        trained = evaluated(_PICTURES[name](), x, steps=2)
        nodes = convert_pt2e(trained).graph.nodes
        modules = [node for node in nodes if node.op == "call_module" and "guard" not in node.target]
        tags = [getattr(node.target, "tags", ()) for node in nodes]
        assert not modules
        assert not any(torch.Tag.nondeterministic_seeded in each for each in tags) or name == "Dropout2d"


def _noisy(x: torch.Tensor, training: bool) -> torch.Tensor:
    return x + torch.randn_like(x) if training else x


def _shifted_by_a_mask(x: torch.Tensor, training: bool) -> torch.Tensor:
    return torch.where(torch.rand_like(x) < 0.5, 1.0, x) if training else x


def _drawn_twice(x: torch.Tensor, training: bool) -> torch.Tensor:
    return (
        x * torch.rand_like(x).lt(0.5) * torch.rand(1).lt(0.5).mul(torch.rand(1).lt(0.5)) if training else x
    )


@pytest.mark.parametrize(
    ("function", "calls"),
    [(_noisy, ["randn_like"]), (_shifted_by_a_mask, ["rand_like"]), (_drawn_twice, ["rand", "rand_1"])],
)
def test_random_numbers_that_nothing_explains_are_named_before_the_training(
    function: Any, calls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(4, 3, 6, 6)
    module = torch.export.export(Residual(ByFunction(function)).train(), (x,)).module()
    with caplog.at_level(logging.WARNING, logger="tosaic"):
        prepare_qat_pt2e(module, tosaic.Quantizer(qat=True))
    messages = [each.getMessage() for each in caplog.records]
    assert [each.split("'")[1] for each in messages if "draws random numbers" in each] == calls


def test_the_recipe_of_training_leaves_training_mode(tmp_path: Any) -> None:
    torch.manual_seed(1)
    network, x = _PICTURES["Dropout2d"]().eval(), torch.randn(4, 3, 6, 6)

    def train(module: Any) -> None:
        for _ in range(20):
            module(x + torch.randn_like(x) * 0.1)

    recipe = recipes.named("tosa-int8").replace(stages=[recipes.qat(train)], config=_COVERING)
    result = tosaic.export_model(network, (x,), folder=tmp_path, recipe=recipe, verbose=0)
    assert result.check("trained").ok
    assert db(result.lowered.run(x), network(x)) > 28


def test_averages_of_all_batches_are_refused_by_name_and_a_momentum_is_the_way_out() -> None:
    x = torch.randn(4, 3, 6, 6)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None)).eval()
    recipe = recipes.named("tosa-int8").replace(stages=[recipes.qat(lambda module: module(x))])
    with pytest.raises(tosaic.UnsupportedOp, match=r"statistics of '1' are averages of all batches"):
        tosaic.export_model(network, (x,), recipe=recipe, verbose=0)
    network[1].momentum = 0.1  # type: ignore[union-attr]
    assert tosaic.export_model(network, (x,), recipe=recipe, verbose=0).check("trained").ok
