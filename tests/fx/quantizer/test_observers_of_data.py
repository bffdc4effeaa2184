"""Observers as data in `tosaic.Quantizer`: torchao's graphs have the scales of the core."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from torchao.quantization.pt2e import DerivedObserverOrFakeQuantize
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from tosaic import _core
from tosaic.annotation import Entropy, LeastError, MinMax, Observed, Percentile, Select, Set
from tosaic.fx.quantizer.observers import (
    TosaicEntropyObserver,
    TosaicHistogramObserver,
    TosaicMinMaxObserver,
    TosaicMovingAverageMinMaxObserver,
    TosaicPercentileObserver,
    TosaicPerChannelGroupObserver,
    TosaicPerChannelHistogramObserver,
    TosaicPerChannelMinMaxObserver,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    # typing_extensions warns of it when torch copies a graph
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]

CLASSES = {
    "minmax": TosaicMinMaxObserver,
    "moving_average": TosaicMovingAverageMinMaxObserver,
    "percentile": TosaicPercentileObserver,
    "mse": TosaicHistogramObserver,
    "entropy": TosaicEntropyObserver,
}
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.sin(self.first(x)))


def prepared(quantizer: Any, *, qat: bool = False) -> Any:
    torch.manual_seed(0)
    network = Network().train() if qat else Network().eval()
    model = torch.export.export(network, (X,)).module()
    return (prepare_qat_pt2e if qat else prepare_pt2e)(model, quantizer)


def observers_of(model: Any) -> list[Any]:
    """Returns the observers or fake-quant modules of a graph, except the observers of biases."""
    return [
        each
        for name, each in model.named_modules()
        if name.startswith("activation_post_process")
        and "." not in name
        and not isinstance(each, DerivedObserverOrFakeQuantize)
    ]


@pytest.mark.parametrize("name", CLASSES)
def test_every_activation_has_the_observer_of_the_configuration(name: str) -> None:
    model = prepared(tosaic.Quantizer(tosaic.QConfig.int8(observer=name)))
    found = {type(each) for each in observers_of(model) if not hasattr(each, "ch_axis") or each.ch_axis < 0}
    assert CLASSES[name] in found
    assert found <= {CLASSES[name], TosaicPerChannelMinMaxObserver}
    model(X)
    program = torch.export.export(convert_pt2e(model), (X,))
    assert tosaic.check(program, target="TOSA-1.0+INT").ok


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, TosaicPerChannelMinMaxObserver),
        ({"weight_bits": 4}, TosaicPerChannelHistogramObserver),
        ({"weight_observer": "mse"}, TosaicPerChannelHistogramObserver),
        ({"weight_bits": 4, "weight_observer": "minmax"}, TosaicPerChannelMinMaxObserver),
        ({"per_channel": False, "weight_observer": "mse"}, TosaicHistogramObserver),
        ({"group_size": 4}, TosaicPerChannelGroupObserver),
        ({"group_size": 4, "weight_observer": "minmax"}, TosaicPerChannelGroupObserver),
    ],
)
def test_weights_have_the_observer_of_the_configuration(options: dict[str, Any], expected: type) -> None:
    model = prepared(tosaic.Quantizer(tosaic.QConfig.int8(observer="entropy", **options)))
    weights = [each for each in observers_of(model) if not isinstance(each, TosaicEntropyObserver)]
    assert {type(each) for each in weights} == {expected}
    if "group_size" in options:
        assert {each.search for each in weights} == {"weight_observer" not in options}


def test_the_configuration_sets_the_least_scales() -> None:
    config = tosaic.QConfig.int8(observer=Percentile(90, eps=0.5), weight_observer=MinMax(eps=0.25))
    for each in observers_of(prepared(tosaic.Quantizer(config))):
        is_activation = isinstance(each, TosaicPercentileObserver)
        assert float(each.eps) == (0.5 if is_activation else 0.25)
        assert not is_activation or each.percent == 90


@pytest.mark.parametrize("name", CLASSES)
def test_in_training_ranges_are_moving_averages(name: str) -> None:
    model = prepared(tosaic.Quantizer(tosaic.QConfig.int8(observer=name), qat=True), qat=True)
    inside = {type(each.activation_post_process).__name__ for each in observers_of(model)}
    of_activations = "TosaicMinMaxObserver" if name == "minmax" else "TosaicMovingAverageMinMaxObserver"
    assert inside == {of_activations, "TosaicPerChannelMinMaxObserver"}
    model(X).sum().backward()


def test_rules_take_observers_as_data() -> None:
    rule = Set(Select(op="sin"), result=Observed("int8", -128, 127, observer=Entropy()))
    model = prepared(tosaic.wrap_quantizer(tosaic.Quantizer(), rules=[rule]))
    assert sum(isinstance(each, TosaicEntropyObserver) for each in observers_of(model)) == 1


def test_a_quantizer_with_observers_as_data_can_be_copied_and_pickled() -> None:
    quantizer = tosaic.Quantizer(tosaic.QConfig.int8(observer=Percentile(99), weight_observer=LeastError()))
    prepared(quantizer)
    for other in (copy.deepcopy(quantizer), pickle.loads(pickle.dumps(quantizer))):
        assert other.config == quantizer.config
        prepared(other)


def test_scales_of_percentiles_are_numpys() -> None:
    samples = torch.randn(50_000, generator=torch.Generator().manual_seed(2))
    observer = TosaicPercentileObserver(dtype=torch.int8, percent=98)
    for part in samples.split(7000):
        assert observer(part) is part
    scale, zero_point = observer.calculate_qparams()
    low, high = np.quantile(samples.double().numpy(), [0.01, 0.99])
    assert float(scale) * 255 == pytest.approx(high - low, rel=5e-3)
    assert float(scale) * float(-128 - zero_point) == pytest.approx(low, abs=float(scale))


@pytest.mark.parametrize("make", [TosaicPercentileObserver, TosaicEntropyObserver])
def test_new_observers_have_states_errors_and_merge(make: Any) -> None:
    parts = torch.randn(9000, generator=torch.Generator().manual_seed(3)).split(1000)
    whole, one, other = (make(dtype=torch.uint8) for _ in range(3))
    for i, part in enumerate(parts):
        whole(part)
        (one if i % 2 else other)(part)
    one.merge(other)
    assert one.calculate_qparams() == whole.calculate_qparams()
    again = make(dtype=torch.uint8)
    again.load_state_dict(whole.state_dict())
    assert again.calculate_qparams() == whole.calculate_qparams()
    scale, zero_point = (each.item() for each in whole.calculate_qparams())
    limits = {"scale": scale, "zero_point": zero_point, "qmin": 0, "qmax": 255}
    assert whole.expected_error() == [_core.expected_error(whole.histograms[0], **limits)]
    with pytest.raises(tosaic.UnsupportedOp, match=f"{make.__name__} has no such scheme"):
        make(qscheme=torch.per_channel_affine)
