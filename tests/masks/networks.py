"""Attentions whose masks are spelled in the ways of real networks.

SPELLINGS how a mask of floats, integers or bools is combined with the scores VALUES the numbers that hide a
key
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

F = nn.functional
BATCH, HEADS, TOKENS, WIDTH = 2, 2, 6, 16
LEAST = torch.finfo(torch.float32).min
VALUES = {"-1e4": -1e4, "-1e9": -1e9, "finfo.min": LEAST, "-inf": float("-inf")}


@dataclass(frozen=True)
class Parts:
    """What a spelling may read."""

    scores: torch.Tensor
    mask: torch.Tensor
    bias: torch.Tensor
    value: float


def _of_padding(mask: torch.Tensor) -> torch.Tensor:
    return mask[:, None, None, :]


SPELLINGS: dict[str, tuple[str, Callable[[Parts], torch.Tensor]]] = {
    "scores + m": ("float", lambda p: p.scores + p.mask),
    "m + scores": ("float", lambda p: p.mask + p.scores),
    "scores + bias + m": ("float", lambda p: p.scores + p.bias + p.mask),
    "scores + (bias + m)": ("float", lambda p: p.scores + (p.bias + p.mask)),
    "(scores + m) / 2": ("float", lambda p: (p.scores + p.mask) / 2),
    "max(scores + m, min)": ("float", lambda p: torch.max(p.scores + p.mask, torch.tensor(LEAST))),
    "scores + m[:, None, None]": ("float padding", lambda p: p.scores + _of_padding(p.mask)),
    "scores + expand(m)": (
        "float padding",
        lambda p: p.scores + _of_padding(p.mask).expand(-1, 1, TOKENS, -1),
    ),
    "scores + (1 - m.float()) * value": (
        "int padding",
        lambda p: p.scores + (1.0 - _of_padding(p.mask).float()) * p.value,
    ),
    "scores + (1 - bool.float()) * value": (
        "bool padding",
        lambda p: p.scores + (1.0 - _of_padding(p.mask).float()) * p.value,
    ),
    "scores + zeros.masked_fill(bool, value)": (
        "bool padding",
        lambda p: p.scores + torch.zeros(BATCH, 1, 1, TOKENS).masked_fill(~_of_padding(p.mask), p.value),
    ),
    "scores.masked_fill(bool, value)": (
        "bool padding",
        lambda p: p.scores.masked_fill(~_of_padding(p.mask), p.value),
    ),
    "sdpa(attn_mask=m)": ("float", lambda p: p.mask),
    "sdpa(attn_mask=bias + m)": ("float", lambda p: p.bias + p.mask),
    "sdpa(attn_mask=(1 - m.float()) * value)": (
        "int padding",
        lambda p: (1.0 - _of_padding(p.mask).float()) * p.value,
    ),
    "sdpa(attn_mask=bool)": ("bool padding", lambda p: _of_padding(p.mask)),
}
MULTIPLIES = ("float()) * value",)


def is_defined(spelling: str, value: str) -> bool:
    """False for 0 * -inf, which is NaN."""
    return value != "-inf" or not any(each in spelling for each in MULTIPLIES)


class Attention(nn.Module):
    """A block of attention between linear layers, with a residual."""

    def __init__(self, spelling: str, value: float, constant: torch.Tensor | None = None) -> None:
        super().__init__()
        self.spelling, self.value = spelling, value
        self.before, self.qkv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.after = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(1, HEADS, TOKENS, TOKENS))
        self.constant: torch.Tensor | None
        self.register_buffer("constant", constant)
        with torch.no_grad():
            self.qkv.weight.mul_(3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        mask = self.constant if mask is None else mask
        assert mask is not None
        x = self.before(x)
        width = WIDTH // HEADS
        q, k, v = (
            each.view(BATCH, TOKENS, HEADS, width).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)
        )
        spelled = SPELLINGS[self.spelling][1]
        if self.spelling.startswith("sdpa"):
            mask = spelled(Parts(x, mask, self.bias, self.value))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = q @ k.transpose(-1, -2) / width**0.5
            y = spelled(Parts(scores, mask, self.bias, self.value)).softmax(-1) @ v
        return x + self.after(y.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))


def network(spelling: str, value: float, constant: torch.Tensor | None = None) -> nn.Module:
    """Returns the attention, with the same weights for each spelling."""
    torch.manual_seed(0)
    return Attention(spelling, value, constant).eval()


def masks(spelling: str, value: float, count: int, seed: int = 5) -> list[torch.Tensor]:
    """Returns masks of the spelling's kind, causal with padding or padding alone. No row hides all keys."""
    generator = torch.Generator().manual_seed(seed)
    kind = SPELLINGS[spelling][0]
    found = []
    for _ in range(count):
        lengths = torch.randint(2, TOKENS + 1, (BATCH, 1), generator=generator)
        seen = torch.arange(TOKENS)[None] < lengths
        if kind == "int padding":
            found.append(seen.long())
        elif kind == "bool padding":
            found.append(seen)
        elif kind == "float padding":
            found.append(torch.zeros(BATCH, TOKENS).masked_fill(~seen, value))
        else:
            causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
            found.append(
                torch.zeros(BATCH, 1, TOKENS, TOKENS).masked_fill(~(seen[:, None, None] & causal), value)
            )
    return found


def without_padding(spelling: str) -> torch.Tensor:
    """Returns the mask of a batch in which all keys are seen."""
    kind = SPELLINGS[spelling][0]
    if kind == "int padding":
        return torch.ones(BATCH, TOKENS, dtype=torch.int64)
    if kind == "bool padding":
        return torch.ones(BATCH, TOKENS, dtype=torch.bool)
    return torch.zeros((BATCH, TOKENS) if kind == "float padding" else (BATCH, 1, TOKENS, TOKENS))


def images(count: int, seed: int = 1) -> list[torch.Tensor]:
    """Returns what the attentions read in addition to masks."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(BATCH, TOKENS, WIDTH, generator=generator) for _ in range(count)]


def samples_of(xs: Sequence[torch.Tensor], hiding: Sequence[torch.Tensor] | None) -> list[tuple[Any, ...]]:
    """Returns the arguments of calls: with masks, or without if the mask is a constant."""
    return [(x,) for x in xs] if hiding is None else list(zip(xs, hiding, strict=True))
