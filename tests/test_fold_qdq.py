"""fold-qdq: quantization parameters move from Q/DQ nodes onto values; results are bit-exact, whatever the
quantizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
import tosaic
from fx.exporting import exported
from models.integers import laid_out
from models.quantize import QUANTIZERS, converted
from torch import nn
from tosaic import _core

pytestmark = pytest.mark.filterwarnings("ignore")
generator = torch.Generator().manual_seed(11)
Q = torch.ops.quantized_decomposed
X = torch.randn(2, 4, 6, 6, generator=generator)
WEIGHT = torch.randint(-127, 128, (5, 4, 3, 3), generator=generator).to(torch.int8)
SCALES = torch.rand(5, generator=generator) * 0.02 + 0.001
ZEROS = torch.zeros(5, dtype=torch.int64)


def q(x: torch.Tensor, scale: float = 0.02, zero: int = 3, low: int = -128, high: int = 127) -> torch.Tensor:
    return Q.quantize_per_tensor(x, scale, zero, low, high, torch.int8)


def dq(x: torch.Tensor, scale: float = 0.02, zero: int = 3, low: int = -128, high: int = 127) -> torch.Tensor:
    return Q.dequantize_per_tensor(x, scale, zero, low, high, torch.int8)


def qdq(x: torch.Tensor, *args: Any) -> torch.Tensor:
    return dq(q(x, *args), *args)


def weight() -> torch.Tensor:
    return Q.dequantize_per_channel(WEIGHT, SCALES, ZEROS, 0, -127, 127, torch.int8)


def folded(call: Callable[..., Any], *args: torch.Tensor) -> Any:
    """Returns the graph after fold-qdq.

    Its results, and the results after unfold-qdq, must equal the results before.
    """
    program = tosaic.from_exported(exported(call, *args))
    graph = _core.run_pass("fold-qdq", program.graph)
    graph.verify()
    arrays = [arg.numpy() for arg in args]
    before, after = (_core.Session(g).run(arrays) for g in (program.graph, graph))
    for expected, got in zip(before, after, strict=True):
        np.testing.assert_array_equal(got, expected)
    again = _core.run_pass("unfold-qdq", graph)
    again.verify()
    for expected, got in zip(before, _core.Session(again).run(arrays), strict=True):
        np.testing.assert_array_equal(got, expected)
    return graph


def ops(graph: Any) -> Counter[str]:
    return Counter(node.op for node in graph.nodes)


class Net(nn.Module):
    """Strided, depthwise and pointwise convolutions, a residual, a concat, pools, a clamp, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.classes = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)))
        y = self.pointwise(F.relu(self.depthwise(x))) + x
        y = F.max_pool2d(torch.cat([y, x], 1), 2)
        y = F.hardtanh(y, -0.7, 1.1).mean((2, 3))
        return self.classes(y)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_a_converted_network_is_bit_exact_with_one_quantize_and_one_dequantize_node(quantizer: str) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(1, 3, 16, 16),) for _ in range(3)]
    program = tosaic.from_exported(converted(Net(), samples, quantizer))
    graph = _core.run_pass("fold-constants", _core.run_pass("fold-qdq", program.graph))
    graph.verify()
    assert ops(program.graph)["dequantize"] > 10
    assert ops(graph)["quantize"] == ops(graph)["dequantize"] == 1
    sessions = _core.Session(program.graph), _core.Session(graph)
    for (x,) in [*samples, (torch.full((1, 3, 16, 16), 1e4),), (torch.zeros(1, 3, 16, 16),)]:
        (given,) = laid_out(program.graph.inputs, (x,))
        expected, got = (session.run([given.numpy()])[0] for session in sessions)
        np.testing.assert_array_equal(got, expected)


def test_operators_between_dequantize_and_quantize_read_and_produce_integers() -> None:
    graph = folded(lambda x: qdq(F.relu(F.conv2d(qdq(x), weight())), 0.05, -7), X)
    assert ops(graph) == {"quantize": 1, "conv": 1, "relu": 1, "dequantize": 1}


@pytest.mark.parametrize("zero", [-128, -100, 0, 127])
@pytest.mark.parametrize("low", [-128, -127])
def test_relu_and_clamp_are_bit_exact_for_every_zero_point_and_range(zero: int, low: int) -> None:
    folded(lambda x: qdq(F.relu(F.conv2d(qdq(x), weight())), 0.05, zero, low, 127), X)
    folded(lambda x: qdq(F.hardtanh(F.conv2d(qdq(x), weight()), -0.33, 0.77), 0.05, zero, low, 127), X)


def test_dequantize_moves_below_views_and_operators_that_only_select_values() -> None:
    graph = folded(lambda x: qdq(F.max_pool2d(qdq(x).permute(0, 2, 3, 1).relu(), 2) + 1, 0.1, 4), X)
    assert ops(graph) == {"quantize": 1, "permute": 1, "relu": 1, "max_pool": 1, "add": 1, "dequantize": 1}


def test_views_between_quantize_and_dequantize_carry_the_parameters() -> None:
    graph = folded(lambda x: qdq(torch.tanh(dq(q(x).transpose(1, 2).reshape(2, -1))), 0.01, 0), X)
    assert ops(graph)["dequantize"] == 1


def test_the_channel_axis_of_a_permuted_weight_is_permuted_too() -> None:
    rows = torch.randint(-127, 128, (4, 6), generator=generator).to(torch.int8)
    scales, zeros = torch.rand(4, generator=generator) * 0.01 + 0.001, torch.zeros(4, dtype=torch.int64)

    def call(x: torch.Tensor) -> torch.Tensor:
        w = Q.dequantize_per_channel(rows, scales, zeros, 0, -127, 127, torch.int8)
        return qdq(qdq(x) @ w.t(), 0.1, 1)

    graph = folded(call, X)
    assert ops(graph) == {"quantize": 1, "permute": 1, "matmul": 1, "dequantize": 1}


def test_a_result_quantized_with_two_sets_of_parameters_is_computed_twice() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(qdq(x), weight())
        return q(y, 0.05, 0), q(y, 0.01, 5), q(F.relu(y), 0.05, 0)

    assert ops(folded(call, X)) == {"quantize": 1, "conv": 2, "relu": 1}


def test_a_result_that_is_also_read_as_a_float_is_computed_twice() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(qdq(x), weight())
        return q(y, 0.05, 0), torch.sin(y)

    graph = folded(call, X)
    assert ops(graph)["conv"] == 2
    assert ops(graph)["sin"] == 1


def reasons(graph: Any) -> list[str]:
    return [f"{reason['node']}: {reason['what']}" for reason in _core.explain_qdq(graph)]


def test_an_operator_with_an_operand_that_was_never_quantized_stays_a_float_operator() -> None:
    graph = folded(lambda x, y: q(qdq(x) + y), X, X * 2)
    assert ops(graph) == {"quantize": 2, "dequantize": 1, "add": 1}
    assert reasons(graph) == ["add: operand 'other' was never quantized: it is a float of input 'args_1'"]


def test_every_reason_names_the_node_and_the_reader_or_producer_of_the_float() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(qdq(x), weight())
        z = qdq(x, 0.1, 0).half().tanh()
        return torch.sin(y) * 2, y, z, q(torch.cos(x * 3), 0.01, 0)

    assert reasons(folded(call, X)) == [
        "conv2d: its result is read as a float by node 'sin'",
        "conv2d: its result is an output of the graph, as a float",
        "to: its result is read as a float by node 'tanh'",
        "cos: operand 'input' was never quantized: it is a float of node 'mul_1'",
    ]


def test_the_operands_of_a_concat_may_have_different_quantization_parameters() -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return q(torch.cat([qdq(x, 0.02, 3), qdq(y, 0.5, -8)], 1), 0.1, 0)

    graph = folded(call, X, X * 9)
    assert ops(graph) == {"quantize": 2, "cat": 1}
    assert all(f"scale {scale} " in graph.text() for scale in ("0.02", "0.5", "0.1"))


def test_a_requantization_to_a_narrower_range_with_the_same_scale_still_clamps() -> None:
    folded(lambda x: q(dq(q(x, 0.01, 0), 0.01, 0), 0.01, 0, -127, 126), X * 5)
    integers = torch.arange(-128, 128, dtype=torch.int8)
    folded(lambda i: q(dq(i, 0.01, 0, -127, 127), 0.01, 0, -127, 127), integers)


def test_integers_that_are_also_used_in_integer_arithmetic_have_no_quantization_parameters() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        integers = q(x)
        return integers.to(torch.int32) + 1, q(dq(integers) * 2, 0.3, 0)

    graph = folded(call, X)
    assert ops(graph)["dequantize"] == 1
    assert "its integers are counted with by node" in reasons(graph)[0]


def test_integers_dequantized_with_other_parameters_than_they_were_quantized_with_are_not_folded() -> None:
    graph = folded(lambda x: q(dq(q(x, 0.02, 3), 0.05, 1).tanh(), 0.01, 0), X)
    assert ops(graph) == {"quantize": 2, "dequantize": 1, "tanh": 1}
    assert "with other parameters than it reads them with" in reasons(graph)[0]


def test_a_constant_dequantized_with_two_sets_of_parameters_has_both() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        one = Q.dequantize_per_channel(WEIGHT, SCALES, ZEROS, 0, -127, 127, torch.int8)
        other = Q.dequantize_per_tensor(WEIGHT, 0.01, 0, -128, 127, torch.int8)
        return q(F.conv2d(qdq(x), one), 0.05, 0), q(F.conv2d(qdq(x), other), 0.05, 0)

    folded(call, X)


def test_comparisons_and_argmax_read_integers() -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = qdq(x)
        return x < qdq(y, 0.3, 1), x.argmax(1)

    graph = folded(call, X, X * 2)
    assert ops(graph) == {"quantize": 2, "lt": 1, "argmax": 1}


def test_padding_is_bit_exact_with_a_zero_point_inside_or_outside_the_integer_range() -> None:
    for zero, low in ((3, -128), (-10, -5)):
        folded(lambda x, z=zero, lo=low: q(F.pad(qdq(x, 0.02, z, lo), (1, 1, 1, 1)), 0.02, z, lo), X)
        folded(lambda x, z=zero, lo=low: q(F.pad(qdq(x, 0.02, z, lo), (1, 1), value=0.5), 0.02, z, lo), X)


def test_four_bit_integers_stored_as_int8_have_the_range_of_four_bits() -> None:
    nibbles = torch.randint(-8, 8, (5, 4, 3, 3), generator=generator).to(torch.int8)
    scales = SCALES * 16

    def call(x: torch.Tensor) -> torch.Tensor:
        w = Q.dequantize_per_channel(nibbles, scales, ZEROS, 0, -8, 7, torch.int8)
        return q(F.conv2d(qdq(x), w), 0.05, 0)

    assert "-8..7" in folded(call, X).text()


def test_a_graph_without_quantization_is_returned_unchanged() -> None:
    graph = tosaic.from_exported(exported(torch.sin, X)).graph
    assert _core.run_pass("fold-qdq", graph) is graph


def test_one_scale_for_many_channels_applies_to_all_of_them_as_in_torch() -> None:
    one, zero = torch.tensor([0.02]), torch.tensor([0])

    def call(x: torch.Tensor) -> torch.Tensor:
        w = Q.quantize_per_channel(WEIGHT * 0.01, one, zero, 0, -127, 127, torch.int8)
        return q(F.conv2d(qdq(x), Q.dequantize_per_channel(w, one, zero, 0, -127, 127, torch.int8)), 0.1)

    program = tosaic.from_exported(exported(call, X))
    assert np.array_equal(program.run(X), call(X).numpy())
    assert tosaic.lower(program, target="TOSA-1.0+INT").target == "TOSA-1.0+INT"
