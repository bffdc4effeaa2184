"""Integers between the host and groups: a group takes only those that are known to fit the i32 of TOSA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from function_module import FunctionModule
from torch import nn

TARGET = "TOSA-1.0+INT+FP"


class Hashed(nn.Module):
    """Embeddings by a hash: its first steps need 64 bits, and what the table reads fits."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mixed = (ids * 2654435761) & 0xFFFFFFFF
        return self.last(self.table((mixed ^ (mixed >> 15)) % 64))


def ids() -> torch.Tensor:
    return torch.arange(18).reshape(2, 9)


def split_of(module: nn.Module, *args: torch.Tensor) -> Any:
    return tosaic.lower(torch.export.export(module.eval(), args), target=TARGET, unsupported="split")


def claimed(split: Any) -> set[str]:
    return {
        node.op for node in split.partitions.graph.nodes if split.partitions.group_of[node.id] is not None
    }


def test_a_hash_in_64_bits_stays_on_the_host_and_its_table_does_not() -> None:
    module = Hashed()
    split = split_of(module, ids())
    assert claimed(split) == {"embedding", "linear"}
    np.testing.assert_allclose(split.run(ids().numpy()), module(ids()).detach().numpy(), atol=1e-6)
    rules = {
        split.partitions.graph.nodes[i].op: {each.rule for each in found}
        for i, found in enumerate(split.partitions.refusals)
        if found
    }
    assert rules["bitwise_xor"] == rules["right_shift"] == rules["remainder"] == {"rejected"}


def test_an_export_with_a_hash_in_64_bits_runs(tmp_path: Path) -> None:
    module, sample = Hashed().eval(), (ids().numpy(),)
    exported = tosaic.export_model(
        module, (ids(),), recipe="tosa-int8", samples=[sample], verbose=0, folder=tmp_path / "out"
    )
    assert exported is not None


@pytest.mark.parametrize(
    ("function", "groups"),
    [
        (lambda t: ((t + 3_000_000_000) >> 20) & 1, {"bitwise_and"}),
        (lambda t: (t * 3_000_000_000 > 20, torch.where(t * 3_000_000_000 > 5, t, t + 1)), {"add", "where"}),
        (lambda t: ((t + 3_000_000_000) % 1000 + 1) * 5, {"add", "mul"}),
        (lambda t: (t + 3_000_000_000).view(3, 6).select(0, 1) // 2_000_000, set()),
        (lambda t: torch.stack(list((t * 3_000_000_000).unbind(0))).cumsum(0) >> 40, set()),
        (
            lambda t: (t * 3_000_000_000).clamp(0, 100).split([3, 6], 1)[1].cumsum(1) * 1000,
            {"split", "cumsum", "mul"},
        ),
    ],
)
def test_readers_of_integers_of_more_than_32_bits_stay_on_the_host(
    function: Callable[..., Any], groups: set[str]
) -> None:
    module = FunctionModule(function)
    split = split_of(module, ids())
    assert claimed(split) == groups
    expected, found = module(ids()), split.run(ids().numpy())
    pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    for each, array in pairs:
        np.testing.assert_array_equal(array, each.numpy())


def test_positions_of_the_host_reach_a_group_without_a_proof() -> None:
    module = FunctionModule(lambda t, x: x[((t + 3_000_000_000) - 3_000_000_000).view(-1)])
    x = torch.randn(18, 3)
    split = split_of(module, ids(), x)
    assert "index" in claimed(split)
    np.testing.assert_array_equal(split.run(ids().numpy(), x.numpy()), module(ids(), x).numpy())


def test_an_input_of_the_program_is_checked_and_not_proven() -> None:
    split = split_of(FunctionModule(lambda t: (t * 3_000_000_000, t + 1)), ids())
    assert claimed(split) == {"add"}
    with pytest.raises(tosaic.InvalidGraph, match=r"input 't' holds a value outside its range|args"):
        split.run(np.full((2, 9), 2**31 - 1))
