"""`tosaic.Quantizer(compatible_with="arm")`: ExecuTorch's flow for Arm lowers the converted graph, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from models.delegates import delegates_of, lower_with_executorch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic.annotation.config import QConfig
from tosaic.lowering.reference_model import run_reference_model

pytest.importorskip("executorch", reason="the flow is ExecuTorch's")
pytestmark = pytest.mark.filterwarnings("ignore")

Sample = tuple[torch.Tensor, ...]


def samples_of(*shape: int) -> list[Sample]:
    return [(torch.randn(shape, generator=torch.Generator().manual_seed(i)),) for i in range(4)]


def converted(module: nn.Module, samples: Sequence[Sample], config: QConfig | None = None) -> Any:
    with torch.no_grad():
        model = torch.export.export(module.eval(), samples[0]).module()
        prepared = prepare_pt2e(model, tosaic.Quantizer(config, compatible_with="arm"))
        for sample in samples:
            prepared(*sample)
        return torch.export.export(convert_pt2e(prepared), samples[0])


def outside(program: Any) -> list[str]:
    """Returns the calls outside of delegates, except those that ExecuTorch adds at inputs and outputs."""
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    inside = ("executorch_call_delegate", "getitem", "quantize_per_tensor", "alloc")
    return [call for call in calls if not any(each in call for each in inside)]


def decibels(expected: torch.Tensor, found: Any) -> float:
    noise = np.sum((np.asarray(found) - expected.numpy()) ** 2)
    return float(10 * np.log10(np.sum(expected.numpy() ** 2) / noise))


def lowers_in_both_flows(
    module: nn.Module, samples: Sequence[Sample], least_db: float, config: QConfig | None = None
) -> None:
    """Arm's flow makes one delegate; ours is close to float, and the reference model computes the same."""
    target = "TOSA-1.0+INT" if config is None else "TOSA-1.0+INT+int16"
    program = converted(module, samples, config)
    delegated = lower_with_executorch(program, target)
    assert (len(delegates_of(delegated)), outside(delegated)) == (1, [])
    lowered = tosaic.lower(program, target=target)
    assert not [value.name for value in lowered.graph.values if value.dtype == "f32"]
    found = lowered.run(*samples[0])
    (reference,) = run_reference_model(lowered, *samples[0]).outputs
    np.testing.assert_array_equal(np.reshape(reference, found.shape), found)
    with torch.no_grad():
        assert decibels(module(*samples[0]), found) > least_db


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        y = nn.functional.relu6(self.depthwise(x))
        x = torch.relu(x + nn.functional.silu(self.pointwise(y)))
        x = nn.functional.max_pool2d(torch.cat([x, y], 1), 2)
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    def __init__(self, hidden: float = 0.0) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("mask", torch.full((8, 8), hidden).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 4 + self.mask, -1)
        return x + self.out(nn.functional.gelu(weights @ v))


def test_a_convolutional_network_becomes_one_delegate_and_lowers_with_tosaic():
    torch.manual_seed(0)
    lowers_in_both_flows(ConvNet(), samples_of(1, 3, 8, 8), 25)


def test_an_attention_with_its_norm_becomes_one_delegate_and_lowers_with_tosaic():
    torch.manual_seed(0)
    lowers_in_both_flows(Attention(), samples_of(1, 8, 16), 25)


def test_a_mask_leaves_precision_to_the_scores():
    torch.manual_seed(0)
    lowers_in_both_flows(Attention(float("-inf")), samples_of(1, 8, 16), 25)


def test_activations_of_16_bits_lower_in_both_flows():
    torch.manual_seed(0)
    lowers_in_both_flows(ConvNet(), samples_of(1, 3, 8, 8), 35, QConfig.int16x8())


def test_the_greatest_integer_of_a_bounded_result_is_its_bound():
    # A mass of samples at the bound, for which the search for the least error takes a scale above the range.
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
    module = nn.Sequential(first, nn.ReLU6(), second, nn.Hardtanh(0, 2), nn.Flatten())
    with torch.no_grad():
        first.weight.mul_(10)
        second.weight.mul_(3)
    program = converted(module, samples_of(1, 3, 8, 8))
    bounded = [n for n in program.graph.nodes if str(n.target) == "aten.hardtanh.default"]
    for call, bound in zip(bounded, (6, 2), strict=True):
        (rounded,) = call.users
        scale, zero_point, _, qmax, _ = rounded.args[1:]
        assert round(bound / scale) + zero_point >= qmax


def test_each_float_result_of_a_call_is_rounded():
    torch.manual_seed(0)
    program = converted(Attention(), samples_of(1, 8, 16))
    for node in program.graph.nodes:
        target = str(node.target)
        if node.op != "call_function" or "quantize_per" in target or "chunk" in target or "split" in target:
            continue
        assert all(".quantize_per" in str(user.target) for user in node.users), node


def test_calls_that_are_left_float_are_not_decomposed():
    torch.manual_seed(0)
    config = QConfig.int8().set(None, op="layer_norm")
    program = converted(Attention(), samples_of(1, 8, 16), config)
    targets = [str(node.target) for node in program.graph.nodes]
    assert "aten.layer_norm.default" in targets
    assert "aten.softmax.int" not in targets
    assert "aten.exp.default" in targets


def test_the_parts_of_a_call_have_the_integers_that_were_chosen_for_the_call():
    torch.manual_seed(0)
    config = QConfig.int8().set(QConfig.int16x8(), op="softmax")
    program = converted(Attention(), samples_of(1, 8, 16), config)
    (exp,) = [node for node in program.graph.nodes if str(node.target) == "aten.exp.default"]
    (rounded,) = exp.users
    assert torch.int16 in rounded.args
    (matmul, _) = [node for node in program.graph.nodes if str(node.target) == "aten.bmm.default"]
    (rounded,) = matmul.users
    assert torch.int8 in rounded.args


def test_an_unknown_flow_is_refused():
    with pytest.raises(
        tosaic.InvalidGraph, match=r"unknown value of 'compatible_with'.*'arm' or None, got 'xnnpack'"
    ):
        tosaic.Quantizer(compatible_with="xnnpack")


@pytest.mark.parametrize("composed", [False, True])
def test_recipes_of_executorch_take_the_quantizer(composed):
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
    from executorch.export import ExportRecipe, LoweringRecipe, QuantizationRecipe, export

    torch.manual_seed(0)
    first = QConfig().set(QConfig.int8(per_channel=False), op="linear")
    quantizers = [tosaic.Quantizer(first, compatible_with="arm")] if composed else []
    recipe = ExportRecipe(
        quantization_recipe=QuantizationRecipe([*quantizers, tosaic.Quantizer(compatible_with="arm")]),
        lowering_recipe=LoweringRecipe([TOSAPartitioner(TosaCompileSpec("TOSA-1.0+INT"))]),
    )
    session = export(ConvNet().eval(), samples_of(1, 3, 8, 8), recipe)
    program = session.get_edge_program_manager().exported_program()
    assert (len(delegates_of(program)), outside(program)) == (1, [])


def test_recipes_with_the_partitioner_for_xnnpack_take_the_quantizer():
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.export import ExportRecipe, LoweringRecipe, QuantizationRecipe, export

    torch.manual_seed(0)
    recipe = ExportRecipe(
        quantization_recipe=QuantizationRecipe([tosaic.Quantizer()]),
        lowering_recipe=LoweringRecipe([XnnpackPartitioner()]),
    )
    session = export(ConvNet().eval(), samples_of(1, 3, 8, 8), recipe)
    program = session.get_edge_program_manager().exported_program()
    assert "executorch_call_delegate" in {getattr(n.target, "__name__", "") for n in program.graph.nodes}
    assert session.get_pte_buffer()


def test_calls_of_float64_stay_float():
    class Double(nn.Module):
        def forward(self, x):
            return torch.relu(torch.sigmoid(x.double() * 2).float())

    samples = samples_of(1, 8)
    program = converted(Double(), samples)
    assert program.module()(*samples[0]).dtype == torch.float32
