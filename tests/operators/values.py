"""Tensors and calls as data. A case is printed as the expression that creates it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

__all__ = ["Case", "T", "call", "tensors_of"]

TORCH = {
    "bool": torch.bool,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
NARROW = ("f16", "bf16")
FLOATS = ("f32", "f16", "bf16", "f64")


@dataclass(frozen=True)
class T:
    """A tensor. Its elements are a function of these fields.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
    kind : str or list of numbers
        The kind of values (`_floats`, `_integers`), or ``range``. A list has the elements themselves, which
        are repeated as often as needed.
    seed : int
    low, high : int
        For kind ``range``: integers from `low` to `high` - 1.
    const : bool
        The tensor is a buffer of the module instead of an input.
    order : str
        ``last``: channels last in memory (ranks 4 and 5).
    """

    shape: tuple[int, ...]
    dtype: str = "f32"
    kind: Any = "normal"
    seed: int = 0
    low: int = 0
    high: int = 0
    const: bool = False
    order: str = ""

    def __repr__(self) -> str:
        text = f"T({self.shape}, {self.dtype!r}"
        for name in ("kind", "seed", "low", "high", "const", "order"):
            value = getattr(self, name)
            if value != self.__dataclass_fields__[name].default:
                text += f", {name}={value!r}"
        return text + ")"

    def tensor(self) -> torch.Tensor:
        """Returns a new torch tensor with these elements."""
        dtype = TORCH[self.dtype]
        count = int(np.prod(self.shape, dtype=np.int64))
        rng = np.random.default_rng([self.seed, zlib.crc32(str(self.kind).encode())])
        if not isinstance(self.kind, str):
            found = torch.tensor(np.resize(np.asarray(self.kind), count).tolist()).to(dtype)
        elif self.kind == "range":
            found = torch.tensor(rng.integers(self.low, self.high, count)).to(dtype)
        elif self.dtype == "bool":
            found = torch.tensor(rng.random(count) < 0.5)
        elif self.dtype in FLOATS:
            found = torch.tensor(_floats(self.kind, rng, count, dtype)).to(dtype)
        else:
            found = torch.tensor(_integers(self.kind, rng, count, dtype)).to(dtype)
        found = found.reshape(self.shape)
        if self.order == "last" and found.dim() in (4, 5):
            last = torch.channels_last if found.dim() == 4 else torch.channels_last_3d
            found = found.contiguous(memory_format=last)
        return found


def _floats(kind: str, rng: np.random.Generator, count: int, dtype: torch.dtype) -> Any:
    info = torch.finfo(dtype)
    normal = rng.standard_normal(count) * 2
    if kind == "normal":
        return normal
    if kind == "unit":
        return rng.uniform(-1, 1, count)
    if kind == "positive":
        return rng.uniform(0.1, 4, count)
    if kind == "ties":
        return rng.integers(-8, 8, count) + 0.5
    if kind == "integers":
        return rng.integers(-8, 9, count).astype(np.float64)
    if kind == "small":
        return normal * 10.0 ** -rng.integers(1, 6, count)
    if kind == "tiny":
        scale = np.where(rng.random(count) < 0.5, info.smallest_normal, info.tiny * info.eps * 4)
        return rng.uniform(-2, 2, count) * scale
    if kind == "huge":
        return rng.choice([-1.0, 1.0], count) * rng.uniform(0.2, 1, count) * info.max
    if kind == "wide":
        top = int(np.log2(info.max))
        return rng.choice([-1.0, 1.0], count) * 2.0 ** rng.uniform(-top, top, count)
    if kind == "medium":
        return rng.uniform(-100, 100, count)
    odd = {"nan": [np.nan], "inf": [np.inf, -np.inf]}.get(kind)
    if odd is None:
        assert kind == "special", kind
        odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, info.max, info.min, info.tiny, -info.tiny / 2]
    return np.where(rng.random(count) < (0.6 if kind == "special" else 0.2), rng.choice(odd, count), normal)


def _integers(kind: str, rng: np.random.Generator, count: int, dtype: torch.dtype) -> Any:
    info = torch.iinfo(dtype)
    low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
    if kind in ("positive", "unit", "small"):
        return rng.integers(1, 9, count)
    if kind in ("special", "nan", "inf", "huge", "tiny"):
        return rng.choice([low, high, 0, 1, max(low, -1)], count)
    if kind == "wide":
        return rng.integers(low, high, count, endpoint=True)
    return rng.integers(max(low, -8), 9, count)


@dataclass(frozen=True)
class Case:
    """One call of one overload.

    Attributes
    ----------
    name : str
        The overload.
    args, kwargs : tuple and dict
        The arguments, with `T` for tensors.
    keep : tuple of int, optional
        The indices of the results that are used. None: all.
    hostile : bool
        An attribute was made wrong on purpose: torch, or our code, may refuse the call.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    keep: tuple[int, ...] | None = None
    hostile: bool = False

    def map(self, change: Callable[[T], Any]) -> Case:
        """Returns the same call with every tensor replaced by `change` of it."""
        args, kwargs = pytree.tree_map_only(T, change, (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs)

    def __repr__(self) -> str:
        parts = [repr(self.name), repr(self.args)]
        parts += [f"{k}={getattr(self, k)!r}" for k in ("kwargs", "keep", "hostile") if getattr(self, k)]
        return f"Case({', '.join(parts)})"


def tensors_of(case: Case) -> list[T]:
    """Returns the tensors of a call, in the order of its arguments."""
    return [leaf for leaf in pytree.tree_leaves((case.args, case.kwargs)) if isinstance(leaf, T)]


def call(case: Case, function: Callable[..., Any], tensors: Any) -> list[torch.Tensor]:
    """Calls `function` with these tensors (in order) and returns the tensor results that the case uses."""
    given = iter(tensors)
    args, kwargs = pytree.tree_map_only(T, lambda _: next(given), (case.args, case.kwargs))
    results = function(*args, **kwargs)
    results = list(results) if isinstance(results, list | tuple) else [results]
    kept = results if case.keep is None else [results[i] for i in case.keep]
    return [result for result in kept if isinstance(result, torch.Tensor)]
