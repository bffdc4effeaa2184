"""Integer forms of functions, constants and products whose numbers lie far apart.

Each program is quantized and lowered at profile INT, and its integers are compared with the
integers of the quantized program, computed with floats, and with the integers of the reference model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from refusals import refusal
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

TARGETS = {"int8": "TOSA-1.0+INT", "int16x8": "TOSA-1.0+INT+int16"}
Sample = tuple[torch.Tensor, ...]


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def quantized(module: nn.Module, bits: str, samples: list[Sample]) -> tosaic.Program:
    exported = torch.export.export(module.eval(), tuple(t.clone() for t in samples[0]), strict=False)
    return tosaic.quantize(exported, samples, config=getattr(tosaic.QConfig, bits)(), progress=False)


def outputs(made: Any) -> list[np.ndarray]:
    return [np.asarray(each) for each in (made if isinstance(made, tuple | list) else [made])]


def check(module: nn.Module, bits: str, samples: list[Sample], fresh: list[Sample]) -> None:
    """The integers equal the quantized program's, to a unit or two, and the reference model agrees."""
    program = quantized(module, bits, samples)
    lowered = tosaic.lower(program, target=TARGETS[bits])
    qparams = [output.qparams for output in lowered.graph.outputs]
    units = 1.01 if bits == "int8" else 2.01  # the bounds of `ops.def`
    for sample in fresh:
        expected = outputs(program.run(*[t.clone().numpy() for t in sample]))
        got = outputs(lowered.run(*[t.clone().numpy() for t in sample]))
        # States and inputs that are written come first among the outputs of the graph.
        for e, g, q in zip(expected, got, qparams[len(qparams) - len(got) :], strict=True):
            if e.dtype.kind == "f":
                assert q is not None
                assert np.abs(g - e).max() <= units * q.scales[0]
            else:
                np.testing.assert_array_equal(g, e)
    inputs = {port.kind for port in lowered.graph.inputs}
    if "buffer" in inputs:
        return  # the reference model runs a step of a program with states only from given states
    run = run_reference_model(lowered, *fresh[0])
    assert run.ok, run.log


# An input into which -30,000 is written has 32 bits, and functions read it before that.
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "erf": torch.erf,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sqrt": torch.sqrt,
    "softplus": F.softplus,
    "mish": F.mish,
    "elu": F.elu,
    "atan": torch.atan,
    "log1p": torch.log1p,
    "asinh": torch.asinh,
    "erfc": torch.special.erfc,
}


def long_samples(count: int, seed: int) -> list[Sample]:
    torch.manual_seed(seed)
    return [(torch.rand(4, 8) * 30, torch.rand(4, 8) > 0.5) for _ in range(count)]


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_numbers_of_32_bits_is_exact(name: str, bits: str) -> None:
    def forward(_: nn.Module, x: torch.Tensor, m: torch.Tensor) -> Any:
        y = FUNCTIONS[name](x)
        x.masked_fill_(m, -3e4)
        return y, x * 1

    program = quantized(Function(forward), bits, long_samples(4, 0))
    lowered = tosaic.lower(program, target=TARGETS[bits])
    scale = {output.path: output.qparams for output in lowered.graph.outputs}["out[0]"]
    assert scale is not None
    for sample in long_samples(8, 7):
        expected = outputs(program.run(*[t.clone().numpy() for t in sample]))[0]
        got = outputs(lowered.run(*[t.clone().numpy() for t in sample]))[0]
        assert np.abs(got - expected).max() <= 1.01 * scale.scales[0]


@pytest.mark.parametrize("bits", TARGETS)
def test_a_function_with_a_kink_is_exact_up_to_the_end_of_its_range(bits: str) -> None:
    """Before, a table's last line often ended beyond the range, with the value at the end of the range."""

    def forward(_: nn.Module, x: torch.Tensor, m: torch.Tensor) -> Any:
        y = torch.stack([x, x.flip(0)], -1).clamp(-3, 1.33).amax(-1)
        return F.elu(torch.where(m, y * y * 0.3, y), alpha=0.7) * 1

    check(Function(forward), bits, plain(4, 0, 2.0), [*plain(6, 7, 2.0), *plain(3, 8, 4.0)])


def test_a_function_that_turns_between_all_samples_is_refused() -> None:
    def forward(_: nn.Module, x: torch.Tensor, m: torch.Tensor) -> Any:
        y = torch.sin(x)
        x.masked_fill_(m, -3e4)
        return y, x * 1

    program = quantized(Function(forward), "int16x8", long_samples(4, 0))
    text = refusal(tosaic.UnsupportedOp, tosaic.lower, program, target=TARGETS["int16x8"])
    assert "turns more often" in text


def plain(count: int, seed: int, scale: float = 1.0) -> list[Sample]:
    torch.manual_seed(seed)
    return [(torch.randn(4, 6) * scale, torch.rand(4, 6) < 0.4) for _ in range(count)]


COLUMNS = [1.0, -1.0, 1.0, 1e-6, 2e-6, 3e-6]
EXPONENTS = torch.linspace(0.1, 1.1, 24).reshape(4, 6)
FAR_APART: dict[str, Callable[..., Any]] = {
    "rounded far below a bound": lambda s, x, m: torch.round((x - 1e9).amin(0) * 4).clamp(-100, 100),
    "a constant part of a stack": lambda s, x, m: (
        x.relu(),
        torch.stack([x, torch.full_like(x, 1e9)], -1).select(-1, 1)[0],
    ),
    "a constant part of a concatenation": lambda s, x, m: (
        x.relu(),
        torch.cat([x, torch.full_like(x, 1e9)], 1)[:, 6:8],
    ),
    "powers of what is clamped": lambda s, x, m: x.abs().clamp(0.25, 20) ** s.exponents,
    "a standard deviation that saturates": lambda s, x, m: x.masked_fill(m, 3e3).std(1).tanh(),
    **{
        f"shares of columns {factor:g} apart": lambda s, x, m, factor=factor: (
            x * (s.columns.clamp(min=-1e9) * factor)
        ).sigmoid()
        for factor in (1e2, 1e4, 1e6)
    },
    "quotients of columns": lambda s, x, m: (x / (s.columns * 1e-6 + 1e-9 * (s.columns == 0))).tanh(),
}


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("case", FAR_APART)
def test_numbers_far_apart_keep_their_bits(case: str, bits: str) -> None:
    factor = float(case.split()[-2]) if case.startswith("shares") else 1e6
    columns = torch.tensor(COLUMNS)
    columns[3:] *= 1e6 / factor  # 1, 2 and 3 after the multiplication
    module = Function(FAR_APART[case], exponents=EXPONENTS, columns=columns)
    check(module, bits, plain(4, 0), [*plain(4, 7), *plain(2, 8, 4.0)])


@pytest.mark.parametrize("bits", TARGETS)
def test_an_order_of_products_far_apart_is_refused(bits: str) -> None:
    """In one unit, most products of a row would be equal, and argmax would find any of them."""
    module = Function(lambda s, x, m: (x * (1 + m.float() * 1e9)).argmax(1))
    program = quantized(module, bits, plain(4, 0))
    text = refusal(tosaic.UnsupportedOp, tosaic.lower, program, target=TARGETS[bits])
    assert "floats" in text


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        torch.manual_seed(0)
        nn.init.uniform_(self.norm.running_mean, -0.5, 0.5)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)

    def forward(self, n: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.relu(self.norm(n.float()))
        return made


def counts(count: int, seed: int, dtype: torch.dtype = torch.int32) -> list[Sample]:
    torch.manual_seed(seed)
    return [(torch.randint(0, 6, (3, 3, 2)).to(dtype),) for _ in range(count)]


@pytest.mark.parametrize("bits", TARGETS)
def test_a_batch_norm_of_integers_knows_its_variance(bits: str) -> None:
    check(Normalized(), bits, counts(4, 0), counts(4, 7))


@pytest.mark.parametrize("bits", TARGETS)
def test_a_root_of_parts_of_bytes_saturates_at_its_pole(bits: str) -> None:
    module = Function(lambda s, n: torch.rsqrt(n.float().unbind(1)[1]))
    samples = [(n[0] + 1,) for n in counts(4, 0, torch.uint8)]
    check(module, bits, samples, [(n[0] + 1,) for n in counts(4, 7, torch.uint8)])


@pytest.mark.parametrize("bits", TARGETS)
def test_a_count_times_a_constant_is_exact_after_movement(bits: str) -> None:
    """The factor has more axes than the count; before, the product lost the last bit of the count."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros((), dtype=torch.int64))
            self.register_buffer("step", torch.full((1, 1), 0.491))

        def forward(self, x: torch.Tensor) -> Any:
            self.n.add_(1)
            return x * 2, (self.step * self.n).abs().view(()).expand(2, 3), self.step * self.n

    check(Counting(), bits, [(torch.randn(2, 3),) for _ in range(4)], [(torch.randn(2, 3),)])
