"""Random programs with concatenations: runs with parts in place return what runs with copies return."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


class Concatenating(nn.Module):
    """Concatenations of concatenations, of values with several readers, and slices of them."""

    def __init__(self, seed: int, axis: int) -> None:
        super().__init__()
        self.seed, self.axis = seed, axis

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rng, values = random.Random(self.seed), [x.sin(), x.exp()]
        for _ in range(10):
            choice, value = rng.random(), rng.choice(values)
            if choice < 0.35 and value.numel() < 4096:
                others = [rng.choice(values) for _ in range(rng.randint(1, 3))]
                values.append(torch.cat([value, *others], self.axis))
            elif choice < 0.5:
                values.append(value.relu())
            elif choice < 0.6:
                values.append(torch.stack([value, value.neg()])[1])
            elif choice < 0.7 and value.shape[self.axis] > 1:
                values.append(value.narrow(self.axis, 0, value.shape[self.axis] // 2).cos())
            else:
                values.append(value * 2 + 1)
        return values[-1], rng.choice(values), rng.choice(values)


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_in_place_change_no_result(axis: int) -> None:
    x = torch.linspace(-1, 1, 64).reshape((4, 16) if axis == 0 else (1, 4, 16))
    parts = 0
    for seed in range(6):
        exported = torch.export.export(Concatenating(seed, axis), (x,))
        program = tosaic.from_exported(exported)
        parts += sum(each["alias"] == "part" for each in program.session.memory["values"])

        def copied(*tensors: Any) -> Any:
            return np.concatenate(tensors, axis)

        names = {node.name for node in program.graph.nodes if node.op == "cat"}
        apart = program.with_overrides(dict.fromkeys(names, copied))
        rows = apart.session.memory["values"]
        assert not any(each["alias"] == "part" and each["alias_of"] in names for each in rows)
        expected = Concatenating(seed, axis)(x)
        for found, same, torchs in zip(program.run(x), apart.run(x), expected, strict=True):
            np.testing.assert_array_equal(found, same, err_msg=f"seed {seed}")
            np.testing.assert_allclose(found, torchs.numpy(), rtol=1e-4, atol=1e-4)
        lowered = tosaic.lower(exported)
        parts += sum(each["alias"] == "part" for each in lowered.session.memory["values"])
        for found, torchs in zip(lowered.run(x), expected, strict=True):
            np.testing.assert_allclose(found, torchs.numpy(), rtol=1e-4, atol=1e-4)
    assert parts > 10
