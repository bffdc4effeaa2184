"""Programs that lower to a target with integers only: inputs quantized with several sets of parameters,
functions that are not finite everywhere, floats of 16 bits between Q/DQ nodes, ranks up to 6."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
import tosaic
from function_module import FunctionModule
from fx.exporting import exported
from models.quantize import converted
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
Q = torch.ops.quantized_decomposed
RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255), torch.int16: (-32768, 32767)}
generator = torch.Generator().manual_seed(31)


def qdq(
    x: torch.Tensor, scale: float = 0.05, zero: int = 3, dtype: torch.dtype = torch.int8, out: Any = None
) -> torch.Tensor:
    low, high = RANGES[dtype]
    made = Q.quantize_per_tensor(x, scale, zero, low, high, dtype)
    return Q.dequantize_per_tensor(made, scale, zero, low, high, dtype, out_dtype=out)


def agrees(call: Any, *args: torch.Tensor, units: float, scale: float, target: str = "TOSA-1.0+INT") -> Any:
    """Lowers the call, compares its results, and returns the lowered program.

    Our results must equal the reference model's, and differ from torch's by at most `units` times `scale`.
    """
    ep = call if hasattr(call, "graph_module") else exported(call, *args)
    lowered = tosaic.lower(ep, target=target)
    with torch.no_grad():
        expected = ep.module(check_guards=False)(*args)
    found, reference = lowered.run(*args), run_reference_model(lowered, *args)
    assert reference.ok, reference.log
    if isinstance(expected, torch.Tensor):
        expected, found, model = [expected], [found], [reference.outputs]
    else:
        model = reference.outputs
    for truth, ours, theirs in zip(expected, found, model, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
        apart = np.abs(np.asarray(ours, np.float64) - truth.double().numpy()) / scale
        assert apart.max(initial=0) <= units + 1e-3, apart.max()
    return lowered


# ---- inputs that are quantized with several sets of parameters ----

TWO_WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "two scales": lambda x: qdq(qdq(x, 0.05, 3) + qdq(x, 0.02, -7).tanh(), 0.05, 3),
    "two dtypes": lambda x: qdq(qdq(x, 0.05, 3) * qdq(x, 2e-4, 0, torch.int16).sigmoid(), 0.05, 3),
    "behind movements": lambda x: qdq(
        qdq(x.reshape(4, 6), 0.05, 3) @ qdq(x.transpose(0, 1).reshape(6, 4), 0.02, -7), 0.05, 3
    ),
    "of which one is moved": lambda x: qdq(
        qdq(F.pad(x, (1, 0)), 0.05, 3)[..., 1:] - qdq(x, 0.02, 5), 0.05, 3
    ),
    "three ways": lambda x: qdq(qdq(x, 0.05, 3) + qdq(x, 0.02, 0) + qdq(x, 0.03, 1), 0.05, 3),
}


@pytest.mark.parametrize("name", TWO_WAYS)
def test_an_input_with_several_sets_of_parameters_is_several_inputs_of_the_file_and_one_of_the_caller(
    name: str,
) -> None:
    x = torch.randn(2, 3, 4, generator=generator)
    lowered = agrees(TWO_WAYS[name], x, units=1, scale=0.05)
    ways = 3 if name == "three ways" else 2
    assert len(lowered.graph.inputs) == ways
    (port,) = lowered.inputs
    path = lowered.source.inputs[0].path
    assert [each.path for each in lowered.graph.inputs] == [path] * ways
    assert (port.path, port.dtype) == (path, "f32")
    assert [tensor.name for tensor in port.tensors] == [each.value.name for each in lowered.graph.inputs]
    assert {tensor.dtype for tensor in port.tensors} <= {"i8", "i16"}
    assert len(set(port.quantized)) == ways
    assert len(lowered.arrays(x)) == 1
    assert len(lowered.graph_arrays(lowered.arrays(x))) == ways
    (reported,) = json.loads(lowered.report().json)["inputs"]
    assert len(reported["tensors"]) == len(reported["quantized"]) == ways
    text = lowered.io.report().text
    assert all(tensor.name in text for tensor in port.tensors)


class Mixed(nn.Module):
    def forward(self, a: torch.Tensor, both: dict[str, torch.Tensor], scale: float = 2.0) -> torch.Tensor:
        x = both["x"]
        first = qdq(a, 0.05, 3) + qdq(x, 0.05, 3)
        return qdq(first * qdq(a, 0.02, -7) - qdq(both["y"], 0.02, 0), 0.05, 3)


def test_other_inputs_beside_an_input_that_was_split_are_found_by_place_and_by_name(tmp_path: Path) -> None:
    a, x, y = torch.randn(3, 2, 5, generator=generator)
    ep = torch.export.export(Mixed(), (a,), {"both": {"x": x, "y": y}})
    lowered = tosaic.lower(ep, target="TOSA-1.0+INT")
    assert len(lowered.graph.inputs) == 4
    expected = ep.module()(a, both={"x": x, "y": y}).numpy()
    for found in (lowered.run(a, {"y": y, "x": x}), lowered.run(a=a, both={"x": x, "y": y})):
        assert np.abs(found - expected).max() < 0.051
    program = lowered.at("tosa")
    np.testing.assert_array_equal(program.run(a, both={"x": x, "y": y}), lowered.run(a, {"x": x, "y": y}))
    np.testing.assert_array_equal(
        lowered.at("canonical").run(a, both={"x": x, "y": y}), program.run(a, {"x": x, "y": y})
    )
    program.save(tmp_path / "p.tosaic")
    again = tosaic.load(tmp_path / "p.tosaic")
    np.testing.assert_array_equal(again.run(a, {"x": x, "y": y}), program.run(a, {"x": x, "y": y}))
    bare = tosaic.program.from_graph(lowered.graph)
    np.testing.assert_array_equal(bare.run(a, x, y), program.run(a, {"x": x, "y": y}))
    assert tosaic.compare(ep, lowered, {"a": a, "both": {"x": x, "y": y}}).outputs[0].metrics.sqnr_db > 20
    assert tosaic.compare(lowered, ep, (a, {"x": x, "y": y})).outputs[0].metrics.sqnr_db > 20


def test_states_and_mutations_work_beside_an_input_that_was_split() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4, dtype=torch.int32))

        def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            self.total.add_(step)
            return qdq(qdq(x, 0.05, 3) + qdq(x, 0.02, -7) + qdq(self.total.float(), 0.05, 3), 0.05, 3)

    x, step = torch.randn(4, generator=generator), torch.ones(4, dtype=torch.int32)
    ep = torch.export.export(Adds(), (x, step))
    lowered = tosaic.lower(ep, target="TOSA-1.0+INT")
    module = Adds()
    for _ in range(3):
        assert np.abs(lowered.run(x, step) - module(x, step).numpy()).max() < 0.051
    assert lowered.session.state("total").tolist() == [3] * 4


def test_an_integer_input_with_two_sets_of_parameters_is_refused() -> None:
    x = torch.randn(2, 3, 4, generator=generator)
    with pytest.raises((tosaic.QuantMismatch, tosaic.SpecViolation)):
        tosaic.lower(exported(TWO_WAYS["two scales"], x), target="TOSA-1.0+INT", io={"inputs": "int8"})


def test_an_input_that_is_also_read_as_a_float_stays_a_float_if_the_target_has_floats() -> None:
    x = torch.randn(2, 3, generator=generator)
    call = lambda x: (qdq(qdq(x, 0.05) + qdq(x, 0.02), 0.05), x.exp())  # noqa: E731
    lowered = tosaic.lower(exported(call, x), target="TOSA-1.0+INT+FP")
    assert [port.value.dtype for port in lowered.graph.inputs] == ["f32"]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4)

    def forward(self, query: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return self.attention(query, memory, memory.clone() * 1.0)[0] + query


@pytest.mark.parametrize("quantizer", ["arm", "xnnpack"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_attention_converted_by_a_third_party_quantizer_agrees_with_torch(
    quantizer: str, batch: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(5, *batch, 16), torch.randn(6, *batch, 16)) for _ in range(3)]
    ep = converted(Attention(), samples, quantizer)
    target = "TOSA-1.0+INT" if quantizer == "arm" else "TOSA-1.0+INT+FP"
    lowered = tosaic.lower(ep, target=target)
    expected = ep.module(check_guards=False)(*samples[0]).detach().numpy()
    noise = np.square(lowered.run(*samples[0]) - expected).sum() / np.square(expected).sum()
    assert noise < 1e-3


@pytest.mark.parametrize("rank", [2, 4, 6])
def test_a_scatter_of_values_with_other_parameters_lowers_to_integers(rank: int) -> None:
    x = torch.randn(2, 3, 2, 2, 3, 2, generator=generator).reshape(*(2, 3, 2, 2, 3, 2)[: rank - 1], -1)
    samples = [(x, x.select(1, 0) * 3)] * 2
    module = FunctionModule(lambda x, y: torch.select_scatter(x, y, 1, 2) + x.select(1, 0).unsqueeze(1))
    ep = converted(module, samples, "arm")
    agrees(ep, *samples[0], units=1, scale=0.1)


def test_a_vector_matrix_product_converted_by_the_arm_quantizer_lowers_to_integers() -> None:
    samples = [(torch.randn(4), torch.randn(4, 3))] * 2
    ep = converted(FunctionModule(torch.matmul), samples, "arm")
    assert any("squeeze_" in str(node.target) for node in ep.graph.nodes)
    agrees(ep, *samples[0], units=1, scale=0.05)


# ---- functions that are not finite everywhere ----

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reciprocal power": lambda x: x**-1,
    "root": torch.rsqrt,
    "logarithm": torch.log,
    "square root": torch.sqrt,
    "logit": torch.logit,
    "inverse error function": torch.erfinv,
    "bounded logarithm": lambda x: torch.clamp(torch.log(x), -3, 3),
    "chain": lambda x: (x**-1) * 2 + 1,
    "bounded again": lambda x: torch.tanh(1 / x),
    "zero again": lambda x: torch.exp(-1 / x.abs()),
    "with itself": lambda x: x * torch.log(x),
    "x log x": lambda x: torch.xlogy(x, x),
    "replaced": lambda x: torch.nan_to_num(torch.log(x)),
    "viewed": lambda x: torch.log(x).reshape(-1) * 2,
    "transposed": lambda x: (torch.log(x).reshape(2, -1).t() * 0.5).reshape(-1),
    "asked for": lambda x: torch.isinf(1 / x).float(),
    "compared": lambda x: (torch.log(x) > 0.3).float(),
    "overflow": lambda x: torch.exp(x * 50),
}


@pytest.mark.parametrize("dtype", RANGES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_is_not_finite_everywhere_is_stored_as_torch_stores_it(
    name: str, dtype: torch.dtype
) -> None:
    low, high = RANGES[dtype]
    scale, zero = (0.0005, 0) if dtype == torch.int16 else (0.05, 3)
    x = (torch.arange(low, high + 1) - zero) * scale
    call = lambda x: qdq(FUNCTIONS[name](qdq(x, scale, zero, dtype)), scale, zero, dtype)  # noqa: E731
    agrees(call, x, units=0 if dtype != torch.int16 else 1, scale=scale)


BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "quotient": lambda x, y: x / y,
    "power": lambda x, y: x**y,
    "remainder": torch.remainder,
    "bounded quotient": lambda x, y: torch.tanh(x / y),
    "quotient and its divisor": lambda x, y: (x / y) * y + 1,
    "broadcast": lambda x, y: torch.tanh(x[:, None] / y[:64]),
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_a_function_of_two_operands_may_be_infinite_or_nan(name: str, dtype: torch.dtype) -> None:
    low, high = RANGES[dtype]
    x, y = ((torch.randint(low, high + 1, (2, 512), generator=generator) - 3) * 0.05).unbind(0)
    y[:64], x[32:64] = 0, 0
    call = lambda x, y: qdq(BINARY[name](qdq(x, dtype=dtype), qdq(y, dtype=dtype)), dtype=dtype)  # noqa: E731
    agrees(call, x, y, units=0, scale=0.05)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16], ids=str)
def test_nan_and_infinity_in_input_arrays_are_quantized_as_in_torch(dtype: torch.dtype) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.5, 3e38, -3e38])
    zero = 0 if dtype == torch.int16 else 3
    agrees(lambda x: qdq(qdq(x, 0.05, zero, dtype) + 1, 0.05, zero, dtype), x, units=1, scale=0.05)


# ---- floats of 16 bits between Q/DQ nodes ----

HALVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "product": lambda x: x * 2,
    "sum": lambda x: x + x.flip(0),
    "activation": F.gelu,
    "softmax": lambda x: F.softmax(x, -1),
    "norm": lambda x: F.layer_norm(x, (8,)),
    "matrix product": lambda x: x @ x.transpose(-1, -2),
    "mean": lambda x: x.mean(-1),
    "movement": lambda x: x.transpose(0, 1).reshape(-1),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HALVES)
def test_floats_of_16_bits_between_quantizers_lower_to_integers(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(4, 8, generator=generator)
    casts = lambda x: qdq(HALVES[name](qdq(x).to(dtype)).float())  # noqa: E731
    inside = lambda x: qdq(HALVES[name](qdq(x, out=dtype)))  # noqa: E731
    for call in (casts, inside):
        lowered = agrees(call, x, units=1, scale=0.05)
        assert not any("f16" in value.dtype for value in lowered.graph.values)


# ---- poles ----

SUMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "8 bits": lambda x: qdq(x, 0.05, 0),
    "16 bits": lambda x: qdq(x, 1e-3, 0, torch.int16),
    "a sum": lambda x: qdq(x, 1e-3, 0, torch.int16) + qdq(x.flip(1), 1e-3, 0, torch.int16),
    "a sum above zero": lambda x: (
        qdq(x, 1e-3, 0, torch.int16) + qdq(x.flip(1), 1e-3, 0, torch.int16)
    ).relu(),
    "many terms": lambda x: qdq(x, 0.05, 0).cumsum(1),
}


@pytest.mark.parametrize("power", [-1, -2, -3, -4, -7])
@pytest.mark.parametrize("name", SUMS)
def test_inverse_powers_of_numbers_that_may_be_zero_saturate_where_torch_has_infinities(
    name: str, power: int
) -> None:
    near = torch.tensor([0.0, 1, -0.5, 0.06, 2, -3, 0.1, 0, 0.001, -0.001, 0.002, -0.0017, 0.05, -0.05])
    numbers = torch.randn(300, generator=torch.Generator().manual_seed(1))
    x = torch.cat([near, numbers, torch.zeros(1)])[None]
    assert torch.isinf(SUMS[name](x) ** power).any()
    for scale, dtype in ((0.05, torch.int16), (1e-3, torch.int16), (0.05, torch.int8)):
        call = lambda x, s=scale, d=dtype: qdq(SUMS[name](x) ** power, s, 0, d)  # noqa: E731
        agrees(call, x, units=1, scale=scale, target="TOSA-1.0+INT+int16")
        if power == -1:
            call = lambda x, s=scale, d=dtype: qdq(SUMS[name](x).reciprocal(), s, 0, d)  # noqa: E731
            agrees(call, x, units=1, scale=scale, target="TOSA-1.0+INT+int16")


@pytest.mark.parametrize("power", [-1, -3])
def test_inverse_powers_whose_sign_the_bits_cannot_tell_are_refused(power: int) -> None:
    x = torch.tensor([[0.0, 1, -2, 3]])
    total = lambda x: qdq(x, 1e-3, 0, torch.int16) + qdq(x, 7e-4, 0, torch.int16)  # noqa: E731
    program = exported(lambda x: qdq(total(x) ** power, 0.05, 0), x)
    with pytest.raises(tosaic.UnsupportedOp, match="may be closer to zero than its bits can tell"):
        tosaic.lower(program, target="TOSA-1.0+INT+int16")


# ---- unsigned results ----

WHOLE = torch.tensor([[1, 200, 3, 300], [0, -5, 255, 256]])
BYTES = torch.tensor([[7, 250], [1, 128]], dtype=torch.uint8)
UNSIGNED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "i64": lambda x: x.to(torch.uint8),
    "i32": lambda x: x.int().to(torch.uint8),
    "large i32": lambda x: (x.int() * 65537 + 13).to(torch.uint8),
    "i16": lambda x: x.to(torch.int16).to(torch.uint8),
    "i8": lambda x: x.to(torch.int8).to(torch.uint8),
    "within": lambda x: x.clamp(0, 255).to(torch.uint8),
    "moved": lambda x: x.to(torch.uint8)[:, [1, 0]].T.flip(0),
    "read": lambda x: (-x).to(torch.uint8).long() + 1,
    "sum": lambda x: x.sum().to(torch.uint8).expand(3),
    "beside a constant": lambda x: torch.cat([x.to(torch.uint8), BYTES], 1),
    "a constant": lambda x: (BYTES.clone(), x),
    "i32 to u16": lambda x: (x.int() * 1000).to(torch.uint16),
}


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+FP", "TOSA-1.0+INT+FP"])
@pytest.mark.parametrize("name", UNSIGNED)
def test_casts_of_integers_to_unsigned_integers_wrap_around_as_in_torch(name: str, target: str) -> None:
    agrees(UNSIGNED[name], WHOLE, units=0, scale=1.0, target=target)


UNSIGNED_NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a table": lambda x: (qdq(x, 0.02, 3) * 255).clamp(0, 255).to(torch.uint8),
    "an argmax": lambda x: qdq(x, 0.02, 3).argmax(1).to(torch.uint8),
    "a comparison": lambda x: (qdq(x, 0.02, 3) > 0.5).to(torch.uint8),
    "sums": lambda x: (qdq(x, 0.02, 3) + qdq(x.flip(1), 0.05, 3)).clamp(0, 2).mul(100).to(torch.uint8),
    "numbers that saturate": lambda x: (qdq(x, 0.02, 3) * 80 + 100).clamp(min=0).to(torch.uint8),
    "16 bits": lambda x: (qdq(x, 1e-4, 0, torch.int16) * 255).clamp(0, 255).to(torch.uint8),
    "16 bits to i8": lambda x: (qdq(x, 1e-4, 0, torch.int16) * 100).to(torch.int8),
    "16 bits to i16": lambda x: (qdq(x, 1e-4, 0, torch.int16) * 1000).to(torch.int16),
    "beside a constant": lambda x: torch.cat(
        [(qdq(x, 0.02, 3) * 255).clamp(0, 255).to(torch.uint8), BYTES], 1
    ),
}


@pytest.mark.parametrize("name", UNSIGNED_NUMBERS)
def test_quantized_numbers_become_integers_of_every_dtype(name: str) -> None:
    x = torch.rand(2, 5, generator=torch.Generator().manual_seed(3)) * 3 - 1
    program = exported(UNSIGNED_NUMBERS[name], x)
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+int16")
    reference = run_reference_model(lowered, x)
    assert reference.ok, reference.log
    found = lowered.run(x)
    np.testing.assert_array_equal(found, reference.outputs)
    # torch does not define casts of floats that the dtype cannot hold. We saturate them, as TOSA CAST does.
    wanted = tosaic.from_exported(program).run(x)
    assert found.dtype == wanted.dtype
    is_exact = name != "sums" and "16 bits" not in name
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= (0 if is_exact else 1)


# ---- ranks ----

SHAPE = (2, 3, 2, 3, 2, 4)
MOVEMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "permute": lambda x: x.permute(*reversed(range(x.dim()))),
    "slices with steps": lambda x: x[tuple(slice(0, None, 2) for _ in range(x.dim()))],
    "a slice with a step, last": lambda x: x[..., 1::3],
    "flip": lambda x: x.flip(list(range(x.dim()))),
    "roll": lambda x: torch.roll(x, [1] * x.dim(), list(range(x.dim()))),
    "pad": lambda x: F.pad(x, [1, 1] * x.dim()),
    "cat": lambda x: torch.cat([x, x * 1], -1),
    "repeat": lambda x: x.repeat(*[2] * x.dim()),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "repeat_interleave, last": lambda x: x.repeat_interleave(3, -1),
    "index_select": lambda x: x.index_select(-1, torch.tensor([1, 0, 1])),
    "gather": lambda x: torch.gather(x, -1, torch.zeros(x.shape, dtype=torch.int64)),
    "select_scatter": lambda x: torch.select_scatter(x, x.select(0, 0) * 2, 0, 1),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:1] * 2, 0, 1, 2),
    "index_put": lambda x: torch.index_put(x, (torch.tensor([1]),), x[:1] * 2),
    "expand": lambda x: x[:1].expand(4, *x.shape[1:]),
    "rot90": lambda x: torch.rot90(x, 1, (0, -1)) if x.dim() > 1 else x,
}


@pytest.mark.parametrize("rank", range(1, 7))
@pytest.mark.parametrize("name", MOVEMENTS)
def test_movement_operators_accept_ranks_up_to_6(name: str, rank: int) -> None:
    x = torch.randn(*SHAPE, generator=generator).reshape(*SHAPE[: rank - 1], -1)[..., :6].contiguous()
    move = MOVEMENTS[name]
    agrees(lambda x: qdq(move(qdq(x))), x, units=0, scale=0.05)
    lowered = tosaic.lower(exported(move, x))
    np.testing.assert_array_equal(lowered.run(x), move(x).numpy())
    np.testing.assert_array_equal(run_reference_model(lowered, x).outputs, move(x).numpy())


# ---- functions with an intermediate value of a wider range than the bits of its integers can represent ----

SPANNING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "softplus, spelt out": lambda a, b: torch.log(1 + torch.exp(a - b)),
    "softplus of a sum": lambda a, b: torch.log1p(torch.exp(a + b)),
    "sigmoid, spelt out": lambda a, b: 1 / (1 + torch.exp(a - b)),
    "hyperbolic secant": lambda a, b: torch.reciprocal(torch.exp(a + b) + torch.exp(-(a + b))),
    "hyperbolic tangent": lambda a, b: (torch.exp(a - b) - 1) / (torch.exp(a - b) + 1),
    "root of a square": lambda a, b: torch.sqrt(1 + (a - b) ** 2),
    "mish": lambda a, b: F.mish(a - b),
}


@pytest.mark.parametrize("widest", [1.0, 8.0, 25.0])
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", SPANNING)
def test_a_function_whose_intermediate_values_have_a_wide_range_is_within_two_units(
    name: str, bits: int, widest: float
) -> None:
    dtype, target = {8: (torch.int8, "TOSA-1.0+INT"), 16: (torch.int16, "TOSA-1.0+INT+int16")}[bits]
    most = RANGES[dtype][1]
    draw = torch.Generator().manual_seed(bits)
    a, b = ((torch.rand(2, 300, generator=draw) * 2 - 1) * widest for _ in range(2))
    function = SPANNING[name]
    scale = float(function(a, b).abs().max()) / most

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = (qdq(each, widest / most, 0, dtype) for each in (x, y))
        return qdq(function(x, y), scale, 0, dtype)

    agrees(call, a, b, units=1 if bits == 8 else 2, scale=scale, target=target)


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+INT+int16"])
def test_products_of_products_keep_their_numbers(target: str) -> None:
    """The proven range of the chain is far beyond its numbers, which must keep enough bits nevertheless."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        first = x @ x.transpose(-1, -2)
        return (first @ first) @ first.sum(0, keepdim=True).transpose(-1, -2)

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    scale = float(chain(x).abs().max()) / 120
    module = FunctionModule(lambda x: qdq(chain(qdq(x, 0.02, 0)), scale, 0))
    agrees(module, x, units=1, scale=scale, target=target)
