"""Concatenations in place: runs with parts return the bytes of runs in which no two results share memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic import _core

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

THREADS = (1, 3)


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


def _parts(graph: _core.Graph) -> set[str]:
    return {row["name"] for row in _core.Session(graph).memory["values"] if row["alias"] == "part"}


def _same_bytes(graph: _core.Graph, inputs: Sequence[Any], *, runs: int = 1) -> list[Any]:
    """Runs a graph in all ways; returns the outputs of the last run."""
    apart = _core.Session(graph, share_memory=False)
    together = [_core.Session(graph, threads=threads, share_all=True) for threads in THREADS]
    expected: list[Any] = []
    for _ in range(runs):
        given = [np.array(each) for each in inputs]
        expected = apart.run(given)
        for session in together:
            for found, each in zip(session.run(given), expected, strict=True):
                assert found.tobytes() == each.tobytes()
        for each, before in zip(given, inputs, strict=True):
            assert each.tobytes() == np.asarray(before).tobytes(), "an input of the caller was changed"
    for session in together:  # each node by itself, without kernels that compute several
        for each in (session, apart):
            each.reset_state()
        values = apart.trace(inputs)["values"]
        for name, found in session.trace(inputs)["values"].items():
            assert found.tobytes() == values.pop(name).tobytes(), name
        assert not values
    return expected


@pytest.mark.parametrize("axis", [0, 1])
def test_random_programs_return_the_same_bytes(axis: int) -> None:
    x = torch.linspace(-1, 1, 64).reshape((4, 16) if axis == 0 else (1, 4, 16))
    parts = 0
    for seed in range(12):
        exported = torch.export.export(Concatenating(seed, axis), (x,))
        expected = Concatenating(seed, axis)(x)
        for graph in (tosaic.from_exported(exported).graph, tosaic.lower(exported).graph):
            parts += len(_parts(graph))
            for found, torchs in zip(_same_bytes(graph, [x.numpy()]), expected, strict=True):
                np.testing.assert_allclose(found, torchs.numpy(), rtol=1e-4, atol=1e-4, err_msg=f"{seed}")
    assert parts > 30


class Inputs(nn.Module):
    """Inputs and constants among the operands, which stay where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(32.0).reshape(2, 16))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y.sin(), self.table, y, x.reshape(2, 16)]) * 2


class Twice(nn.Module):
    """One value twice in a concatenation, and once more through a view."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = x.sin()
        return torch.cat([a, y.cos(), a, a.reshape(2, 16)])


class Returned(nn.Module):
    """A part, the whole, a slice of the whole and what is computed from it, all returned."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.sin(), y.cos()
        whole = torch.cat([a, b])
        return a, whole, whole[2:], whole.relu(), b.reshape(-1)


class Nested(nn.Module):
    """A concatenation of concatenations, parts of which are read after it, and slices of it."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, c = x.sin(), y.cos(), x.exp()
        inner = torch.cat([a, b])
        outer = torch.cat([c, inner, torch.cat([y.tanh(), x.neg()])])
        return outer.relu(), inner + 1, torch.cat([outer[2:6].abs(), b * a])


class Overwritten(nn.Module):
    """The whole may be overwritten by the next node, but a part is read after that."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = x.sin(), y.cos()
        return torch.cat([a, b]).relu().neg() + torch.cat([b, a])


class Fused(nn.Module):
    """Chains that one kernel computes. The last result of a chain is a part of a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.a(x).relu(), x.sin(), self.b(x).clamp(-1, 1)], 1).exp()


class Branching(nn.Module):
    """Branches that return concatenations, and a concatenation of what branches return."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def larger(v: torch.Tensor) -> torch.Tensor:
            return torch.cat([v.sin(), v.cos()])

        def smaller(v: torch.Tensor) -> torch.Tensor:
            return torch.cat([v.exp(), v.clone()])

        one = torch.cond(x.sum() > 0, larger, smaller, (x,))
        return torch.cat([one, torch.cond(y.sum() > 0, larger, smaller, (y,)), y.neg()])


class Looping(nn.Module):
    """A loop that rotates its rows by a concatenation, and returns a concatenation of what it carries."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def body(i: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return i + 1, torch.cat([v[1:] * 2, w[:1].sin()]), torch.cat([w[1:], v[:1].cos()])

        loop = torch._higher_order_ops.while_loop
        _, v, w = loop(lambda i, _v, _w: i < 3, body, (torch.zeros((), dtype=torch.int64), x, y))
        return torch.cat([v, w, v + w])


class Cached(nn.Module):
    """A state that takes the newest row and drops the oldest."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 16))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        old = self.cache.clone()
        self.cache.copy_(torch.cat([old[1:], x[:1].sin()]))
        return torch.cat([old.cos(), self.cache, y.exp()])


ROWS = torch.linspace(-1, 1, 32).reshape(2, 16), torch.linspace(2, -1, 32).reshape(2, 16)
IMAGE = (torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8),)


@pytest.mark.parametrize(
    ("model", "arrays", "parts"),
    [
        (Inputs, ROWS, 1),
        (Twice, ROWS, 2),
        (Returned, ROWS, 0),
        (Nested, ROWS, 5),
        (Overwritten, ROWS, 0),
        (Fused, IMAGE, 3),
        (Branching, ROWS, 3),
        (Looping, ROWS, 3),
        (Cached, ROWS, 2),
    ],
)
def test_programs_return_the_same_bytes(model: Any, arrays: tuple[torch.Tensor, ...], parts: int) -> None:
    exported = torch.export.export(model(), arrays)
    program = tosaic.from_exported(exported)
    assert len(_parts(program.graph)) >= parts
    torchs = model()
    for _ in range(3):
        expected = torchs(*arrays)
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = _same_bytes(program.graph, [each.numpy() for each in arrays], runs=3)
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, wanted.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_quantized_programs_return_the_same_bytes() -> None:
    program = tosaic.quantize(torch.export.export(Fused(), IMAGE), [IMAGE])
    graph = tosaic.lower(program, target="TOSA-1.0+INT").graph
    assert _parts(graph)
    _same_bytes(graph, [IMAGE[0].numpy()])


def test_an_override_of_a_concatenation_copies() -> None:
    program = tosaic.from_exported(torch.export.export(Nested(), ROWS))
    names = {node.name for node in program.graph.nodes if node.op == "cat"}
    apart = program.with_overrides(dict.fromkeys(names, lambda *each: np.concatenate(each)))
    rows = apart.session.memory["values"]
    assert not any(each["alias"] == "part" for each in rows)
    for found, same in zip(program.run(*ROWS), apart.run(*ROWS), strict=True):
        np.testing.assert_array_equal(found, same)


def test_an_override_may_compute_a_part() -> None:
    program = tosaic.from_exported(torch.export.export(Nested(), ROWS))
    apart = program.with_overrides({"cos": np.cos, "exp": np.exp})
    assert any(each["alias"] == "part" for each in apart.session.memory["values"])
    for found, same in zip(apart.run(*ROWS), program.run(*ROWS), strict=True):
        np.testing.assert_allclose(found, same, rtol=1e-6)


def test_a_profile_counts_only_what_is_copied() -> None:
    program = tosaic.from_exported(torch.export.export(Inputs(), ROWS))
    steps = {each["nodes"][0].name: each for each in program.session.profiled_steps}
    row = 2 * 16 * 4  # one of the five operands is in place, and one occurs twice
    assert (steps["cat"]["bytes_read"], steps["cat"]["bytes_written"]) == (4 * row, 4 * row)
