"""tosaic's quantizer, from torch.export to integers: export, prepare, calibrate, convert, lower, run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import (
    ComposableQuantizer,
    FixedQParamsQuantizationSpec,
    SharedQuantizationSpec,
)
from tosaic.annotation import Fixed, Observed
from tosaic.annotation.config import Precision, QConfig
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")

Sample = tuple[torch.Tensor, ...]


def images(count: int = 4, shape: Sequence[int] = (1, 3, 8, 8)) -> list[Sample]:
    return [(torch.randn(shape, generator=torch.Generator().manual_seed(i)),) for i in range(count)]


def annotated(module: nn.Module, sample: Sample, config: QConfig | None = None) -> dict[str, Any]:
    """Returns the annotations by node name, None where there is none."""
    model = torch.export.export(module.eval(), sample).module(check_guards=False)
    quantizer = tosaic.Quantizer(config)
    quantizer.annotate(quantizer.transform_for_annotation(model))
    return {node.name: node.meta.get("quantization_annotation") for node in model.graph.nodes}


def observed_outputs(module: nn.Module, sample: Sample, config: QConfig | None = None) -> list[str]:
    found = annotated(module, sample, config)
    return [name for name, each in found.items() if each is not None and each.output_qspec is not None]


def converted(
    module: nn.Module, samples: list[Sample], quantizer: Any = None
) -> torch.export.ExportedProgram:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = torch.export.export(module.eval(), samples[0]).module(check_guards=False)
        prepared = prepare_pt2e(model, quantizer or tosaic.Quantizer())
        for sample in samples:
            prepared(*sample)
        return torch.export.export(convert_pt2e(prepared), samples[0])


def decibels(expected: Any, found: Any) -> float:
    expected, found = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    return float(10 * np.log10(np.sum(expected**2) / max(np.sum((found - expected) ** 2), 1e-300)))


def lowered_equals_torch(program: torch.export.ExportedProgram, samples: list[Sample]) -> Any:
    """Lowers to integers, and checks that no float is left and that results are within a unit of torch's."""
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    assert not [value.name for value in lowered.graph.values if value.dtype in ("f32", "f16", "bf16")]
    module = program.module(check_guards=False)
    for sample in samples:
        with torch.no_grad():
            expected = module(*sample)
        expected = expected if isinstance(expected, tuple) else (expected,)
        found = lowered.run(*sample)
        found = found if isinstance(found, tuple) else (found,)
        for e, f, port in zip(expected, found, lowered.outputs, strict=True):
            unit = port.qparams.scale if port.qparams else 0
            assert np.abs(e.numpy() - f).max() <= 1.001 * unit
    return lowered


def quantized_close_to_float(
    module: nn.Module, samples: list[Sample], least_db: float, quantizer: Any = None
) -> Any:
    program = converted(module, samples, quantizer)
    lowered = lowered_equals_torch(program, samples)
    with torch.no_grad():
        expected = [module(*sample) for sample in samples]
    assert decibels(torch.stack(expected), np.stack([lowered.run(*s) for s in samples])) >= least_db
    return lowered


class Returns(nn.Module):
    """A linear layer, and next to it what a function returns of the input."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x), self.function(self, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda _, x: x,
        lambda _, x: x.reshape(-1).flip(0),
        lambda _, x: torch.relu(x).T,
        lambda _, x: x.clamp(-0.5, 0.5),
        lambda module, _: module.linear.weight,
    ],
)
@pytest.mark.parametrize("every_operator", [False, True])
def test_inputs_and_constants_that_are_returned_are_integers(function: Any, *, every_operator: bool):
    torch.manual_seed(0)
    samples = images(4, (2, 4))
    module = Returns(function)
    quantizer = tosaic.Quantizer(QConfig.int8(every_operator=every_operator))
    lowered = lowered_equals_torch(converted(module, samples, quantizer), samples)
    with torch.no_grad():
        wanted, found = module(*samples[0])[1].detach(), lowered.run(*samples[0])[1]
    assert np.abs(wanted.numpy() - found).max() <= 0.501 * lowered.outputs[1].qparams.scale
    assert all(port.qparams.dtype == "i8" for port in lowered.outputs)


class ConvNet(nn.Module):
    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=bias)
        self.bn = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=bias)
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        x = nn.functional.max_pool2d(x + nn.functional.relu6(self.depthwise(x)), 2)
        return self.head(torch.flatten(x, 1))


def test_a_network_of_convolutions_lowers_to_integers_and_is_close_to_float():
    torch.manual_seed(0)
    quantized_close_to_float(ConvNet(), images(), 30)


def test_a_convolution_is_not_rounded_before_its_activation():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Hardtanh(0, 6), nn.Flatten())
    assert observed_outputs(module, images()[0]) == ["relu", "hardtanh"]


def test_a_contraction_is_not_rounded_before_a_wide_function_of_it():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 3), nn.GELU(), nn.Flatten())
    wide = QConfig.int8().set(replace(QConfig.int8().precision, wide_functions=True))
    assert observed_outputs(module, images()[0], wide) == ["silu", "gelu"]
    assert observed_outputs(module, images()[0]) == ["conv2d", "silu", "conv2d_1", "gelu"]
    assert observed_outputs(module, images()[0], QConfig.int16x8()) == ["conv2d", "silu", "conv2d_1", "gelu"]


def test_a_wide_function_of_the_sum_of_a_contraction_is_closer_to_float():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 16, 3), nn.SiLU(), nn.Conv2d(16, 16, 3), nn.GELU(), nn.Flatten())
    wide = QConfig.int8().set(replace(QConfig.int8().precision, wide_functions=True))
    found = []
    for config in (wide, QConfig.int8()):
        lowered = lowered_equals_torch(converted(module, images(), tosaic.Quantizer(config)), images())
        with torch.no_grad():
            expected = [module(*sample).numpy() for sample in images()]
        found.append(decibels(expected, [lowered.run(*sample) for sample in images()]))
    assert found[0] > found[1] + 0.5


def quantizations(program) -> dict[str, tuple[float, int]]:
    """Returns scale and zero point of each tensor that is quantized, by the node that makes it."""
    return {
        node.args[0].name: (node.args[1], node.args[2])
        for node in program.graph.nodes
        if str(node.target) == "quantized_decomposed.quantize_per_tensor.default"
    }


@pytest.mark.parametrize("function", [nn.SiLU(), nn.GELU(), nn.Mish(), nn.Softplus(), nn.GELU("tanh")])
def test_the_range_before_a_function_ends_where_the_function_is_flat(function):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), function, nn.Flatten())
    with torch.no_grad():
        module[0].weight.mul_(20)
    program = converted(module, images())
    scale, zero_point = quantizations(program)["conv2d"]
    with torch.no_grad():
        observed = torch.cat([module[0](*sample) for sample in images()])
    least, greatest = (-128 - zero_point) * scale, (127 - zero_point) * scale
    assert least > 0.8 * float(observed.min())
    assert greatest > 0.9 * float(observed.max())


def test_a_range_that_another_observer_chooses_stays():
    from tosaic.fx.quantizer.observers import TosaicMinMaxObserver

    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Flatten())
    base = QConfig.int8().precision
    activation = replace(base.activation, observer=TosaicMinMaxObserver)
    program = converted(
        module, images(), tosaic.Quantizer(QConfig().set(replace(base, activation=activation)))
    )
    scale, _ = quantizations(program)["conv2d"]
    with torch.no_grad():
        observed = torch.cat([module[0](*sample) for sample in images()])
    assert scale == pytest.approx(float(observed.max() - observed.min()) / 255)


def test_inputs_of_the_program_are_not_clipped():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
    samples = images()
    samples[0][0][0, 0, 0, 0] = 9.0  # an outlier, which the least error clips
    found = quantizations(converted(module, samples))
    everything = torch.cat([sample[0] for sample in samples])
    scale, zero_point = found["x"] if "x" in found else found["input"]
    assert scale == pytest.approx(float(everything.max() - everything.min()) / 255)
    assert (127 - zero_point) * scale == pytest.approx(9.0, abs=scale)


def test_a_function_with_random_numbers_or_other_tensors_has_no_say_in_ranges():
    from tosaic.fx.quantizer.functions import function_of_reader

    class Several(nn.Module):
        def forward(self, x, y):
            return nn.functional.rrelu(x, training=True) + torch.lerp(y, y * 2, 0.5), torch.clamp(y, 0, 1)

    model = torch.export.export(Several(), (torch.randn(4), torch.randn(4))).module()
    x, y = [node for node in model.graph.nodes if node.op == "placeholder"]
    assert function_of_reader(x) is None
    assert function_of_reader(y) is None


def test_a_function_without_finite_results_gets_the_plain_range():
    class Log(nn.Module):
        def forward(self, x):
            return torch.log(torch.relu(x) * 2.0 + nn.functional.relu6(x))

    torch.manual_seed(0)
    program = converted(Log(), [(torch.rand(1, 8),) for _ in range(4)])
    assert all(scale > 0 for scale, _ in quantizations(program).values())


def test_what_a_call_stores_in_a_buffer_in_place_is_rounded_before():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))
            self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

        def forward(self, x):
            self.calls.add_(1)
            self.total.add_(x.sum(0))
            return x + self.total

    quantizer = tosaic.Quantizer()
    prepared = prepare_pt2e(torch.export.export(Counts(), (torch.randn(2, 4),)).module(), quantizer)
    assert quantizer.left_float == {}
    stores = [node for node in prepared.graph.nodes if str(node.target) == "aten.copy_.default"]
    stored = {node.args[0].target: node.args[1].name for node in stores}
    assert sorted(stored) == ["calls", "total"]
    observed = {name for name in stored if "observer" in stored[name] or "post_process" in stored[name]}
    assert observed == {"total"}
    assert prepared(torch.ones(2, 4)).shape == (2, 4)
    assert int(prepared.calls) == 1


def test_observers_behind_a_function_can_be_copied_and_pickled():
    import copy
    import pickle

    from tosaic.fx.quantizer.functions import Function
    from tosaic.fx.quantizer.observers import TosaicHistogramObserver

    observer = TosaicHistogramObserver(behind=Function("aten.silu.default", (None,)))
    observer(torch.randn(1000))
    for other in (copy.deepcopy(observer), pickle.loads(pickle.dumps(observer))):
        assert other.calculate_qparams() == observer.calculate_qparams()


def test_a_convolution_that_two_calls_read_is_rounded_before_its_activation():
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            y = self.conv(x)
            return torch.relu(y) + y

    assert observed_outputs(Forked(), images()[0]) == ["conv2d", "add"]


def test_weights_have_a_scale_for_each_channel_and_biases_the_product_of_scales():
    samples = images()
    torch.manual_seed(0)
    program = converted(nn.Conv2d(3, 4, 3), samples)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    per_channel = [node for node in calls if "dequantize_per_channel" in str(node.target)]
    per_tensor = [node for node in calls if "quantize_per_tensor" in str(node.target)]
    scales = {node.args[6]: program.state_dict[_target_of(program, node.args[1])] for node in per_channel}
    assert {dtype: scale.shape for dtype, scale in scales.items()} == {torch.int8: (4,), torch.int32: (4,)}
    torch.testing.assert_close(scales[torch.int32], scales[torch.int8] * per_tensor[0].args[1])
    lowered_equals_torch(program, samples)


def _target_of(program: torch.export.ExportedProgram, node: Any) -> str:
    (spec,) = [each for each in program.graph_signature.input_specs if each.arg.name == node.name]
    return spec.target


@pytest.mark.parametrize("transposed", [False, True])
def test_the_channels_of_a_transposed_convolution_are_its_second_axis(transposed):
    module = nn.ConvTranspose2d(3, 4, 3) if transposed else nn.Conv2d(3, 4, 3)
    (annotation,) = [each for name, each in annotated(module, images()[0]).items() if name.startswith("conv")]
    weight = next(spec for node, spec in annotation.input_qspec_map.items() if "weight" in node.name)
    assert weight.ch_axis == int(transposed)
    quantized_close_to_float(module, images(), 30)


def test_operands_of_a_concatenation_that_nothing_else_reads_share_one_scale():
    class Five(nn.Module):
        def forward(self, x):
            return torch.cat([x, 2 * x, torch.sigmoid(x).abs() + 1, x.mean(3, keepdim=True), x * x], 3)

    samples = images()
    program = converted(Five(), samples)
    (cat,) = [node for node in program.graph.nodes if "cat" in str(node.target)]
    image, *others = (operand.args[1:3] for operand in cat.args[0])
    assert len(others) == 4
    assert len(set(others)) == 1
    assert image not in others
    lowered_equals_torch(program, samples)


def test_softmax_and_sigmoid_have_the_scales_of_their_ranges():
    class Ranges(nn.Module):
        def forward(self, x):
            return torch.softmax(x, 1), torch.sigmoid(x), torch.tanh(x)

    found = annotated(Ranges(), images()[0])
    specs = {name: each.output_qspec for name, each in found.items() if each and each.output_qspec}
    assert all(isinstance(spec, FixedQParamsQuantizationSpec) for spec in specs.values())
    assert {name: (spec.scale, spec.zero_point) for name, spec in specs.items()} == {
        "softmax": (1 / 256, -128),
        "sigmoid": (1 / 256, -128),
        "tanh": (1 / 128, 0),
    }


class Attention(nn.Module):
    """Attention that is spelled out, with a causal mask that is added to the scores."""

    def __init__(self, hidden: float) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("mask", torch.full((8, 8), hidden).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 4 + self.mask
        return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("hidden", [-1e9, float("-inf"), torch.finfo(torch.float32).min])
def test_an_additive_mask_has_no_scale_in_common_with_scores(hidden):
    torch.manual_seed(0)
    quantized_close_to_float(Attention(hidden), images(4, (1, 8, 16)), 25)


def test_a_mask_that_the_caller_passes_stays_apart_from_scores():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x, hidden):
            y = self.linear(x)
            scores = (y @ y.transpose(-1, -2)).masked_fill(hidden, -1e9)
            return torch.softmax(scores, -1) @ y

    torch.manual_seed(0)
    hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    samples = [(x, hidden) for (x,) in images(4, (1, 8, 16))]
    quantized_close_to_float(Masked(), samples, 25)


def test_an_rms_norm_of_several_calls_is_rounded_only_at_its_ends():
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(16) + 0.5)
            self.linear = nn.Linear(16, 4)

        def forward(self, x):
            y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.linear(self.weight * y)

    outputs = observed_outputs(Norm(), images(1, (2, 16))[0])
    assert len(outputs) == 2
    assert outputs[-1] == "linear"
    quantized_close_to_float(Norm(), images(4, (2, 16)), 30)


def test_a_function_composed_of_several_calls_is_rounded_once():
    class Swish(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            y = self.linear(x)
            return y * nn.functional.relu6(y + 3) / 6

    outputs = observed_outputs(Swish(), images(1, (2, 16))[0])
    assert outputs == ["linear", "div"]
    quantized_close_to_float(Swish(), images(4, (2, 16)), 30)


def test_rotary_tables_stay_float():
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)
            self.register_buffer("frequencies", 10000.0 ** (-torch.arange(8) / 8))

        def forward(self, x):
            angles = torch.outer(torch.arange(64).float(), self.frequencies)
            angles = torch.cat([angles, angles], -1)
            y = self.linear(x)
            rotated = torch.cat([-y[..., 8:], y[..., :8]], -1)
            return y * angles.cos() + rotated * angles.sin()

    torch.manual_seed(0)
    quantized_close_to_float(Rotary(), images(4, (1, 64, 16)), 30)


def test_integers_and_bools_are_never_observed():
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.linear = nn.Embedding(50, 16), nn.Linear(16, 4)

        def forward(self, tokens, present):
            x = torch.where(present.unsqueeze(-1), self.embedding(tokens), 0.0)
            return self.linear(x)

    g = torch.Generator().manual_seed(0)
    samples = [
        (torch.randint(0, 50, (1, 8), generator=g), torch.rand(1, 8, generator=g) > 0.3) for _ in range(4)
    ]
    found = annotated(Tokens(), samples[0])
    observed = {p.name for each in found.values() if each for p, spec in each.input_qspec_map.items() if spec}
    assert not observed & {"tokens", "present", "unsqueeze"}
    quantized_close_to_float(Tokens(), samples, 30)


# ---- configurations ----


def test_int16_activations_are_as_precise_as_their_weights():
    samples, target = images(), "TOSA-1.0+INT+int16"
    torch.manual_seed(0)
    network = ConvNet()
    rounded = copy.deepcopy(network)  # gets the weights rounded to 8 bits, as floats
    for weight in rounded.parameters():
        if weight.dim() > 1:
            scales = weight.detach().abs().flatten(1).amax(1) / 127
            scales = scales.view(-1, *[1] * (weight.dim() - 1))
            weight.data = (weight / scales).round() * scales
    program = converted(network, samples, tosaic.Quantizer(QConfig.int16x8()))
    lowered = tosaic.lower(program, target=target)
    assert not [value.name for value in lowered.graph.values if value.dtype == "f32"]
    (x,) = samples[0]
    with torch.no_grad():
        expected, of_weights = network.eval()(x), rounded.eval()(x)
    result = lowered.run(x)
    limit = decibels(expected, of_weights)
    assert decibels(of_weights, result) > limit + 15  # activations add little to the error of the weights
    assert decibels(expected, result) > max(40, limit - 1)
    assert np.array_equal(run_reference_model(lowered, x).outputs, result)


def test_four_bit_weights_stay_in_range_and_lower():
    program = converted(nn.Linear(16, 4), images(4, (2, 16)), tosaic.Quantizer(QConfig.int8(weight_bits=4)))
    (weight,) = [
        v for v in (*program.state_dict.values(), *program.constants.values()) if v.dtype == torch.int8
    ]
    assert weight.abs().max() == 7
    lowered_equals_torch(program, images(4, (2, 16)))


def test_activations_of_uint8_lower():
    torch.manual_seed(0)
    quantized_close_to_float(ConvNet(), images(), 30, tosaic.Quantizer(QConfig.uint8()))


def test_a_convolution_with_other_weights_than_the_rest_is_not_rounded_before_its_activation():
    module = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    config = QConfig.int8().set(QConfig.int8(weight_bits=4), op="conv2d")
    assert observed_outputs(module, images()[0], config) == ["relu"]


def test_the_last_selection_decides():
    module = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))
    config = QConfig.int8().set(None, type="Linear").set(QConfig.uint8(), module="1")
    found = annotated(module, images(1, (1, 16))[0], config)
    outputs = {name: each.output_qspec for name, each in found.items() if each and each.output_qspec}
    assert {name: spec.dtype for name, spec in outputs.items()} == {"linear_1": torch.uint8}


def test_calls_that_are_left_float_read_rounded_numbers_and_stay_float():
    module = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
    config = QConfig.int8().set(None, nodes=["gelu", "linear_1"])
    samples = images(4, (2, 16))
    program = converted(module, samples, tosaic.Quantizer(config))
    quantized = [node.args[0].name for node in program.graph.nodes if ".quantize_per" in str(node.target)]
    assert quantized == ["input", "linear"]
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+FP")
    assert decibels(module(*samples[0]).detach(), lowered.run(*samples[0])) > 30


@pytest.mark.parametrize(
    "conditions",
    [{"name": "linear"}, {"regex": "lin.*"}, {"op": "aten.linear.default"}, {"nodes": ["linear"]}],
)
def test_calls_are_selected_by_name_regex_target_and_list(conditions):
    config = QConfig.int8().set(None, **conditions)
    assert observed_outputs(nn.Sequential(nn.Linear(4, 4), nn.GELU()), images(1, (1, 4))[0], config) == [
        "gelu"
    ]


def test_a_selection_that_selects_nothing_names_near_ones():
    with pytest.raises(
        tosaic.InvalidGraph, match=r"\[QConfig\] Select\(op='linaer'\) selects nothing.*linear"
    ):
        annotated(nn.Linear(4, 4), images(1, (1, 4))[0], QConfig.int8().set(None, op="linaer"))


def test_dynamic_quantization_is_refused():
    with pytest.raises(tosaic.UnsupportedOp, match=r"dynamic quantization.*Calibrate"):
        Precision(Observed("int8", dynamic=True))


def test_configurations_check_their_values():
    with pytest.raises(tosaic.InvalidGraph, match="bits of weights: expected 2 to 8, got 1"):
        QConfig.int8(weight_bits=1)
    with pytest.raises(tosaic.InvalidGraph, match="expected 'derived' or 'float', got 'int'"):
        QConfig.int8(bias="int")
    with pytest.raises(tosaic.InvalidGraph, match="expected a QConfig, a Precision or None, got 'int8'"):
        QConfig.int8().set("int8", op="linear")


# ---- traps ----


def test_an_unused_input_before_a_quantized_one():
    class Unused(nn.Module):
        def forward(self, unused, x):
            return x * x

    samples = [(x, x + 1) for (x,) in images()]
    lowered_equals_torch(converted(Unused(), samples), samples)


def test_the_same_tensor_returned_twice():
    class Twice(nn.Module):
        def forward(self, x):
            y = x * x
            return y, y

    lowered_equals_torch(converted(Twice(), images()), images())


def test_a_call_with_several_results():
    class Several(nn.Module):
        def forward(self, x):
            a, b = torch.split(x * x, 2, 3)[:2]
            value, _ = torch.max(a, 3)
            return value, b + 1

    lowered_equals_torch(converted(Several(), images()), images())


def test_sharing_through_a_residual_ends():
    class Cycle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(6, 3, 1)

        def forward(self, x):
            for _ in range(3):
                x = x + self.conv(torch.cat([x, torch.relu(x)], 1))
            return x

    torch.manual_seed(0)
    quantized_close_to_float(Cycle(), images(), 25)


def test_a_module_that_is_called_twice():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            return self.linear(torch.relu(self.linear(x)))

    torch.manual_seed(0)
    quantized_close_to_float(Shared(), images(4, (2, 16)), 30)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, flag, x):
        y = self.linear(x)
        y = torch.cond(flag, lambda y: torch.relu(y) + 1, lambda y: torch.tanh(y), (y,))
        return self.linear(y)


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, flag, x):
        def body(i, y):
            return i + 1, torch.tanh(y) * 0.5

        y = torch.while_loop(lambda i, y: i < 3, body, (flag.to(torch.int64), self.linear(x)))[1]
        return self.linear(y)


BODIES = {
    Branches: {"true_graph_0.relu", "true_graph_0.add", "false_graph_0.tanh"},
    Loop: {"while_loop_body_graph_0.tanh", "while_loop_body_graph_0.mul"},
}


@pytest.mark.parametrize("module", BODIES)
def test_bodies_of_control_flow_stay_float_and_say_so(module):
    torch.manual_seed(0)
    samples = [(torch.tensor(i % 2 == 0), x) for i, (x,) in enumerate(images(4, (2, 8)))]
    quantizer, network = tosaic.Quantizer(), module()
    program = converted(network, samples, quantizer)
    inside = {name for name in quantizer.left_float if "." in name}
    assert inside == BODIES[module]
    assert {quantizer.left_float[name] for name in inside} == {
        "integer lowering computes bodies of control flow with floats"
    }
    assert "linear" not in quantizer.left_float
    assert (
        quantizer.left_float["cond" if module is Branches else "while_loop"]
        == "the operator has no integer form"
    )
    bodies = [each for name, each in program.graph_module.named_modules() if name]
    assert len(bodies) == 2
    calls = [node for body in bodies for node in body.graph.nodes if node.op == "call_function"]
    assert calls
    assert not [node for node in calls if "quantize" in str(node.target)]
    with pytest.raises(tosaic.UnsupportedOp, match=r"computes with floats.*(cond|while_loop)"):
        tosaic.lower(program, target="TOSA-1.0+INT+controlflow")
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+FP+controlflow")
    products = [node for node in lowered.graph.nodes if node.op in ("tosa.matmul", "tosa.conv2d")]
    assert {node.operands[0].dtype for node in products} == {"i8"}
    for sample in samples:
        found = lowered.run(*sample)
        with torch.no_grad():
            assert decibels(network(*sample), found) > 30
            unit = np.abs(program.module(check_guards=False)(*sample).numpy()).max() / 127
            assert np.abs(program.module(check_guards=False)(*sample).numpy() - found).max() <= unit


def test_another_quantizers_annotations_are_not_changed():
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    first = XNNPACKQuantizer().set_operator_type(
        torch.ops.aten.linear.default, get_symmetric_quantization_config(is_per_channel=True)
    )
    module = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16))
    torch.manual_seed(0)
    both = ComposableQuantizer([first, tosaic.Quantizer()])
    quantized_close_to_float(module, images(4, (2, 16)), 25, both)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Precision("int8"), "the spec 'activation': expected Observed, such as Observed('int8')"),
        (lambda: Precision(weight=Fixed("int8", 0.1)), "the spec 'weight': expected Observed"),
        (lambda: Precision(Observed("float16")), "expected integers with a scheme"),
        (lambda: Precision(Observed("int32")), "expected a scheme per tensor, and int8, uint8 or int16"),
        (lambda: Precision(Observed(scheme="per_channel_affine", axis=1)), "expected a scheme per tensor"),
        (lambda: Precision(fixed_ranges="yes"), "the option 'fixed_ranges': expected True or False"),
        (lambda: QConfig.int8(weight_bits=8.0), "the bits of weights: expected a whole number, 2 to 8"),
        (lambda: QConfig.int8(weight_bits=True), "the bits of weights: expected a whole number"),
        (lambda: QConfig.int8(per_channel="no"), "the option 'per_channel': expected True or False"),
        (lambda: QConfig((3,)), "the selections: expected a tuple of pairs"),
        (lambda: QConfig(Precision()), "the selections: expected a tuple of pairs"),
        (lambda: QConfig.int8().set(None, nodes="relu"), "the condition 'nodes' is wrong"),
    ],
)
def test_a_wrong_precision_or_selection_is_refused_when_it_is_made(make, text):
    with pytest.raises(tosaic.InvalidGraph) as caught:
        make()
    assert text in str(caught.value)


def test_an_object_that_is_not_a_configuration_is_refused():
    for config in ("int8", QConfig.int8, QConfig.int8().precision):
        with pytest.raises(tosaic.InvalidGraph, match=r"expected a tosaic\.QConfig, such as"):
            tosaic.Quantizer(config)
    program = torch.export.export(nn.ReLU(), (torch.ones(1),))
    with pytest.raises(tosaic.InvalidGraph, match="not a graph of torch"):
        tosaic.Quantizer().transform_for_annotation(program)


def test_calls_of_float64_stay_float_because_torch_does_not_quantize_them():
    class Doubles(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4).double()
            self.second = nn.Linear(4, 4)

        def forward(self, x):
            return self.second(torch.relu(self.first(x)).float())

    quantizer = tosaic.Quantizer()
    program = converted(Doubles(), [(torch.randn(2, 4, dtype=torch.float64),)], quantizer)
    assert quantizer.left_float["linear"] == "torch quantizes no float64"
    weights = [n.args[0].name for n in program.graph.nodes if "dequantize_per_channel" in n.name]
    assert len(weights) == 2  # weight and bias of `second`


def test_an_observer_without_samples_is_logged_when_it_is_converted(caplog):
    model = torch.export.export(nn.Linear(4, 4).eval(), (torch.ones(1, 4),)).module()
    convert_pt2e(prepare_pt2e(model, tosaic.Quantizer()))
    assert "TosaicHistogramObserver has no finite samples, so its scale is 1" in caplog.text


# ---- training ----


def test_convolutions_with_batch_norm_train_and_lower():
    """With and without bias, weights of 8 and 4 bits: all in one network, which torchao converts slowly."""
    from torchao.quantization.pt2e import move_exported_model_to_eval, move_exported_model_to_train

    torch.manual_seed(0)
    samples = images(8, (4, 3, 8, 8))
    layers: list[nn.Module] = []
    for bias in (True, False, True, False):
        layers += [nn.Conv2d(3, 3, 3, padding=1, bias=bias), nn.BatchNorm2d(3), nn.ReLU()]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 5))
    config = QConfig.int8()
    for coarse in range(6, 12):  # the last two convolutions, batch norms and activations
        config = config.set(QConfig.int8(weight_bits=4), module=str(coarse))
    model = torch.export.export(module.train(), samples[0]).module(check_guards=False)
    prepared = prepare_qat_pt2e(model, tosaic.Quantizer(config, qat=True))
    move_exported_model_to_train(prepared)
    optimizer = torch.optim.SGD(prepared.parameters(), 1e-2)
    losses = []
    for _ in range(4):
        for (x,) in samples:
            loss = ((prepared(x) - x.mean((1, 2, 3))[:, None]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert np.mean(losses[-8:]) < np.mean(losses[:8])
    move_exported_model_to_eval(prepared)
    with torch.no_grad():
        program = torch.export.export(convert_pt2e(prepared), samples[0])
        lowered_equals_torch(program, samples)
    assert not [node for node in program.graph.nodes if "batch_norm" in str(node.target)]
    weights = [
        node.args[4:6]
        for node in program.graph.nodes
        if "dequantize_per_channel" in str(node.target) and node.args[6] == torch.int8
    ]
    assert sorted(weights) == [(-127, 127)] * 3 + [(-7, 7)] * 2


def test_shared_specs_refer_to_slots_that_come_first():
    found = annotated(Attention(-1e9), images(1, (1, 8, 16))[0])
    order = list(found)
    for name, each in found.items():
        if each is None or not isinstance(each.output_qspec, SharedQuantizationSpec):
            continue
        root = each.output_qspec.edge_or_node
        assert order.index(root[1].name if isinstance(root, tuple) else root.name) <= order.index(name)


def test_observers_that_the_user_chose_stay_even_if_they_are_the_default_ones():
    from tosaic.fx.quantizer.observers import TosaicHistogramObserver

    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Flatten())
    base = QConfig.int8().precision
    activation = replace(base.activation, observer=TosaicHistogramObserver)
    model = torch.export.export(module.eval(), images()[0]).module()
    tosaic.Quantizer(QConfig().set(replace(base, activation=activation))).annotate(model)
    (conv,) = [node for node in model.graph.nodes if "conv2d" in str(node.target)]
    annotation = conv.meta["quantization_annotation"]
    image = annotation.input_qspec_map[conv.args[0]]
    for spec in (image, annotation.output_qspec):
        assert spec.observer_or_fake_quant_ctr is TosaicHistogramObserver


def test_an_error_in_annotate_leaves_the_graph_as_it_was():
    module = nn.Sequential(nn.SiLU(), nn.Conv2d(3, 4, 3), nn.Flatten())
    base = QConfig.int8().precision
    wrong = replace(base, weight=replace(base.weight, scheme="per_tensor_foo", axis=None))
    model = torch.export.export(module.eval(), images()[0]).module()
    quantizer = tosaic.Quantizer(QConfig().set(wrong))
    with pytest.raises(tosaic.InvalidGraph, match="per_tensor_foo"):
        quantizer.annotate(model)
    assert not any("quantization_annotation" in node.meta for node in model.graph.nodes)
    with pytest.raises(tosaic.InvalidGraph, match="has not annotated a graph yet"):
        _ = quantizer.plan


def test_the_report_gives_true_reasons_and_no_history_of_the_planner():
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x, y):
            return torch.cat([self.conv(x), torch.sigmoid(y) * 3, torch.exp(y)], 1)

    quantizer = tosaic.Quantizer(QConfig.int8().set(None, op="conv2d"))
    x = torch.randn(1, 3, 4, 4)
    quantizer.annotate(torch.export.export(Joined(), (x, x)).module())
    reasons = {row.node: row.reason for row in quantizer.report.left_float}
    assert reasons["x"] == "no call that reads it is quantized"
    assert reasons["conv2d"] == "it is not selected"
    assert quantizer.report.history == ()


def test_a_rule_that_quantizes_what_the_quantizer_left_is_not_reported_as_float():
    from tosaic.annotation import Observed, Select, Set

    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
    rule = Set(Select(name="conv2d"), result=Observed("int8"))
    wrapped = tosaic.wrap_quantizer(tosaic.Quantizer(), rules=[rule])
    prepare_pt2e(torch.export.export(module.eval(), images()[0]).module(), wrapped)
    assert "conv2d" not in {row.node for row in wrapped.report.left_float}
