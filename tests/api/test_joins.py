"""Operands of concatenations keep their own scales where sharing one would take precision from them, and
operands that use few integers of the result are named."""

from __future__ import annotations

import copy
from typing import Any, Literal

import numpy as np
import pytest
import torch
import tosaic
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic.annotation import Edge, Fixed, Inputs, Output

pytestmark = pytest.mark.filterwarnings("ignore")
IMAGE = Inputs({0: Fixed("int8", 1 / 255, -128, -128, 127)})
Door = Literal["quantize", "Quantizer", "arm"]
DOORS: tuple[Door, ...] = ("quantize", "Quantizer", "arm")


class Beside(nn.Module):
    """An image joined with features of it, whose range is `gain` times as wide."""

    def __init__(self, gain: float, join: str = "cat") -> None:
        super().__init__()
        self.join = join
        self.features, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(6, 4, 1)
        with torch.no_grad():
            for each in self.features.parameters():
                each.mul_(gain)
            self.head.weight[:, 3:] /= gain  # both halves matter

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.features(x))
        if self.join == "stack":
            return self.head(torch.stack([x, features], 1).flatten(1, 2))
        return self.head(torch.cat([x, features], 1))


class Skip(nn.Module):
    """Features that a convolution reads and, with its result, a concatenation."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        with torch.no_grad():
            self.second.weight.copy_(gain * torch.eye(4)[:, :, None, None])
            self.second.bias.zero_()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.relu(self.first(x))
        return torch.cat([first, self.second(first)], 1), first * 0.5


class Detections(nn.Module):
    """Boxes in pixels, joined with scores in 0..1."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.boxes(x) * 300, torch.sigmoid(self.scores(x))], 1)


def images(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(11)
    return [torch.rand(1, 3, 8, 8, generator=generator) for _ in range(count)]


def quantized(model: nn.Module, door: Door, rules: list[Any] | None = None, **options: Any) -> Any:
    """Returns what `tosaic.lower` takes."""
    torch.manual_seed(3)
    exported = torch.export.export(model.eval(), (images()[0],))
    if door == "quantize":
        samples = [(each.numpy(),) for each in images()]
        return tosaic.quantize(exported, samples, rules=rules or [], progress=False, **options)
    inner: Any = tosaic.Quantizer(compatible_with="arm" if door == "arm" else None, **options)
    quantizer = tosaic.wrap_quantizer(inner, rules=rules) if rules else inner
    prepared = prepare_pt2e(exported.module(), quantizer)
    for image in images():
        prepared(image)
    return torch.export.export(copy.deepcopy(convert_pt2e(prepared)), (images()[0],))


def decibels(expected: Any, found: Any) -> float:
    expected, found = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    return float(10 * np.log10(np.sum(expected**2) / np.sum((expected - found) ** 2)))


def lowered_db(model: nn.Module, program: Any, output: int | None = None) -> tuple[float, Any]:
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    pairs = []
    for image in images():
        expected, found = model(image), lowered.run(image)
        pairs.append((expected, found) if output is None else (expected[output], found[output]))
    expected, found = zip(*pairs, strict=True)
    return decibels([each.detach().numpy() for each in expected], found), lowered


def rescales(lowered: Any) -> int:
    return sum(node.op == "tosa.rescale" for node in lowered.graph.nodes)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("gain", [0.1, 1, 10])
def test_a_fixed_image_does_not_clip_the_features_beside_it(door: Door, gain: float) -> None:
    """A single scale for both has 5 dB at ten times the range, and 1 dB in Arm's flow."""
    torch.manual_seed(3)
    model = Beside(gain).eval()
    assert lowered_db(model, quantized(model, door, [IMAGE]))[0] > 33


@pytest.mark.parametrize("door", ["quantize", "Quantizer"])
@pytest.mark.parametrize("join", ["cat", "stack"])
def test_features_that_another_call_reads_keep_their_precision(door: Door, join: str) -> None:
    """The image is an operand of a convolution, too, which read it with the scale of the features."""
    torch.manual_seed(3)
    model = Beside(10.0, join).eval()
    program = quantized(model, door)
    imported = program if door == "quantize" else tosaic.from_exported(program)
    assert lowered_db(model, program)[0] > 34
    (first,) = {port.qparams.scale for port in imported.inputs}
    assert first == pytest.approx(1 / 255, rel=0.05)


@pytest.mark.parametrize("door", ["quantize", "Quantizer"])
def test_an_operand_with_another_reader_has_its_own_scale_only_where_ranges_differ(door: Door) -> None:
    """A rescale for each operand costs time: where the ranges nearly agree, nothing is gained by it."""
    found = {}
    for gain in (1.1, 100.0):
        torch.manual_seed(3)
        model = Skip(gain).eval()
        program = quantized(model, door)
        db, lowered = lowered_db(model, program, output=1)
        found[gain] = rescales(lowered)
        assert db > 35
    assert found[100.0] == found[1.1] + 1


def test_operands_that_only_the_concatenation_reads_are_computed_with_its_scale() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.a(x), self.b(x) * 20], 1)

    model = Branches().eval()
    _, lowered = lowered_db(model, quantized(model, "quantize"))
    assert rescales(lowered) == 2  # the rescales of the convolutions


def test_a_concatenation_of_known_equal_ranges_is_not_rescaled() -> None:
    class Gates(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([torch.sigmoid(x), torch.sigmoid(x * 2)], 1)

    program = quantized(Gates().eval(), "quantize")
    assert program.outputs[0].qparams.scale == 1 / 256
    assert rescales(tosaic.lower(program, target="TOSA-1.0+INT")) <= 1


# ---- what is lost is named ----


def test_an_operand_that_uses_few_integers_is_in_the_report_with_what_helps() -> None:
    program = quantized(Detections().eval(), "quantize")
    (row,) = program.quantization.narrow
    assert (row.node, row.operand, row.integers, row.of) == ("cat", "sigmoid", 1, 256)
    assert "test_joins.py" in row.text
    assert "Return the tensors separately" in row.text
    text = str(program)
    assert "operands with few integers: return them separately" in text
    assert program.report().data["narrow"][0]["operand"] == "sigmoid"


def test_operands_with_enough_integers_are_not_in_the_report() -> None:
    torch.manual_seed(3)
    program = quantized(Beside(10.0).eval(), "quantize")
    assert program.quantization.narrow == ()
    assert "few integers" not in str(program)


def test_16_bits_leave_the_scores_enough_integers() -> None:
    program = quantized(Detections().eval(), "quantize", config=tosaic.QConfig.int16x8())
    assert program.quantization.narrow == ()


def test_arm_forces_one_scale_and_the_report_names_the_worse_operand() -> None:
    torch.manual_seed(3)
    model = Beside(100.0).eval()
    program = quantized(model, "quantize", config=tosaic.QConfig.int8(every_operator=True))
    (row,) = program.quantization.narrow
    assert (row.node, row.operand) == ("cat", "x")


def test_export_model_names_the_operand_for_both_quantizers() -> None:
    model = Detections().eval()
    samples = [(each.numpy(),) for each in images()]
    done = tosaic.export_model(model, (images()[0],), samples=samples, recipe="tosa-int8", verbose=0)
    assert any("'sigmoid'" in note and "1 of the 256 integers" in note for note in done.notes)

    def torchao(program: Any, context: Any) -> Any:
        return quantized(model, "Quantizer")

    stage = tosaic.recipes.Stage("torchao", "quantize", torchao)
    recipe = tosaic.Recipe(name="torchao", claimants=["TOSA-1.0+INT"], stages=[stage])
    done = tosaic.export_model(model, (images()[0],), samples=samples, recipe=recipe, verbose=0)
    assert any("'sigmoid" in note and "1 of the 256 integers" in note for note in done.notes), done.notes


def test_the_plan_says_which_operands_share_the_scale_of_the_result() -> None:
    torch.manual_seed(3)
    plan = quantized(Beside(10.0).eval(), "quantize").plan
    groups = [set(group.slots) for group in plan.groups()]
    assert any({Output("relu"), Output("cat")} <= group for group in groups)
    assert not any({Edge("x", "cat"), Output("cat")} <= group for group in groups)
