"""Mutated buffers as TOSA variables: several runs against torch, resets, files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from fx.exporting import exported
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

VARIABLE = "TOSA-1.0+INT+FP+variable"


class Cache(nn.Module):
    """Attends to its last four inputs; counts and sums its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.linspace(-1, 1, 32).reshape(1, 4, 8))
        self.register_buffer("total", torch.tensor(1.5))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> Any:
        self.keys.copy_(torch.cat([self.keys[:, 1:], x], 1))
        self.total.add_(x.sum())
        self.count.add_(1)
        return torch.softmax(x @ self.keys.transpose(1, 2), -1) @ self.keys, self.total * 2, self.count * 2


SAMPLES = torch.randn(5, 1, 1, 8, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def lowered() -> tosaic.Lowered:
    return tosaic.lower(exported(Cache(), SAMPLES[0]), target=VARIABLE)


def follow(program: Any, samples: torch.Tensor) -> None:
    """Runs the program and a new torch module on the samples; their results have to agree."""
    eager = copy.deepcopy(Cache())
    for x in samples:
        for got, wanted in zip(program.run(x), eager(x), strict=True):
            np.testing.assert_allclose(got, wanted.numpy(), rtol=2e-6, atol=2e-6)


def test_runs_follow_torch_and_start_anew_after_a_reset(lowered: tosaic.Lowered) -> None:
    lowered.reset_state()
    follow(lowered, SAMPLES)
    lowered.reset_state()
    follow(lowered, SAMPLES[2:])


def test_a_variable_can_be_read_and_set(lowered: tosaic.Lowered) -> None:
    lowered.reset_state()
    assert float(lowered.session.state("total")) == 1.5
    lowered.session.set_state("total", np.float32(10))
    total = lowered.run(SAMPLES[0])[1]
    np.testing.assert_allclose(total, 2 * (10 + SAMPLES[0].sum().item()), rtol=1e-6)


def test_a_file_has_float_states_as_variables_and_integer_states_as_inputs(
    lowered: tosaic.Lowered, tmp_path: Path
) -> None:
    lowered.save(tmp_path / "cache.tosa")
    read = tosaic.load_tosa(tmp_path / "cache.tosa")
    declared = [node.attrs["name"] for node in read.graph.nodes if node.op == "tosa.variable"]
    assert declared == ["keys", "total"]
    eager = Cache()
    for count, x in enumerate(SAMPLES):
        wanted = eager(x)[0].numpy()
        results = read.run(np.int32(count), x.numpy())
        assert any(np.shape(g) == wanted.shape and np.allclose(g, wanted, atol=2e-6) for g in results)


def test_targets_without_variables_have_states_as_inputs_and_outputs(tmp_path: Path) -> None:
    lowered = tosaic.lower(exported(Cache(), SAMPLES[0]), target="TOSA-1.0+INT+FP")
    lowered.save(tmp_path / "cache.tosa")
    assert not [n for n in tosaic.load_tosa(tmp_path / "cache.tosa").graph.nodes if "variable" in n.op]
    follow(lowered, SAMPLES)
