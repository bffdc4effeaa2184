"""Pools with adjacent windows that do not overlap: reductions where these save transposes, else pools."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np
import pytest
import torch
import tosaic
from fx.exporting import exported
from layouts.beside import beside
from models.quantize import converted
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread_without_traces")]

Case = tuple[nn.Module, torch.Tensor]


def image(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (1, 8, 12, 12)), generator=torch.Generator().manual_seed(0))


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(8, 4).requires_grad_(False)


POOLS: dict[str, Callable[[], Case]] = {
    "an image averaged, then a linear layer": lambda: (
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear()),
        image(),
    ),
    "columns": lambda: (nn.AdaptiveAvgPool2d((1, None)), image()),
    "rows": lambda: (nn.AdaptiveAvgPool2d((None, 1)), image()),
    "quarters of an image": lambda: (nn.AdaptiveAvgPool2d(2), image()),
    "a sequence in five parts": lambda: (nn.AdaptiveAvgPool1d(5), image(1, 8, 20)),
    "a volume": lambda: (nn.AdaptiveAvgPool3d(1), image(1, 4, 3, 4, 6)),
    "parts of a volume": lambda: (nn.AdaptiveAvgPool3d((1, 2, 3)), image(1, 4, 3, 4, 6)),
    "a pool as large as the image": lambda: (nn.AvgPool2d(12), image()),
    "one window that reaches into padding": lambda: (nn.AvgPool2d(5, 5, 1), image(1, 8, 4, 4)),
    "one window that does not count padding": lambda: (
        nn.AvgPool2d(5, 5, 1, count_include_pad=False),
        image(1, 8, 4, 4),
    ),
    "one window with a divisor of its own": lambda: (nn.AvgPool2d(12, divisor_override=7), image()),
    "windows that leave a rest": lambda: (nn.AvgPool2d(5), image()),
    "a batch": lambda: (nn.AdaptiveAvgPool2d(1), image(3, 8, 6, 4)),
    "the largest of an image": lambda: (nn.AdaptiveMaxPool2d(1), image()),
    "the largest of each column": lambda: (nn.MaxPool2d((12, 1)), image()),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_with_adjacent_windows_needs_no_transpose(name: str) -> None:
    module, x = POOLS[name]()
    low = tosaic.lower(exported(module, x), target="TOSA-1.0+FP")
    assert low.layout.transposes == ()
    assert not [node.op for node in low.graph.nodes if node.op in ("tosa.transpose", "tosa.avg_pool2d")]
    np.testing.assert_allclose(low.run(x), module(x).numpy(), rtol=1e-5, atol=1e-6)


def test_an_average_of_f16_elements_is_computed_in_f32() -> None:
    x = (1000 + image(1, 4, 64, 64)).half()
    low = tosaic.lower(exported(nn.AdaptiveAvgPool2d(1), x), target="TOSA-1.0+FP")
    assert low.layout.transposes == ()
    expected = x.float().mean((2, 3), keepdim=True).numpy()
    np.testing.assert_allclose(low.run(x).astype(np.float32), expected, rtol=2**-10)


def beside_arm(name: str, kind: str) -> list[str]:
    """Returns, as text, each count in which our lowering of a pool exceeds ExecuTorch's Arm lowering."""
    module, x = POOLS[name]()
    program = converted(module, [(x,), (x + 1,)], "arm") if kind == "int8" else exported(module, x)
    return beside(name, program, "TOSA-1.0+INT" if kind == "int8" else "TOSA-1.0+FP").violations


# This file tests each pool in one kind, float or int8. tests/full/test_pool_layouts.py tests it in both.
@pytest.mark.parametrize(("name", "kind"), list(zip(POOLS, cycle(("float", "int8", "int8")))))
def test_no_pool_moves_more_than_in_the_arm_lowering(name: str, kind: str) -> None:
    assert beside_arm(name, kind) == []


def test_the_average_of_a_channels_last_image_stays_a_pool() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    low = tosaic.lower(exported(net.eval(), image(1, 3, 12, 12)), target="TOSA-1.0+FP")
    ops = [node.op for node in low.graph.nodes]
    assert "tosa.avg_pool2d" in ops
    assert "tosa.reduce_sum" not in ops


def test_the_largest_of_small_windows_stays_a_pool() -> None:
    low = tosaic.lower(exported(nn.MaxPool2d(2), image()), target="TOSA-1.0+FP")
    assert "tosa.max_pool2d" in [node.op for node in low.graph.nodes]


@pytest.mark.parametrize(
    "name",
    ["an image averaged, then a linear layer", "columns", "quarters of an image", "a sequence in five parts"],
)
def test_averages_of_integers_are_equal_in_every_dim_order(name: str) -> None:
    module, x = POOLS[name]()
    program = converted(module, [(x,), (x + 1,)], "arm")
    rows, last = (
        tosaic.lower(program, target="TOSA-1.0+INT", orders={"inputs": order})
        for order in ("contiguous", "channels_last")
    )
    assert rows.layout.transposes == ()
    ops = [{node.op for node in low.graph.nodes} for low in (rows, last)]
    assert "tosa.reduce_sum" in ops[0]
    assert ops[1] & {"tosa.avg_pool2d", "tosa.depthwise_conv2d"}
    for seed in range(4):
        sample = 3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
        got = rows.run(sample)
        np.testing.assert_array_equal(got, last.run(sample.movedim(1, -1).contiguous().movedim(-1, 1)))
        np.testing.assert_array_equal(got, run_reference_model(rows, sample).outputs)
