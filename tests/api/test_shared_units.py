"""Numbers that share a unit with a number far beyond them.

The lowered program has bits for both, or the refusal names the node.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tosaic

torch = pytest.importorskip("torch")

import torch.utils._pytree as pytree  # noqa: E402
from torch import nn  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from tosaic.lowering.reference_model import run_reference_model  # noqa: E402

LARGEST = 3.4028234663852886e38
MASKED: dict[str, Callable[..., Any]] = {
    "masked_fill, amax": lambda net, x, m, c: net.linear(x).masked_fill(m, c).amax(1),
    "masked_fill of an input, amax": lambda net, x, m, c: x.masked_fill(m, c).amax(1),
    "where, relu": lambda net, x, m, c: torch.relu(torch.where(m, torch.tensor(c), net.linear(x))),
    "where, clamp": lambda net, x, m, c: torch.where(m, torch.tensor(c), net.linear(x)).clamp(min=-2),
    "scaled after masking": lambda net, x, m, c: (net.linear(x).masked_fill(m, c) * 0.5).amax(1),
    "added to after masking": lambda net, x, m, c: (net.linear(x).masked_fill(m, c) + x).amax(1),
    "softmax of scaled scores": lambda net, x, m, c: torch.softmax(net.linear(x).masked_fill(m, c) * 0.35, 1),
    "softmax of a sum": lambda net, x, m, c: torch.softmax(net.linear(x).masked_fill(m, c) + x, 1),
    "cat": lambda net, x, m, c: torch.cat([net.linear(x), torch.full((2, 1, 8), c)], 1).amax(1),
    "pad": lambda net, x, m, c: nn.functional.pad(net.linear(x), (0, 0, 1, 1), value=c).amax(1),
    "truth times a number": lambda net, x, m, c: (net.linear(x) + m.float() * c).amax(1),
    "sigmoid": lambda net, x, m, c: net.linear(x).masked_fill(m, c).sigmoid(),
    "maximum": lambda net, x, m, c: torch.maximum(net.linear(x).masked_fill(m, c), x),
    "minimum with a constant, softmax": lambda net, x, m, c: minimum(net, x, c, 50.0).softmax(-1),
    "minimum, clamp": lambda net, x, m, c: minimum(net, x, c, -c).clamp(min=-2),
    "minimum, amax": lambda net, x, m, c: minimum(net, x, c, -c).amax(1),
    "minimum of selections, gelu": lambda net, x, m, c: nn.functional.gelu(
        torch.minimum(net.linear(x), torch.where(m, c, 50.0))
    ),
    "maximum with a constant": lambda net, x, m, c: torch.maximum(net.linear(x), far(-c, c)).clamp(max=2),
}


def far(even: float, odd: float) -> Any:
    """A constant in which every second element is a mask."""
    return torch.tensor([even, odd]).repeat(4)


def minimum(net: Any, x: Any, c: float, other: float) -> Any:
    return torch.minimum(net.linear(x), far(other, c))


class Net(nn.Module):
    def __init__(self, function: Callable[..., Any], number: float) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(8, 8)
        self.function, self.number = function, number

    def forward(self, x: Any, m: Any) -> Any:
        return self.function(self, x, m, self.number)


def sample(seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    hidden = torch.rand(2, 6, 1) > 0.6
    hidden[:, seed % 6] = False
    return torch.randn(2, 6, 8), hidden


def quantized(net: Any, **config: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tosaic.quantize(
            torch.export.export(net.eval(), sample(0)), [sample(i) for i in range(32)], **config
        )


def ratio(exact: Any, found: Any) -> float:
    exact, found = np.asarray(exact, np.float64), np.asarray(found, np.float64)
    return float(10 * np.log10((exact**2).sum() / max(((exact - found) ** 2).sum(), 1e-30)))


@pytest.mark.parametrize("number", [-300.0, -1e4, -1e9, -LARGEST])
@pytest.mark.parametrize("name", MASKED)
def test_integers_are_as_near_as_the_quantized_program(name: str, number: float) -> None:
    net = Net(MASKED[name], number)
    program = quantized(net)
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    x = sample(100)
    exact = net(*x).detach().numpy()
    in_floats, in_integers = (ratio(exact, each.run(*x)) for each in (program, lowered))
    assert in_integers > min(in_floats, 50) - 1
    if abs(number) >= 1e4:
        assert in_floats > 20
    assert tosaic.compare(program, lowered, [x]).ok


def test_an_operand_that_would_lose_its_bits_is_named() -> None:
    def both(net: Any, x: Any, m: Any, c: float) -> Any:
        masked = net.linear(x).masked_fill(m, c)
        return masked, masked.amax(1)

    with pytest.raises(tosaic.UnsupportedOp) as refused:
        tosaic.lower(quantized(Net(both, -1e9)), target="TOSA-1.0+INT")
    message = str(refused.value)
    assert re.search(r"one unit for all operands leaves \d+ of the 255 steps of operand 'linear", message)
    assert re.search(r"node 'masked_fill', test_shared_units.py:\d+", message)


def test_a_refused_number_that_hides_names_its_way_out() -> None:
    def both(net: Any, x: Any, m: Any, c: float) -> Any:
        return net.linear(x).masked_fill(m, c).sort(1)[0]

    with pytest.raises(tosaic.UnsupportedOp, match=r"about ten times their largest is enough"):
        tosaic.lower(quantized(Net(both, -1e9)), target="TOSA-1.0+INT")
    net = Net(both, -40.0)
    lowered = tosaic.lower(quantized(net), target="TOSA-1.0+INT")
    assert ratio(net(*sample(100)).detach().numpy(), lowered.run(*sample(100))) > 25


BEST: dict[str, Callable[..., Any]] = {
    "the best of a choice": lambda y, m, c: y.masked_fill(m, c).flatten(1).topk(3),
    "the place of the largest": lambda y, m, c: y.masked_fill(m, c).argmax(1),
    "the order of all": lambda y, m, c: y.masked_fill(m, c).argsort(dim=1, stable=True),
    "the best of a sum": lambda y, m, c: (y + torch.tensor([0.0] + 5 * [c])[:, None]).flatten(1).topk(3),
    "the best of elements that are written": lambda y, m, c: (
        y.index_fill(2, torch.tensor([0, 3]), c).flatten(1).topk(3)
    ),
    "the best beside others": lambda y, m, c: torch.cat([y, torch.full((2, 6, 1), c)], 2).flatten(1).topk(3),
}


@pytest.mark.parametrize("door", ["quantize", "Quantizer"])
@pytest.mark.parametrize("name", BEST)
def test_a_number_that_hides_from_a_choice_of_the_best_takes_no_bits(name: str, door: str) -> None:
    def chosen(net: Any, x: Any, m: Any, c: float) -> Any:
        return BEST[name](net.linear(x), m, c)

    for number in (-1e9, torch.finfo(torch.float32).min):
        program = by_door(door, Net(chosen, number), tosaic.QConfig.int8())
        lowered = tosaic.lower(program, target="TOSA-1.0+INT")
        quantized_program = tosaic.from_exported(program) if door == "Quantizer" else program
        for i in range(100, 104):
            found, wanted = (
                pytree.tree_leaves(each.run(*sample(i))) for each in (lowered, quantized_program)
            )
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(a, b)
        assert tosaic.compare(program, lowered, [sample(100)]).ok
    assert run_reference_model(lowered, *sample(100)).ok


def test_numbers_that_hide_by_different_amounts_keep_their_order() -> None:
    def chosen(net: Any, x: Any, m: Any, c: float) -> Any:
        y = net.linear(x).masked_fill(m, c)
        return torch.cat([y, torch.full((2, 6, 1), 2 * c)], 2).argsort(dim=2, stable=True)

    with pytest.raises(tosaic.UnsupportedOp, match="one unit for all operands"):
        tosaic.lower(quantized(Net(chosen, -1e9)), target="TOSA-1.0+INT")


NORMS: dict[str, Callable[..., Any]] = {
    "layer norm": lambda y: nn.functional.layer_norm(y, (8,)),
    "weighted layer norm": lambda y: nn.functional.layer_norm(y, (6, 8), torch.full((6, 8), 3.0)),
    "rms norm": lambda y: nn.functional.rms_norm(y, (8,), eps=1e-6),
    "group norm": lambda y: nn.functional.group_norm(y, 3, eps=1e-5),
}


@pytest.mark.parametrize("door", ["quantize", "Quantizer"])
@pytest.mark.parametrize("name", NORMS)
def test_an_addend_that_a_norm_does_not_notice_may_vanish_in_the_unit_of_the_sum(
    name: str, door: str
) -> None:
    """The layer scale of a residual block starts at 1e-6; a norm, which reads the sum, has 32 bits."""

    def block(net: Any, x: Any, m: Any, c: float) -> Any:
        y = nn.functional.layer_norm(x, (8,))
        return NORMS[name](y + torch.full((8,), c) * net.linear(y))

    for number in (1e-6, 1e-9):
        net = Net(block, number)
        program = by_door(door, net, tosaic.QConfig.int8())
        lowered = tosaic.lower(program, target="TOSA-1.0+INT")
        assert tosaic.compare(program, lowered, [sample(100)]).ok
        assert ratio(net(*sample(100)).detach().numpy(), lowered.run(*sample(100))) > 25
    assert run_reference_model(lowered, *sample(100)).ok


def test_an_addend_that_a_norm_of_tiny_rows_notices_is_named() -> None:
    def block(net: Any, x: Any, m: Any, c: float) -> Any:
        y = nn.functional.layer_norm(x, (8,))
        return nn.functional.layer_norm(y + torch.full((8,), c) * net.linear(y), (8,), eps=1e-20)

    with pytest.raises(tosaic.UnsupportedOp, match="one unit for all operands"):
        tosaic.lower(quantized(Net(block, 1e-9), config=tosaic.QConfig.precise()), target="TOSA-1.0+INT")


LOWEST: dict[str, Callable[..., Any]] = {
    "clamp": lambda y, low: y.clamp(min=low),
    "maximum": lambda y, low: torch.maximum(y, torch.tensor(low)),
}
UNNOTICED: dict[str, Callable[..., Any]] = {
    "softmax": lambda y: y.softmax(-1),
    "gelu": nn.functional.gelu,
    "amax": lambda y: y.amax(1),
    "visible sum": lambda y: torch.where(y < -100, torch.zeros(()), y).sum(1),
}


def by_door(door: str, net: Any, config: Any) -> Any:
    if door == "quantize":
        return quantized(net, config=config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(net.eval(), sample(0)).module()
        prepared = prepare_pt2e(exported, tosaic.Quantizer(config))
        for i in range(32):
            prepared(*sample(i))
        return torch.export.export(convert_pt2e(prepared), sample(0))


@pytest.mark.parametrize("door", ["quantize", "Quantizer"])
@pytest.mark.parametrize("reader", UNNOTICED)
@pytest.mark.parametrize("bound", LOWEST)
def test_a_bound_in_the_place_of_minus_infinity_takes_no_bits(bound: str, reader: str, door: str) -> None:
    """Only numbers that a mask hides are clamped to the bound."""

    def masked(net: Any, x: Any, m: Any, c: float) -> Any:
        seen = m.logical_and(torch.arange(8) > 0)
        return UNNOTICED[reader](LOWEST[bound](net.linear(x).masked_fill(seen, -math.inf), c))

    for number, config in ((-1e30, tosaic.QConfig.int8()), (-1e9, tosaic.QConfig.int16x8())):
        net = Net(masked, number)
        target = "TOSA-1.0+INT" if config == tosaic.QConfig.int8() else "TOSA-1.0+INT+int16"
        lowered = tosaic.lower(by_door(door, net, config), target=target)
        x = sample(100)
        assert ratio(net(*x).detach().numpy(), lowered.run(*x)) > 25


@pytest.mark.parametrize("bound", LOWEST)
def test_a_bound_in_the_place_of_minus_infinity_that_is_returned_is_named(bound: str) -> None:
    def masked(net: Any, x: Any, m: Any, c: float) -> Any:
        return LOWEST[bound](net.linear(x).masked_fill(m, -math.inf), c)

    program = quantized(Net(masked, -1e30))
    with pytest.raises(tosaic.UnsupportedOp) as refused:
        tosaic.lower(program, target="TOSA-1.0+INT")
    assert re.search(
        rf"'{bound}' is left to floats: one unit for all operands leaves 0 of", str(refused.value)
    )
    x = sample(100)
    found = tosaic.lower(program, target="TOSA-1.0+INT+FP").run(*x)
    hidden = x[1].expand(2, 6, 8).numpy()
    exact = Net(masked, -1e30)(*x).detach().numpy()
    assert ratio(exact[~hidden], found[~hidden]) > 25
    assert np.array_equal(found[hidden], exact[hidden])


def test_numbers_that_a_mask_hides_before_a_bound_keep_their_order() -> None:
    """A row that a finite mask hides as a whole has the softmax of its scores without the mask."""

    def masked(net: Any, x: Any, m: Any, c: float) -> Any:
        return (net.linear(x) + torch.tensor([[c], [0.0]]).repeat(3, 1)).clamp(min=-1e30).softmax(-1)

    net, x = Net(masked, -2000.0), sample(100)
    lowered = tosaic.lower(quantized(net, config=tosaic.QConfig.int16x8()), target="TOSA-1.0+INT+int16")
    assert ratio(net(*x).detach().numpy(), lowered.run(*x)) > 20


def test_a_number_that_a_pad_inserts_is_not_rounded_to_a_whole_number() -> None:
    class Pads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return nn.functional.pad(x.float(), (0, 1), value=-0.263), self.linear(x.float())

    torch.manual_seed(0)
    net, x = Pads().eval(), torch.arange(12, dtype=torch.uint8).reshape(3, 4) % 3
    program = tosaic.quantize(torch.export.export(net, (x,)), [(x,)])
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    exact = net(x)[0].numpy()
    assert ratio(exact, lowered.run(x)[0]) > min(ratio(exact, program.run(x)[0]), 60) - 1


@pytest.mark.parametrize("config", [tosaic.QConfig.int8(), tosaic.QConfig.int16x8()], ids=["int8", "int16x8"])
def test_an_exponential_that_is_bounded_has_bits_below_its_bound(config: Any) -> None:
    net = Net(lambda net, x, m, c: torch.exp(x * 8).clamp(max=2), 0.0)
    program = quantized(net, config=config)
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+int16")
    x = sample(100)
    exact = net(*x).detach().numpy()
    in_floats, in_integers = (ratio(exact, each.run(*x)) for each in (program, lowered))
    assert in_integers > in_floats - 1.5


READERS: dict[str, Callable[..., Any]] = {
    "where, amax": lambda y, m, c: torch.where(m, c, y).amax(1),
    "sum, relu": lambda y, m, c: torch.relu(y + m.float() * c),
    "stack, amax": lambda y, m, c: torch.stack([y, c.expand(2, 6, 8)], 1).amax(1),
    "where, sigmoid": lambda y, m, c: torch.where(m, c, y).sigmoid(),
    "index_put, softmax": lambda y, m, c: torch.index_put(y, (torch.tensor([1]),), c).softmax(2),
    "maximum": lambda y, m, c: torch.maximum(y, c),
}


@pytest.mark.parametrize("number", [-100.0, -1e4, -1e9, -LARGEST])
@pytest.mark.parametrize("name", READERS)
def test_a_number_that_is_an_input_takes_no_bits_from_others(name: str, number: float) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Any, m: Any, c: Any) -> Any:
            return READERS[name](self.linear(x), m, c)

    net, c = Reads().eval(), torch.tensor(number)
    exported = torch.export.export(net, (*sample(0), c))
    program = tosaic.quantize(exported, [(*sample(i), c) for i in range(32)], progress=False)
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    x = (*sample(100), c)
    exact = net(*x).detach().numpy()
    in_floats, in_integers = (ratio(exact, each.run(*x)) for each in (program, lowered))
    assert in_floats > 25
    assert in_integers > min(in_floats, 50) - 1


@pytest.mark.parametrize("number", [-0.7, -1e3, -1e9])
def test_a_selection_of_two_constants_is_added_in_integers(number: float) -> None:
    def added(net: Any, x: Any, m: Any, c: float) -> Any:
        return torch.relu(net.linear(x) + torch.where(m, torch.tensor(c), torch.zeros(())))

    net = Net(added, number)
    program = quantized(net)
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    x = sample(100)
    exact = net(*x).detach().numpy()
    assert ratio(exact, lowered.run(*x)) > ratio(exact, program.run(*x)) - 1


def test_a_bound_far_below_the_unit_of_its_operand_is_not_rounded_to_it() -> None:
    class Bounds(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x.clamp(max=2.0) + y

    large = tosaic.annotation.Fixed("int8", scale=4e12, zero_point=0)
    rules = [tosaic.annotation.Inputs({0: large})]
    x = torch.linspace(-3, 3, 16), torch.linspace(1, -1, 16)
    program = tosaic.quantize(torch.export.export(Bounds(), x), [x], rules=rules, progress=False)
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    steps = torch.tensor([-1e13, -5e12, 0.0, 4e12, 8e12, 2e13, 1e14, 1.0] * 2), x[1]
    assert ratio(program.run(*steps), lowered.run(*steps)) > 40


Z_OF_X: dict[str, Callable[..., Any]] = {
    "input": lambda net, x: x,
    "linear": lambda net, x: net.linear(x),
}
POSITIVE: dict[str, Callable[..., Any]] = {
    "relu": torch.relu,
    "where": lambda z: torch.where(z > 0, z, torch.zeros(())),
    "where, below": lambda z: torch.where(z <= 0, torch.zeros(()), z),
    "product with a comparison": lambda z: z * (z > 0).float(),
}


@pytest.mark.parametrize("number", [-4.0, -1e9])
@pytest.mark.parametrize("front", Z_OF_X)
@pytest.mark.parametrize("name", POSITIVE)
def test_a_range_is_ended_where_half_of_it_does_not_matter(name: str, front: str, number: float) -> None:
    """A scale for numbers of both signs costs 6 dB if only positive numbers affect the result."""

    def masked(net: Any, x: Any, m: Any, c: float) -> Any:
        return POSITIVE[name](Z_OF_X[front](net, x).masked_fill(m, c)) * 0.5

    def positive(net: Any, x: Any, m: Any, c: float) -> Any:
        return torch.relu(Z_OF_X[front](net, x)).masked_fill(m, c) * 0.5

    x = sample(100)
    program = quantized(Net(masked, number))
    exact = Net(masked, number)(*x).detach().numpy()
    reference = ratio(exact, quantized(Net(positive, 0.0)).run(*x))
    found = ratio(exact, program.run(*x))
    assert found > reference - 2
    assert ratio(exact, tosaic.lower(program, target="TOSA-1.0+INT").run(*x)) > found - 1
