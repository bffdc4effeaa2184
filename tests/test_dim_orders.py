"""Dim orders of torch programs: cases that other compilers get wrong, remedies, and ambiguous strides."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
import tosaic
from fx.exporting import exported
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")
Q = torch.ops.quantized_decomposed
X = torch.randn(2, 4, 6, 8)


def lowered(call: Callable[..., Any], *inputs: torch.Tensor, target: str = "TOSA-1.0+FP") -> tosaic.Lowered:
    """Lowers the call and asserts that its result agrees with torch's."""
    low = tosaic.lower(exported(call, *inputs), target=target)
    with torch.no_grad():
        expected = call(*inputs)
    np.testing.assert_allclose(low.run(*inputs), expected.numpy(), rtol=1e-4, atol=1e-4)
    return low


def moves(low: tosaic.Lowered) -> list[tuple[str, tuple[int, ...]]]:
    """Returns the values that are transposed, each with the dim order of the result."""
    assert low.layout.is_minimal
    count = sum(node.op == "tosa.transpose" for node in low.graph.nodes)
    assert count == len(low.layout.transposes)
    return [(t.value, t.to_order) for t in low.layout.transposes]


# ---- cases that other compilers get wrong ----


def test_a_quantized_activation_in_front_of_a_depthwise_convolution_is_not_taken_for_a_weight() -> None:
    weight = torch.randint(-127, 128, (8, 1, 3, 3)).to(torch.int8)

    def call(x: torch.Tensor) -> torch.Tensor:
        number = Q.dequantize_per_tensor(x, 0.02, 3, -128, 127, torch.int8)
        kernel = Q.dequantize_per_tensor(weight, 0.01, 0, -127, 127, torch.int8)
        return Q.quantize_per_tensor(F.conv2d(number, kernel, groups=4), 0.05, 1, -128, 127, torch.int8)

    x = torch.randint(-128, 128, (2, 4, 6, 8)).to(torch.int8)
    low = tosaic.lower(exported(call, x), target="TOSA-1.0+INT")
    assert [order for _, order in moves(low)] == [(0, 2, 3, 1), (0, 1, 2, 3)]
    np.testing.assert_allclose(low.run(x), call(x).numpy(), atol=1)


def test_all_readers_of_a_value_count_not_only_the_first() -> None:
    pool = nn.MaxPool2d(2)
    low = lowered(lambda x: pool(x).sum((1, 2, 3)) + pool(x.relu()).sum((1, 2, 3)) + x.flatten(1).amax(1), X)
    assert len(moves(low)) == 1


def test_a_pad_between_convolutions_needs_no_transpose() -> None:
    conv = nn.Conv2d(4, 4, 3)
    low = lowered(lambda x: conv(F.pad(conv(x), (1, 1, 1, 1), value=0.5)).sum((1, 2, 3)), X)
    assert len(moves(low)) == 1


def test_a_clone_between_convolutions_needs_no_transpose_for_any_memory_format() -> None:
    conv = nn.Conv2d(4, 4, 3)
    for form in (torch.contiguous_format, torch.channels_last, torch.preserve_format):
        low = lowered(lambda x, f=form: conv(conv(x).clone(memory_format=f)).sum((1, 2, 3)), X)
        assert len(moves(low)) == 1


def test_a_reduction_that_drops_its_axes_preserves_the_order_of_the_other_axes() -> None:
    conv = nn.Conv2d(4, 4, 3)
    assert moves(lowered(lambda x: conv(x).amax((2, 3)), X)) == [("args_0", (0, 2, 3, 1))]
    low = lowered(lambda x: conv(x).amax(2).permute(0, 2, 1).contiguous(), X)
    assert moves(low) == [("args_0", (0, 2, 3, 1))]


def test_a_network_traced_with_channels_last_inputs_has_no_transposes() -> None:
    network = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    ).eval()
    assert moves(lowered(network, X.to(memory_format=torch.channels_last))) == []


def test_a_permute_and_a_reshape_to_rank_5_after_a_convolution_are_correct() -> None:
    conv = nn.Conv2d(4, 6, 1)
    low = lowered(lambda x: F.relu(conv(x)).permute(0, 2, 3, 1).reshape(2, 3, 2, 8, 6).contiguous(), X)
    assert moves(low) == [("args_0", (0, 2, 3, 1))]
    torn = lowered(lambda x: F.relu(conv(x)).permute(0, 3, 1, 2).reshape(2, 4, 2, 6, 6), X)
    assert len(moves(torn)) >= 2


def test_an_activation_between_two_pixel_shuffles_needs_no_transpose() -> None:
    first, last = nn.Conv2d(4, 16, 1), nn.Conv2d(16, 4, 1)
    low = lowered(lambda x: last(F.pixel_unshuffle(F.relu(F.pixel_shuffle(first(x), 2)), 2)), X)
    assert [order for _, order in moves(low)] == [(0, 2, 3, 1), (0, 1, 2, 3)]


def test_two_flattened_images_that_are_added_need_one_transpose_for_both() -> None:
    low = lowered(lambda x: F.max_pool2d(x, 2).flatten(1) + F.avg_pool2d(x, 2).flatten(1), X)
    assert [t.bytes for t in low.layout.transposes] == [4 * X.numel(), X.numel()]


def test_a_value_and_its_unsqueezed_view_share_their_transposes() -> None:
    conv = nn.Conv2d(4, 4, 1)

    def call(x: torch.Tensor) -> torch.Tensor:
        y = conv(x)
        one = y.unsqueeze(0)
        return (y @ y.transpose(2, 3)).sum((2, 3)) + (one @ one.transpose(3, 4)).sum((0, 3, 4))

    assert [value for value, _ in moves(lowered(call, X))] == ["args_0", "conv2d", "conv2d"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_needs_no_transpose_with_steps_first_or_batch_first(kind: type[nn.Module]) -> None:
    for batch_first in (False, True):
        cell = kind(4, 6, 2, bidirectional=True, batch_first=batch_first)
        assert moves(lowered(lambda x, c=cell: c(x)[0].contiguous() * 2, torch.randn(2, 5, 4))) == []


def test_axis_attributes_mean_logical_axes_in_every_dim_order() -> None:
    conv = nn.Conv2d(4, 4, 1)
    for call in (
        lambda x: torch.cat([conv(x), x.relu()], 1),
        lambda x: conv(x).softmax(1),
        lambda x: conv(x).flip(2),
        lambda x: conv(x)[:, 1:3, ::2],
        lambda x: conv(x).amax(1, keepdim=True),
        lambda x: torch.index_select(conv(x), 1, torch.tensor([2, 0])),
    ):
        lowered(lambda x, f=call: conv(f(x)) if f(x).shape[1] == 4 else f(x), X)


# ---- remedies: orders of inputs and outputs that remove a transpose ----


def followed(low: tosaic.Lowered, remedy: str) -> dict[str, dict[str, Any]]:
    """Returns the argument `orders` of `tosaic.lower` that the sentence of a remedy recommends."""
    orders: dict[str, dict[str, Any]] = {"inputs": {}, "outputs": {}}
    for side, name, axes, form in re.findall(r"(input|output) '([^']+)' (?:(\[[\d,]+\])|(\w+))", remedy):
        orders[f"{side}s"][name] = json.loads(axes) if axes else form
    return orders


@pytest.mark.parametrize(
    "name", ["image", "two outputs", "row beside images", "turned", "state", "both orders", "grid"]
)
def test_following_a_remedy_leaves_the_transposes_that_it_states(name: str) -> None:
    conv = nn.Conv2d(4, 4, 1)

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(2, 4, 6, 8))
            self.conv = conv

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept.add_(self.conv(x))
            return self.kept.sum((1, 2, 3))

    calls: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
        "image": (conv, (X,)),
        "two outputs": (lambda x: (conv(x), conv(x)), (X,)),
        "row beside images": (lambda x, y: conv(x) * y, (X, torch.randn(4, 6, 8))),
        "turned": (lambda x: conv(x).transpose(2, 3), (X,)),
        "state": (Kept(), (X,)),
        "both orders": (lambda x: conv(x).flatten(1) + x.flatten(1).cumsum(1), (X,)),
        "grid": (lambda x, g: F.grid_sample(conv(x), g, align_corners=False), (X, torch.rand(2, 3, 5, 2))),
    }
    call, inputs = calls[name]
    program = exported(call, *inputs)
    low = tosaic.lower(program, target="TOSA-1.0+FP")
    demands = [d for t in low.layout.transposes for d in (*t.made_by, *t.read_by)]
    remedies = {demand.remedy for demand in demands if demand.remedy}
    assert remedies or name == "both orders"
    for remedy in remedies:
        after = tosaic.lower(program, target="TOSA-1.0+FP", orders=followed(low, remedy)).layout
        assert after.bytes < low.layout.bytes
        count, size = len(after.transposes), after.bytes
        left = f"{count} transpose{'s' * (count != 1)} of {size} bytes" if count else "no transpose"
        assert remedy.endswith(f"leaves {left}")


# ---- ambiguous strides: an axis of extent 1 may have any stride ----

SHAPES = [(3, 1, 4, 5), (2, 3, 1, 1), (3, 1, 3, 3), (8, 1, 3, 3)]


def patterns(shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Returns equal tensors, one for every stride pattern that a dense torch tensor can have."""
    base = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    seen: dict[tuple[int, ...], torch.Tensor] = {}
    for order in permutations(range(len(shape))):
        inverse = tuple(int(i) for i in np.argsort(order))
        laid = base.permute(order).contiguous().permute(inverse)
        seen.setdefault(laid.stride(), laid)
        for axis in (i for i, extent in enumerate(shape) if extent == 1):
            strides = list(laid.stride())
            strides[axis] = 1
            odd = laid.as_strided(shape, strides)
            seen.setdefault(odd.stride(), odd)
    return list(seen.values())


def significant(shape: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    return [axis for axis in order if shape[axis] != 1]


USES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": lambda x: x.clone() + 1,
    "pad": lambda x: F.pad(x, (1, 0, 0, 1)),
    "mean": lambda x: x.mean(1),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "reshape": lambda x: x.reshape(x.shape[0], -1) * 2,
    "pool": lambda x: F.max_pool2d(x, 1),
}


@pytest.mark.parametrize("use", sorted(USES))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_programs_with_equal_input_and_output_orders_are_equal_for_all_input_strides(
    shape: tuple[int, ...], use: str
) -> None:
    programs: dict[tuple[int, ...], set[bytes]] = {}
    for x in patterns(shape):
        low = lowered(USES[use], x)
        boundary = tuple(significant(shape, low.io.inputs[0].dim_order))
        result = low.io.outputs[0]
        programs.setdefault((*boundary, *significant(result.shape, result.dim_order)), set()).add(
            low.to_bytes(locations=False)
        )
        is_one = significant(shape, (0, 2, 3, 1)) == sorted(significant(shape, (0, 2, 3, 1)))
        assert (low.layout.ambiguous[:1] == ("args_0",)) is is_one
    assert all(len(alike) == 1 for alike in programs.values())


@pytest.mark.parametrize("use", sorted(USES))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_strides_of_a_constant_do_not_change_the_program(shape: tuple[int, ...], use: str) -> None:
    # The key is the dim order of torch's result, which may depend on the strides of the constant.
    programs: dict[tuple[int, ...], set[bytes]] = {}
    for constant in patterns(shape):
        low = lowered(lambda x, c=constant: USES[use](x * c), torch.ones(shape))
        programs.setdefault(low.io.outputs[0].dim_order, set()).add(low.to_bytes(locations=False))
    assert all(len(alike) == 1 for alike in programs.values())


@pytest.mark.parametrize("shape", [(3, 1, 3, 3), (8, 1, 3, 3), (4, 2, 1, 1)], ids=str)
def test_the_strides_of_a_weight_do_not_change_the_program(shape: tuple[int, ...]) -> None:
    x = torch.randn(1, shape[1], 6, 6)
    depthwise = torch.randn(1, shape[0], 6, 6)
    for image, groups in ((x, 1), (depthwise, shape[0])):
        if groups > 1 and shape[1] != 1:
            continue
        programs = set()
        for weight in patterns(shape):
            call = lambda v, w=weight, g=groups: F.conv2d(v, w, groups=g).sum((2, 3))  # noqa: E731
            programs.add(lowered(call, image).to_bytes(locations=False))
        assert len(programs) == 1


def test_the_report_names_each_input_with_an_ambiguous_dim_order() -> None:
    low = lowered(lambda x, y: F.max_pool2d(x, 1) * y, torch.randn(2, 1, 4, 5), torch.randn(2, 3, 4, 5))
    assert low.layout.ambiguous == ("args_0",)
    assert "ambiguous   args_0: row-major and channels last are one" in low.layout.report().text
