"""Programs over 7 and 8 axes: TOSA has 6, so axes are joined and transposes take steps, at most two each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.agreement import assert_agrees
from fx.exporting import exported
from refusals import refusal
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

Tensor = torch.Tensor


def partition(x: Tensor) -> Tensor:
    b, d, h, w, c = x.shape
    x = x.view(b, d // 2, 2, h // 2, 2, w // 3, 3, c)
    return x.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(-1, 12, c)


def partition_reversed(x: Tensor) -> Tensor:
    x = x.view(2, 2, 2, 2, 2, 2, 3, 5)
    return x.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(2, 4, 4, 6, 5)


def shuffle(x: Tensor) -> Tensor:
    b, c, d, h, w = x.shape
    x = x.view(b, c // 8, 2, 2, 2, d, h, w)
    return x.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(b, c // 8, 2 * d, 2 * h, 2 * w)


def unshuffle(x: Tensor) -> Tensor:
    b, c, d, h, w = x.shape
    x = x.view(b, c, d // 2, 2, h // 2, 2, w // 2, 2)
    return x.permute(0, 1, 3, 5, 7, 2, 4, 6).reshape(b, c * 8, d // 2, h // 2, w // 2)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def transposes(low: tosaic.Lowered) -> int:
    return sum(node.op == "tosa.transpose" for node in low.graph.nodes)


def assert_few_axes(low: tosaic.Lowered) -> None:
    values = [*low.graph.inputs, *low.graph.outputs]
    shapes = [port.value.shape for port in values]
    for node in low.graph.nodes:
        shapes += [value.shape for value in (*node.operands, *node.results)]
    assert max(map(len, shapes), default=0) <= 6, shapes


# After joining, 6, 6, 7, 6, 7, 7 and 8 axes remain: one transpose of up to 6 axes, or two.
PERMUTES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, int]] = {
    "video swin windows": (partition, normal(2, 4, 4, 6, 5), 1),
    "video swin windows, reversed": (partition_reversed, normal(16, 12, 5), 1),
    "3-d pixel shuffle": (shuffle, normal(2, 16, 3, 4, 5), 2),
    "3-d pixel shuffle to one channel": (shuffle, normal(1, 8, 3, 4, 5), 1),
    "3-d pixel unshuffle": (unshuffle, normal(2, 3, 4, 6, 4), 2),
    "7 axes": (lambda x: x.view(2, 3, 2, 2, 2, 2, 2).permute(6, 4, 2, 0, 1, 3, 5).flatten(), normal(192), 1),
    "7 axes backwards": (
        lambda x: x.view(2, 2, 2, 2, 2, 2, 3).permute(6, 5, 4, 3, 2, 1, 0).flatten(),
        normal(192),
        2,
    ),
    "8 axes backwards": (
        lambda x: x.view(2, 2, 2, 2, 2, 2, 2, 3).permute(7, 6, 5, 4, 3, 2, 1, 0).flatten(),
        normal(384),
        2,
    ),
}


@pytest.mark.parametrize("name", PERMUTES)
def test_a_permute_of_more_axes_is_one_transpose_or_two(name: str) -> None:
    function, x, steps = PERMUTES[name]
    low = tosaic.lower(exported(function, x), target="TOSA-1.0+FP")
    assert transposes(low) == steps
    assert_few_axes(low)
    assert_agrees(function, x, decomposed=False)


OPERATORS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "elementwise": (lambda x: (x.view(2, 3, 2, 2, 2, 2, 2, 2) * 2 + 1).abs().flatten(), (normal(384),)),
    "broadcasts that alternate": (
        lambda x, y: (x.view(2, 1, 2, 1, 2, 1, 2, 1) - y.view(1, 3, 1, 2, 1, 3, 1, 2)).flatten(),
        (normal(16), normal(36)),
    ),
    "three operands that broadcast": (
        lambda x, y, z: torch.where(
            x.view(2, 1, 2, 1, 2, 1, 2) > 0, y.view(1, 3, 1, 2, 1, 3, 1), z.view(2, 3, 1, 1, 1, 1, 2)
        ).flatten(),
        (normal(16), normal(18), normal(12)),
    ),
    "a constant that broadcasts": (
        lambda x: (x.view(2, 1, 2, 1, 2, 1, 2, 3) + torch.arange(12.0).view(2, 1, 3, 1, 2, 1, 1)).flatten(),
        (normal(48),),
    ),
    "reductions": (
        lambda x: (
            x.view(2, 3, 2, 2, 2, 2, 2, 2).amax((1, 3, 6)).flatten(),
            x.view(2, 3, 2, 2, 2, 2, 2, 2).amin((0, 5), keepdim=True).flatten(),
            x.view(2, 3, 2, 2, 2, 2, 2, 2).argmax(4).flatten(),
            (x.view(2, 3, 2, 2, 2, 2, 2, 2) > 0).any(1).flatten(),
        ),
        (normal(384),),
    ),
    "slices of every axis": (
        lambda x: x.view(3, 3, 3, 3, 3, 3, 3)[1:, :2, 1:, 1:2, :2, 1:, 1:].flatten(),
        (normal(3**7),),
    ),
    "slices with steps": (
        lambda x: x.view(2, 4, 2, 4, 2, 4, 2)[:, ::2, :, 1::2, :, ::3].flatten(),
        (normal(1024),),
    ),
    "pads of every axis": (
        lambda x: F.pad(x.view(2, 1, 2, 1, 2, 1, 2), (1, 0, 0, 1) + (1, 1) * 5, value=3).flatten(),
        (normal(16),),
    ),
    "tiles of every axis": (
        lambda x: x.view(2, 2, 2, 2, 2, 2, 2).repeat(2, 1, 3, 2, 2, 1, 2).flatten(),
        (normal(128),),
    ),
    "expand": (
        lambda x: x.view(2, 1, 2, 1, 2, 1, 2, 1).expand(2, 3, 2, 3, 2, 3, 2, 3).flatten(),
        (normal(16),),
    ),
    "cat": (
        lambda x, y: torch.cat([x.view(3, 1, 3, 1, 3, 1, 3), y.view(3, 1, 2, 1, 3, 1, 3)], 2).flatten(),
        (normal(3**4), normal(54)),
    ),
    "stack": (lambda x: torch.stack([x.view(2, 2, 2, 2, 2, 2, 3)] * 2, 4).flatten(), (normal(192),)),
    "roll and flip": (
        lambda x: x.view(2, 3, 2, 2, 2, 2, 2, 2).roll((1, 1, 1), (1, 3, 5)).flip((0, 1, 6)).flatten(),
        (normal(384),),
    ),
    "index_select": (lambda x: x.view(2, 3, 2, 2, 2, 2, 2)[:, [2, 0]].flatten(), (normal(192),)),
    "gather": (
        lambda x: x.view(2, 3, 2, 2, 2, 2, 2).gather(1, torch.full((2, 1, 2, 2, 2, 2, 2), 2)).flatten(),
        (normal(192),),
    ),
    "integers": (
        lambda x: ((x.view(2, 3, 2, 2, 2, 2, 2) * 3 + 1).transpose(0, 5).sum((2, 4)) % 5).flatten(),
        (torch.arange(192) - 90,),
    ),
    "bool": (
        lambda x: (x.view(2, 3, 2, 2, 2, 2, 2) > 0).permute(6, 4, 2, 0, 1, 3, 5).logical_not().flatten(),
        (normal(192),),
    ),
    "one element": (
        lambda x: (x.view(1, 1, 1, 1, 1, 1, 1, 1).permute(7, 6, 5, 4, 3, 2, 1, 0) + 1).sum(),
        (normal(1),),
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compute_over_joined_axes(name: str) -> None:
    function, args = OPERATORS[name]
    assert_few_axes(tosaic.lower(exported(function, *args), target="TOSA-1.0+FP"))
    assert_agrees(function, *args, decomposed=False)


@pytest.mark.parametrize(
    ("function", "tolerance"),
    [
        (lambda x: x.view(2, 3, 2, 2, 2, 2, 2, 2).softmax(1).flatten(), 1e-6),
        (lambda x: F.layer_norm(x.view(2, 2, 2, 2, 2, 2, 2, 3), (2, 3)).mean((0, 3)).flatten(), 1e-6),
        (lambda x: (x.view(2, 3, 2, 2, 2, 2, 2, 2) @ x.view(2, 3, 2, 2, 2, 2, 2, 2)).flatten(), 1e-6),
        (lambda x: x.view(2, 3, 2, 2, 2, 2, 2, 2).cumsum(1).flatten(), 1e-6),
    ],
    ids=["softmax", "layer_norm", "matmul", "cumsum"],
)
def test_composites_compute_over_joined_axes(function: Any, tolerance: float) -> None:
    assert_agrees(function, normal(384), tolerance=tolerance, decomposed=False)


def test_arrays_of_more_axes_are_refused_at_inputs_and_outputs() -> None:
    """The tensors of a file have at most 6 axes, and they are the caller's arrays."""
    x = normal(2, 1, 2, 1, 2, 1, 2)
    for function, args, side in (
        (lambda x: x.sum((0, 2)), (x,), "input"),
        (lambda x: x.view(2, 1, 2, 1, 2, 1, 2), (normal(16),), "output"),
    ):
        text = refusal(tosaic.UnsupportedOp, tosaic.lower, exported(function, *args))
        assert f"[legalize-tosa] {side} " in text
        assert "has 7 axes, and TOSA allows 6" in text


class Windows(nn.Module):
    """Attention over windows of Video Swin, with a cyclic shift."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, d, h, w, c = x.shape
        y = torch.roll(self.norm(x), (-1, -1, -1), (1, 2, 3))
        y = y.view(b, d // 2, 2, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(-1, 8, c)
        q, k, v = self.qkv(y).view(-1, 8, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 8, c))
        y = (
            y.view(b, d // 2, h // 2, w // 2, 2, 2, 2, c)
            .permute(0, 1, 4, 2, 5, 3, 6, 7)
            .reshape(b, d, h, w, c)
        )
        return x + torch.roll(y, (1, 1, 1), (1, 2, 3))


class Shuffled(nn.Module):
    """A 3-d convolution whose channels become pixels, and an operator over 8 axes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        b, c, d, h, w = y.shape
        y = F.relu(y.view(b, c // 8, 2, 2, 2, d, h, w) * 0.5)
        return y.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(b, c // 8, 2 * d, 2 * h, 2 * w)


NETWORKS = {
    "video swin": (Windows, (2, 4, 4, 4, 8)),
    "3-d pixel shuffle": (Shuffled, (1, 2, 3, 4, 5)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_over_more_axes_agree_in_floats(name: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(1)
    assert_agrees(make(), normal(*shape), tolerance=1e-5, decomposed=False)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_over_more_axes_agree_in_integers(name: str, bits: int) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(1)
    ep = exported(make(), normal(*shape))
    samples = list(normal(8, *shape).numpy())
    config = tosaic.QConfig.int8() if bits == 8 else tosaic.QConfig.int16x8()
    quantized = tosaic.quantize(ep, samples, config=config)
    low = tosaic.lower(quantized, target="TOSA-1.0+INT" + ("+int16" if bits == 16 else ""))
    assert_few_axes(low)
    x = samples[0]
    assert tosaic.compare(quantized, low, (x,)).ok
    if bits == 8:  # a number near the middle of two units may be rounded to either
        unit = low.graph.outputs[0].qparams.scales[0]
        units = np.abs(np.asarray(low.run(x)) - np.asarray(quantized.run(x))) / unit
        assert units.max() < 1.01
        assert np.mean(units > 0.5) < 0.01
    run = run_reference_model(low, x)
    assert run.ok, run.log[-400:]
    np.testing.assert_array_equal(np.asarray(run.outputs), np.asarray(low.run(x)))


# ---- random programs ----


def random_program(seed: int) -> tuple[Callable[[Tensor], Tensor], Tensor, str]:
    """Returns a chain of random calls over 7 and 8 axes, its input, and the chain as text."""
    r = random.Random(seed)
    rank = r.choice([7, 8])
    extents = [1] * rank
    for axis in r.sample(range(rank), rank):
        if np.prod(extents) <= 700:
            extents[axis] = r.choice([1, 2, 2, 2, 3])
    steps: list[tuple[str, Callable[[Tensor], Tensor]]] = []
    x = torch.zeros(*extents)

    def add(text: str, step: Callable[[Tensor], Tensor]) -> None:
        nonlocal x
        x = step(x)
        steps.append((text, step))

    for _ in range(r.randint(2, 6)):
        n = x.dim()
        kind = r.choice(
            ["permute", "permute", "add", "reduce", "slice", "cat", "flip", "pad", "repeat", "expand"]
        )
        axis = r.randrange(n)
        if kind == "permute":
            perm = r.sample(range(n), n)
            add(f"permute{perm}", lambda t, perm=perm: t.permute(perm))
        elif kind == "add":
            shape = [extent if r.random() < 0.5 else 1 for extent in x.shape][r.choice([0, 0, 1]) :]
            values = torch.arange(float(np.prod(shape))).view(shape) % 11
            add(f"add{shape}", lambda t, values=values: t + values.to(t.dtype))
        elif kind == "reduce" and n > 7:
            keep = r.random() < 0.5
            add(f"amax({axis}, {keep})", lambda t, axis=axis, keep=keep: t.amax(axis, keepdim=keep))
        elif kind == "slice":
            for at in r.sample(range(n), r.randint(1, n)):
                if x.shape[at] > 1:
                    first = r.choice([0, 1])
                    add(f"narrow({at}, {first})", lambda t, at=at, f=first: t.narrow(at, f, t.shape[at] - 1))
        elif kind == "cat" and x.numel() < 1500:
            add(f"cat({axis})", lambda t, axis=axis: torch.cat([t, t + 1], axis))
        elif kind == "flip":
            axes = r.sample(range(n), r.randint(1, 3))
            add(f"flip{axes}", lambda t, axes=axes: t.flip(axes))
        elif kind == "pad" and x.numel() < 300:
            amounts = [r.choice([0, 0, 0, 1]) for _ in range(2 * n)]
            if (
                np.prod([e + a + b for e, a, b in zip(x.shape, amounts[::-2], amounts[-2::-2], strict=True)])
                < 6000
            ):
                add(f"pad{amounts}", lambda t, amounts=amounts: F.pad(t, amounts, value=5))
        elif kind == "repeat" and x.numel() < 700:
            times = [2 if i == axis or r.random() < 0.1 else 1 for i in range(n)]
            add(f"repeat{times}", lambda t, times=times: t.repeat(times))
        elif kind == "expand":
            shape = [3 if e == 1 and x.numel() < 700 and r.random() < 0.4 else e for e in x.shape]
            if np.prod(shape) < 6000:
                add(f"expand{shape}", lambda t, shape=shape: t.expand(shape))
    calls = [step for _, step in steps]

    def run(t: Tensor) -> Tensor:
        t = t.view(extents)
        for call in calls:
            t = call(t)
        return t.flatten()

    return run, torch.zeros(int(np.prod(extents))), f"{extents} " + " ".join(text for text, _ in steps)


def values(seed: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    drawn = torch.randint(-60, 60, like.shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(dtype)


@pytest.mark.parametrize("seed", range(14))
def test_random_programs_over_more_axes_agree(seed: int) -> None:
    function, like, text = random_program(seed)
    print(f"seed {seed}: {text}")
    dtype = [torch.float32, torch.int32, torch.int8, torch.int16][seed % 4]
    targets = ("TOSA-1.0+FP",) if dtype == torch.float32 else ("TOSA-1.0+FP", "TOSA-1.0+INT")
    assert_agrees(function, values(seed, like, dtype), targets=targets, decomposed=False)
