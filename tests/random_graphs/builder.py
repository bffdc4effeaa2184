"""Builds a program step by step: picks operands, evaluates each candidate step and accepts it if it is sound.

A step is accepted if

- its values are finite and not too large,
- its float32 and float64 values agree within the noise,
- the noise is small compared with its values, and
- all discontinuous results (integers, bools, results of `stepped` steps) are equal in all variants, including
  those with much more noise, so that no result depends on a near tie.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from random_graphs.programs import NEAR, Evaluation, Leaf, RandomProgram, Step

MAX_ELEMENTS = 2048
MAX_FLOAT = 1e4
MAX_INTEGER = 2**20
MAX_NOISE = 1e-3  # as a share of the largest magnitude


class Unfit(Exception):
    """The row has no sound step for the program as it is. The generator tries another row."""


@dataclass(frozen=True)
class Info:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    low: float
    high: float

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class Builder:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.evaluation = Evaluation(seed)
        self.leaves: list[Leaf] = []
        self.steps: list[Step] = []
        self.infos: dict[str, Info] = {}
        self.used: set[str] = set()

    # ---- leaves ----

    def leaf(self, kind: str, dtype: torch.dtype, shape: Sequence[int], low: float, high: float) -> Info:
        prefix = "x" if kind == "input" else "w"
        count = sum(leaf.kind == kind for leaf in self.leaves)
        leaf = Leaf(f"{prefix}{count}", kind, dtype, tuple(shape), low, high)
        self.leaves.append(leaf)
        self.evaluation.add_leaf(leaf)
        return self._note(leaf.name)

    def param(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Info:
        return self.leaf("parameter", torch.float32, shape, low, high)

    def int_param(self, *shape: int, low: int = -9, high: int = 9, dtype: torch.dtype = torch.int64) -> Info:
        return self.leaf("parameter", dtype, shape, low, high)

    def _note(self, name: str) -> Info:
        value = self.evaluation.values[name][1]
        bounds = (value.min().item(), value.max().item()) if value.numel() else (0.0, 0.0)
        dtype = torch.float32 if value.dtype.is_floating_point else value.dtype
        info = Info(name, dtype, tuple(value.shape), float(bounds[0]), float(bounds[1]))
        self.infos[name] = info
        return info

    # ---- steps ----

    def add(
        self,
        template: str,
        *operands: Info,
        exact: bool = False,
        stepped: bool = False,
        inner: str = "",
        results: int = 0,
    ) -> Info:
        """Adds a step and returns its first result, or raises Unfit if the step is not sound.

        `results` is the number of results if the call returns a tuple, otherwise 0.
        """
        first = sum(len(step.results) for step in self.steps)
        names = tuple(f"v{first + i}" for i in range(max(results, 1)))
        step = Step(names, template, tuple(o.name for o in operands), exact, stepped, inner, results > 0)
        values = self.evaluation.of_step(step)
        for per_variant in values:
            reason = self._unsound(per_variant, stepped)
            if reason:
                raise Unfit(reason)
        self.steps.append(step)
        self.used.update(step.operands)
        for name, per_variant in zip(names, values, strict=True):
            self.evaluation.values[name] = per_variant
            self._note(name)
        return self.infos[names[0]]

    def _unsound(self, variants: list[torch.Tensor], stepped: bool) -> str:
        f32, f64, noisy = variants[0], variants[1], variants[2:]
        if not 0 < f64.numel() <= MAX_ELEMENTS:
            return "size"
        if f64.dim() > 5:
            return "rank"
        if any(value.shape != f64.shape for value in variants):
            return "shape"
        if not f64.dtype.is_floating_point:
            if f64.dtype is not torch.bool and int(f64.abs().max()) > MAX_INTEGER:
                return "large"
            return "" if all(torch.equal(value, f64) for value in (f32, *noisy)) else "near a tie"
        if f64.dtype is not torch.float64 or f32.dtype is not torch.float32:
            return "dtype"
        if not all(bool(torch.isfinite(value).all()) for value in variants):
            return "not finite"
        largest = float(f64.abs().max())
        if largest > MAX_FLOAT:
            return "large"
        if stepped and not all(torch.equal(value, f64) for value in (f32.double(), *noisy)):
            return "near a tie"
        noise = max(float((value - f64).abs().max()) for value in noisy)
        if noise > MAX_NOISE * largest:
            return "drowned in noise"
        near = torch.stack([(value - f64).abs() for value in noisy[: len(NEAR)]]).amax(0)
        if bool(((f32.double() - f64).abs() > 4 * near + 1e-6 * (largest + 1e-30)).any()):
            return "float32 and float64 differ"
        return ""

    # ---- picking ----

    def pick(self, fits: Callable[[Info], bool]) -> Info:
        """Returns a random value for which `fits` returns true.

        Recent values and unused values are more likely. Parameters are not picked. Raises Unfit if there is
        no such value.
        """
        found = [info for info in self.infos.values() if not info.name.startswith("w") and fits(info)]
        if not found:
            raise Unfit("no operand")
        weights = [
            (3.0 if info.name not in self.used else 1.0) * (1 + i / len(found))
            for i, info in enumerate(found)
        ]
        return self.rng.choices(found, weights)[0]

    def floats(self, low_rank: int = 0, high_rank: int = 5, most: int = MAX_ELEMENTS) -> Info:
        return self.pick(
            lambda v: v.dtype is torch.float32 and low_rank <= v.rank <= high_rank and v.numel <= most
        )

    def ints(self, low_rank: int = 0) -> Info:
        return self.pick(lambda v: v.dtype in (torch.int64, torch.int32) and v.rank >= low_rank)

    def bools(self, low_rank: int = 0) -> Info:
        return self.pick(lambda v: v.dtype is torch.bool and v.rank >= low_rank)

    def anything(self, low_rank: int = 0) -> Info:
        """Returns a value of any dtype, mostly a float."""
        if self.rng.random() < 0.75:
            return self.floats(low_rank)
        return self.pick(lambda v: v.rank >= low_rank)

    def of_rank(self, rank: int) -> Info:
        """Returns a float of this rank; sometimes, or if there is none, a reshaped float of another rank."""
        try:
            if self.rng.random() < 0.8:
                return self.floats(rank, rank)
        except Unfit:
            pass
        source = self.floats(most=512)
        return self.add(f"{{0}}.reshape({self.factors(source.numel, rank)})", source, exact=True)

    def factors(self, count: int, rank: int) -> list[int]:
        """Returns the extents of a random shape of this rank with `count` elements."""
        extents = [1] * rank
        for prime in _primes(count):
            if rank:
                extents[self.rng.randrange(rank)] *= prime
        if math.prod(extents) != count:
            raise Unfit("no such shape")
        return extents

    def positive(self, low: float = 0.05) -> Info:
        """Returns a float whose elements are at least `low` and at most 100."""
        try:
            if self.rng.random() < 0.5:
                return self.pick(lambda v: v.dtype is torch.float32 and v.low >= low and v.high <= 100)
        except Unfit:
            pass
        source = self.floats()
        return self.add(self.rng.choice(["torch.sigmoid({0}) + 0.25", "{0}.abs().clamp(0.25, 20)"]), source)

    def bounded(self, size: float) -> Info:
        """Returns a float whose elements are in [-size, size]."""
        try:
            return self.pick(lambda v: v.dtype is torch.float32 and max(-v.low, v.high) <= size)
        except Unfit:
            return self.add(f"torch.tanh({{0}}) * {size / 2}", self.floats())

    def partner(self, x: Info, low: float = -2.0, high: float = 2.0) -> Info:
        """Returns a value or parameter of the program that has the dtype of `x` and broadcasts with it."""
        try:
            if self.rng.random() < 0.7:
                return self.pick(
                    lambda v: (
                        v.dtype is x.dtype
                        and v.name != x.name
                        and v.low >= low * 1e3
                        and v.high <= high * 1e3
                        and _broadcasts(v.shape, x.shape)
                    )
                )
        except Unfit:
            pass
        shape = [1 if self.rng.random() < 0.3 else extent for extent in x.shape]
        shape = shape[self.rng.randint(0, len(shape)) :] if self.rng.random() < 0.3 else shape
        if x.dtype.is_floating_point:
            return self.param(*shape, low=low, high=high)
        return self.leaf("parameter", x.dtype, shape, -9, 9)

    def index(self, extent: int, *shape: int) -> Info:
        """Returns indices into an axis of this extent: a parameter, an input, or clamped integers."""
        roll = self.rng.random()
        if roll < 0.4:
            return self.int_param(*shape, low=0, high=extent - 1)
        if roll < 0.7:
            return self.leaf("input", torch.int64, shape, 0, extent - 1)
        count = math.prod(shape)
        source = self.pick(lambda v: v.dtype is torch.int64 and v.numel >= count)
        return self.add(
            f"{{0}}.flatten()[:{count}].clamp(0, {extent - 1}).reshape({list(shape)})", source, exact=True
        )

    def axis(self, x: Info) -> int:
        """Returns a random axis of `x`, positive or negative."""
        if x.rank == 0:
            return self.rng.choice([0, -1])
        return self.rng.randrange(-x.rank, x.rank)

    def axes(self, x: Info, least: int = 1) -> list[int]:
        if x.rank < least:
            raise Unfit("rank")
        return sorted(self.rng.sample(range(x.rank), self.rng.randint(least, x.rank)))

    def number(self, low: float = -2.0, high: float = 2.0) -> float:
        return round(self.rng.uniform(low, high), 3)

    def flag(self) -> bool:
        return self.rng.random() < 0.5

    # ---- the whole ----

    def program(self, outputs: Sequence[str]) -> RandomProgram:
        return RandomProgram(self.seed, tuple(self.leaves), tuple(self.steps), tuple(outputs)).pruned()

    def snapshot(self) -> tuple[int, int]:
        return len(self.leaves), len(self.steps)

    def rollback(self, mark: tuple[int, int]) -> None:
        """Removes the leaves and steps that were added since `snapshot` returned `mark`."""
        for leaf in self.leaves[mark[0] :]:
            del self.infos[leaf.name]
        for step in self.steps[mark[1] :]:
            for name in step.results:
                del self.infos[name]
        del self.leaves[mark[0] :]
        del self.steps[mark[1] :]


def _primes(count: int) -> list[int]:
    found = []
    for divisor in (2, 3, 5, 7, 11, 13):
        while count % divisor == 0:
            found.append(divisor)
            count //= divisor
    return found if count == 1 else [*found, count]


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))
