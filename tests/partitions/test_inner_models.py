"""Models of nodes inside of the groups of a split program."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic import Nodes

from partitions.test_plans import denying, exported
from partitions.test_regions import NO_EXP, Branches

CONV = Nodes(kind="conv")


class Net(nn.Module):
    """Convolutions, so that groups are in channels last, and an activation that stays on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.second(torch.relu(self.first(x))))
        return torch.relu(self.third(y))


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def net(x: torch.Tensor) -> Any:
    torch.manual_seed(0)
    return tosaic.quantize(torch.export.export(Net().eval(), (x,)), [(x,)], progress=False)


@pytest.fixture(scope="module")
def split(net: Any) -> Any:
    claimants = [tosaic.Claimant.named("ethos-u85-256").deny(op="sigmoid")]
    return tosaic.lower(net, unsupported="split", claimants=claimants)


class Recording:
    """A model that keeps the operands of its calls and returns what tosaic computes, or zeros."""

    def __init__(self, *, zeros: bool = False) -> None:
        self.zeros = zeros
        self.seen: dict[str, list[Any]] = {}

    def __call__(self, call: Any) -> Any:
        self.seen[call.name] = [np.array(each) for each in call.operands]
        return np.zeros(call.result_types[0].shape, np.int8) if self.zeros else call.default()


def test_a_model_of_an_operator_computes_it_inside_of_groups(net: Any, split: Any, x: torch.Tensor) -> None:
    assert [len(group.nodes) for group in split.partitions.groups] == [3, 2]
    assert split.parts[0].outputs[0].dim_order == (0, 2, 3, 1)
    ours, whole = Recording(), Recording()
    prepared = split.prepare(models={CONV: ours})
    assert prepared.models == dict.fromkeys(("conv2d", "conv2d_1", "conv2d_2"), str(CONV))
    result = prepared.run(x)
    expected = net.prepare(models={CONV: whole}).run(x)
    assert list(ours.seen) == list(whole.seen) == ["conv2d", "conv2d_1", "conv2d_2"]
    for name, operands in ours.seen.items():
        assert [each.shape for each in operands] == [each.shape for each in whole.seen[name]]
    for mine, theirs in zip(ours.seen["conv2d"], whole.seen["conv2d"], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert np.abs(result - expected).max() <= 2 * net.outputs[0].qparams.scale


def test_what_a_model_returns_is_what_the_program_goes_on_with(net: Any, split: Any, x: torch.Tensor) -> None:
    models = {Nodes(name="conv2d_1"): Recording(zeros=True), "conv2d_2": Recording()}
    result = split.prepare(models=models).run(x)
    sigmoid = models["conv2d_2"].seen["conv2d_2"][0]
    assert len(np.unique(sigmoid)) == 1
    expected = net.prepare(
        models={Nodes(name="conv2d_1"): Recording(zeros=True), "conv2d_2": Recording()}
    ).run(x)
    np.testing.assert_array_equal(result, expected)


def test_the_rest_of_a_group_stays_with_its_claimant(split: Any, x: torch.Tensor) -> None:
    before = split.run(x)
    source = split.prepare(models={Nodes(name="conv2d"): Recording()}).source
    assert [group.nodes for group in source.partitions.groups] == [
        ("relu", "conv2d_1"),
        ("conv2d_2", "relu_1"),
    ]
    assert {part.target for part in source.parts} == {split.parts[0].target}
    (refusal,) = source.partitions.why("conv2d").refusals
    assert (refusal.rule, "a model computes it" in refusal.problem.message) == ("deny", True)
    np.testing.assert_array_equal(split.run(x), before)
    assert split.partitions.groups[0].nodes == ("conv2d", "relu", "conv2d_1")


def test_groups_keep_their_models_by_name(split: Any, x: torch.Tensor) -> None:
    group, inner = Recording(), Recording()
    assert split.prepare(models={"group1": group}).models == {"relu_1": "group1"}
    prepared = split.prepare(models={"group1": group, Nodes(name="conv2d"): inner})
    prepared.run(x)
    assert list(group.seen) == ["relu_1"]
    assert list(inner.seen) == ["conv2d"]
    with pytest.raises(
        tosaic.InvalidGraph, match="a key selects a group, and another key a node inside of it"
    ):
        split.prepare(models={"group1": group, Nodes(name="conv2d_2"): inner})


@pytest.mark.parametrize("claimant", ["cortex-m55", "neutron"])
def test_a_claimant_that_does_not_read_tosa_has_models(net: Any, x: torch.Tensor, claimant: str) -> None:
    split = tosaic.lower(net, unsupported="split", claimants=[claimant])
    assert any("conv2d" in group.nodes for group in split.partitions.groups)
    model = Recording()
    found = split.prepare(models={CONV: model}).run(x)
    assert len(model.seen) == 3
    assert np.abs(found - split.run(x)).max() <= 2 * net.outputs[0].qparams.scale


@pytest.mark.parametrize("on", ["vela", None, ["vgf"]])
def test_what_runs_nothing_is_refused(net: Any, split: Any, on: Any) -> None:
    for program in (net, split, split.host, split.parts[0]):
        with pytest.raises(tosaic.InvalidGraph, match="'on': expected 'tosaic', 'reference' or 'vgf', got"):
            program.prepare(on=on)


@pytest.mark.parametrize("key", ["*", Nodes()])
def test_a_key_of_all_nodes_means_the_groups_as_they_are(split: Any, key: Any) -> None:
    assert split.prepare(models={key: Recording()}).source is split


@pytest.mark.parametrize("key", ["tosa.conv2d", Nodes(kind="gelu"), Nodes(module="absent")])
def test_a_key_that_selects_nothing_is_refused(split: Any, key: Any) -> None:
    with pytest.raises(tosaic.InvalidGraph, match="selects no node"):
        split.prepare(models={key: Recording()})


@pytest.mark.parametrize(
    "key", [Nodes(module="second"), Nodes(target="aten.conv2d"), Nodes(fx_name="conv2d_1"), "conv2d_1"]
)
def test_all_conditions_of_keys_reach_inside(split: Any, key: Any) -> None:
    assert "conv2d_1" in split.prepare(models={key: Recording()}).models


def test_models_inside_of_groups_are_compared_profiled_and_pickled(
    net: Any, split: Any, x: torch.Tensor
) -> None:
    assert tosaic.compare(net, split, (x,), models={CONV: lambda call: call.default()}).ok
    assert not tosaic.compare(net, split, (x,), models={CONV: lambda call: np.negative(call.default())}).ok
    prepared = split.prepare(models={CONV: double})
    again = pickle.loads(pickle.dumps(prepared))
    np.testing.assert_array_equal(again.run(x), prepared.run(x))
    assert split.prepare(models={CONV: double}, on="reference").profile(x, runs=1).steps


def double(call: Any) -> Any:
    return np.clip(call.default().astype(np.int32) * 2, -128, 127).astype(np.int8)


def test_nodes_in_the_groups_of_branches_have_models() -> None:
    x = torch.ones(2, 4)
    program = exported(Branches().eval(), x)
    split = tosaic.lower(program, unsupported="split", claimants=[NO_EXP])
    sines = Recording()
    prepared = split.prepare(models={"sin": sines})
    np.testing.assert_allclose(prepared.run(x), split.run(x), rtol=1e-6)
    negative = split.prepare(models={"tanh": sines, "sin": sines})
    assert {"sin", "tanh"} <= set(negative.models)


def test_a_group_of_floats_has_models(x: torch.Tensor) -> None:
    torch.manual_seed(0)
    program = exported(Net().eval(), x)
    split = tosaic.lower(program, unsupported="split", claimants=[denying("sigmoid", target="TOSA-1.0+FP")])
    found = split.prepare(models={CONV: lambda call: call.default()}).run(x)
    np.testing.assert_allclose(found, split.run(x), rtol=1e-5, atol=1e-6)
