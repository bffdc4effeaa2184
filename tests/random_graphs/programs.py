"""A random program as data: leaves (inputs and parameters), steps (one torch call each) and outputs.

    x0 = draw("x0", torch.float32, (2, 3), -2, 2)         a leaf: input or parameter
    v0 = torch.softmax(x0, 1)                             a step

Each step is evaluated in several *variants*: torch eager in float32, the same in float64, and float64 with
noise. The noise models rounding (the backward error model). In every step that rounds, each float operand and
each result gets an independent relative error of a few ulp of float32, plus an error relative to `inner`, the
size of the step's intermediate results. The distance of the noisy variants from float64 is what a correct
float32 implementation may be off, however ill-conditioned the program is.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch

ULP = 2.0**-23


@dataclass(frozen=True)
class Variant:
    """A variant of the evaluation: its float dtype, the size of the noise in ulp of float32, and its seed."""

    dtype: torch.dtype
    ulp: float = 0.0
    seed: int = 0


F32 = Variant(torch.float32)
F64 = Variant(torch.float64)
NEAR = tuple(Variant(torch.float64, 3.0, seed) for seed in range(8))
FAR = tuple(Variant(torch.float64, 256.0, seed) for seed in range(100, 103))
VARIANTS = (F32, F64, *NEAR, *FAR)


@dataclass(frozen=True)
class Leaf:
    """An input or parameter (`kind`), drawn uniformly from [low, high] (integers: with both bounds)."""

    name: str
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    low: float
    high: float

    def draw(self, seed: int) -> torch.Tensor:
        digest = hashlib.sha256(f"{seed}/{self.name}".encode()).digest()
        rng = np.random.default_rng(list(digest[:16]))
        if self.dtype is torch.bool:
            return torch.from_numpy(np.asarray(rng.integers(0, 2, self.shape))).to(torch.bool)
        if not self.dtype.is_floating_point:
            drawn = rng.integers(int(self.low), int(self.high) + 1, self.shape)
            return torch.from_numpy(np.asarray(drawn)).to(self.dtype)
        return torch.from_numpy(np.asarray(rng.uniform(self.low, self.high, self.shape))).to(self.dtype)

    def text(self) -> str:
        return f"{self.name} = draw({self.name!r}, {self.dtype}, {self.shape}, {self.low}, {self.high})"


@dataclass(frozen=True)
class Step:
    """One call. `template` names operands by position; `F` in it is the float dtype of the variant.

    Attributes
    ----------
    exact : bool
        Elements are only selected, moved or compared: there is no noise.
    stepped : bool
        The function is discontinuous. The generator accepts only operands away from the jumps, and the
        results get no noise.
    inner : str
        An expression like `template`, for the size of the intermediate results.
    tuple_valued : bool
        The call returns a tuple of results.
    """

    results: tuple[str, ...]
    template: str
    operands: tuple[str, ...]
    exact: bool = False
    stepped: bool = False
    inner: str = ""
    tuple_valued: bool = False

    @property
    def expression(self) -> str:
        return self.template.format(*self.operands)

    def text(self) -> str:
        return f"{', '.join(self.results)}{',' if self.tuple_valued else ''} = {self.expression}"


@dataclass(frozen=True)
class RandomProgram:
    seed: int
    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.kind == "input")

    @property
    def parameters(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.kind == "parameter")

    def pruned(self) -> RandomProgram:
        """Returns the program without steps and leaves that no output needs, but with at least one input."""
        needed = set(self.outputs)
        steps = []
        for step in reversed(self.steps):
            if needed.intersection(step.results):
                steps.append(step)
                needed.update(step.operands)
        leaves = tuple(leaf for leaf in self.leaves if leaf.name in needed)
        if not any(leaf.kind == "input" for leaf in leaves):
            leaves = (*leaves, *self.inputs[:1])
        return replace(self, leaves=leaves, steps=tuple(reversed(steps)))

    def body(self) -> str:
        lines = [f"    {leaf.name} = self.{leaf.name}" for leaf in self.parameters]
        lines += [f"    {step.text()}" for step in self.steps]
        lines.append(f"    return {', '.join(self.outputs)},")
        return "\n".join(lines)

    def source(self) -> str:
        """Returns the source code of the program: its leaves as comments, and the function forward()."""
        leaves = "\n".join(f"# {leaf.kind}: {leaf.text()}" for leaf in self.leaves)
        names = ", ".join(leaf.name for leaf in self.inputs)
        return f"# seed {self.seed}\n{leaves}\ndef forward(self, {names}):\n{self.body()}\n"

    def module(self) -> torch.nn.Module:
        source = self.source()
        name = f"<random graph {self.seed}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        scope: dict[str, Any] = {"torch": torch, "F": torch.float32}
        exec(compile(source, name, "exec"), scope)
        module = type("RandomGraph", (torch.nn.Module,), {"forward": scope["forward"]})()
        for leaf in self.parameters:
            module.register_buffer(leaf.name, leaf.draw(self.seed))
        return module.eval()

    def arguments(self) -> tuple[torch.Tensor, ...]:
        return tuple(leaf.draw(self.seed) for leaf in self.inputs)


@cache
def _function(template: str, count: int) -> Any:
    names = [f"a{i}" for i in range(count)]
    return eval(
        f"lambda torch, F, {', '.join(names)}: {template.format(*names)}"
        if names
        else f"lambda torch, F: {template}"
    )


def _call(template: str, variant: Variant, operands: list[torch.Tensor]) -> Any:
    """Evaluates an expression. torch's default dtype, to which integers promote, is that of the variant."""
    torch.set_default_dtype(variant.dtype)
    try:
        return _function(template, len(operands))(torch, variant.dtype, *operands)
    finally:
        torch.set_default_dtype(torch.float32)


def _noise(x: torch.Tensor, variant: Variant, rng: np.random.Generator) -> torch.Tensor:
    """Returns random relative errors of either sign, between half of the variant's noise and all of it."""
    size = tuple(x.shape)
    drawn = rng.uniform(0.5, 1.0, size) * rng.choice((-1.0, 1.0), size)
    return torch.from_numpy(np.asarray(drawn * variant.ulp * ULP))


def _shaken(x: torch.Tensor, variant: Variant, rng: np.random.Generator) -> torch.Tensor:
    return x * (1 + _noise(x, variant, rng)) if x.dtype.is_floating_point else x


@dataclass
class Evaluation:
    """The values of a program in all variants, filled step by step."""

    seed: int
    variants: tuple[Variant, ...] = VARIANTS
    values: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def add_leaf(self, leaf: Leaf) -> None:
        drawn = leaf.draw(self.seed)
        floats = drawn.dtype.is_floating_point
        self.values[leaf.name] = [drawn.to(v.dtype) if floats else drawn for v in self.variants]

    def of_step(self, step: Step) -> list[list[torch.Tensor]]:
        """Returns the values of a step: for each result, a list with one tensor for each variant."""
        per_variant = [self._run(step, i, variant) for i, variant in enumerate(self.variants)]
        return [list(values) for values in zip(*per_variant, strict=True)]

    def add_step(self, step: Step) -> None:
        for name, values in zip(step.results, self.of_step(step), strict=True):
            self.values[name] = values

    def _run(self, step: Step, index: int, variant: Variant) -> list[torch.Tensor]:
        operands = [self.values[name][index] for name in step.operands]
        noisy = variant.ulp > 0 and not step.exact
        digest = hashlib.sha256(f"{self.seed}/{step.results[0]}/{variant.seed}".encode()).digest()
        rng = np.random.default_rng(list(digest[:8])) if noisy else None
        if rng is not None:
            operands = [_shaken(x, variant, rng) for x in operands]
        result = _call(step.template, variant, operands)
        results = list(result) if step.tuple_valued else [result]
        if rng is None or step.stepped:
            return results
        results = [_shaken(x, variant, rng) for x in results]
        if step.inner:
            size = _call(step.inner, variant, operands)
            results = [x + _noise(x, variant, rng) * size for x in results]
        return results


def evaluate(program: RandomProgram, variants: Iterable[Variant] = VARIANTS) -> Evaluation:
    """Evaluates all values of a program in these variants."""
    evaluation = Evaluation(program.seed, tuple(variants))
    for leaf in program.leaves:
        evaluation.add_leaf(leaf)
    for step in program.steps:
        evaluation.add_step(step)
    return evaluation
