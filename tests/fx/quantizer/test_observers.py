"""Observers that compute in the core, against torchao's own observers and fake quantization."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchao.quantization.pt2e.fake_quantize import FakeQuantize
from torchao.quantization.pt2e.observer import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    PerChannelMinMaxObserver,
    get_observer_state_dict,
    load_observer_state_dict,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer
from tosaic.fx.quantizer.observers import (
    TosaicHistogramObserver,
    TosaicMinMaxObserver,
    TosaicMovingAverageMinMaxObserver,
    TosaicPerChannelHistogramObserver,
    TosaicPerChannelMinMaxObserver,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    # typing_extensions warns of it when torch copies a graph
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]

INF, NAN = float("inf"), float("nan")
Draw = Callable[[torch.Generator, int], torch.Tensor]

DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda g, n: torch.randn(n, generator=g),
    "relu": lambda g, n: torch.randn(n, generator=g).relu(),
    "relu6": lambda g, n: (4 * torch.randn(n, generator=g)).clamp(0, 6),
    "gelu": lambda g, n: F.gelu(torch.randn(n, generator=g)),
    "softmax": lambda g, n: (3 * torch.randn(n // 50, 50, generator=g)).softmax(1),
    "Cauchy": lambda g, n: torch.empty(n).cauchy_(generator=g),
    "log-normal": lambda g, n: torch.empty(n).log_normal_(0, 2, generator=g),
    "Laplace": lambda g, n: torch.empty(n).exponential_(generator=g) * torch.randn(n, generator=g).sign(),
    "outliers": lambda g, n: torch.cat([torch.randn(n, generator=g), torch.tensor([500.0, -100.0])]),
    "bimodal": lambda g, n: torch.where(
        torch.rand(n, generator=g) < 0.3,
        torch.randn(n, generator=g) / 10 - 4,
        torch.randn(n, generator=g) / 20 + 2,
    ),
    "far from zero": lambda g, n: 100 + torch.randn(n, generator=g),
    "uniform": lambda g, n: 7 * torch.rand(n, generator=g) - 2,
    "tiny": lambda g, n: torch.randn(n, generator=g) * 1e-3,
    "huge": lambda g, n: torch.randn(n, generator=g) * 1e15,
    "normalized pixels": lambda g, n: (torch.randint(0, 256, (n,), generator=g) / 255 - 0.45) / 0.22,
}
# Values that int8 represents exactly.
EXACT: dict[str, Draw] = {
    "constant": lambda g, n: torch.full((n,), 2.7),
    "negative constant": lambda g, n: torch.full((n,), -3e-3),
    "zero": lambda g, n: torch.zeros(n),
    "two values": lambda g, n: (torch.rand(n, generator=g) < 0.2).float() * 3.3,
    "mask": lambda g, n: torch.where(torch.rand(n, generator=g) < 0.5, -1e4, 0.0),
    "pixels": lambda g, n: torch.randint(2, 251, (n,), generator=g) / 255,
}
KINDS: dict[str, dict[str, Any]] = {
    "int8": {"dtype": torch.int8, "qscheme": torch.per_tensor_affine},
    "symmetric int8": {
        "dtype": torch.int8,
        "qscheme": torch.per_tensor_symmetric,
        "quant_min": -127,
        "quant_max": 127,
    },
    "uint8": {"dtype": torch.uint8, "qscheme": torch.per_tensor_affine},
    "symmetric uint8": {"dtype": torch.uint8, "qscheme": torch.per_tensor_symmetric},
    "int4": {"dtype": torch.int8, "qscheme": torch.per_tensor_affine, "quant_min": -8, "quant_max": 7},
    "int16": {"dtype": torch.int16, "qscheme": torch.per_tensor_symmetric},
}
PER_CHANNEL: dict[str, dict[str, Any]] = {
    "int8": {
        "dtype": torch.int8,
        "qscheme": torch.per_channel_symmetric,
        "quant_min": -127,
        "quant_max": 127,
    },
    "affine uint8": {"dtype": torch.uint8, "qscheme": torch.per_channel_affine},
    "int4": {"dtype": torch.int8, "qscheme": torch.per_channel_symmetric, "quant_min": -8, "quant_max": 7},
}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observed(observer: Any, *tensors: torch.Tensor) -> Any:
    for tensor in tensors:
        assert observer(tensor) is tensor
    return observer


def measured_error(observer: Any, samples: torch.Tensor) -> float:
    """Returns the mean squared error of quantizing samples with the observer's parameters, by torch."""
    scale, zero_point = (each.item() for each in observer.calculate_qparams())
    limits = (scale, zero_point, observer.quant_min, observer.quant_max, torch.int32)
    integers = torch.ops.quantized_decomposed.quantize_per_tensor(samples, *limits)
    found = torch.ops.quantized_decomposed.dequantize_per_tensor(integers, *limits)
    return float((found.double() - samples.double()).square().mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_error_is_below_the_error_of_torchaos_histogram(distribution: str, kind: str) -> None:
    ratios = []
    for seed in range(3):
        batches = [DISTRIBUTIONS[distribution](rng(100 * seed + i), 20_000).reshape(-1) for i in range(3)]
        samples = torch.cat(batches)
        ours = measured_error(observed(TosaicHistogramObserver(**KINDS[kind]), *batches), samples)
        theirs = measured_error(observed(HistogramObserver(**KINDS[kind]), *batches), samples)
        ratios.append(ours / theirs)
    # A histogram does not say where in its bin a sample is, so that errors also differ by chance. Steps of 16
    # bits are finer than the bins: an error that is spread evenly over a step has a standard deviation of
    # 0.89 of its mean square.
    chance = 4 * 2**0.5 * 0.89 / len(samples) ** 0.5 if kind == "int16" else 1e-4
    assert max(ratios) <= 1 + chance, ratios
    assert np.mean(ratios) < (1 + chance if kind == "int16" else 1), ratios


@pytest.mark.parametrize(
    ("distribution", "kind"),
    [
        (distribution, kind)
        for distribution in EXACT
        for kind in ("int8", "uint8", "symmetric int8", "symmetric uint8", "int16")
        # Pixels have 250 steps on one side of zero; steps of 16 bits are finer than the bins of a histogram.
        if distribution != "pixels" or kind in ("int8", "uint8")
    ],
)
def test_values_on_a_grid_are_represented_exactly(distribution: str, kind: str) -> None:
    samples = EXACT[distribution](rng(), 20_000)
    error = measured_error(observed(TosaicHistogramObserver(**KINDS[kind]), samples), samples)
    assert error <= (1e-6 * float(samples.abs().max())) ** 2


def test_the_expected_error_is_the_measured_error() -> None:
    for distribution, draw in DISTRIBUTIONS.items():
        samples = draw(rng(), 50_000).reshape(-1)
        observer = observed(TosaicHistogramObserver(), samples)
        assert observer.expected_error() == [pytest.approx(measured_error(observer, samples), rel=0.03)], (
            distribution
        )


def test_scales_do_not_depend_on_the_order_or_the_split_of_samples() -> None:
    samples = torch.cat([draw(rng(), 5000).reshape(-1) for draw in DISTRIBUTIONS.values()])
    whole = observed(TosaicHistogramObserver(), samples)
    for seed in range(5):
        shuffled = samples[torch.randperm(len(samples), generator=rng(seed))]
        sizes = torch.randint(1, 9000, (30,), generator=rng(seed)).tolist()
        parts = shuffled.split([*sizes[:7], len(samples) - sum(sizes[:7])])
        one, other = TosaicHistogramObserver(), TosaicHistogramObserver()
        for i, part in enumerate(parts):
            observed(one if i % 2 else other, part)
        one.merge(other)
        assert one.histograms == whole.histograms
        assert one.calculate_qparams() == whole.calculate_qparams()


@pytest.mark.parametrize("kind", KINDS)
def test_min_max_scales_equal_torchaos(kind: str) -> None:
    for draw in (DISTRIBUTIONS | EXACT).values():
        batches = (
            [draw(rng(i), 1000 + i).reshape(-1) for i in range(4)]
            if draw is not DISTRIBUTIONS["softmax"]
            else [draw(rng(), 1000)]
        )
        for ours, theirs in (
            (TosaicMinMaxObserver, MinMaxObserver),
            (TosaicMovingAverageMinMaxObserver, MovingAverageMinMaxObserver),
        ):
            found, expected = (observed(each(**KINDS[kind]), *batches) for each in (ours, theirs))
            assert_same_qparams(found, expected)
            assert_same_state(found, expected)


def assert_same_qparams(found: Any, expected: Any) -> None:
    for mine, others in zip(found.calculate_qparams(), expected.calculate_qparams(), strict=True):
        assert mine.dtype == others.dtype
        torch.testing.assert_close(mine, others, rtol=0, atol=0)


def assert_same_state(found: nn.Module, expected: nn.Module) -> None:
    state = expected.state_dict()
    assert found.state_dict().keys() == state.keys()
    for name, value in found.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


@pytest.mark.parametrize("kind", PER_CHANNEL)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scales_per_channel_equal_torchaos(kind: str, axis: int) -> None:
    options = PER_CHANNEL[kind] | {"ch_axis": axis}
    shapes = [(5, 4, 3, 7), (6, 2), (3, 80, 70), (300, 5, 2)]
    for shape in shapes:
        weights = [torch.randn(shape, generator=rng(i)) for i in range(2)]
        found = observed(TosaicPerChannelMinMaxObserver(**options), *weights)
        expected = observed(PerChannelMinMaxObserver(**options), *weights)
        assert_same_qparams(found, expected)
        assert_same_state(found, expected)


@pytest.mark.parametrize("kind", PER_CHANNEL)
def test_least_error_per_channel_equals_the_search_of_each_channel(kind: str) -> None:
    weight = torch.randn(6, 40, 3, 3, generator=rng()) * torch.logspace(-3, 3, 6).reshape(6, 1, 1, 1)
    options = dict(PER_CHANNEL[kind])
    observer = observed(TosaicPerChannelHistogramObserver(**options), weight, weight.flip(1))
    scales, zero_points = observer.calculate_qparams()
    scheme = options["qscheme"] == torch.per_channel_symmetric
    options["qscheme"] = torch.per_tensor_symmetric if scheme else torch.per_tensor_affine
    for i, channel in enumerate(weight):
        alone = observed(TosaicHistogramObserver(**options), channel, channel.flip(0))
        assert (scales[i : i + 1], zero_points[i : i + 1]) == alone.calculate_qparams()
        fits = observed(TosaicMinMaxObserver(**options), channel)
        assert measured_error(alone, channel) <= measured_error(fits, channel) * (1 + 1e-6)


def dense_views(generator: torch.Generator) -> dict[str, torch.Tensor]:
    image = torch.randn(2, 3, 8, 5, generator=generator)
    return {
        "contiguous": image,
        "channels last": image.to(memory_format=torch.channels_last),
        "transposed": image.permute(3, 0, 2, 1),
        "parameter": nn.Parameter(image),
        "scalar": torch.tensor(2.5),
    }


class _Calls(TorchDispatchMode):
    """Records the operators of torch that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("view", dense_views(rng()))
def test_dense_tensors_are_observed_without_a_copy(view: str) -> None:
    tensor = dense_views(rng())[view]
    observer = TosaicHistogramObserver()
    with _Calls() as calls:
        observer(tensor)
    assert {name.split(".")[1] for name in calls.names} <= {"detach", "permute", "alias"}
    assert observer.histograms[0].range.finite == tensor.numel()


def test_other_tensors_are_observed_as_their_float32_values() -> None:
    base = torch.randn(64, 33, generator=rng())
    tensors = {
        "strided": base[::2, 1:20],
        "expanded": base[:, :1].expand(64, 50),
        "float16": base.half(),
        "bfloat16": base.bfloat16(),
        "float64": base.double(),
        "integers": torch.arange(-50, 70),
        "booleans": base > 0,
        "negated view": torch.complex(base, base).conj().imag,
    }
    for name, tensor in tensors.items():
        for ours in (TosaicHistogramObserver, TosaicMinMaxObserver):
            plain = tensor.clone().float().contiguous()
            assert_same_qparams(
                observed(ours(dtype=torch.int8), tensor), observed(ours(dtype=torch.int8), plain)
            )
        assert observed(TosaicHistogramObserver(), tensor).histograms[0].range.finite == tensor.numel(), name


def test_the_memory_format_of_a_weight_does_not_change_its_channels() -> None:
    weight = torch.randn(6, 4, 3, 3, generator=rng()).to(memory_format=torch.channels_last)
    for axis in range(4):
        options = PER_CHANNEL["int8"] | {"ch_axis": axis}
        for observer in (TosaicPerChannelMinMaxObserver, TosaicPerChannelHistogramObserver):
            assert_same_qparams(
                observed(observer(**options), weight), observed(observer(**options), weight.contiguous())
            )


@pytest.mark.parametrize(
    "observer",
    [
        TosaicHistogramObserver,
        TosaicMinMaxObserver,
        TosaicMovingAverageMinMaxObserver,
        TosaicPerChannelMinMaxObserver,
        TosaicPerChannelHistogramObserver,
    ],
)
def test_tensors_without_samples_change_nothing(observer: Any) -> None:
    with FakeTensorMode():
        fake = torch.ones(3, 2)
    found = observed(observer(dtype=torch.int8), torch.empty(0, 4), torch.ones(3, 2, device="meta"), fake)
    scale, zero_point = found.calculate_qparams()
    assert (scale.tolist(), zero_point.tolist()) == ([1.0], [0])


def test_samples_that_are_not_finite_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    samples = torch.randn(40, 50, generator=rng())
    damaged = samples.clone()
    damaged[3, :7] = NAN
    damaged[5, :4], damaged[6, :2] = INF, -INF
    plain = damaged[damaged.isfinite()]
    for observer in (TosaicHistogramObserver, TosaicMinMaxObserver, TosaicMovingAverageMinMaxObserver):
        found = observed(observer(dtype=torch.int8), damaged)
        assert (found.infinities, found.nans) == (6, 7)
        with caplog.at_level(logging.WARNING):
            scale, zero_point = found.calculate_qparams()
        assert f"{observer.__name__} ignored 6 infinities and 7 NaN among its samples" in caplog.text
        assert (scale, zero_point) == observed(observer(dtype=torch.int8), plain).calculate_qparams()
    rows = observed(
        TosaicPerChannelMinMaxObserver(dtype=torch.int8, qscheme=torch.per_channel_affine), damaged
    )
    assert (rows.infinities, rows.nans) == (6, 7)
    assert rows.max_val[3] == damaged[3, 7:].max()


def test_a_batch_that_is_not_finite_is_not_a_sample() -> None:
    for observer in (TosaicHistogramObserver, TosaicMinMaxObserver, TosaicMovingAverageMinMaxObserver):
        found = observed(observer(dtype=torch.int8), torch.tensor([INF, NAN]))
        assert found.calculate_qparams() == (torch.tensor([1.0]), torch.tensor([0]))
        observed(found, torch.tensor([0.0, 255.0]))
        assert found.calculate_qparams() == (torch.tensor([1.0]), torch.tensor([-128]))


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "state_dict", "saved state_dict"])
@pytest.mark.parametrize("kind", ["histogram", "per channel", "min max"])
def test_copies_have_the_samples_of_the_original(kind: str, how: str) -> None:
    make = {
        "histogram": lambda: TosaicHistogramObserver(dtype=torch.uint8),
        "per channel": lambda: TosaicPerChannelHistogramObserver(ch_axis=1),
        "min max": lambda: TosaicMinMaxObserver(dtype=torch.int8),
    }[kind]
    original = observed(make(), torch.randn(30, 4, generator=rng()))
    if how == "deepcopy":
        other = copy.deepcopy(original)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(original))
    else:
        state = original.state_dict()
        if how == "saved state_dict":
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            state = torch.load(file, weights_only=True)
        other = make()
        other.load_state_dict(state)
    assert_same_qparams(other, original)
    before = original.calculate_qparams()
    observed(other, 100 * torch.randn(30, 4, generator=rng()))
    assert other.calculate_qparams()[0].max() > before[0].max()
    assert all(map(torch.equal, original.calculate_qparams(), before))


def test_damaged_states_are_refused() -> None:
    state = observed(TosaicHistogramObserver(), torch.randn(100, generator=rng())).state_dict()
    for damaged in (
        state["_extra_state"][:-3],
        torch.cat([state["_extra_state"], torch.zeros(1, dtype=torch.uint8)]),
    ):
        with pytest.raises(tosaic.InvalidGraph, match=r"the state of (a histogram|an observer) is damaged"):
            TosaicHistogramObserver().load_state_dict(state | {"_extra_state": damaged})


def test_what_an_observer_cannot_do_is_refused() -> None:
    with pytest.raises(tosaic.UnsupportedOp, match="TosaicHistogramObserver has no such scheme"):
        TosaicHistogramObserver(qscheme=torch.per_channel_affine)
    with pytest.raises(tosaic.UnsupportedOp, match="before the program runs: expected is_dynamic=False"):
        TosaicHistogramObserver(is_dynamic=True)
    with pytest.raises(tosaic.UnsupportedOp, match="complex samples cannot be observed"):
        TosaicHistogramObserver()(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(tosaic.LayoutMismatch, match="an axis of a tensor of rank 2, got 2"):
        TosaicPerChannelHistogramObserver(ch_axis=2)(torch.ones(3, 3))
    with pytest.raises(tosaic.LayoutMismatch, match="wrong number of values or channels"):
        observed(
            TosaicPerChannelMinMaxObserver(qscheme=torch.per_channel_affine),
            torch.ones(3, 3),
            torch.ones(4, 3),
        )


def test_gradients_pass_through_an_observer() -> None:
    for observer in (TosaicHistogramObserver(), TosaicMinMaxObserver(dtype=torch.int8)):
        x = torch.ones(4, requires_grad=True)
        observer(2 * x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0] * 4
        with torch.inference_mode():
            observer(torch.full((3,), 9.0))
        assert float(observer.max_val) == 9


class _ConvQuantizer(Quantizer):
    """Annotates convolutions: activations by one observer, weights by another."""

    def __init__(self, activation: QuantizationSpec, weight: QuantizationSpec) -> None:
        super().__init__()
        self.activation, self.weight = activation, weight

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        for node in model.graph.nodes:
            if node.target == torch.ops.aten.conv2d.default:
                inputs = {node.args[0]: self.activation, node.args[1]: self.weight}
                node.meta["quantization_annotation"] = QuantizationAnnotation(
                    input_qspec_map=inputs, output_qspec=self.activation, _annotated=True
                )
        return model

    def validate(self, model: torch.fx.GraphModule) -> None:
        pass


def quantizer(activation: Any, weight: Any) -> _ConvQuantizer:
    return _ConvQuantizer(
        QuantizationSpec(torch.int8, activation, -128, 127, torch.per_tensor_affine),
        QuantizationSpec(torch.int8, weight, -127, 127, torch.per_channel_symmetric, ch_axis=0),
    )


def converted(
    activation: Any, weight: Any, *, qat: bool = False
) -> tuple[torch.fx.GraphModule, Any, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8, generator=rng())
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3)).eval()
    exported = torch.export.export(model, (x,)).module()
    prepared = (prepare_qat_pt2e if qat else prepare_pt2e)(exported, quantizer(activation, weight))
    for seed in range(3):
        prepared(torch.randn(2, 3, 8, 8, generator=rng(seed)))
    observers = {
        name: copy.deepcopy(each) for name, each in prepared.named_modules() if "post_process" in name
    }
    return convert_pt2e(prepared), observers, x


def test_a_converted_graph_has_the_scales_of_the_observers() -> None:
    graph, observers, x = converted(TosaicHistogramObserver, TosaicPerChannelHistogramObserver)
    expected = {
        each.calculate_qparams()[0].item() for each in observers.values() if not hasattr(each, "ch_axis")
    }
    per_tensor = torch.ops.quantized_decomposed.quantize_per_tensor.default
    found = {node.args[1] for node in graph.graph.nodes if node.target == per_tensor}
    assert found == expected
    assert all(isinstance(scale, float) and np.float32(scale) == scale for scale in found)
    weights = [each.calculate_qparams()[0] for each in observers.values() if hasattr(each, "ch_axis")]
    buffers = [buffer for name, buffer in graph.named_buffers() if "scale" in name]
    assert len(weights) == 2
    assert all(any(torch.equal(scale, buffer) for buffer in buffers) for scale in weights)
    lowered = tosaic.lower(torch.export.export(graph, (x,)), target="TOSA-1.0+INT")
    represented = {scale for value in lowered.inputs for scale in [value.qparams.scales[0]]}
    assert represented <= expected


def test_min_max_observers_convert_to_the_graph_of_torchaos() -> None:
    ours, _, x = converted(TosaicMinMaxObserver, TosaicPerChannelMinMaxObserver)
    theirs, _, _ = converted(MinMaxObserver, PerChannelMinMaxObserver)
    assert [(n.op, str(n.target), n.args[1:]) for n in ours.graph.nodes if n.op == "call_function"] == [
        (n.op, str(n.target), n.args[1:]) for n in theirs.graph.nodes if n.op == "call_function"
    ] or str(ours.graph) == str(theirs.graph)
    assert torch.equal(ours(x), theirs(x))


def test_observers_work_inside_fake_quantization() -> None:
    class PerChannelFakeQuantize(FakeQuantize):
        pass

    activation = FakeQuantize.with_args(observer=TosaicMovingAverageMinMaxObserver)
    weight = PerChannelFakeQuantize.with_args(observer=TosaicPerChannelMinMaxObserver)
    graph, _, x = converted(activation, weight, qat=True)
    theirs, _, _ = converted(
        FakeQuantize.with_args(observer=MovingAverageMinMaxObserver),
        PerChannelFakeQuantize.with_args(observer=PerChannelMinMaxObserver),
        qat=True,
    )
    assert torch.equal(graph(x), theirs(x))


def test_torchaos_functions_store_and_restore_the_samples_of_a_prepared_graph() -> None:
    x = torch.randn(1, 3, 8, 8, generator=rng())
    model = torch.export.export(nn.Conv2d(3, 2, 3).eval(), (x,)).module()
    make = quantizer(TosaicHistogramObserver, TosaicPerChannelHistogramObserver)
    first, second = (prepare_pt2e(copy.deepcopy(model), make) for _ in range(2))
    first(x)
    load_observer_state_dict(second, get_observer_state_dict(first))
    found, expected = (
        [each.calculate_qparams() for name, each in graph.named_modules() if "post_process" in name]
        for graph in (second, first)
    )
    assert len(found) == 3
    for mine, others in zip(found, expected, strict=True):
        assert all(map(torch.equal, mine, others))


def test_a_state_that_is_cut_is_refused() -> None:
    observer = TosaicHistogramObserver()
    observer(torch.randn(10))
    state = observer.get_extra_state()
    for size in (0, 4, 12, len(state) - 1):
        with pytest.raises(tosaic.InvalidGraph):
            TosaicHistogramObserver().set_extra_state(state[:size])
