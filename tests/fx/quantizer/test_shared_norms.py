"""Convolutions that several batch norms follow, and norms of all kinds: what is trained is converted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from torch import nn
from torchao.quantization.pt2e import disable_observer, move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    pytest.mark.filterwarnings("ignore"),
]
_COVERING = tosaic.QConfig.int8(observer="minmax")
Outputs = tuple[torch.Tensor, ...]


class Head(nn.Module):
    """Convolutions and norms at two levels of a pyramid: each level chooses its modules by index."""

    def __init__(self, convs: int, norms: int, *, bias: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1, bias=bias) for _ in range(convs)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(4) for _ in range(norms)])

    def forward(self, x: torch.Tensor) -> Outputs:
        levels = x, F.avg_pool2d(x, 2) * 3
        return tuple(
            self.norms[i % len(self.norms)](self.convs[i % len(self.convs)](level)).relu()
            for i, level in enumerate(levels)
        )


class WithAndWithout(nn.Module):
    """One convolution, with a norm after it and without."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> Outputs:
        return self.norm(self.conv(x)).relu(), self.conv(x * 0.5).relu()


class ReadTwice(nn.Module):
    """One result of a convolution that two norms read, and that is returned."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.conv, self.norms = (
            nn.Conv2d(3, 4, 3, bias=bias),
            nn.ModuleList([nn.BatchNorm2d(4) for _ in "ab"]),
        )

    def forward(self, x: torch.Tensor) -> Outputs:
        y = self.conv(x)
        return self.norms[0](y).relu(), self.norms[1](y).relu(), y


def _one(conv: nn.Module, norm: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(conv, norm, nn.ReLU())


_HEADS: dict[str, Callable[[bool], nn.Module]] = {
    "one convolution and one norm": lambda bias: Head(1, 1, bias=bias),
    "one convolution and a norm for each level": lambda bias: Head(1, 2, bias=bias),
    "a convolution for each level and one norm": lambda bias: Head(2, 1, bias=bias),
    "a convolution with and without a norm": lambda bias: WithAndWithout(bias=bias),
    "a result that two norms read": lambda bias: ReadTwice(bias=bias),
}
_NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "epsilon": (_one(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=0.5)), (4, 3, 6, 6)),
    "epsilon, without a convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4, eps=0.5), nn.Conv2d(4, 3, 1)),
        (4, 3, 6, 6),
    ),
    "no weight and bias": (_one(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)), (4, 3, 6, 6)),
    "no statistics": (_one(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), (4, 3, 6, 6)),
    "weights of 0": (_one(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (4, 3, 6, 6)),
    "padding by name": (_one(nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4)), (4, 3, 6, 6)),
    "conv1d": (_one(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)), (4, 3, 9)),
    "conv3d": (_one(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4)), (4, 3, 5, 5, 5)),
    "grouped": (_one(nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.BatchNorm2d(4)), (4, 4, 6, 6)),
    "transposed": (_one(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)), (4, 3, 6, 6)),
    "transposed, in groups": (_one(nn.ConvTranspose2d(4, 4, 3, groups=2), nn.BatchNorm2d(4)), (4, 4, 6, 6)),
    "linear": (_one(nn.Linear(8, 4), nn.BatchNorm1d(4)), (16, 8)),
    "instance norm": (
        _one(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
        (4, 3, 6, 6),
    ),
}


def _uneven(network: nn.Module) -> nn.Module:
    """Makes the norms of a network differ from one another, and from no norm at all."""
    for each in network.modules():
        if isinstance(each, nn.modules.batchnorm._NormBase) and each.affine:
            nn.init.uniform_(each.weight, 0.2, 4)
            nn.init.uniform_(each.bias, -2, 2)
    return network


def _db(found: Any, exact: Any) -> float:
    """Returns the least ratio of all outputs."""
    pairs = zip(_listed(found), _listed(exact), strict=True)
    return min(_ratio(np.asarray(one, np.float64), np.asarray(two, np.float64)) for one, two in pairs)


def _listed(value: Any) -> list[Any]:
    items = list(value) if isinstance(value, tuple | list) else [value]
    return [each.detach().numpy() if isinstance(each, torch.Tensor) else each for each in items]


def _ratio(found: Any, exact: Any) -> float:
    noise = float(np.square(found - exact).sum())
    return float("inf") if noise == 0 else 10 * np.log10(float(np.square(exact).sum()) / noise)


def _trained(network: nn.Module, x: torch.Tensor, quantizer: Any) -> Any:
    module = torch.export.export(copy.deepcopy(network).train(), (x,)).module()
    made = prepare_qat_pt2e(module, quantizer)
    optimizer = torch.optim.SGD(made.parameters(), lr=1e-2)
    for _ in range(6):
        sum(each.square().mean() for each in _tensors(made(x + torch.randn_like(x) * 0.1))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return made


def _tensors(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _is_right(
    network: nn.Module,
    x: torch.Tensor,
    quantizer: Any = None,
    least_db: float = 25,
    target: str = "TOSA-1.0+INT",
) -> None:
    trained = _trained(network, x, tosaic.Quantizer(_COVERING, qat=True) if quantizer is None else quantizer)
    state = {key: value for key, value in trained.state_dict().items() if key in network.state_dict()}
    twin = copy.deepcopy(network)
    twin.load_state_dict(state)
    move_exported_model_to_eval(trained)
    with torch.no_grad():
        trained(x)
        found = trained.apply(disable_observer)(x)
        assert _db(found, twin.eval()(x)) > least_db
        program = torch.export.export(convert_pt2e(trained), (x,))
        assert _db(program.module()(x), found) > 40
    lowered = tosaic.lower(program, target=target)
    assert _db(lowered.run(x), found) > 40
    assert tosaic.compare(program, lowered, (x,)).ok


@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("name", _HEADS)
def test_a_shared_head_is_converted_as_it_was_trained(name: str, bias: bool) -> None:
    torch.manual_seed(4)
    _is_right(_uneven(_HEADS[name](bias)), torch.randn(4, 3, 6, 6))


@pytest.mark.parametrize("name", _NORMS)
def test_a_norm_is_converted_as_it_was_trained(name: str) -> None:
    torch.manual_seed(4)
    made, shape = _NORMS[name]
    network = _uneven(made())
    if name == "weights of 0":
        network[1].weight.data[1:3] = 0  # type: ignore[index, union-attr]
    _is_right(network, torch.randn(shape))


def test_a_frozen_norm_keeps_its_statistics_in_training() -> None:
    torch.manual_seed(4)
    network, x = _uneven(Head(1, 2, bias=False)), torch.randn(4, 3, 6, 6)
    network.norms[1].train = lambda mode=True: network.norms[1]  # type: ignore[method-assign, union-attr]
    network.norms[1].training = False  # type: ignore[union-attr]
    before = copy.deepcopy(network.state_dict())
    state = _trained(network, x, tosaic.Quantizer(qat=True)).state_dict()
    assert torch.equal(state["norms.1.running_var"], before["norms.1.running_var"])
    assert not torch.equal(state["norms.0.running_var"], before["norms.0.running_var"])


def test_running_statistics_have_the_momentum_of_their_norm() -> None:
    torch.manual_seed(4)
    x = torch.randn(4, 3, 6, 6)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.7)).train()
    module = torch.export.export(copy.deepcopy(network), (x,)).module()
    prepared = prepare_qat_pt2e(module, tosaic.Quantizer(qat=True))
    prepared(x)
    network(x)
    found, exact = prepared.state_dict()["1.running_mean"], network.state_dict()["1.running_mean"]
    assert torch.allclose(found, exact, atol=0.02)
    assert exact.abs().max() > 0.1


def test_the_prepared_module_has_the_parameters_of_the_network_and_no_others() -> None:
    torch.manual_seed(4)
    network, x = Head(1, 2, bias=True), torch.randn(4, 3, 6, 6)
    trained = _trained(network, x, tosaic.Quantizer(qat=True))
    assert {name for name, _ in trained.named_parameters()} == {
        name for name, _ in network.named_parameters()
    }


def test_the_scaled_weights_of_norms_that_differ_have_scales_of_their_own() -> None:
    torch.manual_seed(4)
    network, x = _uneven(Head(1, 2, bias=False)), torch.randn(4, 3, 6, 6)
    converted = convert_pt2e(move_exported_model_to_eval(_trained(network, x, tosaic.Quantizer(qat=True))))
    weights = [node for node in converted.graph.nodes if "dequantize_per_channel" in str(node.target)]
    scales = {node.args[1].target for node in weights}
    assert len(weights) == len(scales) == 2
    one, two = (getattr(converted, name) for name in sorted(scales))
    assert not torch.allclose(one, two, rtol=0.1)


def _xnnpack() -> Any:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_qat=True)
    return xnnpack.XNNPACKQuantizer().set_global(config)


@pytest.mark.parametrize("name", list(_HEADS)[:3])
def test_a_wrapped_quantizer_of_another_project_trains_shared_heads(name: str) -> None:
    torch.manual_seed(4)
    quantizer = tosaic.wrap_quantizer(_xnnpack(), rules=[])
    # Its ranges are moving averages, which do not cover all numbers yet, and it leaves the pool in floats.
    network, x = _uneven(_HEADS[name](False)), torch.randn(4, 3, 6, 6)
    _is_right(network, x, quantizer, least_db=12, target="TOSA-1.0+INT+FP")


def test_composed_quantizers_train_shared_heads() -> None:
    torch.manual_seed(4)
    quantizer = tosaic.fx.compose_quantizers([tosaic.Quantizer(_COVERING, qat=True)])
    _is_right(_uneven(Head(1, 2, bias=True)), torch.randn(4, 3, 6, 6), quantizer)


def test_shared_heads_are_trained_in_arms_flow() -> None:
    torch.manual_seed(4)
    network, x = _uneven(Head(1, 2, bias=False)), torch.randn(4, 3, 6, 6)
    quantizer = tosaic.Quantizer(_COVERING, qat=True, compatible_with="arm")
    module = torch.export.export(copy.deepcopy(network).train(), (x,)).module()
    trained = prepare_qat_pt2e(module, quantizer)
    twin = copy.deepcopy(network).train()
    for _ in range(40):
        trained(x)
        twin(x)
    move_exported_model_to_eval(trained)(x)
    with torch.no_grad():
        found = trained.apply(disable_observer)(x)
        assert _db(found, twin.eval()(x)) > 25
        program = torch.export.export(convert_pt2e(trained), (x,))
    assert _db(tosaic.lower(program, target="TOSA-1.0+INT").run(x), found) > 30


# ---- calibration ----


def _grown(network: nn.Module, x: torch.Tensor) -> nn.Module:
    """Returns the network in evaluation mode, with statistics of its own."""
    with torch.no_grad():
        for _ in range(4):
            network.train()(x * 2 + 0.5)
    return network.eval()


def _calibrated(module: Any, x: torch.Tensor, quantizer: Any) -> Any:
    prepared = prepare_pt2e(module, quantizer)
    prepared(x)
    return torch.export.export(convert_pt2e(prepared), (x,))


_CALIBRATED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{
        f"{name}, {'with' if bias else 'without'} bias": (
            lambda made=made, bias=bias: made(bias),
            (4, 3, 6, 6),
        )
        for name, made in _HEADS.items()
        for bias in (True, False)
    },
    **{name: _NORMS[name] for name in ("epsilon", "no weight and bias", "transposed, in groups", "linear")},
    "transposed, one channel in a group": (
        _one(nn.ConvTranspose2d(4, 4, 3, groups=4), nn.BatchNorm2d(4)),
        (4, 4, 6, 6),
    ),
}


@pytest.mark.parametrize("name", _CALIBRATED)
def test_norms_that_tosaic_folds_before_the_calibration_have_their_own_numbers(name: str) -> None:
    torch.manual_seed(4)
    made, shape = _CALIBRATED[name]
    x = torch.randn(shape)
    network = _grown(_uneven(made()), x)
    exported = torch.export.export(network, (x,))
    before = copy.deepcopy(network.state_dict())
    folded = tosaic.fx.fold_norms(exported.module())
    assert not any("batch_norm" in str(node.target) for node in folded.graph.nodes)
    with torch.no_grad():
        assert _db(folded(x), network(x)) > 100
    program = _calibrated(folded, x, tosaic.Quantizer())
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    assert _db(lowered.run(x), network(x)) > 28
    assert tosaic.compare(program, lowered, (x,)).ok
    assert all(torch.equal(each, before[key]) for key, each in network.state_dict().items())


_BEYOND_TORCHAO = ["transposed, in groups", "transposed, one channel in a group"]
_WRONG = [
    "one convolution and one norm, without bias",
    *(f"one convolution and a norm for each level, {which} bias" for which in ("with", "without")),
    *(f"a convolution with and without a norm, {which} bias" for which in ("with", "without")),
    *(f"a result that two norms read, {which} bias" for which in ("with", "without")),
]


@pytest.mark.parametrize("name", [name for name in _CALIBRATED if name not in _BEYOND_TORCHAO])
def test_norms_that_torchao_folds_wrongly_are_refused_and_others_are_not(name: str) -> None:
    torch.manual_seed(4)
    made, shape = _CALIBRATED[name]
    x = torch.randn(shape)
    network = _grown(_uneven(made()), x)
    module = torch.export.export(network, (x,)).module()
    if name in _WRONG:
        with pytest.raises(
            tosaic.UnsupportedOp, match=r"folded the batch norms 'norm.*tosaic\.fx\.fold_norms"
        ):
            prepare_pt2e(module, tosaic.Quantizer())
    else:
        program = _calibrated(module, x, tosaic.Quantizer())
        assert _db(tosaic.lower(program, target="TOSA-1.0+INT").run(x), network(x)) > 28


@pytest.mark.parametrize("door", ["wrap_quantizer", "compose_quantizers"])
def test_other_quantizers_of_tosaic_refuse_norms_that_torchao_folds_wrongly(door: str) -> None:
    x = torch.randn(4, 3, 6, 6)
    module = torch.export.export(_grown(Head(1, 2, bias=True), x), (x,)).module()
    wrapped = tosaic.wrap_quantizer(_xnnpack(), rules=[])
    quantizer = wrapped if door == "wrap_quantizer" else tosaic.fx.compose_quantizers([_xnnpack()])
    with pytest.raises(tosaic.UnsupportedOp, match=rf"{door}.*'norms\.0', 'norms\.1'"):
        prepare_pt2e(module, quantizer)


def test_shared_convolutions_without_norms_beside_others_with_norms_are_accepted() -> None:
    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
            self.head = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> Outputs:
            body = self.body(x)
            return self.head(body), self.head(F.avg_pool2d(body, 2))

    torch.manual_seed(4)
    x = torch.randn(4, 3, 6, 6)
    network = _grown(_uneven(Pyramid()), x)
    program = _calibrated(torch.export.export(network, (x,)).module(), x, tosaic.Quantizer())
    assert _db(tosaic.lower(program, target="TOSA-1.0+INT").run(x), network(x)) > 28


@pytest.mark.parametrize("name", [name for name in _CALIBRATED if "that two norms read" not in name])
def test_tosaic_folds_norms_in_its_own_flow(name: str) -> None:
    torch.manual_seed(4)
    made, shape = _CALIBRATED[name]
    x = torch.randn(shape)
    network = _grown(_uneven(made()), x)
    quantized = tosaic.quantize(torch.export.export(network, (x,)), [(x,)], progress=False)
    assert _db(tosaic.lower(quantized, target="TOSA-1.0+INT").run(x), network(x)) > 28
