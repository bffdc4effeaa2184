"""The verdict of `compare` for right programs, with every form of inputs and outputs, and for wrong ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic
from function_module import FunctionModule
from models.tampering import KINDS, tampered
from torch import nn
from tosaic import _core

Q = torch.ops.quantized_decomposed
pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about its own code


class Counter(nn.Module):
    """A buffer that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


def exported(module: Any, *args: torch.Tensor) -> Any:
    module = module if isinstance(module, nn.Module) else FunctionModule(module)
    return torch.export.export(module.eval(), args, strict=False)


def seeded(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def square(shape: tuple[int, ...] = (1, 4, 4, 4)) -> tuple[Any, torch.Tensor]:
    """Exports two convolutions.

    By default, channels, height and width are 4, so the shape shows no dim order.
    """
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    x = seeded(*shape)
    return exported(net, x), x


def quantized(x: torch.Tensor) -> torch.Tensor:
    """Quantizes its input and its output, with a quantized product and a tanh between."""
    whole = Q.quantize_per_tensor(x, 0.03, 5, -128, 127, torch.int8)
    real = Q.dequantize_per_tensor(whole, 0.03, 5, -128, 127, torch.int8)
    half = Q.quantize_per_tensor(real * real.flip(1), 0.05, -7, -128, 127, torch.int8)
    number = Q.dequantize_per_tensor(half, 0.05, -7, -128, 127, torch.int8)
    last = Q.quantize_per_tensor(torch.tanh(number), 0.0078, 1, -128, 127, torch.int8)
    return Q.dequantize_per_tensor(last, 0.0078, 1, -128, 127, torch.int8)


def everywhere(program: Any, samples: Any, folder: Path, **options: Any) -> list[tosaic.Comparison]:
    """Compares the program with its lowered program, and with the file of the lowered program."""
    lowered = tosaic.lower(program, **options)
    lowered.save(folder / "program.tosa")
    return [tosaic.compare(program, b, samples) for b in (lowered, folder / "program.tosa")]


def test_a_clone_that_the_layout_plan_inserts_is_read_in_its_own_order(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    for comparison in everywhere(exported(layer, seeded(2, 16, 16)), (seeded(2, 16, 16),), tmp_path):
        assert comparison, str(comparison)
        assert comparison.first_divergence is None
        assert all(row.local_share is not None for row in comparison)


def test_a_file_whose_shapes_show_no_dim_order_is_compared_correctly(tmp_path: Path) -> None:
    program, x = square()
    for comparison in everywhere(program, (x,), tmp_path):
        assert comparison, str(comparison)
        assert comparison.first_divergence is None
        assert min(row.local.sqnr_db for row in comparison if row.local is not None) > 100


@pytest.mark.parametrize("form", ["nhwc", "channels_last", "contiguous", (0, 3, 1, 2)])
@pytest.mark.parametrize("shape", [(1, 4, 4, 4), (2, 4, 6, 5)])
def test_one_sample_can_be_used_with_every_order_of_inputs_and_outputs(
    form: Any, shape: tuple[int, ...], tmp_path: Path
) -> None:
    program, x = square(shape)
    plain = tosaic.lower(program)
    turned = tosaic.lower(program, orders={"inputs": form, "outputs": form})
    for a, b in ((program, turned), (plain, turned), (turned, plain), (turned, turned)):
        comparison = tosaic.compare(a, b, [(x,), (x * 2,)])
        assert comparison, str(comparison)
        assert comparison.output.sqnr_db > 100
    turned.save(tmp_path / "turned.tosa")
    if form != (0, 3, 1, 2):
        assert tosaic.compare(program, tmp_path / "turned.tosa", (x,))


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+INT+FP", "TOSA-1.0+FP"])
def test_one_sample_can_be_used_with_float_and_integer_inputs_and_outputs(
    target: str, tmp_path: Path
) -> None:
    x = seeded(3, 8)
    program = exported(quantized, x)
    forms = [tosaic.lower(program, target=target)]
    if "INT" in target:
        forms.append(tosaic.lower(program, target=target, io={"inputs": "int8", "outputs": "int8"}))
    for lowered in forms:
        for a in (program, *forms):
            comparison = tosaic.compare(a, lowered, [(x,), (x * 3,)])
            assert comparison, str(comparison)
            assert comparison.output.max_abs <= 0.0079
        lowered.save(tmp_path / "program.tosa")
        comparison = tosaic.compare(program, tmp_path / "program.tosa", (x,))
        assert comparison, str(comparison)


def test_samples_may_have_the_dim_order_and_dtype_of_the_reference(tmp_path: Path) -> None:
    program, x = square((2, 4, 6, 5))
    turned = tosaic.lower(program, orders={"inputs": "nhwc"})
    physical = np.ascontiguousarray(x.numpy().transpose(0, 2, 3, 1))
    assert tosaic.compare(turned, tosaic.lower(program), (physical,))
    real = seeded(3, 8)
    whole = tosaic.lower(
        exported(quantized, real), target="TOSA-1.0+INT", io={"inputs": "int8", "outputs": "int8"}
    )
    integers = torch.randint(-128, 128, (3, 8)).to(torch.int8)
    assert tosaic.compare(whole, whole.source, (integers,))


def test_each_sample_of_both_sides_starts_from_the_initial_state(tmp_path: Path) -> None:
    x = seeded(4)
    program = tosaic.from_exported(exported(Counter(), x))
    lowered = tosaic.lower(program)
    program.run(x)
    lowered.run(x)
    lowered.run(x)
    before = [side.session.state("total").copy() for side in (program, lowered)]
    for a, b in ((program, lowered), (lowered, program)):
        comparison = tosaic.compare(a, b, [(x,), (x,)])
        assert comparison, str(comparison)
        assert comparison.output.sqnr_db > 100
    for side, state in zip((program, lowered), before, strict=True):
        np.testing.assert_array_equal(side.session.state("total"), state)


@pytest.mark.parametrize("target", ["TOSA-1.0+FP", "TOSA-1.0+FP+variable"])
def test_states_of_a_file_start_from_their_initial_values(target: str, tmp_path: Path) -> None:
    x = seeded(4)
    program = exported(Counter(), x)
    for comparison in everywhere(program, [(x,), (x + 1,)], tmp_path, target=target):
        assert comparison, str(comparison)
        assert comparison.output.sqnr_db > 100
    np.testing.assert_array_equal(program.state_dict["total"], np.ones(4))


def test_new_values_of_states_are_compared() -> None:
    x = seeded(4)
    program = exported(Counter(), x)
    comparison = tosaic.compare(program, tosaic.lower(program), (x,))
    assert {row.path for row in comparison.outputs} >= {"out", "total"}


def test_complex_values_of_torch_are_reported_as_unmatched(tmp_path: Path) -> None:
    x = seeded(4, 8)
    program = exported(lambda t: torch.fft.fft(t).real, x)
    for comparison in everywhere(program, (x,), tmp_path, target="TOSA-1.0+FP+fft"):
        assert comparison, str(comparison)
        reasons = {item.fx_name: item.reason for item in comparison.unmatched}
        assert any("complex64" in reason for reason in reasons.values())


ODD: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "zeros everywhere": (lambda x: torch.relu(-x.abs()), (seeded(3, 4),)),
    "numbers that vanish": (lambda x: x - x.mean(1, keepdim=True), (torch.full((3, 4), 0.1),)),
    "NaN and infinities": (lambda x: torch.log(x) + 1 / x, (torch.tensor([[-1.0, 0.0, 2.0, -0.0]]),)),
    "an index of equal numbers": (lambda x: x.softmax(1).argmax(1), (torch.ones(3, 4),)),
    "an index": (lambda x: (x @ x.T).argmax(1), (seeded(6, 4),)),
    "truth values": (lambda x: (x * 0.1).exp() > 1.0, (seeded(3, 4),)),
    "a number of rank 0": (lambda x: x.sum(), (seeded(3, 4),)),
    "one output twice": (lambda x: ((y := x.exp()), y), (seeded(3, 4),)),
    "an input as output": (lambda x: (x, x + 1), (seeded(3, 4),)),
    "no operator": (lambda x: x.view(4, 3), (seeded(3, 4),)),
    "integers": (lambda x, i: (x[i], i + 1), (seeded(3, 4), torch.tensor([2, 0]))),
    "a branch": (
        lambda x: torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,)) * 2,
        (seeded(3, 4),),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_a_correct_lowering_of_unusual_values_is_ok(name: str, tmp_path: Path) -> None:
    function, args = ODD[name]
    program = exported(function, *args)
    target = "TOSA-1.0+FP+INT+cf" if name in ("integers", "a branch") else "TOSA-1.0+FP"
    for comparison in everywhere(program, args, tmp_path, target=target):
        assert comparison, str(comparison)


def test_a_file_without_origins_is_judged_by_its_outputs(tmp_path: Path) -> None:
    program, x = square()
    lowered = tosaic.lower(program)
    lowered.save(tmp_path / "bare.tosa", locations=False)
    comparison = tosaic.compare(program, tmp_path / "bare.tosa", (x,))
    assert comparison, str(comparison)
    assert len(comparison) == 0
    wrong = tampered(lowered, "weight", 0)
    assert wrong is not None
    wrong.save(tmp_path / "wrong.tosa", locations=False)
    assert not tosaic.compare(program, tmp_path / "wrong.tosa", (x,))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_a_lowering_that_is_wrong_in_one_place_fails(kind: str, seed: int, tmp_path: Path) -> None:
    if kind == "zero point":
        x = seeded(3, 8)
        program, target = exported(quantized, x), "TOSA-1.0+INT"
    else:
        (program, x), target = square(), "TOSA-1.0+FP"
    wrong = tampered(tosaic.lower(program, target=target), kind, seed)
    assert wrong is not None
    wrong.save(tmp_path / "wrong.tosa")
    for b in (wrong, tmp_path / "wrong.tosa"):
        comparison = tosaic.compare(program, b, (x,))
        assert not comparison, str(comparison)
        assert str(comparison).startswith("FAILED")


def test_the_report_says_which_node_is_wrong_and_by_how_much() -> None:
    program, x = square()
    wrong = tampered(tosaic.lower(program), "weight", 0)
    assert wrong is not None
    comparison = tosaic.compare(program, wrong, (x,))
    first = comparison.first_wrong
    assert first is not None
    assert first.local_share is not None
    assert first.local_share > 1000
    report = comparison.report()
    assert f"first '{first.fx_name}'" in dict(report.facts)["wrong"]
    assert json.loads(report.json)["first_wrong"] == first.fx_name


def test_integers_are_judged_in_units_and_shown_beside_the_rounding_of_the_reference() -> None:
    x = seeded(3, 8)
    program = exported(quantized, x)
    comparison = tosaic.compare(
        program, tosaic.lower(program, target="TOSA-1.0+INT"), (x,), threshold_db=200.0
    )
    assert comparison, str(comparison)
    (output,) = comparison.outputs
    assert output.rounding_db is not None
    assert 20 < output.rounding_db < 60
    assert len(comparison) >= 2
    assert all(row.local_share is not None for row in comparison)


def _nhwc(*shape: int) -> torch.Tensor:
    return seeded(*shape).to(memory_format=torch.channels_last)


TRACED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a transposed matrix": (lambda x: x.relu().softmax(1), (seeded(6, 8).t(),)),
    "a transposed square": (lambda x: x.relu().softmax(1), (seeded(8, 8).t(),)),
    "channels-last beside row-major": (
        lambda x, y: (torch.max_pool2d(x, 1), y * 2),
        (_nhwc(1, 4, 4, 4), seeded(1, 4, 4, 4)),
    ),
    "channels-last beside row-major and a transposed one": (
        lambda x, y, z: (torch.max_pool2d(x, 2), y.softmax(3), z.softmax(1)),
        (_nhwc(1, 4, 4, 4), seeded(2, 4, 4, 4), seeded(4, 4).t()),
    ),
    "heads behind positions": (lambda x: x.softmax(-1), (seeded(2, 5, 6).transpose(0, 1),)),
    "heads behind as many positions": (lambda x: x.softmax(-1), (seeded(2, 3, 3, 6).transpose(1, 2),)),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_file_has_the_orders_that_its_program_was_traced_in(name: str, tmp_path: Path) -> None:
    function, args = TRACED[name]
    program = exported(function, *args)
    for comparison in everywhere(program, [args, tuple(x * 2 for x in args)], tmp_path):
        assert comparison, str(comparison)
        assert comparison.output.sqnr_db > 100
    turned = tosaic.lower(program, orders={"inputs": dict.fromkeys(range(len(args)), "contiguous")})
    turned.save(tmp_path / "turned.tosa")
    assert tosaic.compare(turned, tmp_path / "turned.tosa", [args])
    assert tosaic.compare(program, tmp_path / "turned.tosa", [args])


def test_an_unusual_dim_order_of_a_file_is_known_only_from_the_lowered_program(tmp_path: Path) -> None:
    x = seeded(4, 4, 4)
    program = exported(lambda t: t.softmax(-1), x)
    odd = {"inputs": {0: (2, 0, 1)}, "outputs": {0: (1, 2, 0)}}
    lowered = tosaic.lower(program, orders=odd)
    lowered.save(tmp_path / "odd.tosa")
    assert tosaic.compare(lowered, tmp_path / "odd.tosa", (x,))
    assert not tosaic.compare(program, tmp_path / "odd.tosa", (x,))


def test_a_file_has_one_dim_order_for_all_samples(tmp_path: Path) -> None:
    program, x = square()
    tosaic.lower(program, orders={"inputs": "nhwc"}).save(tmp_path / "program.tosa")
    # Zeros are the same in every dim order: they do not show which order the next sample needs.
    comparison = tosaic.compare(program, tmp_path / "program.tosa", [(torch.zeros_like(x),), (x,)])
    assert comparison, str(comparison)


class Vanishing(nn.Module):
    """An output that is zero except for rounding: the mean of values whose mean was removed."""

    def __init__(self, norm: nn.Module, pool: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.pool = nn.Linear(6, 6), norm, pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.norm(self.first(x)))


VANISHING: dict[str, tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]] = {
    "instance norm": (nn.InstanceNorm2d(8), lambda x: x.mean((2, 3))),
    "layer norm": (nn.LayerNorm(6), lambda x: x.mean(-1)),
    "a mean": (nn.Identity(), lambda x: (x - x.mean(-1, keepdim=True)).sum(-1)),
}


@pytest.mark.parametrize("name", VANISHING)
def test_an_output_of_rounding_errors_is_judged_by_their_expected_size(name: str, tmp_path: Path) -> None:
    x = seeded(2, 8, 6, 6)
    program = exported(Vanishing(*VANISHING[name]), x)
    for comparison in everywhere(program, [(x,), (x * 100,)], tmp_path):
        assert comparison, str(comparison)
        assert comparison.output.sqnr_db < 30
    lowered = tosaic.lower(program)
    lowered.save(tmp_path / "bare.tosa", locations=False)
    assert tosaic.compare(program, tmp_path / "bare.tosa", (x,))
    wrong = tampered(lowered, "weight", 0)
    assert wrong is not None
    assert not tosaic.compare(program, wrong, (x,))


def test_an_output_that_should_vanish_and_exceeds_rounding_errors_is_wrong() -> None:
    x = seeded(4, 64)

    def centred(off: float) -> Any:
        return exported(lambda t: (t - t.mean(-1, keepdim=True)).sum(-1) + off, x)

    assert tosaic.compare(centred(0.0), tosaic.lower(centred(0.0)), (x,))
    for off in (1e-2, -1e-2):
        assert not tosaic.compare(centred(0.0), tosaic.lower(centred(off)), (x,))


def _dequantized(x: torch.Tensor, scale: float, zero: int, read: int) -> torch.Tensor:
    """Quantizes with the zero point `zero`, and dequantizes with the zero point `read`."""
    whole = Q.quantize_per_tensor(x, scale, zero, -128, 127, torch.int8)
    return Q.dequantize_per_tensor(whole, scale, read, -128, 127, torch.int8)


def _sum(share: float, off: int, operator: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Makes the operator over two quantized operands.

    The scale of the second operand is `share` times that of the result. Its dequantize node has a zero point
    that is wrong by `off`.
    """

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = _dequantized(x, 0.05, 3, 3), _dequantized(y, 0.06 * share, -4, -4 + off)
        return _dequantized(operator(a, b), 0.06, 1, 1)

    return function


@pytest.mark.parametrize("operator", [torch.add, torch.sub])
@pytest.mark.parametrize("share", [1.7, 0.36, 0.1, 0.02])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_zero_point_off_by_one_in_an_operand_fails(share: float, off: int, operator: Any) -> None:
    args = seeded(32, 65), seeded(64, 65)[:32] * share
    right, wrong = (exported(_sum(share, zero, operator), *args) for zero in (0, off))
    changed = (right.module()(*args) != wrong.module()(*args)).float().mean()
    assert changed > 0.01
    assert tosaic.compare(right, tosaic.lower(right, target="TOSA-1.0+INT"), args)
    for target in ("TOSA-1.0+INT", "TOSA-1.0+INT+FP"):
        comparison = tosaic.compare(right, tosaic.lower(wrong, target=target), args)
        assert not comparison, str(comparison)


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+INT+doubleround"])
def test_ties_may_be_rounded_either_way(target: str, tmp_path: Path) -> None:
    """Every second operand is halfway between two integers."""

    def halved(x: torch.Tensor) -> torch.Tensor:
        return _dequantized(_dequantized(x, 0.5, 0, 0) * 0.5, 0.5, 0, 0)

    x = torch.arange(-120, 120).float().reshape(8, 30) / 2
    program = exported(halved, x)
    for comparison in everywhere(program, (x,), tmp_path, target=target):
        assert comparison, str(comparison)


def test_ties_inside_a_quantized_file_without_origins_are_not_an_error(tmp_path: Path) -> None:
    """A tie may be rounded to either of two integers, and results that depend on it may differ likewise."""

    def function(x: torch.Tensor) -> torch.Tensor:
        half = _dequantized(_dequantized(x, 0.5, 0, 0) * 0.5, 0.5, 0, 0)
        return _dequantized(half * half, 0.5, 0, 0)

    x = torch.arange(-12, 12).float().reshape(4, 6) / 2
    program = exported(function, x)
    tosaic.lower(program, target="TOSA-1.0+INT").save(tmp_path / "bare.tosa", locations=False)
    comparison = tosaic.compare(program, tmp_path / "bare.tosa", (x,))
    assert comparison, str(comparison)


def _two() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    return exported(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), seeded(3, 4)), seeded(3, 4)


def test_overrides_apply_only_to_their_own_side() -> None:
    program, x = _two()
    plain = tosaic.from_exported(program)
    zeros = plain.with_overrides({"relu": np.zeros_like})
    same = plain.with_overrides({"relu": lambda a: np.maximum(a, 0)})
    for a in (program, plain, same):
        assert not tosaic.compare(a, zeros, (x,))
        assert tosaic.compare(a, same, (x,))
    assert not tosaic.compare(zeros, plain, (x,))
    assert not tosaic.compare(zeros, tosaic.lower(plain), (x,))
    assert tosaic.compare(same, tosaic.lower(plain), (x,))
    assert tosaic.compare(zeros, zeros, (x,))
    by_name = plain.with_overrides({plain.graph.nodes[1].name: np.zeros_like})
    assert not tosaic.compare(program, by_name, (x,))


def test_the_function_of_a_foreign_operator_may_come_from_either_side() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.special.i0(torch.relu(x)) + 1

    x = seeded(3, 4)
    program = exported(function, x)
    plain = tosaic.from_exported(program)
    right = plain.with_overrides({"aten.special_i0.default": lambda a: np.i0(a).astype(np.float32)})
    wrong = plain.with_overrides({"aten.special_i0.default": lambda a: np.i0(a).astype(np.float32) * 1.1})
    assert tosaic.compare(program, right, (x,))
    assert tosaic.compare(plain, right, (x,))
    assert tosaic.compare(right, plain, (x,))
    assert not tosaic.compare(program, wrong, (x,))
    assert not tosaic.compare(right, wrong, (x,))


class Average(nn.Module):
    """States of two dtypes: the float can be a TOSA variable, the 64-bit integer cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.average.mul_(0.5).add_(x, alpha=0.5)
        return self.average * self.count


def test_states_are_variables_outputs_or_both(tmp_path: Path) -> None:
    x = seeded(3)
    program = exported(Average(), x)
    for target in ("TOSA-1.0+FP", "TOSA-1.0+FP+variable"):
        for comparison in everywhere(program, [(x,), (x + 1,)], tmp_path, target=target):
            assert comparison, str(comparison)
            assert {row.path for row in comparison.outputs} == {"count", "average", "out"}


def test_the_value_of_a_variable_after_the_run_is_compared(tmp_path: Path) -> None:
    x = seeded(4)
    program = exported(Counter(), x)
    lowered = tosaic.lower(program, target="TOSA-1.0+FP+variable")
    lowered.save(tmp_path / "program.tosa", locations=False)
    graph = tosaic.load_tosa(tmp_path / "program.tosa").graph
    text = graph.text()
    written = next(line for line in text.splitlines() if "variable_write" in line)
    value = written[written.index("(%") + 1 : written.index(") {")]
    wrong = text.replace(written, written.replace(f"({value})", "(%x)"))
    constants = {constant.name: constant for constant in graph.constants.values()}
    other = _core.Graph.parse(wrong, lambda wanted: constants[wanted.name])
    assert tosaic.compare(program, graph, (x,))
    comparison = tosaic.compare(program, other, (x,))
    assert not comparison, str(comparison)
    assert [row.path for row in comparison.outputs if not row.ok] == ["total"]


def test_a_value_whose_axes_are_merged_in_another_order_is_compared_correctly(tmp_path: Path) -> None:
    """In memory, the input has positions before batches; the linear layer merges them in this order."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2)
    x = seeded(8, 8, 8).transpose(0, 1)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x)[0]

    for comparison in everywhere(exported(Own(), x), (x,), tmp_path):
        assert comparison, str(comparison)


def test_the_parts_of_a_complex_number_are_not_confused(tmp_path: Path) -> None:
    x = seeded(4, 8)
    program = tosaic.from_exported(exported(lambda t: torch.fft.ifft(torch.fft.fft(t) * 2).real, x))
    for comparison in everywhere(program, (x,), tmp_path, target="TOSA-1.0+FP+fft"):
        assert comparison, str(comparison)
        assert ("fft_fft", "several values in a") in {(u.fx_name, u.reason) for u in comparison.unmatched}


@pytest.mark.parametrize("shape", [(), (3, 4)])
def test_unsigned_integer_inputs_and_outputs_are_read_as_unsigned(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        real = Q.dequantize_per_tensor(x, 2e-5, 0, 0, 255, torch.uint8)
        return Q.quantize_per_tensor(torch.nn.functional.gelu(real), 1e-5, 0, 0, 255, torch.uint8)

    x = torch.full(shape, 200, dtype=torch.uint8)
    for comparison in everywhere(exported(function, x), (x,), tmp_path, target="TOSA-1.0+INT"):
        assert comparison, str(comparison)


@pytest.mark.parametrize("penalty", [lambda v: v * 1.3, lambda v: torch.where(v < 0, v * 1.3, v / 1.3)])
def test_a_gather_is_not_confused_with_the_cast_of_its_index_that_a_scatter_reads_too(
    penalty: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    def function(scores: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        return scores.scatter(1, previous, penalty(scores.gather(1, previous)))

    generator = torch.Generator().manual_seed(0)
    args = seeded(1, 16), torch.randperm(16, generator=generator)[:4][None]
    for comparison in everywhere(exported(function, *args), args, tmp_path, target="TOSA-1.0+FP"):
        assert comparison, str(comparison)
        assert not any("cast" in row.op_b for row in comparison.rows)
