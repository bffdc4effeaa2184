"""Paths between tensors of one memory: reads and writes along a path equal torch's, through views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from tosaic.torch_operators.memory_regions import Region, in_memory
from tosaic.torch_operators.view_paths import path_between


class Arrays:
    """Moves arrays, and counts the movements."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        self.made.append("reshape")
        return x.reshape(shape)

    def permute(self, x: Any, perm: Sequence[int]) -> Any:
        self.made.append("permute")
        return x.transpose(perm)

    def expand(self, x: Any, shape: Sequence[int]) -> Any:
        self.made.append("expand")
        return np.broadcast_to(x, shape)

    def slice(self, x: Any, axis: int, start: int, end: int, step: int = 1) -> Any:
        self.made.append("slice")
        assert 0 <= start < end <= x.shape[axis]
        return x[(slice(None),) * axis + (slice(start, end, step),)]

    def slice_scatter(self, x: Any, source: Any, axis: int, start: int, end: int, step: int) -> Any:
        self.made.append("slice_scatter")
        made = x.copy()
        made[(slice(None),) * axis + (slice(start, end, step),)] = source
        return made

    def take(self, x: Any, axis: int, indices: Any) -> Any:
        self.made.append("take")
        return np.take(x, indices, axis)

    def put(self, x: Any, indices: Any, source: Any) -> Any:
        self.made.append("put")
        assert len(set(indices.tolist())) == len(indices)
        made = x.copy()
        made[indices] = source
        return made


def region(tensor: torch.Tensor) -> Region:
    return in_memory("memory", tensor.dtype, 4, tensor.shape, tensor.stride(), tensor.storage_offset())


def assert_follows(outer: torch.Tensor, inner: torch.Tensor) -> tuple[list[str], bool]:
    """Compares a read and a write. Returns the movements of the read, and if there is a path to write."""
    path = path_between(region(outer), region(inner))
    assert path is not None
    moves = Arrays()
    np.testing.assert_array_equal(path.read(moves, outer.numpy()), inner.numpy())
    writing = path_between(region(outer), region(inner), is_written=True)
    if writing is not None:
        new = np.arange(1000, 1000 + inner.numel(), dtype=np.float32).reshape(inner.shape)
        found = writing.write(Arrays(), outer.numpy().copy(), new)
        inner.copy_(torch.from_numpy(new))
        np.testing.assert_array_equal(found, outer.numpy())
    return moves.made, writing is not None


def _slice(x: torch.Tensor, random: Random) -> torch.Tensor:
    axis = random.randrange(x.dim())
    start = random.randrange(x.shape[axis])
    return x.narrow(axis, start, random.randint(1, x.shape[axis] - start))


def _step(x: torch.Tensor, random: Random) -> torch.Tensor:
    axis = random.randrange(x.dim())
    return x[(slice(None),) * axis + (slice(random.randrange(x.shape[axis]), None, random.randint(2, 3)),)]


def _select(x: torch.Tensor, random: Random) -> torch.Tensor:
    axis = random.randrange(x.dim())
    return x.select(axis, random.randrange(x.shape[axis]))


def _transpose(x: torch.Tensor, random: Random) -> torch.Tensor:
    return x.permute(random.sample(range(x.dim()), x.dim()))


def _reshape(x: torch.Tensor, random: Random) -> torch.Tensor:
    """Splits, merges, or makes the tensor flat, if that is a view."""
    shape, axis = list(x.shape), random.randrange(x.dim())
    factors = [n for n in range(1, shape[axis] + 1) if shape[axis] % n == 0]
    split = random.choice(factors)
    wanted = [
        [*shape[:axis], split, shape[axis] // split, *shape[axis + 1 :]],
        [*shape[:axis], -1, *shape[axis + 2 :]] if axis + 1 < len(shape) else shape,
        [-1],
    ]
    try:
        return x.view(random.choice(wanted))
    except RuntimeError:
        return x


def _diagonal(x: torch.Tensor, random: Random) -> torch.Tensor:
    if x.dim() < 2:
        return x
    a, b = random.sample(range(x.dim()), 2)
    return x.diagonal(random.randint(-1, 1), a, b)


def _unfold(x: torch.Tensor, random: Random) -> torch.Tensor:
    axis = random.randrange(x.dim())
    size = random.randint(1, x.shape[axis])
    return x.unfold(axis, size, random.randint(1, 3))


def _unsqueeze(x: torch.Tensor, random: Random) -> torch.Tensor:
    return x.unsqueeze(random.randint(0, x.dim()))


def _expand(x: torch.Tensor, random: Random) -> torch.Tensor:
    return x.expand(random.randint(1, 3), *x.shape) if x.dim() < 5 else x


VIEWS: list[Callable[[torch.Tensor, Random], torch.Tensor]] = [
    _slice,
    _step,
    _select,
    _transpose,
    _reshape,
    _diagonal,
    _unfold,
    _unsqueeze,
    _expand,
]


def _first(random: Random) -> torch.Tensor:
    """A tensor of dense, transposed or sliced memory."""
    shape = [random.randint(1, 6) for _ in range(random.randint(1, 4))]
    kind = random.randrange(4)
    if kind == 0:
        return torch.empty(shape[::-1]).permute(*range(len(shape) - 1, -1, -1))
    if kind == 1:
        return torch.empty([2 * n + 1 for n in shape])[tuple(slice(1, 2 * n + 1, 2) for n in shape)]
    if kind == 2:
        return torch.empty([n + 2 for n in shape])[tuple(slice(1, n + 1) for n in shape)]
    return torch.empty(shape)


@pytest.mark.parametrize("seed", range(8))
def test_chains_of_views_are_read_and_written_as_by_torch(seed: int) -> None:
    random = Random(seed)
    tried = written = 0
    for _ in range(400):
        outer = _first(random)
        outer.copy_(torch.arange(outer.numel(), dtype=torch.float32).reshape(outer.shape))
        inner = outer
        for _ in range(random.randint(1, 5)):
            if inner.dim() and inner.numel():
                inner = random.choice(VIEWS)(inner, random)
        if inner.numel():
            repeats = len(np.unique(inner.numpy())) < inner.numel()
            _, has_path = assert_follows(outer, inner)
            assert not (repeats and has_path)
            tried += not repeats
            written += has_path
    assert 0.95 * tried < written <= tried


def _view(x: torch.Tensor, random: Random) -> torch.Tensor:
    return random.choice(VIEWS[:5])(x, random) if x.dim() else x


@pytest.mark.parametrize("seed", range(4))
def test_a_part_of_a_part_is_found_or_lies_outside(seed: int) -> None:
    """A view is a view of another view of its tensor exactly if all its elements are in the other view."""
    random = Random(seed)
    inside = 0
    for _ in range(400):
        base = torch.arange(60.0).reshape(random.choice([(3, 4, 5), (6, 10), (60,), (2, 5, 6)]))
        a, b = _view(_view(base, random), random), _view(_view(base, random), random)
        path = path_between(region(a), region(b))
        found = np.isin(b.numpy(), a.numpy())
        contained = bool(found.all())
        assert (path is not None) == contained
        assert region(a).overlaps(region(b)) == bool(found.any())
        if contained:
            inside += 1
            assert_follows(a, b)
    assert inside > 40


NATURAL: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[str]]] = {
    "a row": (lambda x: x[1], ["slice", "reshape"]),
    "a column": (lambda x: x[:, 2], ["slice", "reshape"]),
    "rows": (lambda x: x[1:3], ["slice"]),
    "a window": (lambda x: x[1:3, 2:5], ["slice", "slice"]),
    "every second column": (lambda x: x[:, ::2], ["slice"]),
    "transposed": (lambda x: x.t(), ["permute"]),
    "flat": (lambda x: x.view(-1), ["reshape"]),
    "a part of the flat one": (lambda x: x.view(-1)[3:10], ["reshape", "slice"]),
    "a diagonal": (lambda x: x[:, :4].diagonal(), ["reshape", "slice"]),
    "a head": (lambda x: x.view(4, 2, 3)[:, 1], ["slice"]),
    "heads": (lambda x: x.view(4, 2, 3).transpose(0, 1)[1:], ["slice", "reshape"]),
}


@pytest.mark.parametrize("name", NATURAL)
def test_a_plain_view_is_read_by_few_movements(name: str) -> None:
    view, expected = NATURAL[name]
    x = torch.arange(24.0).reshape(4, 6)
    made, is_written = assert_follows(x, view(x))
    assert made == expected
    assert is_written
