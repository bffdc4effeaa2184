"""Biases with weights of any magnitude: none saturates, and what others have saturated is named.

tests/full/biases.py tests all operators, and writes the table of docs/measured/biases.md.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from biases.measuring import Found, Warnings, measure
from biases.networks import SPREADS, Branch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import ComposableQuantizer
from tosaic.annotation.bias import LARGEST_BIAS, fitting_bias_scales, fitting_weight_scales

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    pytest.mark.filterwarnings("ignore"),
]


class Pruned(nn.Module):
    """A channel without weights, whose bias comes from a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        with torch.no_grad():
            self.conv.weight[2] = 0
            self.norm.bias[2] = 3.03

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.hardswish(self.norm(self.conv(x)))


def pruned() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.rand(1, 3, 8, 8)
    return torch.export.export(Pruned().eval(), (x,)), x


def converted(exported: Any, x: torch.Tensor, quantizer: Any) -> Any:
    prepared = prepare_pt2e(exported.module(), quantizer)
    prepared(x)
    with torch.no_grad():
        return torch.export.export(convert_pt2e(prepared), (x,))


def test_a_pruned_channel_has_its_bias_after_quantize() -> None:
    exported, x = pruned()
    quantized = tosaic.quantize(exported, [x], progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    for run in (quantized.run(x), lowered.run(x)):
        np.testing.assert_allclose(run[0, 2], 3.03, atol=0.02)


@pytest.mark.parametrize("compatible", [None, "arm"])
def test_a_pruned_channel_has_its_bias_after_torchao(compatible: Any) -> None:
    exported, x = pruned()
    program = converted(exported, x, tosaic.Quantizer(compatible_with=compatible))
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    for run in (program.module()(x).detach().numpy(), lowered.run(x)):
        np.testing.assert_allclose(run[0, 2], 3.03, atol=0.03)


def test_a_quantizer_among_others_has_biases_that_fit() -> None:
    """ComposableQuantizer does not tell quantizers which observers it made."""
    exported, x = pruned()
    program = converted(exported, x, ComposableQuantizer([tosaic.Quantizer()]))
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    for run in (program.module()(x).detach().numpy(), lowered.run(x)):
        np.testing.assert_allclose(run[0, 2], 3.03, atol=0.03)


class Scaled(nn.Module):
    """A bias that is a product of parameters, next to a channel without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.bias, self.gain = nn.Parameter(torch.tensor([0.1, -0.1, 3.0, 0.2])), nn.Parameter(torch.ones(4))
        with torch.no_grad():
            self.conv.weight[2] = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(nn.functional.conv2d(x, self.conv.weight, self.bias * self.gain.sqrt()))


@pytest.mark.parametrize("every_operator", [False, True])
def test_a_bias_that_calls_make_of_parameters_fits(every_operator: bool) -> None:
    torch.manual_seed(0)
    x = torch.rand(1, 3, 6, 6)
    config = tosaic.QConfig.int8(every_operator=every_operator)
    program = converted(torch.export.export(Scaled().eval(), (x,)), x, tosaic.Quantizer(config))
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    assert tosaic.check(program, target="TOSA-1.0+INT").notes == ()
    for run in (program.module()(x).detach().numpy(), lowered.run(x)):
        np.testing.assert_allclose(run[0, 2], 3.0, atol=0.03)


# ---- what other quantizers saturate ----


def saturated(exported: Any, x: torch.Tensor) -> Any:
    """Quantizes as others do: the scale of a bias is the product of two scales, whatever the bias is."""
    from models.quantize import QUANTIZERS

    return converted(exported, x, QUANTIZERS["arm"]())


def test_a_bias_that_another_quantizer_saturated_is_named_everywhere(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.rand(1, 3, 8, 8)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    with torch.no_grad():
        network[0].weight[2] = 0
        network[0].bias[2] = 1e6
    program = saturated(torch.export.export(network.eval(), (x,)), x)
    expected = "the bias of 'conv2d' saturates in channel 2"
    found = tosaic.check(program, target="TOSA-1.0+INT")
    assert [expected in note for note in found.notes] == [True]
    assert expected in str(found)
    with Warnings() as warnings:
        lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    assert [expected in text for text in warnings.texts] == [True]
    compared = tosaic.compare(program, lowered, (x,))
    assert [expected in note for note in compared.notes] == [True]
    assert expected in str(compared)
    result = tosaic.export_model(
        program,
        recipe="tosa-int8",
        quantize=False,
        claimants=["TOSA-1.0+INT", "TOSA-1.0+FP"],
        samples=[(x,)],
        folder=tmp_path,
        verbose=0,
    )
    assert any(expected in note for note in result.notes)


def test_a_program_whose_biases_fit_has_no_notes() -> None:
    exported, x = pruned()
    quantized = tosaic.quantize(exported, [x], progress=False)
    assert tosaic.check(quantized, target="TOSA-1.0+INT").notes == ()
    assert tosaic.check(exported, target="TOSA-1.0+FP").notes == ()


# ---- the sweep ----


def _branches(operator: str) -> list[Branch]:
    return [Branch(operator, s, w, b) for s in SPREADS for w in (0.0, 1e-10, 1e-4, 1.0) for b in (3.0, 1e6)]


def require_right(found: list[Found]) -> None:
    assert [each for each in found if not each.ok] == []
    assert not any(each.saturated for each in found)


@pytest.mark.parametrize("config", ["int8", "int8, one scale", "int16x8", "every operator"])
@pytest.mark.parametrize("operator", ["conv2d", "transposed 2d, 2 groups", "addmm"])
def test_biases_of_any_magnitude_are_right_after_quantize(operator: str, config: str) -> None:
    found = measure(_branches(operator), config, "quantize")
    require_right(found)
    assert not any(each.refused for each in found)


def test_biases_beside_an_operand_that_was_always_zero_are_right() -> None:
    require_right(measure(_branches("linear"), "int8", "quantize", zero=True))
    require_right(measure(_branches("depthwise"), "int8, one scale", "quantize", zero=True))


@pytest.mark.parametrize("way", ["Quantizer", "arm", "training"])
def test_biases_of_any_magnitude_are_right_after_torchao(way: str) -> None:
    found = measure(_branches("conv2d")[::3], "int8", way, norm=way == "training")
    require_right(found)
    assert not any(each.other_unit for each in found if way == "arm")


# ---- the rule ----


def test_a_scale_is_raised_only_where_its_bias_does_not_fit() -> None:
    scales = np.float32([1e-3, 1e-7, 1e-7])
    bias = np.float32([100, 3, 0])
    raised = fitting_weight_scales(scales, 1 / 255, bias, has_elements=True, unit_of_sums=False)
    np.testing.assert_array_equal(raised[[0, 2]], scales[[0, 2]])
    assert 3 / (raised[1] / 255) <= LARGEST_BIAS * 1.001


def test_one_scale_of_all_channels_is_raised_only_if_no_weight_loses_bits() -> None:
    scale, bias = np.float32([1e-7]), np.float32([3, -1, 0])
    for has_elements, unit_of_sums, is_raised in (
        (True, False, False),
        (True, True, True),
        (False, False, True),
    ):
        found = fitting_weight_scales(
            scale, 1 / 255, bias, has_elements=has_elements, unit_of_sums=unit_of_sums
        )
        assert (found[0] > scale[0]) == is_raised
    unit = fitting_bias_scales(scale / np.float32(255), bias)
    assert np.abs(bias).max() / unit[0] == pytest.approx(LARGEST_BIAS, rel=1e-3)


def test_an_addend_that_the_result_hides_does_not_refuse_the_sum() -> None:
    """The products are below one step of the result, so the sum needs no bit of them."""
    found = measure([Branch("addmm", "alone", 1e-4, 1e6)], "int8, one scale", "quantize")
    require_right(found)
    assert not found[0].refused


@pytest.mark.parametrize("operator", ["addmm", "baddbmm"])
def test_an_addend_that_an_activation_discards_leaves_bits_to_the_products(operator: str) -> None:
    found = measure([Branch(operator, "below", 1.0, 1e6)], "int16x8", "quantize")
    require_right(found)
    assert not found[0].refused
    assert found[0].error < 0.01  # the rounding of weights to 8 bits


# ---- addends with one scale ----


class Sum(nn.Module):
    """A linear layer without a bias, and a constant that is added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.addend = (
            nn.Linear(4, 4, bias=False),
            nn.Parameter(torch.tensor([-1e6, 0.1, 0.2, 0.3])),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x) + self.addend)


def test_an_addend_with_one_scale_names_the_channels_that_it_loses() -> None:
    """`tosaic.quantize` cuts the range of the sum at 0, as the ReLU does; torchao's observers do not.

    Without every_operator, the addend stays float, and integer lowering adds its numbers.
    """
    torch.manual_seed(0)
    x = torch.rand(3, 4)
    network = Sum().eval()
    exported = torch.export.export(network, (x,))
    config = tosaic.QConfig.int8(every_operator=True)
    for chosen in (config, tosaic.QConfig.int8()):
        with Warnings() as warnings:
            quantized = tosaic.quantize(exported, [x], config=chosen, progress=False)
        assert warnings.texts == []
        for run in (quantized.run(x), tosaic.lower(quantized, target="TOSA-1.0+INT").run(x)):
            np.testing.assert_allclose(run, network(x).detach(), atol=0.02)
    program = converted(exported, x, tosaic.Quantizer())
    for run in (program.module()(x).detach(), tosaic.lower(program, target="TOSA-1.0+INT").run(x)):
        np.testing.assert_allclose(run, network(x).detach(), atol=0.02)
    for quantizer in (tosaic.Quantizer(config), tosaic.Quantizer(compatible_with="arm")):
        with Warnings() as warnings:
            converted(exported, x, quantizer)
        expected = "-1e+06 in channel 0 leaves no bits to channels 1, 2, 3"
        assert ["'add'" in text for text in warnings.texts if expected in text] == [True]


def test_products_with_an_addend_are_right_or_named_where_every_operator_has_a_scale() -> None:
    require_right(measure(_branches("baddbmm"), "every operator", "quantize"))
    require_right(measure(_branches("addmm")[::3], "every operator", "Quantizer"))


def test_an_addend_that_an_activation_discards_leaves_bits_where_every_operator_has_a_scale() -> None:
    """The ReLU discards the addend of -3, so the scale of all addends is chosen for those of about 0.05."""
    branches = [Branch("baddbmm", "below", weight, 3.0) for weight in (0.0, 1e-8, 0.1, 1.0)]
    found = measure(branches, "every operator", "quantize", zero=True)
    require_right(found)
    assert max(each.error for each in found) < 0.01
    assert not any(each.warned for each in found)


def test_an_addend_whose_unit_is_far_coarser_than_the_sums_is_named() -> None:
    """Products of 3 cancel the addend -3, so the unit of the addends is sixty times the unit of the sum."""

    class Cancelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("addend", torch.tensor([[[-3.0, 0.05, 0.03, 0.04]]]))
            self.weight = nn.Parameter(torch.tensor([[[0.75, 0, 0, 0]] * 4]).reshape(1, 4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.baddbmm(self.addend, x, self.weight)

    x = torch.ones(1, 3, 4)
    config = tosaic.QConfig.int8(every_operator=True)
    with Warnings() as warnings:
        tosaic.quantize(torch.export.export(Cancelled().eval(), (x,)), [x], config=config, progress=False)
    assert ["-3 in channel 0 leaves" in text for text in warnings.texts if "'baddbmm'" in text] == [True]


class Discarded(nn.Module):
    """Products with a constant addend, whose negative sums an activation discards."""

    def __init__(self, way: str, least: float) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("addend", torch.tensor([[[least, 0.05, 0.03, 0.06]]]))
        self.weight = nn.Parameter(torch.eye(4).mul(0.01)[None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "add":
            return torch.relu(x @ self.weight[0] + self.addend)
        found = torch.baddbmm(self.addend, x, self.weight)
        if self.way == "alone":
            return found
        if self.way == "view":
            found = found.reshape(-1, 4)
        return found.clamp(0, 6) if self.way == "clamp" else torch.relu(found)


@pytest.mark.parametrize("arm", [None, "arm"])
@pytest.mark.parametrize("way", ["relu", "clamp", "view", "add"])
def test_an_addend_with_coarse_units_beside_what_is_read_of_the_sum_is_named_by_torchao_too(
    way: str, arm: Any
) -> None:
    """One unit of the addend is 0.012, and the largest result is 0.06."""
    x = torch.zeros(1, 3, 4)
    quantizer = tosaic.Quantizer(tosaic.QConfig.int8(every_operator=True), compatible_with=arm)
    for chosen, least, named in ((way, -3.0, 1), (way, -0.06, 0), ("alone", -3.0, 0)):
        network = Discarded(chosen, least).eval()
        with Warnings() as warnings:
            program = converted(torch.export.export(network, (x,)), x, quantizer)
        texts = [text for text in warnings.texts if "few bits to channels 1, 2, 3" in text]
        assert len(texts) == len(warnings.texts) == named
        if not named:
            np.testing.assert_allclose(program.module()(x).detach(), network(x).detach(), atol=0.012)


def test_a_copy_of_a_prepared_graph_names_an_addend_with_coarse_units() -> None:
    x = torch.zeros(1, 3, 4)
    quantizer = tosaic.Quantizer(tosaic.QConfig.int8(every_operator=True))
    prepared = prepare_pt2e(torch.export.export(Discarded("relu", -3.0).eval(), (x,)).module(), quantizer)
    copied = copy.deepcopy(prepared)
    copied(x)
    with Warnings() as warnings:
        convert_pt2e(copied)
    assert ["few bits" in text for text in warnings.texts] == [True]


def test_an_addend_with_coarse_units_is_named_in_training() -> None:
    x = torch.zeros(1, 3, 4)
    quantizer = tosaic.Quantizer(tosaic.QConfig.int8(every_operator=True), qat=True)
    prepared = prepare_qat_pt2e(torch.export.export(Discarded("relu", -3.0), (x,)).module(), quantizer)
    with Warnings() as warnings:
        for _ in range(3):
            prepared(x)
        convert_pt2e(prepared)
    assert ["few bits" in text for text in warnings.texts] == [True]


def test_the_passes_of_arm_take_addmm_with_a_parameter() -> None:
    found = measure(_branches("addmm")[::3], "int8", "arm")
    require_right(found)


@pytest.mark.parametrize("way", ["quantize", "Quantizer"])
def test_one_scale_for_a_weight_of_zeros_leaves_bits_to_small_biases(way: str) -> None:
    """The ReLU discards a bias of -1e6. The other biases, of about 0.1, are the whole result."""
    branches = [Branch("conv1d", "below", weight, 1e6) for weight in (0.0, 1e-6, 1e-3, 1.0)]
    found = measure(branches, "int8, one scale", way, zero=True)
    require_right(found)
    assert max(each.error for each in found) < 0.01
    assert not any(each.warned for each in found)


def test_a_weight_without_elements_loses_no_bits() -> None:
    found = measure([Branch("linear", "alone", 0.0, 1e6)], "int8, one scale", "quantize")
    require_right(found)
    assert not found[0].warned


def test_biases_beyond_32_bits_of_the_sums_are_right_beside_others_with_16_bits() -> None:
    for operator in ("conv2d", "linear"):
        found = measure(
            [Branch(operator, "below", weight, 1e6) for weight in (0.1, 1.0)], "int16x8", "quantize"
        )
        require_right(found)
        assert not any(each.refused for each in found)


def test_a_saturated_addend_of_any_rank_is_named() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            ends = torch.tensor([[1, 2**31 - 1, 3], [4, 5, -(2**31)]], dtype=torch.int32)
            self.register_buffer("ends", ends)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = torch.ops.quantized_decomposed
            return x + q.dequantize_per_tensor(self.ends, 1e-6, 0, -(2**31), 2**31 - 1, torch.int32)

    x = torch.rand(2, 3)
    found = tosaic.check(torch.export.export(Shifted(), (x,)), target="TOSA-1.0+FP")
    assert ["saturates in channels 1, 2" in note for note in found.notes] == [True]
