"""Small networks by seed: a front, a place that combines its result with a number, and a reader of both.

front           place                       reader
linear(x)  ->   where(hidden, -1e9, y)  ->  amax over rows
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

__all__ = ["FRONTS", "MAGNITUDES", "PLACES", "READERS", "Program", "generate", "samples_of"]

ROWS, FEATURES = 6, 8
LARGEST = 3.4028234663852886e38
MAGNITUDES = (1e-30, 1e-3, 1.0, 30.0, 100.0, 1e3, 1e4, 1e6, 1e9, 1e20, 1e30, LARGEST)
_SHARE_OF_SEEN = 0.1  # programs in which the number may be what a reader selects

Function = Callable[..., Any]

FRONTS: dict[str, Function] = {
    "input": lambda net, x: x,
    "linear": lambda net, x: net.linear(x),
    "linear, relu": lambda net, x: torch.relu(net.linear(x)),
    "conv": lambda net, x: net.conv(x),
    "conv, silu, linear": lambda net, x: net.linear(functional.silu(net.conv(x))),
    "two linears": lambda net, x: net.second(torch.relu(net.linear(x))) + x,
}

PLACES: dict[str, Function] = {
    "where": lambda y, m, c: torch.where(m, c, y),
    "masked_fill": lambda y, m, c: y.masked_fill(m, c),
    "x + m * c": lambda y, m, c: y + m.float() * c,
    "x + where": lambda y, m, c: y + torch.where(m, c, torch.zeros(())),
    "cat": lambda y, m, c: torch.cat([y, c.expand(2, 1, FEATURES)], 1),
    "stack": lambda y, m, c: torch.stack([y, c.expand(2, ROWS, FEATURES)], 2).flatten(1, 2),
    "maximum or minimum": lambda y, m, c: torch.maximum(y, c),
    "slice_scatter": lambda y, m, c: y.slice_scatter(c.expand(2, 2, FEATURES), 1, 1, 3),
    "select_scatter": lambda y, m, c: y.select_scatter(c.expand(2, FEATURES), 1, 3),
    "index_put": lambda y, m, c: torch.index_put(y, (torch.tensor([0, 1]), torch.tensor([2, 4])), c),
    "scatter": lambda y, m, c: y.scatter(1, torch.tensor([[[3] * FEATURES]] * 2), c.expand(2, 1, FEATURES)),
    "pad": lambda y, m, c: functional.pad(y, (0, 0, 1, 1), value=c),
}
"""How a number meets a tensor; `m` is true where the number hides an element."""

_MINIMUM: Function = lambda y, m, c: torch.minimum(y, c)  # noqa: E731
_SCALARS_ONLY = frozenset(("pad",))


def _mean_of_visible(net: Any, z: Any, x: Any, m: Any) -> Any:
    seen = (~m).float()
    if z.shape[1] != ROWS:
        seen = functional.pad(seen, (0, 0, 0, z.shape[1] - ROWS))
    return (z * seen).sum(1) / seen.sum(1).clamp(min=1)


READERS: dict[str, tuple[str, Function]] = {
    "amax": ("-", lambda net, z, x, m: z.amax(1)),
    "max_pool": ("-", lambda net, z, x, m: functional.max_pool2d(z[:, None], (2, 1))),
    "relu": ("-", lambda net, z, x, m: torch.relu(z)),
    "clamp": ("+-", lambda net, z, x, m: z.clamp(-2, 2)),
    "sigmoid": ("+-", lambda net, z, x, m: torch.sigmoid(z)),
    "tanh": ("+-", lambda net, z, x, m: torch.tanh(z)),
    "silu": ("-", lambda net, z, x, m: functional.silu(z)),
    "gelu": ("-", lambda net, z, x, m: functional.gelu(z)),
    "exp": ("-", lambda net, z, x, m: torch.exp(z)),
    "softmax": ("-", lambda net, z, x, m: torch.softmax(z, 1)),
    "scaled softmax": ("-", lambda net, z, x, m: torch.softmax(z * 0.35, 1)),
    "softmax @ values": ("-", lambda net, z, x, m: torch.softmax(z, 1).transpose(1, 2) @ net.values(z)),
    "mean of visible": ("+-", _mean_of_visible),
    "amin": ("+", lambda net, z, x, m: z.amin(1)),
    "plain output": ("+-", lambda net, z, x, m: z),
    "scale, amax": ("-", lambda net, z, x, m: (z * 0.5).amax(1)),
    "amax, sigmoid": ("-", lambda net, z, x, m: torch.sigmoid(z.amax(1))),
    "relu, linear": ("-", lambda net, z, x, m: net.second(torch.relu(z))),
    "clamp, tanh": ("+-", lambda net, z, x, m: torch.tanh(z.clamp(min=-3, max=3))),
    "negate, relu": ("+", lambda net, z, x, m: torch.relu(-z)),
    "relu and amax": ("-", lambda net, z, x, m: torch.relu(z).mean(1) + z.amax(1)),
}
"""What reads the tensor, and with which sign a large number has no effect on its result."""


@dataclass(frozen=True)
class Program:
    """A network of a seed.

    Attributes
    ----------
    number : float
        The number that is combined with the tensor.
    is_input : bool
        The number is an input of the network; otherwise it is a constant.
    """

    seed: int
    front: str
    place: str
    reader: str
    number: float
    is_input: bool

    @property
    def magnitude(self) -> float:
        return abs(self.number)

    def __str__(self) -> str:
        kind = "input" if self.is_input else "constant"
        return f"{self.front} | {self.place} | {self.reader} | {kind} {self.number:.4g}"

    def network(self, number: float | None = None) -> nn.Module:
        """The network, or the same one with another number."""
        return _Network(self, self.number if number is None else number).eval()


class _Network(nn.Module):
    def __init__(self, program: Program, number: float) -> None:
        super().__init__()
        torch.manual_seed(program.seed)
        self.linear = nn.Linear(FEATURES, FEATURES)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.conv = nn.Conv1d(ROWS, ROWS, 3, padding=1)
        self.register_buffer("table", torch.randn(2, 2 * ROWS, FEATURES))
        self.program, self.number = program, number

    def values(self, z: Any) -> Any:
        return self.table[:, : z.shape[1]]

    def forward(self, x: Any, m: Any, c: Any = None) -> Any:
        program = self.program
        y = FRONTS[program.front](self, x)
        if c is None:
            c = (
                self.number
                if program.place in _SCALARS_ONLY
                else torch.tensor(self.number, dtype=torch.float32)
            )
        place = PLACES[program.place]
        if program.place == "maximum or minimum" and program.number > 0:
            place = _MINIMUM
        return READERS[program.reader][1](self, place(y, m, c), x, m)


def generate(seed: int) -> Program:
    """The program of a seed. In most programs, the reader selects no number of the sign of this one."""
    rng = np.random.default_rng(seed)

    def choice(each: Any) -> Any:
        return list(each)[int(rng.integers(len(each)))]

    front, place, reader = choice(FRONTS), choice(PLACES), choice(READERS)
    signs = READERS[reader][0] if rng.random() > _SHARE_OF_SEEN else "+-"
    magnitude = choice(MAGNITUDES)
    if reader in ("plain output", "exp", "relu and amax") and signs != "-":
        magnitude = min(magnitude, 30.0)
    if reader == "mean of visible":  # the sum of all rows is finite
        magnitude = min(magnitude, LARGEST / (2 * ROWS))
    number = magnitude if choice(signs) == "+" else -magnitude
    is_input = place not in _SCALARS_ONLY and bool(rng.random() < 0.5)
    if (front, place, reader) == ("input", "pad", "relu"):  # only moves numbers: nothing is quantized
        front = "linear"
    return Program(seed, front, place, reader, number, is_input)


def samples_of(
    program: Program, count: int, first: int = 0, number: float | None = None
) -> list[tuple[Any, ...]]:
    """Inputs of the network: in each batch entry, the mask hides some of the rows, but not all of them."""
    out = []
    for at in range(first, first + count):
        torch.manual_seed(1000 * program.seed + at)
        hidden = torch.rand(2, ROWS, 1) > 0.6
        hidden[:, at % ROWS] = False
        hidden[:, (at + 1) % ROWS] = True
        x = torch.randn(2, ROWS, FEATURES)
        c = torch.tensor(program.number if number is None else number, dtype=torch.float32)
        out.append((x, hidden, c) if program.is_input else (x, hidden))
    return out
