"""equalize: the result of a float graph is unchanged, and the ranges of weights match."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from tosaic import _core

from quant.accuracy_cases import Array, exported


def results(graph: _core.Graph, *inputs: Array) -> list[Array]:
    return [np.asarray(each) for each in _core.Session(graph).run(list(inputs))]


def assert_equal_results(before: _core.Graph, after: _core.Graph, *inputs: Array) -> None:
    after.verify()
    for old, new in zip(results(before, *inputs), results(after, *inputs), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-4 * float(np.abs(old).max()))


def spread(module: nn.Module, rng: np.random.Generator) -> nn.Module:
    """Gives the channels of all weights very different ranges."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                factors = np.exp(2 * rng.normal(size=len(parameter))).astype(np.float32)
                parameter.mul_(torch.from_numpy(factors).reshape(-1, *[1] * (parameter.dim() - 1)))
    return module


def random_layers(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Returns a chain of convolutions of all kinds and operators between them, and the shape of its input."""
    rng = random.Random(seed)
    channels, layers = rng.choice([3, 4, 6]), []
    shape = (2, channels, 13, 12)
    for _ in range(rng.randint(2, 5)):
        kind = rng.choice(["conv", "depthwise", "grouped", "transposed"])
        wanted = rng.choice([4, 6, 8])
        if kind == "depthwise":
            layers.append(nn.Conv2d(channels, channels, 3, padding=1, groups=channels))
        elif kind == "grouped" and channels % 2 == 0:
            layers.append(nn.Conv2d(channels, wanted, 3, padding=1, groups=2, bias=rng.random() < 0.5))
            channels = wanted
        elif kind == "transposed" and channels % 2 == 0:
            layers.append(nn.ConvTranspose2d(channels, wanted, 3, padding=1, groups=rng.choice([1, 2])))
            channels = wanted
        else:
            layers.append(nn.Conv2d(channels, wanted, rng.choice([1, 3]), padding=1))
            channels = wanted
        layers.append(
            rng.choice(
                [
                    nn.ReLU(),
                    nn.LeakyReLU(0.1),
                    nn.PReLU(channels),
                    nn.Identity(),
                    nn.MaxPool2d(3, 1, 1),
                    nn.AvgPool2d(2, 1),
                    nn.ReLU6(),
                    nn.Sigmoid(),
                    nn.ZeroPad2d(1),
                    nn.Upsample(scale_factor=2, mode="bilinear"),
                ]
            )
        )
    if rng.random() < 0.7:
        layers += [
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * channels, 7),
            nn.ReLU(),
            nn.Linear(7, 3),
        ]
    return nn.Sequential(*layers), shape


@pytest.mark.parametrize("seed", range(24))
def test_the_result_of_a_random_chain_is_unchanged_and_ranges_match(seed: int) -> None:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    module, shape = random_layers(seed)
    graph = exported(spread(module, rng), torch.zeros(shape))
    equalized, rows = _core.equalize(graph)
    assert_equal_results(graph, equalized, rng.normal(size=shape).astype(np.float32))
    for row in rows:
        moved = (row["first_before"] > 0) & (row["reader_before"] > 0)
        np.testing.assert_allclose(row["first_after"][moved], row["reader_after"][moved], rtol=5e-3)
        assert row["readers"]


class Chain(nn.Module):
    """conv -> relu -> depthwise -> relu -> conv, as in MobileNet."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 1), activation(), nn.Conv2d(6, 6, 3, groups=6), activation(), nn.Conv2d(6, 4, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def test_a_chain_with_a_depthwise_convolution_converges_to_three_equal_ranges() -> None:
    torch.manual_seed(0)
    graph = exported(spread(Chain(), np.random.default_rng(0)), torch.zeros(1, 3, 8, 8))
    equalized, rows = _core.equalize(graph)
    assert [(row["first"], row["readers"], row["between"]) for row in rows] == [
        ("conv2d", ["conv2d_1"], ["relu"]),
        ("conv2d_1", ["conv2d_2"], ["relu_1"]),
    ]
    before = [rows[0]["first_before"], rows[0]["reader_before"], rows[1]["reader_before"]]
    # The three ranges of a channel become their geometric mean.
    mean = np.exp(np.mean(np.log(before), 0))
    for after in (
        rows[0]["first_after"],
        rows[0]["reader_after"],
        rows[1]["first_after"],
        rows[1]["reader_after"],
    ):
        np.testing.assert_allclose(after, mean, rtol=5e-3)
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    assert_equal_results(graph, equalized, x)
    assert equalized.constants.keys() == graph.constants.keys()
    assert [node.name for node in equalized.nodes] == [node.name for node in graph.nodes]


def test_scales_do_not_move_through_upper_bounds() -> None:
    graph = exported(Chain(nn.ReLU6), torch.zeros(1, 3, 8, 8))
    equalized, rows = _core.equalize(graph)
    assert rows == []
    assert equalized.text() == graph.text()


class Branches(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(4, 4, 1) for _ in range(3))
        self.gain = nn.Parameter(torch.rand(4, 1, 1) + 0.5)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(self.first(x))
        if self.kind == "two readers":
            return self.second(y) + self.third(y)
        if self.kind == "residual":
            return self.second(y) + y
        if self.kind == "output":
            return self.second(y), y
        if self.kind == "gated":
            return self.second(y * torch.sigmoid(self.third(x)))
        if self.kind == "constants":
            return self.second(y * self.gain + 0.5 - self.gain)
        if self.kind == "sum of two parts":
            return self.second(torch.abs(y) + y.flip(2))
        assert self.kind == "product with itself"
        return self.second(y * y)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("two readers", [("conv2d", ["conv2d_1", "conv2d_2"])]),
        ("residual", []),
        ("output", []),
        ("gated", [("conv2d", ["conv2d_2"])]),
        ("constants", [("conv2d", ["conv2d_1"])]),
        ("sum of two parts", [("conv2d", ["conv2d_1"])]),
        ("product with itself", []),
    ],
)
def test_pairs_are_found_wherever_all_readers_can_be_scaled(kind: str, expected: list[Any]) -> None:
    torch.manual_seed(1)
    graph = exported(spread(Branches(kind), np.random.default_rng(2)), torch.zeros(2, 4, 5, 6))
    equalized, rows = _core.equalize(graph)
    assert [(row["first"], row["readers"]) for row in rows] == expected
    assert_equal_results(
        graph, equalized, np.random.default_rng(3).normal(size=(2, 4, 5, 6)).astype(np.float32)
    )


def test_matrix_products_of_all_kinds_are_pairs() -> None:
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Parameter(torch.randn(6, 6)) for _ in range(3))
            self.bias = nn.Parameter(torch.randn(6))
            self.last = nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.addmm(self.bias, x, self.a, beta=0.5, alpha=2.0).relu()
            y = (y @ self.b).relu()
            y = self.c @ y.t()
            return self.last(y.t())

    torch.manual_seed(2)
    graph = exported(spread(Products(), np.random.default_rng(4)), torch.zeros(5, 6))
    equalized, rows = _core.equalize(graph)
    assert [(row["first"], row["readers"][0]) for row in rows] == [
        ("addmm", "matmul"),
        ("matmul", "matmul_1"),
        ("matmul_1", "linear"),
    ]
    assert_equal_results(graph, equalized, np.random.default_rng(5).normal(size=(5, 6)).astype(np.float32))


def test_channels_of_zeros_are_not_scaled() -> None:
    module = Chain()
    with torch.no_grad():
        module.layers[0].weight[2] = 0  # type: ignore[index]
        module.layers[4].weight[:, 3] = 0  # type: ignore[index]
    equalized, rows = _core.equalize(exported(module, torch.zeros(1, 3, 8, 8)))
    assert rows[0]["scales"][2] == 1
    assert rows[1]["scales"][3] == 1
    assert np.isfinite(rows[0]["scales"]).all()
    assert all(np.isfinite(each.array).all() for each in equalized.constants.values())
