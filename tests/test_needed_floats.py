"""Programs that need no floats on profile INT, since the numbers that occur are few or bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from torch import Tensor, nn
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
TARGETS = {"int8": "TOSA-1.0+INT", "int16": "TOSA-1.0+INT+int16"}
EXPONENTS = torch.tensor([[0.5, 2.0, -1.0, 3.0], [1.5, -1.0, 0.5, 0.0]])


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: Tensor) -> Any:
        return self.function(*operands)


def lowered(module: nn.Module, draw: Callable[[], tuple[Tensor, ...]], bits: str) -> tuple[Any, Any, Any]:
    """The quantized program, what it is lowered to, and the last of the samples."""
    config = tosaic.QConfig.int8() if bits == "int8" else tosaic.QConfig.int16x8()
    torch.manual_seed(0)
    samples = [draw() for _ in range(4)]
    exported = torch.export.export(module.eval(), samples[0])
    program = tosaic.quantize(exported, samples, config=config, progress=False)
    return program, tosaic.lower(program, target=TARGETS[bits]), samples[-1]


def in_list(outputs: Any) -> list[np.ndarray[Any, Any]]:
    return [
        each.detach().numpy() if isinstance(each, Tensor) else np.asarray(each)
        for each in (outputs if isinstance(outputs, list | tuple) else [outputs])
    ]


def check(
    module: nn.Module, draw: Callable[[], tuple[Tensor, ...]], bits: str, fine: int = 8000
) -> list[np.ndarray[Any, Any]]:
    """The outputs, which the quantized program and the reference model have, too."""
    program, made, call = lowered(module, draw, bits)
    assert tosaic.compare(program, made, call).ok
    outputs, reference = in_list(made.run(*call)), run_reference_model(made, *call)
    assert reference.ok, reference.log
    for found, by_model in zip(outputs, in_list(reference.outputs), strict=True):
        np.testing.assert_array_equal(found, by_model)
    eager = in_list(module(*call))
    for found, wanted in zip(outputs, eager, strict=True):
        np.testing.assert_allclose(
            found, wanted, atol=np.abs(wanted).max() / (60 if bits == "int8" else fine)
        )
    return outputs


# ---- batch norms ----


def normed(seed: int, channels: int = 8) -> nn.BatchNorm2d:
    draw = torch.Generator().manual_seed(seed)
    norm = nn.BatchNorm2d(channels).eval()
    norm.running_mean.uniform_(-1, 1, generator=draw)
    norm.running_var.uniform_(0.3, 2, generator=draw)
    return norm


class Pooled(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.norm = normed(seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.max_pool2d(x, 2))


class Twice(nn.Module):
    """A convolution that two norms read, so that neither is folded into its weights."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(8, 8, 1), normed(seed), normed(seed + 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.first(y) + self.second(y).relu()


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("network", [Pooled, Twice])
def test_a_batch_norm_of_any_zero_point_is_computed_with_integers(network: Any, bits: str) -> None:
    """With zero point -1, the integer 127 is 128 units, which needs one bit more than -128."""
    zero_points = set()
    for high in (0.496, 0.5, 0.504, 0.508, 0.512):

        def draw(high: float = high) -> tuple[Tensor]:
            x = (torch.rand(1, 8, 6, 6) - 0.5) * 8
            x[0, 0, :2, 0] = torch.tensor([-4.0, 8 * high])
            return (x,)

        torch.manual_seed(1)
        check(network(3), draw, bits, fine=200 if network is Twice else 8000)  # weights have 8 bits
        program, _, _ = lowered(network(3), draw, bits)
        zero_points |= {
            value.qparams.zero_points[0] for value in program.graph.values if value.qparams is not None
        }
    assert bits == "int16" or network is Twice or -1 in zero_points


@pytest.mark.parametrize("large", [1e4, -2e4])
@pytest.mark.parametrize("name", ["layer_norm", "group_norm"])
def test_rows_of_equal_numbers_are_normed_to_zero(name: str, large: float) -> None:
    """In the unit of the small numbers, large numbers have so many bits that their mean is rounded."""

    def function(x: Tensor) -> Any:
        rows = torch.stack([x, torch.full_like(x, large)], 1)
        return F.layer_norm(rows, (8,)) if name == "layer_norm" else F.group_norm(rows, 2)

    outputs = check(Function(function), lambda: (torch.rand(2, 8) * 1.08 - 1,), "int8")
    assert (outputs[0][:, 1] == 0).all()


# ---- powers ----

POWERS: dict[str, Callable[[Tensor], Tensor]] = {
    "x ** -1.0": lambda x: x**-1.0,
    "x ** -0.5": lambda x: x**-0.5,
    "a constant of exponents": lambda x: torch.pow(x, EXPONENTS),
    "a column of exponents": lambda x: torch.pow(x, EXPONENTS[:, 1:2]),
    "exponents that are added to": lambda x: torch.pow(x, EXPONENTS) + 1,
    "atan2 of a constant": lambda x: torch.atan2(x, EXPONENTS),
    "a constant of exponents of a bounded base": lambda x: torch.pow(x.abs().clamp(0.6, 20), EXPONENTS).mean(
        1
    ),
    "a bounded power": lambda x: (x.abs() ** -2.0).clamp(0.25, 3),
    "a bounded power that is added to": lambda x: (x.abs() ** -2.0).clamp(0.25, 3) + 1,
    "a bounded power of a product": lambda x: ((x * 2) ** -2.0).clamp(0.25, 3).relu(),
}


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("name", POWERS)
def test_a_power_is_a_table_of_the_integers_of_its_base(name: str, bits: str) -> None:
    check(Function(POWERS[name]), lambda: (torch.rand(2, 4) + 0.5,), bits)


def test_a_power_with_a_number_is_one_table_that_has_the_quantized_results() -> None:
    program, made, _ = lowered(Function(lambda x: x**-1.0), lambda: (torch.rand(2, 4) + 0.5,), "int8")
    assert [node.op for node in made.graph.nodes] == ["tosa.table"]
    numbers = torch.linspace(0, 1.5, 256)[: 2 * 4 * 32].reshape(32, 2, 4)
    for x in numbers:  # 0 as well: the result saturates
        np.testing.assert_array_equal(made.run(x), program.run(x))


def test_more_exponents_than_tables_have_room_for_are_named() -> None:
    exponents = torch.linspace(-3, 1, 64).reshape(16, 4)  # too steep for lines where the clamp ends
    module = Function(lambda x: torch.pow(x.abs().clamp(0.25, 20), exponents))
    check(module, lambda: (torch.rand(16, 4) - 0.5,), "int8")
    with pytest.raises(
        tosaic.UnsupportedOp, match=r"64 different numbers: with 16 bits, .* 16 \(with 8 bits, for 4096\)"
    ):
        lowered(module, lambda: (torch.rand(16, 4) - 0.5,), "int16")


@pytest.mark.parametrize("bits", ["int8", "int16"])
def test_many_exponents_of_positive_numbers_are_lines(bits: str) -> None:
    exponents = torch.linspace(0.5, 2, 64).reshape(16, 4)
    check(Function(lambda x: torch.pow(x, exponents)), lambda: (torch.rand(16, 4) + 0.5,), bits)


# ---- functions of few integers ----

FEW: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda x: torch.exp((x < 3).float()),
    "expm1 of twice": lambda x: torch.expm1((x < 3).float() * 2),
    "reciprocal": lambda x: 1 / ((x < 3).float() + 1),
}


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("name", FEW)
def test_a_function_of_a_bool_is_a_table_of_the_integers_that_occur(name: str, bits: str) -> None:
    """The table of all integers of i8 would have infinities, or a unit of 2^103."""
    function = FEW[name]
    outputs = check(
        Function(lambda x, y: (function(x), y + 1)),
        lambda: (torch.randint(0, 7, (5,)), torch.randn(2, 4)),
        bits,
    )
    assert outputs[0].dtype == np.float32


def test_whole_numbers_are_in_one_unit_with_finer_ones() -> None:
    """The cast to f16 keeps round(x) from being quantized, and no reader of it notices less than 1."""
    at = torch.zeros(1, 4, dtype=torch.int64)

    def function(x: Tensor) -> Any:
        whole = torch.round(x * 4).clamp(-100, 100).to(torch.float16).float()
        return whole.clamp(max=1.027), torch.scatter(whole, 0, at, 1e4).log_softmax(-1).exp()

    check(Function(function), lambda: (torch.randn(3, 4),), "int8")


WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "floor": lambda x: torch.floor(x.float()),
    "round of 4 times": lambda x: torch.round(x.float() * 4),
    "clamped": lambda x: torch.round(x.float() * 4).clamp(-100, 100),
    "sign": lambda x: torch.sign(x.float()) * 3,
    "tanh of multiples": lambda x: torch.round(torch.tanh(x.float()) * 4),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_of_integers_lose_nothing_in_their_unit(name: str) -> None:
    """The unit is 1, so the numbers for small integers have few bits, but these are exact."""
    outputs = check(
        Function(lambda x, y: (WHOLE[name](x), y + 1)),
        lambda: (torch.randint(-128, 128, (40,)).to(torch.int8), torch.randn(2, 4)),
        "int8",
    )
    assert outputs[0].dtype == np.float32


COUNTED: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "sub": lambda x: x - 0.3,
    "cat": lambda x: torch.cat([x, x * 0.1]),
}


@pytest.mark.parametrize("name", COUNTED)
def test_bounds_beyond_the_numbers_that_a_cast_makes_need_no_unit(name: str) -> None:
    """bound-numbers may insert clamps whose bounds are far beyond all integers of the operand."""
    whole = lambda x: torch.round(x * 4).clamp(-100, 100).to(torch.int16).float()  # noqa: E731
    check(Function(lambda x: COUNTED[name](whole(x))), lambda: (torch.rand(2, 4) * 4 - 2,), "int8")


POLES: dict[str, Callable[[Tensor], Tensor]] = {
    "reciprocal": lambda x: (1 / x) * 4,
    "rsqrt": lambda x: torch.rsqrt(x) * 4,
    "log": lambda x: torch.log(x) * 4,
    "inverse square": lambda x: x**-2.0 + 1,
}
READERS: dict[str, Callable[[Tensor], Any]] = {
    "returned": lambda x: x,
    "softmax": lambda x: torch.softmax(x.half().float(), -1),
    "sum and comparison": lambda x: (x.half().float().sum(-1), x.half().float() > 2),
    "moved": lambda x: torch.cat([x.half().float().T, x.half().float().T]),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", POLES)
def test_numbers_that_are_bounded_behind_a_pole_are_one_table(name: str, reader: str) -> None:
    """1 / x has no finite number at 0, but the clamped round(4 / x) has one for every integer."""

    def function(x: Tensor) -> Any:
        return READERS[reader](torch.round(POLES[name](torch.exp(x))).clamp(-100, 100))

    program, made, _ = lowered(Function(function), lambda: (torch.rand(8, 5) * 4 - 2,), "int8")
    for x in [torch.linspace(-2, 2, 40).reshape(8, 5), torch.full((8, 5), -9.0)]:
        assert tosaic.compare(program, made, (x,)).ok
        reference = run_reference_model(made, x)
        assert reference.ok, reference.log
        for found, by_model in zip(in_list(made.run(x)), in_list(reference.outputs), strict=True):
            np.testing.assert_array_equal(found, by_model)


@pytest.mark.parametrize("name", ["rsqrt", "log"])
def test_integers_of_16_bits_that_a_function_makes_nan_of_have_a_mask(name: str) -> None:
    """Integers with a mask have no zero point: half of them are negative numbers, which do not occur."""

    def function(x: Tensor, z: Tensor) -> Any:
        y = torch.round(getattr(torch, name)(torch.sigmoid(x) + 0.25) * 4).clamp(-100, 100)
        y = y.to(torch.bfloat16).float()
        total = torch.add(z * 0.75, y, alpha=0.25)
        return total, total + y

    check(Function(function), lambda: (torch.rand(4, 6) * 4 - 2, torch.randn(4, 6)), "int16")


@pytest.mark.parametrize("name", ["rsqrt", "log", "reciprocal"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_a_function_of_counts_has_an_entry_for_each_next_to_its_pole(name: str, dtype: torch.dtype) -> None:
    """Counts are exact, so a count next to the pole at zero has no rounding error."""
    module = Function(lambda x: getattr(torch, name)(x[:, 1:].float()))
    draw = lambda: (torch.randint(3, 120, (2, 7)).to(dtype),)  # noqa: E731
    program, made, _ = lowered(module, draw, "int8")
    x = torch.tensor([[0, 0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 20, 100, 119]], dtype=dtype)
    assert tosaic.compare(program, made, (x,)).ok
    np.testing.assert_array_equal(made.run(x), program.run(x))


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_a_sine_of_many_turns_is_computed_from_the_fraction_of_a_turn(name: str, bits: str) -> None:
    """In a table over a range up to -1e4, entries would be more than a turn of the sine apart."""

    def function(x: Tensor, y: Tensor) -> Any:
        return getattr(torch, name)(torch.where(y, x, -1e4) + 1)

    outputs = check(
        Function(function), lambda: (torch.rand(6, 5) * 8 - 4, torch.rand(6, 5) > 0.3), bits, fine=400
    )
    assert outputs[0].std() > 0.3


@pytest.mark.parametrize("name", ["cosh", "exp", "sinh"])
def test_a_function_of_integers_has_the_range_of_the_samples(name: str) -> None:
    """A unit for the results of all integers of u8 would round the results of the least integers to 0."""
    function = getattr(torch, name)
    module = Function(lambda x, y: (function(x.float() * 0.25), y + 1))
    draw = lambda: (torch.randint(0, 6, (5,)).to(torch.uint8), torch.randn(2, 4))  # noqa: E731
    program, made, call = lowered(module, draw, "int8")
    assert tosaic.compare(program, made, call).ok
    wanted = function(call[0].float() * 0.25).numpy()
    np.testing.assert_allclose(made.run(*call)[0], wanted, atol=np.abs(wanted).max() / 100)


# ---- resizes and pools ----


def resized(x: Tensor, **options: Any) -> Tensor:
    return F.interpolate(x.float(), scale_factor=1.5, **options)


WINDOWS: dict[str, Callable[[Tensor], Tensor]] = {
    "nearest": lambda x: resized(x),
    "nearest by 2": lambda x: F.interpolate(x.float(), scale_factor=2.0),
    "nearest of rows": lambda x: resized(x[0]),
    "max_pool": lambda x: F.max_pool2d(x.float(), 2),
    "max_pool of half": lambda x: F.max_pool2d(x.float() * 0.5, (3, 2), 2, 1, ceil_mode=True),
    "max_pool dilated": lambda x: F.max_pool2d(x.float(), 3, 1, 1, dilation=2),
    "max_pool of rows": lambda x: F.max_pool1d(x[0].float(), 3, 2, 1, dilation=2),
    "max_pool of volumes": lambda x: F.max_pool3d(x[None].float(), 2, 1, 1),
    "adaptive max_pool": lambda x: F.adaptive_max_pool2d(x.float(), 3),
}
INTEGERS = {
    "u8": lambda: torch.randint(0, 256, (1, 2, 7, 6)).to(torch.uint8),
    "i16": lambda: torch.randint(-32768, 32768, (1, 2, 7, 6)).to(torch.int16),
    "bool": lambda: torch.randint(0, 2, (1, 2, 7, 6)).bool(),
}


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_resizes_and_pools_of_plain_integers_are_exact(dtype: str, bits: str) -> None:
    def functions(x: Tensor, y: Tensor) -> Any:
        return [y + 1, *(function(x) for function in WINDOWS.values())]

    torch.manual_seed(2)
    draw = lambda: (INTEGERS[dtype](), torch.randn(2, 4))  # noqa: E731
    program, made, call = lowered(Function(functions), draw, bits)
    assert tosaic.compare(program, made, call).ok
    reference = run_reference_model(made, *call)
    assert reference.ok, reference.log
    outputs = zip(WINDOWS, made.run(*call)[1:], reference.outputs[1:], functions(*call)[1:], strict=True)
    for name, found, by_model, wanted in outputs:
        np.testing.assert_array_equal(found, wanted, name)
        np.testing.assert_array_equal(by_model, wanted, name)


def test_a_bilinear_resize_of_u8_sums_integers() -> None:
    for bits in TARGETS:
        check(
            Function(lambda x, y: (F.interpolate(x.float(), scale_factor=2.0, mode="bilinear"), y + 1)),
            lambda: (INTEGERS["u8"](), torch.randn(2, 4)),
            bits,
        )
