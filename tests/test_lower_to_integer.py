"""Cases that integer lowering easily gets wrong, against torch's Q/DQ graph and the TOSA reference model.

All engines get the same integers. Every case runs at stage integer and at stage tosa, by the scalar kernels
and by the kernels of each instruction set, and on the reference model: all of these results are equal in
every element. `Outcome.apart` is their distance from torch's results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
import tosaic
from fx.exporting import exported
from quantize_calls import RANGES, dq, q
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
Q = torch.ops.quantized_decomposed


def q16(x: torch.Tensor, scale: float) -> torch.Tensor:
    return Q.quantize_per_tensor(x, scale, 0, -32768, 32767, torch.int16)


def dq16(x: torch.Tensor, scale: float) -> torch.Tensor:
    return Q.dequantize_per_tensor(x, scale, 0, -32768, 32767, torch.int16)


def integers(*shape: int, seed: int = 5, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    """Returns random integers from the whole range of the dtype."""
    low, high = RANGES[dtype]
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high + 1, shape, generator=generator).to(dtype)


def weight(*shape: int, seed: int = 6) -> Callable[[], torch.Tensor]:
    """Returns a function that dequantizes a constant weight with one scale per channel (axis 0)."""
    stored = integers(*shape, seed=seed).clamp(min=-127)
    scales = torch.rand(shape[0], generator=torch.Generator().manual_seed(seed)) * 0.02 + 0.001
    zeros = torch.zeros(shape[0], dtype=torch.int64)
    return lambda: Q.dequantize_per_channel(stored, scales, zeros, 0, -127, 127, torch.int8)


@dataclass(frozen=True)
class Outcome:
    """The graphs at stages integer and tosa, the result, and its largest distance from torch's in units."""

    integer: Any
    tosa: Any
    result: np.ndarray[Any, Any]
    apart: int

    @property
    def ops(self) -> Counter[str]:
        return Counter(node.op for node in self.tosa.nodes)


def lowered(call: Callable[..., Any], *arrays: torch.Tensor, target: str = "TOSA-1.0+INT") -> Outcome:
    """Lowers the call and runs it on every engine; all results have to be equal."""
    with torch.no_grad():
        expected = call(*arrays).numpy()
        low = tosaic.lower(exported(call, *arrays), target=target)
    integer = low.stages["canonical"]
    assert integer.stage == "integer"
    given = low.arrays(*arrays)
    reference = run_reference_model(low, *arrays)
    assert reference.status == "VALID", reference.log
    result = np.asarray(reference.outputs)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    for graph in (integer, low.graph):
        for how in ({"reference": True}, *({"isa": isa} for isa in _core.usable_isas())):
            (got,) = _core.Session(graph, **how).run(given)
            assert np.count_nonzero(got != result) == 0, (graph.stage, how)
    apart = np.abs(result.astype(np.int64) - expected.astype(np.int64)).max(initial=0)
    return Outcome(integer, low.graph, result, int(apart))


X = integers(2, 4, 7, 7)
INSIDE = (0.02, 3)
WEIGHT = weight(5, 4, 3, 3)


def conv(x: torch.Tensor) -> torch.Tensor:
    """Returns the convolution in front of the activations that are tested."""
    return F.conv2d(dq(x, *INSIDE), WEIGHT())


# ---- activations that are fused ----


@pytest.mark.parametrize("zero", [-127, -10, 0, 100])
def test_a_relu_clamps_at_the_zero_point_of_the_result(zero: int) -> None:
    out = lowered(lambda x: q(F.relu(conv(x)), 0.05, zero), X)
    assert out.apart <= 1
    assert out.result.min() == zero
    assert out.result.max() == 127


def test_a_relu_with_a_result_range_from_minus_127_never_returns_minus_128() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return q(F.relu(conv(x)), 0.05, -127, -127, 127)

    out = lowered(call, X)
    assert out.apart <= 1
    assert (out.result.min(), out.result.max()) == (-127, 127)


def test_a_result_range_from_minus_127_clamps_without_an_activation() -> None:
    out = lowered(lambda x: q(conv(x), 0.01, 0, -127, 127), X)
    assert out.apart <= 1
    assert (out.result.min(), out.result.max()) == (-127, 127)


@pytest.mark.parametrize(
    "bound", [lambda x: F.hardtanh(x, -0.33, 0.77), lambda x: x.clamp(max=0.77), F.relu6]
)
def test_a_clamp_between_quantizers_clamps_at_its_quantized_limits(
    bound: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    out = lowered(lambda x: q(bound(conv(x)), 0.05, -7), X)
    assert out.apart <= 1
    limits = q(bound(torch.tensor([-1e3, 1e3])), 0.05, -7)
    assert [out.result.min(), out.result.max()] == limits.tolist()


# ---- operands with different quantization parameters ----


def test_each_operand_of_a_concat_is_rescaled_to_the_parameters_of_the_result() -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return q(torch.cat([dq(x, 0.05, 3), dq(y, 0.07, -7)], 1), 0.06, 10)

    out = lowered(call, X, integers(2, 3, 7, 7, seed=8))
    assert out.apart <= 1
    assert out.ops["tosa.concat"] == 1
    assert out.ops["tosa.rescale"] + out.ops["tosa.table"] == 2


@pytest.mark.parametrize("swapped", [False, True])
def test_the_small_addend_counts_too_if_the_scales_differ_by_a_factor_of_1000(swapped: bool) -> None:
    large = torch.where(integers(64, 64, seed=1) > 0, 3, 4).to(torch.int8)  # represents 0 and 1
    small = integers(64, 64, seed=2)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        terms = dq(x, 1.0, 3), dq(y, 0.001, -7)
        return q(terms[swapped] + terms[not swapped], 0.01, 5)

    out = lowered(call, large, small)
    assert out.apart <= 1
    alone = q(dq(small, 0.001, -7), 0.01, 5).numpy()
    zero = large.numpy() == 3
    np.testing.assert_allclose(out.result[zero], alone[zero], rtol=0, atol=1)
    assert len(np.unique(out.result[zero])) > 20


@pytest.mark.parametrize("zero", [-128, -2, -1, 0, 1, 127])
@pytest.mark.parametrize("join", [torch.add, torch.sub, torch.maximum])
def test_add_sub_and_maximum_with_an_operand_of_zeros_are_exact(join: Any, zero: int) -> None:
    every = torch.arange(-128, 128).to(torch.int8).reshape(64, 4)
    nothing = torch.full((4,), -128, dtype=torch.int8)
    out = lowered(lambda x: q(join(dq(x, 0.03, zero), dq(nothing, 2.0**-16, -128)), 0.03, zero), every)
    kept = every if join is not torch.maximum else every.clamp(min=zero)
    assert (out.result == kept.numpy()).all()


def test_a_requantization_to_a_narrower_range_with_the_same_scale_clamps() -> None:
    out = lowered(lambda x: q(dq(x, 0.1, 2), 0.1, 2, -64, 63), X)
    assert out.apart == 0
    assert (out.result.min(), out.result.max()) == (-64, 63)


@pytest.mark.parametrize("scale", [-0.1, 0.0, float("nan")])
def test_a_scale_that_is_not_a_positive_number_is_refused(scale: float) -> None:
    with pytest.raises(tosaic.Error, match="scale"):
        tosaic.lower(exported(lambda x: q(dq(x, scale), 0.1), X), target="TOSA-1.0+INT")


# ---- shapes ----


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("stride", [2, 3])
def test_a_convolution_whose_stride_leaves_a_remainder_reads_only_complete_windows(
    padding: int, stride: int
) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return q(F.conv2d(dq(x, *INSIDE), WEIGHT(), stride=stride, padding=padding), 0.05, 4)

    out = lowered(call, integers(1, 4, 9 + padding, 8 + padding))
    assert out.apart <= 1
    (conv,) = [node for node in out.tosa.nodes if node.op == "tosa.conv2d"]
    height, width = conv.operands[0].shape[1:3]
    pad = conv.attrs["pad"]
    assert (height + pad[0] + pad[1] - 3) % stride == 0
    assert (width + pad[2] + pad[3] - 3) % stride == 0


def test_a_depthwise_convolution_may_have_a_channel_multiplier() -> None:
    filters = weight(12, 1, 3, 3)

    def call(x: torch.Tensor) -> torch.Tensor:
        return q(F.conv2d(dq(x, *INSIDE), filters(), padding=1, groups=4), 0.05, 4)

    out = lowered(call, X)
    assert out.apart <= 1
    (conv,) = [node for node in out.tosa.nodes if node.op == "tosa.depthwise_conv2d"]
    assert conv.operands[1].shape == (3, 3, 4, 3)


@pytest.mark.parametrize("channels", [1, 6])
def test_a_convolution_of_one_input_channel_needs_no_transpose_of_its_input(channels: int) -> None:
    filters = weight(channels, 1, 3, 3)

    def call(x: torch.Tensor) -> torch.Tensor:
        return q(F.conv2d(dq(x, *INSIDE), filters(), padding=1), 0.03, 4)

    out = lowered(call, integers(2, 1, 8, 9))
    assert out.apart <= 1
    assert out.ops["tosa.transpose"] <= (1 if channels > 1 else 0)


# ---- sums ----


def test_sums_of_products_of_the_least_integers_may_fill_32_bits() -> None:
    depth = 2**17 - 1  # times (-128)^2 = 2^14: a sum of 2^31 - 2^14
    least = torch.full((1, depth), -128, dtype=torch.int8)

    def call(x: torch.Tensor) -> torch.Tensor:
        return q(F.linear(dq(x, 0.5), dq(least, 0.25)), 2.0**21, 0)

    assert lowered(call, least).result.item() == 128 - 1  # 2^31 / 8 / 2^21 = 128, clamped to 127
    assert lowered(lambda x: q(F.linear(dq(x, 0.5), dq(least, 0.25)), 2.0**22, 0), least).result.item() == 64


def test_a_sum_that_may_exceed_32_bits_is_refused_by_name() -> None:
    least = torch.full((1, 2**17), -128, dtype=torch.int8)
    program = exported(lambda x: q(F.linear(dq(x, 0.5), dq(least, 0.25)), 2.0**22, 0), least)
    graph = _core.run_pass("fold-qdq", tosaic.from_exported(program).graph)
    (left,) = _core.explain_integers(graph)
    assert "'linear' is left to floats: the sums of channel 0 may leave i32" in left["what"]


def test_an_average_pool_without_count_include_pad_does_not_count_its_padding() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return q(F.avg_pool2d(dq(x, 0.05, 40), 3, 2, 1, count_include_pad=False), 0.03, -9)

    out = lowered(call, X)
    assert out.apart <= 1
    constant = lowered(call, torch.full((1, 1, 5, 5), 100, dtype=torch.int8))
    assert np.unique(constant.result).tolist() == [60 * 0.05 // 0.03 - 9]


def test_an_average_pool_with_count_include_pad_counts_its_padding() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return q(F.avg_pool2d(dq(x, 0.05, 40), 3, 2, 1), 0.03, -9)

    assert lowered(call, X).apart <= 1
    assert len(np.unique(lowered(call, torch.full((1, 1, 5, 5), 100, dtype=torch.int8)).result)) == 3


# ---- composites ----


@pytest.mark.parametrize("classes", [1, 2, 3, 1001, 50_000])
def test_a_softmax_is_within_a_unit_for_few_classes_and_for_many(classes: int) -> None:
    rows = integers(4, classes)
    unit = float(F.softmax(dq(rows, 0.1, 3), -1).max()) / 255  # with many classes, each has a small share
    out = lowered(lambda x: q(F.softmax(dq(x, 0.1, 3), -1), unit, -128), rows)
    assert out.apart <= 1
    assert out.result.max() == 127
    if classes > 1000:
        assert len(np.unique(out.result)) > 60


def test_a_softmax_of_equal_classes_has_equal_results() -> None:
    for classes in (2, 4, 1001, 50_000):
        same = torch.full((2, classes), 127, dtype=torch.int8)
        out = lowered(lambda x, n=classes: q(F.softmax(dq(x, 0.1, 3), -1), 1 / n / 200, -128), same)
        assert (out.result == 200 - 128).all()


@pytest.mark.parametrize("level", [-128, 17, 127])
def test_a_layer_norm_of_constant_rows_is_its_bias(level: int) -> None:
    bias = torch.linspace(-1, 1, 64)
    rows = torch.full((3, 64), level, dtype=torch.int8)
    out = lowered(
        lambda x: q(F.layer_norm(dq(x, 0.05, 3), (64,), torch.full((64,), -2.0), bias), 0.01, 5), rows
    )
    assert out.apart <= 1
    np.testing.assert_allclose(out.result, np.broadcast_to(q(bias, 0.01, 5).numpy(), (3, 64)), atol=1)


@pytest.mark.parametrize("width", [96, 128, 256, 1000, 1024])
@pytest.mark.parametrize("zero", [-128, -1, 0])
def test_a_layer_norm_of_an_unquantized_sum_is_within_a_unit(width: int, zero: int) -> None:
    x, y = integers(8, width, seed=3), integers(8, width, seed=4)
    out = lowered(lambda x, y: q(F.layer_norm(dq(x, 0.5, zero) + dq(y, 0.001, 3), (width,)), 0.03, 0), x, y)
    assert out.apart <= 1


def test_a_layer_norm_of_nearly_constant_rows_is_within_a_unit() -> None:
    rows = torch.full((4, 64), 17, dtype=torch.int8)
    rows[:, 3] = 18
    rows[2, 5] = 100
    assert lowered(lambda x: q(F.layer_norm(dq(x, 0.05, 3), (64,)), 0.05, -100), rows).apart <= 1


# ---- sharing ----


def test_a_dequantize_node_with_several_readers_is_folded_into_each_of_them() -> None:
    filters = weight(4, 4, 1, 1)

    def call(x: torch.Tensor) -> torch.Tensor:
        number = dq(x, *INSIDE)
        left = q(torch.tanh(number), 0.008, 0)
        right = q(F.conv2d(number, filters()), 0.02, -7)
        return q(torch.cat([dq(left, 0.008, 0), dq(right, 0.02, -7), number]), 0.03, 0)

    out = lowered(call, X)
    assert out.apart <= 1
    assert out.ops["tosa.table"] == out.ops["tosa.conv2d"] == 1


def test_several_operators_may_read_one_quantized_weight() -> None:
    stored = integers(8, 8, seed=3)

    def call(x: torch.Tensor) -> torch.Tensor:
        matrix = dq(stored, 0.01, 2)
        first = q(F.linear(dq(x, *INSIDE), matrix), 0.1, 4)
        second = q(F.linear(dq(first, 0.1, 4), matrix), 0.3, -3)
        return q(dq(second, 0.3, -3) * matrix, 0.05, 7)

    out = lowered(call, integers(8, 8))
    assert out.apart <= 1
    weights = {node.operands[1].name for node in out.tosa.nodes if node.op == "tosa.conv2d"}
    assert len(weights) == 1


def test_inputs_and_outputs_may_be_unsigned_integers() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        number = Q.dequantize_per_tensor(x, 0.02, 131, 0, 255, torch.uint8)
        return Q.quantize_per_tensor(F.conv2d(number, WEIGHT()), 0.05, 100, 0, 255, torch.uint8)

    out = lowered(call, (X.to(torch.int16) + 128).to(torch.uint8))
    assert out.apart <= 1
    assert (out.result.min(), out.result.max()) == (0, 255)


def test_a_sum_of_three_operands_without_quantizers_between_is_rounded_once() -> None:
    def call(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return q(dq(x, 0.05, 3) + dq(y, 0.02, -7) + dq(z, 0.3, 100), 0.3, 4)

    out = lowered(call, *(integers(3, 50, seed=seed) for seed in range(3)))
    assert out.apart <= 1


@pytest.mark.parametrize("factor", [3, 0.1, -1.7, 0])
def test_a_product_with_a_scalar_is_rounded_once(factor: float) -> None:
    out = lowered(lambda x: q(dq(x, 0.05, 3) * factor, 0.07, -5), X)
    assert out.apart <= 1
    assert len(out.tosa) <= 1 + (factor == 0)


def test_a_convolution_in_16_bits_is_within_two_units() -> None:
    bias = torch.linspace(-1, 1, 5)

    def call(x: torch.Tensor) -> torch.Tensor:
        return q16(F.conv2d(dq16(x, 0.001), WEIGHT(), bias), 0.002)

    out = lowered(call, integers(1, 4, 6, 6, dtype=torch.int16), target="TOSA-1.0+INT+int16")
    assert out.apart <= 2


def test_the_bias_of_a_convolution_in_16_bits_may_need_more_than_32_bits() -> None:
    bias = torch.tensor([-3e3, 1e3, 0.0, 1.0, 3e3])  # in units of 1e-6 * weight scale: up to 3e12

    def call(x: torch.Tensor) -> torch.Tensor:
        return q16(F.conv2d(dq16(x, 1e-6), WEIGHT(), bias), 0.1)

    out = lowered(call, integers(1, 4, 6, 6, dtype=torch.int16), target="TOSA-1.0+INT+int16")
    assert out.apart <= 2
    assert [int(v) for v in out.result[0, :, 0, 0]] == pytest.approx((bias / 0.1).tolist(), abs=2)


# ---- precision in 16 bits ----

INT16 = "TOSA-1.0+INT+int16"
WORDS = integers(3, 64, dtype=torch.int16)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("scale", [1e-6, 1e-4])
def test_a_logarithm_near_zero_is_precise(axis: int, scale: float) -> None:
    def log_sum_exp(x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(dq16(x, scale), axis, keepdim=True)

    unit = float(log_sum_exp(WORDS).abs().max()) / 32767
    assert lowered(lambda x: q16(log_sum_exp(x), unit), WORDS, target=INT16).apart <= 1
    one = WORDS[:1, :1]  # log(exp(x)) is x
    out = lowered(lambda x: q16(torch.logsumexp(dq16(x, scale), 1, keepdim=True), scale), one, target=INT16)
    assert np.array_equal(out.result, one.numpy())


def test_a_mean_of_more_words_than_32_bits_can_sum_is_within_a_unit() -> None:
    words = integers(2, 70_000, dtype=torch.int16)
    unit = float(dq16(words, 1e-3).mean(1).abs().max()) / 30_000
    assert lowered(lambda x: q16(dq16(x, 1e-3).mean(1), unit), words, target=INT16).apart <= 1


def test_a_group_norm_of_rows_whose_squares_fill_32_bits_is_within_a_unit() -> None:
    words = integers(1, 2, 200, 200, dtype=torch.int16)
    gain, bias = torch.tensor([1.5, -0.5]), torch.tensor([0.1, 0.2])

    def call(x: torch.Tensor) -> torch.Tensor:
        return q16(F.group_norm(dq16(x, 1e-3), 1, gain, bias), 1e-4)

    assert lowered(call, words, target=INT16).apart <= 1


def test_recurrent_gates_over_several_steps_are_within_a_unit() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.rand(64, 64, generator=generator) / 4 - 0.1 for _ in range(2)]

    def step(x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        update = torch.sigmoid(x @ weights[0] + hidden @ weights[1])
        return (1 - update) * torch.tanh(x @ weights[1] + hidden @ weights[0]) + update * hidden

    def chain(x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        numbers, state = dq16(x, 1e-6), dq16(hidden, 1e-6)
        return step(numbers, step(numbers, step(numbers, state)))

    other = integers(3, 64, seed=9, dtype=torch.int16)
    unit = float(chain(WORDS, other).abs().max()) / 32767
    assert lowered(lambda x, h: q16(chain(x, h), unit), WORDS, other, target=INT16).apart <= 1


def test_an_exponential_that_saturates_is_precise_below_saturation() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return q16(torch.exp(dq16(x, 1e-3) + dq16(x, 1e-3)), 1e-4)  # up to exp(65); i16 ends at 3.3

    out = lowered(call, WORDS, target=INT16)
    assert out.apart <= 1
    assert ((out.result > 0) & (out.result < 32767)).sum() > 5


def test_a_quotient_of_zeros_and_a_product_of_zeros_are_zero() -> None:
    quotient = lowered(lambda x: q(torch.zeros(1) / (dq(x, 0.01, -128) + 1), 0.1, 3), X)
    assert (quotient.result == 3).all()
    product = lowered(lambda x: q((dq(x, 0.01) * 0).prod(1), 0.1, 3), X)
    assert (product.result == 3).all()


def test_a_root_of_a_number_that_may_be_too_close_to_zero_is_refused() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        numbers = dq(x, 10.0)
        return q(torch.rsqrt(numbers.var(-1, unbiased=False) + 1e-8), 40.0)

    with pytest.raises(tosaic.UnsupportedOp, match="closer to zero than its bits can tell"):
        tosaic.lower(exported(call, X), target="TOSA-1.0+INT")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int64])
def test_where_between_plain_integers_and_quantized_numbers_is_exact(dtype: torch.dtype) -> None:
    raw, mask = integers(2, 4, 7, 7, seed=3).to(dtype) * (1 if dtype == torch.int8 else 100), X > 0
    call = lambda x, n, m: q(torch.where(m, n, dq(x, 0.02)), 0.02)  # noqa: E731
    assert lowered(call, X, raw, mask).apart == 0
    both = tosaic.lower(exported(call, X, raw, mask), target="TOSA-1.0+INT+FP")
    expected = q(torch.where(mask, raw, dq(X, 0.02)), 0.02).numpy()
    assert np.array_equal(both.run(X.numpy(), raw.numpy(), mask.numpy()), expected)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_quotient_of_operands_of_different_ranks_has_the_signs_of_both(swapped: bool) -> None:
    row = integers(7, seed=3).clamp(min=1)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sums, other = dq(x, 0.02) + dq(x, 0.03), dq(y, 0.5, -100)
        return q(other / (sums.abs() + 1) if swapped else sums / other, 0.05)

    out = lowered(call, X, row)
    assert out.apart <= 1
    assert out.result.max() > 0


@pytest.mark.parametrize("join", [lambda v: v @ v.transpose(-1, -2) / 200, lambda v: F.avg_pool1d(v, 4)])
def test_a_reader_of_products_of_the_least_integers_of_16_bits_is_within_a_unit(join: Any) -> None:
    words = integers(2, 4, 64, dtype=torch.int16)
    words[0, 0, :8] = -32768  # their product 2^30 needs one bit more than any other product

    def product(x: torch.Tensor) -> torch.Tensor:
        return join(dq16(x, 1e-4) * dq16(x, 1e-4))

    unit = float(product(words).abs().max()) / 32767
    assert lowered(lambda x: q16(product(x), unit), words, target=INT16).apart <= 1


def test_a_second_dequantize_with_a_zero_point_that_tosa_lacks_is_refused_by_name() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return q16(dq16(x, 0.02) + Q.dequantize_per_tensor(x, 1e-6, -128, -32768, 32767, torch.int16), 0.1)

    with pytest.raises(
        tosaic.UnsupportedOp, match="'dequantize' is left to floats: its operand is quantized in a way"
    ) as error:
        tosaic.lower(exported(call, WORDS), target=INT16)
    assert error.value.parts["node"] == "dequantize_per_tensor_1"


# ---- weights, unquantized results and rounding, as in the programs of third-party quantizers ----


def distance(call: Callable[..., torch.Tensor], *arrays: torch.Tensor, target: str = "TOSA-1.0+INT") -> float:
    """Returns the largest distance of the float result from torch's, relative to torch's largest result.

    No node may compute with floats, and the reference model's result has to equal ours.
    """
    with torch.no_grad():
        expected = call(*arrays).numpy()
        low = tosaic.lower(exported(call, *arrays), target=target)
    assert not any(node.results[0].dtype in ("f32", "f16", "bf16") for node in low.graph.nodes)
    reference = run_reference_model(low, *arrays)
    assert reference.ok, reference.log
    found = low.run(*arrays)
    assert np.count_nonzero(np.asarray(reference.outputs) != found) == 0
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def scaled_weight(axis: int, *shape: int, zeros: torch.Tensor | None = None) -> Callable[[], torch.Tensor]:
    """Is like `weight`, with a scale for each position of an axis, and maybe a zero point for each."""
    stored = integers(*shape, seed=9)
    scales = torch.linspace(0.003, 0.02, shape[axis])
    points = torch.zeros(shape[axis], dtype=torch.int64) if zeros is None else zeros
    return lambda: Q.dequantize_per_channel(stored, scales, points, axis, -128, 127, torch.int8)


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+INT+int16"])
def test_a_weight_with_a_scale_for_each_input_channel_is_within_a_unit(target: str) -> None:
    w = scaled_weight(1, 6, 16)
    x = integers(3, 16)
    assert lowered(lambda x: q(F.linear(dq(x, *INSIDE), w()), 0.4), x, target=target).apart <= 1


def test_a_transposed_convolution_may_have_a_scale_for_each_group_of_one_channel() -> None:
    w = scaled_weight(0, 4, 2, 3, 3)
    out = lowered(lambda x: q(F.conv_transpose2d(dq(x, *INSIDE), w(), stride=2, groups=4), 0.05), X)
    assert out.apart <= 1
    assert out.ops["tosa.transpose_conv2d"] == 4  # one per group: its weights are exact in one digit


def test_a_weight_whose_zero_points_differ_by_channel_needs_two_convolutions() -> None:
    w = scaled_weight(0, 5, 4, 3, 3, zeros=torch.tensor([-128, -5, 0, 77, 127]))
    out = lowered(lambda x: q(F.conv2d(dq(x, *INSIDE), w()), 0.3), X)
    assert out.apart <= 1
    assert out.ops["tosa.conv2d"] == 2


def rounding_error(call: Callable[..., torch.Tensor], x: torch.Tensor, scale: float) -> float:
    """Returns the largest distance, in units, between our integers and the numbers that torch rounds."""
    out = lowered(lambda x: q(call(x), scale), x)
    with torch.no_grad():
        exact = call(x).double().numpy() / scale
    inside = np.abs(exact) < 127
    assert inside.mean() > 0.9
    return float(np.abs(out.result - exact)[inside].max())


def float_weight(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / shape[1] ** 0.5


# In units of 8 bits: rounding errs by up to one half, and the arithmetic before it may err by two units of 16
# bits, which are 2 / 256.
NEARLY_EXACT = 0.5 + 2 / 256


@pytest.mark.parametrize("between", [8, 384])
def test_convolutions_without_quantizers_between_err_by_less_than_two_units_of_16_bits(between: int) -> None:
    first, second = float_weight(between, 192, 1, 1, seed=1), float_weight(16, between, 1, 1, seed=2)
    x = integers(1, 192, 6, 6)
    scale = 0.02 if between == 384 else 0.03
    error = rounding_error(lambda x: F.conv2d(F.conv2d(dq(x, 0.02), first), second), x, scale * 2)
    assert error < NEARLY_EXACT


def test_a_depthwise_convolution_with_weights_of_floats_errs_by_less_than_two_units_of_16_bits() -> None:
    w = torch.randn(32, 1, 3, 3, generator=torch.Generator().manual_seed(3))
    error = rounding_error(
        lambda x: F.conv2d(dq(x, 0.02), w, groups=32), integers(1, 32, 24, 24, seed=7), 0.07
    )
    assert error < NEARLY_EXACT


def test_an_attention_over_many_keys_errs_by_less_than_two_units_of_16_bits() -> None:
    keys, values = integers(1, 2, 384, 32, seed=11), integers(1, 2, 384, 32, seed=12)

    def call(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(dq(x, 0.02), dq(keys, 0.02), dq(values, 0.05))

    assert rounding_error(call, integers(1, 2, 32, 32, seed=10), 0.03) < NEARLY_EXACT


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+INT+int16"])
def test_a_transposed_convolution_of_a_volume_may_have_a_weight_scale_for_each_channel(target: str) -> None:
    w = scaled_weight(1, 3, 2, 2, 2, 2)
    x = integers(1, 3, 3, 4, 4)
    out = lowered(lambda x: q(F.conv_transpose3d(dq(x, *INSIDE), w(), stride=2), 0.1), x, target=target)
    assert out.apart <= 1


@pytest.mark.parametrize("transposed", [False, True])
def test_grouped_convolutions_in_16_bits_are_within_two_units(transposed: bool) -> None:
    w = integers(8, 3, 3, 3, seed=3).float() * 0.01 if transposed else weight(6, 4, 3, 3)()
    stored = Q.quantize_per_tensor(w, 0.02, 0, -127, 127, torch.int8)
    x = integers(1, 8, 6, 6, dtype=torch.int16)

    def call(x: torch.Tensor) -> torch.Tensor:
        conv = F.conv_transpose2d if transposed else F.conv2d
        return q16(conv(dq16(x, 0.001), dq(stored, 0.02, 0, -127, 127), groups=2), 0.01)

    assert lowered(call, x, target="TOSA-1.0+INT+int16").apart <= 2


def test_an_average_of_a_volume_in_16_bits_is_within_two_units() -> None:
    x = integers(1, 6, 4, 3, 3, dtype=torch.int16)
    out = lowered(
        lambda x: q16(F.adaptive_avg_pool3d(dq16(x, 0.001), 1), 0.0005), x, target="TOSA-1.0+INT+int16"
    )
    assert out.apart <= 2


def test_an_argmax_of_bytes_is_one_operator() -> None:
    out = lowered(lambda x: dq(x, *INSIDE).argmax(-1), integers(4, 30))
    assert out.apart == 0
    assert out.ops["tosa.argmax"] == 1
    assert sum(out.ops.values()) <= 2


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int16, torch.int32, torch.int64])
def test_plain_integers_that_are_cast_to_float_can_be_quantized(dtype: torch.dtype) -> None:
    given = torch.arange(-40, 40).reshape(8, 10).to(dtype)
    out = lowered(lambda n: q(n.float(), 0.25, -3), given)
    assert out.apart <= 1
    assert out.result.max() == (q(given.float(), 0.25, -3).max())


def test_a_boolean_can_be_a_factor() -> None:
    x = integers(8, 10)
    out = lowered(lambda x: q(dq(x, *INSIDE) * (dq(x, *INSIDE) > 0.3), 0.02, 3), x)
    assert out.apart == 0


class Halved(torch.nn.Module):
    """Multiplies by the quantized reciprocal of an int8 buffer, whose integers another operator reads too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("divisor", torch.tensor([[20]], dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inverse = dq(q(torch.reciprocal(dq(self.divisor, 0.1)), 0.005), 0.005)
        return q(dq(q(dq(x, *INSIDE) * inverse, 0.01), 0.01) - dq(self.divisor, 0.02), 0.02)


def test_a_function_of_a_constant_is_a_constant() -> None:
    out = lowered(Halved(), integers(8, 10))
    assert out.apart <= 1
    assert "tosa.clz" not in out.ops


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_rounded_quotient_that_is_not_quantized_is_exact(mode: str) -> None:
    x = integers(8, 30)
    assert distance(lambda x: torch.div(dq(x, *INSIDE), 0.3, rounding_mode=mode), x) == 0


@pytest.mark.parametrize("step", [0.01, 1.0])
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_quotients_by_a_tensor_are_rounded_exactly(mode: str, step: float) -> None:
    """Also next to whole numbers (2 / 0.4) and at them (3 / -1.5), over the whole range of the dividend."""
    divisors = torch.rand(8, 4, 2, generator=torch.Generator().manual_seed(3)) * 2.6 + 0.4
    divisors[::2] *= -1
    divisors[0, :, 0] = torch.tensor([0.4, 0.5, -1.5, 3.0])
    steps = torch.arange(-160, 160, dtype=torch.int16).view(-1, 1, 1, 1).expand(-1, 8, 4, 2).contiguous()
    for x in (steps, integers(64, 8, 4, 2, dtype=torch.int16)):

        def call(x: torch.Tensor) -> torch.Tensor:
            return q16(torch.div(x.float(), divisors, rounding_mode=mode), step)

        result = lowered(call, x, target="TOSA-1.0+INT+int16")
        if mode == "floor" or x is steps:
            assert result.apart == 0
        else:  # torch's f32 rounds some quotients up to a whole number, and not all that are as near to one
            assert np.mean(result.result != call(x).numpy()) < 1e-3


def test_quotients_of_scaled_numbers_by_a_tensor_are_rounded_exactly() -> None:
    x = integers(64, 8, 4, dtype=torch.int16)
    by = torch.linspace(-3.07, 2.93, 32).view(8, 4)

    def call(x: torch.Tensor) -> torch.Tensor:
        return q16(torch.div(dq16(x, 0.0013), by, rounding_mode="floor"), 0.02)

    assert lowered(call, x, target="TOSA-1.0+INT+int16").apart == 0


def test_a_rounded_quotient_of_wide_numbers_by_a_tensor_is_refused_by_name() -> None:
    x = integers(4, 5, dtype=torch.int16)
    by = torch.linspace(1.0, 3000.0, 20).view(4, 5)

    def call(x: torch.Tensor) -> torch.Tensor:
        wide = dq16(x, 0.01) * dq16(x, 0.01)
        return q16(torch.div(wide, by, rounding_mode="floor"), 0.5)

    with pytest.raises(tosaic.UnsupportedOp, match="it rounds quotients whose fractions have few bits"):
        tosaic.lower(exported(call, x), target="TOSA-1.0+INT+int16")


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_the_rounded_quotient_of_two_numbers_of_16_bits_is_exact(mode: str) -> None:
    a, b = integers(40, 50, dtype=torch.int16), integers(40, 50, dtype=torch.int16, seed=8)
    call = lambda a, b: q16(torch.div(dq16(a, 0.01), dq16(b, 0.02), rounding_mode=mode), 0.5)  # noqa: E731
    assert lowered(call, a, b, target="TOSA-1.0+INT+int16").apart == 0


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_the_rounded_quotient_of_two_sums_is_refused_by_name(mode: str) -> None:
    a, b = integers(4, 5, dtype=torch.int16), integers(4, 5, dtype=torch.int16, seed=8)

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        first, second = dq16(a, 0.01) + dq16(b, 0.003), dq16(b, 0.02)
        return q16(torch.div(first, second, rounding_mode=mode), 0.5)

    with pytest.raises(
        tosaic.UnsupportedOp, match="'div' is left to floats: it rounds the quotient of two numbers"
    ):
        tosaic.lower(exported(call, a, b), target="TOSA-1.0+INT+int16")


@pytest.mark.parametrize("op", [torch.fmod, torch.remainder])
def test_the_remainder_of_two_numbers_of_16_bits_is_within_a_unit(op: Callable[..., torch.Tensor]) -> None:
    a, b = integers(40, 50, dtype=torch.int16), integers(40, 50, dtype=torch.int16, seed=8)
    call = lambda a, b: q16(op(dq16(a, 0.01), dq16(b, 0.02)), 0.01)  # noqa: E731
    assert lowered(call, a, b, target="TOSA-1.0+INT+int16").apart == 0


def test_clamp_bounds_between_integers_are_precise_if_the_result_is_not_quantized() -> None:
    assert distance(lambda x: dq(x, 0.1).clamp(-0.234, 0.678), integers(8, 30)) < 1e-6


def test_a_trilinear_resize_whose_result_is_not_quantized_is_precise() -> None:
    x = integers(1, 3, 4, 5, 6)
    call = lambda x: F.interpolate(dq(x, *INSIDE), scale_factor=2, mode="trilinear")  # noqa: E731
    assert distance(call, x) < 1e-4


def test_averages_of_windows_with_different_counts_are_precise() -> None:
    x = integers(1, 4, 7, 7)
    call = lambda x: F.avg_pool2d(dq(x, *INSIDE), 3, 2, 1, count_include_pad=False)  # noqa: E731
    assert distance(call, x) < 1e-6


def test_a_product_of_numbers_that_where_selects_is_precise() -> None:
    x = integers(8, 10)
    keep = torch.arange(10) % 3 > 0
    call = lambda x: torch.where(keep, torch.sigmoid(dq(x, *INSIDE)), torch.tensor(1.0)).prod(-1)  # noqa: E731
    assert distance(call, x) < 1e-6


def test_an_element_masked_with_minus_infinity_has_no_share_in_a_softmax_of_small_numbers() -> None:
    x = integers(8, 10)
    hidden = torch.arange(10) % 3 > 0

    def call(x: torch.Tensor) -> torch.Tensor:
        return q(torch.softmax(dq(x, 0.002).masked_fill(hidden, -torch.inf), -1), 0.004, -128)

    out = lowered(call, x)
    assert out.apart <= 1
    assert (out.result[:, hidden.numpy()] == -128).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16])
def test_a_grid_sample_at_quantized_positions_lowers_to_integers(dtype: torch.dtype) -> None:
    wide = dtype is torch.int16
    image, grid = integers(1, 4, 9, 9, dtype=dtype), integers(1, 5, 5, 2, seed=7, dtype=dtype)
    unit, step = (0.001, 3e-5) if wide else (0.02, 0.008)

    def call(image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        of, to = (dq16, q16) if wide else (dq, q)
        return to(F.grid_sample(of(image, unit), of(grid, step), align_corners=False), unit)

    assert lowered(call, image, grid, target="TOSA-1.0+INT+int16").apart <= (2 if wide else 1)


@pytest.mark.parametrize("linear", [False, True])
def test_a_bias_may_be_an_input_of_the_graph(linear: bool) -> None:
    w = weight(5, 4) if linear else weight(5, 4, 3, 3)
    x, bias = integers(2, 4) if linear else X, integers(5, seed=8)

    def call(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        contract = F.linear if linear else F.conv2d
        return q(contract(dq(x, *INSIDE), w(), dq(bias, 0.1, -9)), 0.2)

    assert lowered(call, x, bias).apart <= 1


def test_weights_and_biases_that_the_graph_quantizes_are_folded_to_integer_constants() -> None:
    generator = torch.Generator().manual_seed(2)
    w, bias = (torch.randn(*shape, generator=generator) * 0.1 for shape in ((5, 4, 3, 3), (5,)))
    scales, zeros = torch.linspace(0.001, 0.004, 5), torch.zeros(5, dtype=torch.int64)
    narrow = (zeros, 0, -127, 127, torch.int8)
    wide = (zeros, 0, -(2**31), 2**31 - 1, torch.int32)
    of_bias = scales * INSIDE[0]

    def call(x: torch.Tensor) -> torch.Tensor:
        stored = Q.quantize_per_channel(w, scales, *narrow), Q.quantize_per_channel(bias, of_bias, *wide)
        weights = Q.dequantize_per_channel(stored[0], scales, *narrow)
        return q(F.conv2d(dq(x, *INSIDE), weights, Q.dequantize_per_channel(stored[1], of_bias, *wide)), 0.1)

    out = lowered(call, X)
    assert out.apart <= 1
    assert (out.ops["tosa.conv2d"], out.ops["tosa.rescale"]) == (1, 1)


def test_a_part_of_a_composite_keeps_bits_of_each_operand() -> None:
    """A mask that adds a huge number to scores is not bounded, and leaves no bits to the scores."""
    lifted = torch.where(torch.arange(6) < 4, 1e12, 0.0).expand(6, 6).contiguous()

    def call(x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return q(F.scaled_dot_product_attention(dq(x, 0.02), dq(keys, 0.02), dq(keys, 0.02), lifted), 0.02)

    with pytest.raises(tosaic.UnsupportedOp, match=r"one unit for all operands leaves \d of the"):
        lowered(call, integers(1, 2, 6, 8), integers(1, 2, 6, 8, seed=8))


def test_comparisons_of_masked_elements_with_minus_infinity_are_right() -> None:
    x = integers(4, 6)
    hidden = (torch.arange(6) % 2 == 1) | (torch.arange(4) == 2)[:, None]

    def call(x: torch.Tensor) -> torch.Tensor:
        masked = dq(x, 0.002).masked_fill(hidden, -torch.inf)
        none = (masked == -torch.inf).all(-1, keepdim=True)
        safe = torch.where(none, torch.zeros(()), torch.softmax(masked, -1))
        return q(torch.where(dq(x, 0.002) > -torch.inf, safe, torch.ones(())), 0.004, -128)

    out = lowered(call, x)
    assert out.apart <= 1
    assert (out.result[2] == -128).all()


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+INT+FP"])
@pytest.mark.parametrize("zeros", [[0, 0, 0, 0, 0], [-128, -5, 0, 77, 127]])
def test_a_convolution_with_a_weight_by_channel_has_integer_sums_even_if_they_are_not_quantized(
    target: str, zeros: list[int]
) -> None:
    w = scaled_weight(0, 5, 4, 3, 3, zeros=torch.tensor(zeros))
    bias = Q.quantize_per_tensor(torch.linspace(-1, 1, 5), 1e-4, 0, -(2**31), 2**31 - 1, torch.int32)

    def call(x: torch.Tensor) -> torch.Tensor:
        offset = Q.dequantize_per_tensor(bias, 1e-4, 0, -(2**31), 2**31 - 1, torch.int32)
        return q(torch.sigmoid(F.conv2d(dq(x, *INSIDE), w(), offset)), 0.004, -128)

    out = lowered(call, X, target=target)
    assert out.apart <= 1
    assert not any(node.results[0].dtype == "f32" for node in out.tosa.nodes)


def test_a_weight_by_channel_that_is_also_read_as_a_float_is_a_float() -> None:
    w = scaled_weight(0, 5, 4, 3, 3, zeros=torch.tensor([-128, -5, 0, 77, 127]))
    call = lambda x: F.conv2d(dq(x, *INSIDE), w()).sum() + w()  # noqa: E731
    low = tosaic.lower(exported(call, X), target="TOSA-1.0+INT+FP")
    np.testing.assert_allclose(low.run(X), call(X), rtol=1e-5)


HIDDEN = torch.arange(10) % 3 == 0
ALSO_HIDDEN = torch.arange(8)[:, None] % 2 == 0


@pytest.mark.parametrize("compare", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("many", [False, True])
def test_each_comparison_operator_knows_which_elements_are_minus_infinity(
    compare: str, flipped: bool, many: bool
) -> None:
    least = (
        torch.where(HIDDEN | (torch.arange(10) == 1), -torch.inf, 0.25) if many else torch.tensor(-torch.inf)
    )
    least = least.expand(2, 8, 10).clone() if many else least

    def call(x: torch.Tensor) -> torch.Tensor:
        masked = dq(x, 0.01).masked_fill(HIDDEN, -torch.inf)
        operands = (least, masked) if flipped else (masked, least)
        return getattr(torch, compare)(*operands)

    assert lowered(call, integers(8, 10)).apart == 0


@pytest.mark.parametrize(
    "hide",
    [
        lambda x: x.masked_fill(HIDDEN, -torch.inf).reshape(4, 20),
        lambda x: x.masked_fill(HIDDEN, -torch.inf).flip(0),
        lambda x: x.masked_fill(HIDDEN, -torch.inf).masked_fill(ALSO_HIDDEN, -torch.inf),
        lambda x: x + torch.where(HIDDEN, -torch.inf, 0.0) + torch.where(ALSO_HIDDEN, -torch.inf, 0.0),
        lambda x: x + torch.where(HIDDEN, -torch.inf, torch.where(ALSO_HIDDEN, -1e3, 0.0)),
        lambda x: x * 1e11 + torch.where(HIDDEN, -torch.inf, 0.0),
    ],
    ids=["reshaped", "flipped", "hidden twice", "masked twice", "beside a low number", "beside huge numbers"],
)
def test_masked_elements_stay_masked_behind_operators(hide: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert lowered(lambda x: hide(dq(x, 0.01)) == -torch.inf, integers(8, 10)).apart == 0


def test_a_row_of_low_biases_and_masked_elements_is_not_fully_masked() -> None:
    bias = torch.where(HIDDEN, -torch.inf, -300.0)

    def call(x: torch.Tensor) -> torch.Tensor:
        return q(torch.ops.aten._safe_softmax(dq(x, *INSIDE) + bias, -1), 0.004, -128)

    assert lowered(call, integers(8, 10)).apart <= 1


def test_a_change_of_the_sign_of_masked_elements_is_refused() -> None:
    ep = exported(lambda x: (dq(x, 0.01).masked_fill(HIDDEN, -torch.inf)).abs() > 0.3, integers(8, 10))
    with pytest.raises(tosaic.UnsupportedOp, match="minus infinity becomes infinity"):
        tosaic.lower(ep, target="TOSA-1.0+INT")


# ---- proven ranges ----


def test_a_product_of_one_integer_with_two_zero_points_may_be_negative() -> None:
    x = integers(8, 100)
    assert distance(lambda x: (dq(x, 0.02, 3) * dq(x, 0.5, 50)).clamp(min=-0.1), x) < 1e-6
    assert distance(lambda x: torch.atan(dq(x, 0.02, 3) * dq(x, 0.5, 50)), x) < 1e-2


def test_the_difference_to_a_quantized_floor_may_exceed_one() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        whole = dq(q(torch.floor(dq(x, 0.9)), 0.25), 0.25)
        return q(dq(x, 0.9) - whole, 0.02, 0, -128, 60)

    assert lowered(call, integers(8, 100)).apart <= 1


@pytest.mark.parametrize("bounds", [(1e8, 1e9), (-1e9, -1e8), (12, 11), (1e-20, 1e-25)])
def test_bounds_of_a_clamp_that_leave_one_number_give_that_number(bounds: tuple[float, float]) -> None:
    x = integers(8, 10)
    call = lambda x: (dq(x, 0.02) * dq(x, 0.1)).clamp(*bounds)  # noqa: E731
    low = tosaic.lower(exported(call, x), target="TOSA-1.0+INT")
    np.testing.assert_allclose(low.run(x), call(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "scale", "is_wild"),
    [
        ("cos", 1.0, True),
        ("sin", 0.02, True),
        ("cos", 5e-5, False),
        ("atan", 1.0, False),
        ("erf", 0.02, False),
    ],
)
def test_a_function_that_turns_between_the_entries_of_a_table_is_refused_by_name(
    name: str, scale: float, is_wild: bool
) -> None:
    """The product has more integers than a table has entries, but a single step, as of atan, is lowered."""
    x, y = (integers(4, 40, dtype=torch.int16, seed=seed) for seed in (5, 8))

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return q16(getattr(torch, name)(dq16(x, scale) * dq16(y, scale)), 2.0**-14)

    if not is_wild:
        assert lowered(call, x, y, target="TOSA-1.0+INT+int16").apart <= 1
        return
    with pytest.raises(tosaic.UnsupportedOp, match=f"'{name}' is left to floats: it turns more often than"):
        tosaic.lower(exported(call, x, y), target="TOSA-1.0+INT+int16")


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "sign"])
@pytest.mark.parametrize("scale", [0.125, 2.0**-30, 8.0])
def test_wide_numbers_are_rounded_to_whole_numbers_exactly(name: str, scale: float) -> None:
    x, y = integers(64, 200), integers(64, 200, seed=11)
    call = lambda x, y: getattr(torch, name)(dq(x, scale, 3) * dq(y, 0.25))  # noqa: E731
    low = tosaic.lower(exported(call, x, y), target="TOSA-1.0+INT")
    np.testing.assert_array_equal(low.run(x, y), call(x, y))


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_wide_quotient_by_a_constant_is_rounded_exactly(mode: str) -> None:
    x, y = integers(64, 200), integers(64, 200, seed=11)
    by = 0.0317  # no quotient is whole
    assert distance(lambda x, y: torch.div(dq(x, 0.013) * dq(y, 0.1), by, rounding_mode=mode), x, y) == 0


@pytest.mark.parametrize("name", ["remainder", "fmod"])
@pytest.mark.parametrize("by", [0.317, 50.0])
def test_the_remainder_of_a_wide_number_steps_where_torchs_does(name: str, by: float) -> None:
    x, y = integers(64, 200), integers(64, 200, seed=11)
    assert distance(lambda x, y: getattr(torch, name)(dq(x, 0.0131) * dq(y, 0.1), by), x, y) < 1e-4


@pytest.mark.parametrize("then", [lambda x: x, lambda x: F.relu(x), lambda x: x.reshape(2, 4).amax(1)])
def test_a_returned_constant_does_not_become_0(then) -> None:
    """In the unit of the other numbers, 1e-30 would become 0, and an output returns it."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return then(torch.cat((dq(x, 0.01, 0), torch.full((4,), 1e-30))))

    x = torch.tensor([-3, 0, 0, 9], dtype=torch.int8)
    program = exported(call, x)
    with pytest.raises(tosaic.UnsupportedOp, match=r"'cat'.*leaves nothing of 'full'"):
        tosaic.lower(program, target="TOSA-1.0+INT")
    low = tosaic.lower(program, target="TOSA-1.0+INT+FP")
    np.testing.assert_array_equal(low.run(x), call(x))
