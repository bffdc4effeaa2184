"""Quantization-aware training: scales of tensors that share one, and the conversion of what was trained."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from tosaic import recipes
from tosaic.exporting.call import CheckError

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    pytest.mark.filterwarnings("ignore"),
]
_RANGES = ((0.0, 1.8), (-6.6, 8.5))


class Joined(nn.Module):
    """Joins a tensor of few numbers and one of many: both have the scale of their union."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.first(x).relu(), self.second(y)], -1)


def joined() -> tuple[Any, tuple[torch.Tensor, ...]]:
    torch.manual_seed(1)
    network = Joined()
    with torch.no_grad():
        network.first.weight.copy_(torch.eye(4))
        network.second.weight.copy_(torch.eye(4))
        network.first.bias.zero_()
        network.second.bias.zero_()
    inputs = tuple(torch.empty(64, 4).uniform_(low, high) for low, high in _RANGES)
    return network, inputs


def db(found: Any, exact: Any) -> float:
    exact = np.asarray(exact.detach(), np.float64)
    noise = float(np.square(np.asarray(found, np.float64) - exact).sum())
    return float("inf") if noise == 0 else 10 * np.log10(float(np.square(exact).sum()) / noise)


def trained(network: Any, inputs: tuple[torch.Tensor, ...], runs: int) -> Any:
    module = torch.export.export(copy.deepcopy(network).train(), inputs).module()
    prepared = prepare_qat_pt2e(module, tosaic.Quantizer(qat=True))
    for _ in range(runs):
        prepared(*inputs)
    return move_exported_model_to_eval(prepared)


def test_a_shared_scale_covers_the_union_of_the_ranges_after_many_runs_of_training() -> None:
    network, inputs = joined()
    converted = convert_pt2e(trained(network, inputs, 300))
    assert db(converted(*inputs).detach(), network(*inputs)) > 33


def test_the_tensors_of_a_join_are_converted_with_one_scale() -> None:
    network, inputs = joined()
    prepared = trained(network, inputs, 3)
    program = torch.export.export(convert_pt2e(copy.deepcopy(prepared)), inputs)
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    assert db(lowered.run(*inputs), network(*inputs)) > 33
    scales = {
        node.args[1]
        for node in program.graph.nodes
        if "quantize_per_tensor" in str(node.target) and any("cat" in user.name for user in node.users)
    }
    assert len(scales) == 1


def test_moving_averages_of_a_join_cover_the_union_in_calibration_too() -> None:
    network, inputs = joined()
    config = tosaic.QConfig.int8(observer="moving_average")
    exported = torch.export.export(network.eval(), inputs)
    prepared = prepare_pt2e(exported.module(), tosaic.Quantizer(config))
    for _ in range(200):
        prepared(*inputs)
    exact = network(*inputs)
    assert db(convert_pt2e(prepared)(*inputs).detach(), exact) > 33
    quantized = tosaic.quantize(exported, [inputs] * 200, config=config, progress=False)
    assert db(quantized.run(*inputs), exact) > 33


def test_copies_of_a_prepared_module_have_observers_of_their_own() -> None:
    network, inputs = joined()
    prepared = trained(network, inputs, 2)
    twin = copy.deepcopy(prepared)
    own = {id(each) for each in prepared.modules()}
    peers = [peer for each in twin.modules() for peer in getattr(each, "peers", ())]
    assert peers
    assert not own & {id(each) for each in peers}


class TwoNorms(nn.Module):
    """One convolution in front of two batch norms: torchao alone folds its weight into both of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        with torch.no_grad():
            self.norms[0].weight.fill_(4)
            self.norms[1].weight.fill_(0.1)
            self.norms[1].bias.fill_(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.norms[0](self.conv(x)).relu()
        return first.mean((2, 3)) + self.norms[1](self.conv(x * 0.5)).relu().mean((2, 3))


def _runs(prepared: Any) -> None:
    for seed in range(5):
        prepared(torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(seed)))


def test_the_trained_module_is_compared_with_the_converted_one(tmp_path: Path) -> None:
    torch.manual_seed(2)
    x = torch.randn(4, 3, 6, 6)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    ).eval()
    recipe = recipes.named("tosa-int8").replace(stages=[recipes.qat(_runs)])
    result = tosaic.export_model(network, (x,), folder=tmp_path, recipe=recipe, verbose=0)
    assert result.check("trained").ok
    assert result.check("trained").db > 25


def test_a_convolution_in_front_of_two_batch_norms_is_folded_into_each(tmp_path: Path) -> None:
    torch.manual_seed(3)
    x = torch.randn(4, 3, 6, 6)
    recipe = recipes.named("tosa-int8").replace(stages=[recipes.qat(_runs)])
    result = tosaic.export_model(TwoNorms().eval(), (x,), folder=tmp_path, recipe=recipe, verbose=0)
    assert result.check("trained").ok
    assert result.check("trained").db > 25


def test_a_conversion_that_differs_from_what_was_trained_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def converted(prepared: Any) -> Any:
        with torch.no_grad():
            prepared.conv.weight.mul_(-1)
        return convert_pt2e(prepared)

    torch.manual_seed(3)
    x = torch.randn(4, 3, 6, 6)
    monkeypatch.setattr("torchao.quantization.pt2e.quantize_pt2e.convert_pt2e", converted)
    recipe = recipes.named("tosa-int8").replace(stages=[recipes.qat(_runs)])
    with pytest.raises(CheckError, match=r"trained .*against the module that was trained"):
        tosaic.export_model(TwoNorms().eval(), (x,), folder=tmp_path, recipe=recipe, verbose=0)


def test_a_training_that_does_not_run_the_module_is_an_error_that_says_so() -> None:
    x = torch.rand(1, 3, 8, 8)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).eval()
    recipe = recipes.named("tosa-int8").replace(stages=[recipes.qat(lambda prepared: None)])
    with pytest.raises(tosaic.InvalidGraph, match="the training did not run the module"):
        tosaic.export_model(network, (x,), samples=[(x,)], recipe=recipe, verbose=0)


class Modes(nn.Module):
    """Layers of three kinds that depend on the mode, and a branch of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.slope, self.head = nn.Dropout(0.3), nn.RReLU(), nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = torch.bernoulli(torch.full((4, 1), 0.9)) / 0.9 if self.training else 1.0
        return self.head(self.drop(self.slope(self.norm(self.conv(x))).flatten(1)) * kept)


def _training_and_evaluation(tmp_path: Path, stages: list[Any]) -> tuple[Any, Any]:
    """Exports one module in both modes; returns the results."""
    torch.manual_seed(4)
    x, network = torch.randn(4, 3, 6, 6), Modes()
    network(x)  # statistics that are no longer the first ones
    results = []
    for mode in (True, False):
        network.train(mode)
        before = {name: each.clone() for name, each in network.state_dict().items()}
        torch.manual_seed(5)
        recipe = recipes.named("tosa-int8").replace(stages=stages)
        folder = tmp_path / str(mode)
        results.append(tosaic.export_model(network, (x,), folder=folder, recipe=recipe, verbose=0))
        assert all(each.training == mode for each in network.modules())
        assert all(torch.equal(each, before[name]) for name, each in network.state_dict().items())
    return results[0], results[1]


def _same(network: Any, _context: Any) -> Any:
    return network


def _calibrated(exported: Any, _context: Any) -> Any:
    return tosaic.quantize(exported, [(torch.randn(4, 3, 6, 6),)], progress=False)


@pytest.mark.parametrize(
    "stages",
    [
        [recipes.qat(_runs)],
        [recipes.Stage("same", "model", _same), recipes.qat(_runs)],
        [recipes.Stage("own", "quantize", _calibrated)],
    ],
    ids=["qat", "a stage of the model and qat", "a stage of the user's"],
)
def test_a_module_in_training_mode_is_exported_as_in_evaluation_mode(
    stages: list[Any], tmp_path: Path
) -> None:
    training, evaluation = _training_and_evaluation(tmp_path, stages)
    for result in (training, evaluation):
        assert all(each.ok for each in result.checks)
    x = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(6))
    assert np.array_equal(training.program.run(x), evaluation.program.run(x))
    assert db(training.lowered.run(x), torch.tensor(evaluation.lowered.run(x))) > 25


def test_a_module_that_torch_exported_is_refused_by_the_recipe_of_training() -> None:
    x = torch.randn(4, 3, 6, 6)
    exported = torch.export.export(Modes().eval(), (x,)).module()
    recipe = recipes.named("tosa-int8").replace(stages=[recipes.qat(_runs)])
    with pytest.raises(tosaic.InvalidGraph, match=r"one mode: .*Pass the module itself"):
        tosaic.export_model(exported, (x,), recipe=recipe, verbose=0)
