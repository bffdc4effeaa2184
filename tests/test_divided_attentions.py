"""Attentions that are computed head by head, or by groups of rows or windows: the pass split-attentions.

The results equal those of the reference model, and those of the program before it was divided.
"""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from torch.nn import functional as F
from tosaic.lowering.reference_model import run_reference_model

INT8 = "TOSA-1.0+INT"
PLANS = {
    "precise": tosaic.QConfig.int8(),
    "rounded": tosaic.QConfig.int8(every_operator=True, stream="int16"),
}
Mask = Callable[[int], torch.Tensor]


class Attention(nn.Module):
    """Self-attention, or cross-attention to the first half of the rows, with a residual."""

    def __init__(
        self, heads: int, width: int, *, mask: torch.Tensor | None = None, crossed: bool = False
    ) -> None:
        super().__init__()
        size = heads * width
        self.heads, self.crossed = heads, crossed
        self.norm = nn.LayerNorm(size)
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        memory = y[:, : y.shape[1] // 2] if self.crossed else y
        q, k, v = (
            self._by_head(f(z)) for f, z in ((self.query, y), (self.key, memory), (self.value, memory))
        )
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return x + self.out(found.transpose(1, 2).flatten(2))

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class OneProjection(nn.Module):
    """Queries, keys and values of one linear layer."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.all, self.out = nn.Linear(heads * width, 3 * heads * width), nn.Linear(heads * width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.all(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 4, -1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class SharedKeys(nn.Module):
    """Two queries for each key: the keys and values are repeated."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.query, self.out = nn.Linear(16, heads * width), nn.Linear(heads * width, 16)
        self.key, self.value = (nn.Linear(16, heads // 2 * width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.query(x).unflatten(2, (self.heads, self.width)).transpose(1, 2)
        k, v = (
            f(x).unflatten(2, (-1, self.width)).transpose(1, 2).repeat_interleave(2, 1)
            for f in (self.key, self.value)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "heads": (lambda: Attention(3, 16), (1, 96, 48)),
    "uneven channels": (lambda: Attention(5, 12), (1, 80, 60)),
    "a batch": (lambda: Attention(2, 16), (2, 96, 32)),
    "one head": (lambda: Attention(1, 16), (1, 190, 16)),
    "to other rows": (lambda: Attention(2, 16, crossed=True), (1, 130, 32)),
    "a mask": (lambda: Attention(2, 16, mask=torch.ones(110, 110).tril().bool()), (1, 110, 32)),
    "a mask by head": (lambda: Attention(2, 16, mask=torch.randn(1, 2, 110, 110)), (1, 110, 32)),
    "one projection": (lambda: OneProjection(3, 16), (1, 96, 48)),
    "shared keys": (lambda: SharedKeys(4, 16), (1, 96, 16)),
    "many windows": (lambda: Attention(2, 16), (24, 49, 32)),
}


def quantized(
    module: nn.Module, shape: tuple[int, ...], config: tosaic.QConfig
) -> tuple[tosaic.Program, torch.Tensor]:
    torch.manual_seed(0)
    sample = torch.randn(shape)
    exported = torch.export.export(module.eval(), (sample,))
    return tosaic.quantize(exported, [(sample,)], config=config, progress=False), sample


def operators(lowered: tosaic.Lowered) -> Counter[str]:
    return Counter(node.op for node in lowered.graph.nodes)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("case", CASES)
def test_a_divided_attention_has_the_same_results(case: str, plan: str) -> None:
    torch.manual_seed(1)
    make, shape = CASES[case]
    program, sample = quantized(make(), shape, PLANS[plan])
    lowered = tosaic.lower(program, target=INT8)
    whole = lowered.whole()
    assert operators(lowered)["tosa.matmul"] > operators(whole)["tosa.matmul"]
    ours = np.asarray(lowered.run(sample))
    np.testing.assert_array_equal(ours, np.asarray(whole.run(sample)))
    reference = run_reference_model(lowered, sample)
    np.testing.assert_array_equal(ours, np.asarray(reference.outputs))


def test_heads_need_no_transposes_but_those_of_keys() -> None:
    program, _ = quantized(Attention(3, 16), (1, 96, 48), PLANS["rounded"])
    lowered = tosaic.lower(program, target=INT8)
    counts, before = operators(lowered), operators(lowered.whole())
    assert counts["tosa.slice"] == 0
    assert counts["tosa.conv2d"] == 3 * 3 + 1
    maxima = counts["tosa.reduce_max"] - (before["tosa.reduce_max"] - 1)
    assert maxima == 3
    # of the scores for their maximum, of the keys
    assert counts["tosa.transpose"] - (before["tosa.transpose"] - 5) == 3 * 2


def test_a_comparison_has_the_values_that_were_divided() -> None:
    torch.manual_seed(1)
    module = Attention(3, 16)
    program, sample = quantized(module, (1, 96, 48), PLANS["rounded"])
    lowered = tosaic.lower(program, target=INT8)
    compared = tosaic.compare(torch.export.export(module, (sample,)), lowered, (sample,))
    assert {"linear", "linear_1", "linear_2"} <= {row.fx_name for row in compared.rows}


def test_copies_and_pickles_of_a_divided_program_are_divided() -> None:
    program, sample = quantized(Attention(3, 16), (1, 96, 48), PLANS["rounded"])
    lowered = tosaic.lower(program, target=INT8)
    expected = np.asarray(lowered.run(sample))
    for made in (copy.copy(lowered), copy.deepcopy(lowered), pickle.loads(pickle.dumps(lowered))):
        assert operators(made) == operators(lowered)
        assert operators(made.whole()) == operators(lowered.whole())
        np.testing.assert_array_equal(np.asarray(made.run(sample)), expected)


def test_a_pipeline_without_the_pass_divides_nothing() -> None:
    program, _ = quantized(Attention(3, 16), (1, 96, 48), PLANS["rounded"])
    pipeline = tosaic.Pipeline.default(INT8)
    pipeline.remove("split-attentions")
    lowered = tosaic.lower(program, target=INT8, pipeline=pipeline)
    assert lowered.whole() is lowered
    assert operators(lowered)["tosa.matmul"] == 2


def test_small_attentions_stay_whole() -> None:
    program, _ = quantized(Attention(2, 8), (1, 8, 16), PLANS["rounded"])
    assert operators(tosaic.lower(program, target=INT8))["tosa.matmul"] == 2
