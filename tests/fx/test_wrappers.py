"""Graphs in wrappers, such as ``with torch.no_grad():``, are read as calls of the graph around them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(8, 8)
        self.register_buffer("h", torch.zeros(2, 8))
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))


class InPlace(Stateful):
    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        with torch.no_grad():
            self.h.mul_(0.9).add_(y)
            self.n.add_(1)
        return self.h * 2, self.n.clone()


class Nested(Stateful):
    """The inner wrapper writes a part of what the outer one wrote, and the outer one reads it."""

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.h.copy_(x)
            view = self.h[:, 2:]
            with torch.enable_grad():
                view[0].add_(1)
                y = self.h.sum(1)
            z = view * 2
        return y, z, self.h.clone()


class Local(Stateful):
    """A wrapper writes what was computed in front of it, through a view, and a result is read after it."""

    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        part = y[:, :4]
        with torch.no_grad():
            part.relu_()
            z = y + 1
        return y * z


class Input(Stateful):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            x[:, 1:3].mul_(2)
        return self.a(x)


class Reshaped(Stateful):
    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        with torch.no_grad():
            y.unsqueeze_(0)
            z = y.sum(0)
        return y + z


class OneResult(Stateful):
    """Each wrapper has an operand and a result that are the same tensor."""

    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        with torch.no_grad():
            z = y.detach()
            z.add_(1)
        return y, z


MODULES = [InPlace, Nested, Local, Input, Reshaped, OneResult]


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("door", ["program", "file"])
def test_what_a_wrapper_writes_is_seen_around_it(kind: Any, door: str, tmp_path: Path) -> None:
    module = kind().eval()
    generator = torch.Generator().manual_seed(1)
    samples = [torch.randn(2, 8, generator=generator) for _ in range(3)]
    exported = torch.export.export(copy.deepcopy(module), (samples[0],))
    assert any("wrap_with" in str(node.target) for node in exported.graph.nodes)
    if door == "file":
        torch.export.save(exported, tmp_path / "m.pt2")
        program = tosaic.open_program(tmp_path / "m.pt2")
    else:
        program = tosaic.from_exported(exported)
    for x in samples:
        ours, theirs = x.clone(), x.clone()
        found = program.run(ours)
        with torch.no_grad():
            wanted = module(theirs)
        both = zip(*(torch.utils._pytree.tree_leaves(each) for each in (found, wanted)), strict=True)
        for one, two in both:
            np.testing.assert_allclose(np.asarray(one), two.numpy(), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)


def test_calls_of_a_wrapper_have_its_path_and_their_module() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Any:
            with torch.no_grad():
                y = self.inner(x)
            return y + 1

    exported = torch.export.export(Outer().eval(), (torch.zeros(2, 8),))
    program = tosaic.from_exported(exported)
    (linear,) = [node for node in program.graph.nodes if node.op == "linear"]
    assert linear.origins[0].fx_name == "submod_1.linear"
    config = tosaic.QConfig.int8().set(None, type="Linear")
    quantized = tosaic.quantize(exported, [(torch.randn(2, 8),)], config=config, progress=False)
    assert "submod_1.linear" in [row.node for row in quantized.quantization.left_float]
