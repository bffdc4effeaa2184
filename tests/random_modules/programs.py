"""A random module as data. It is a program of `random_graphs` that may also write into tensors.

    x0 = draw("x0", torch.float32, (2, 3), -2, 2)         a leaf: input, parameter or state
    v0 = x0.transpose(0, 1)                               a step
    v0[1:].mul_(2.0)                                      a statement: a step without results, which writes

Results of steps may share memory with operands. A statement writes into its first operand, so it may change
inputs, states and other results. Each variant is evaluated on memory of its own, with torch's aliasing. The
noise of a step is multiplied into its results in place.
"""

from __future__ import annotations

import hashlib
import linecache
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from random_graphs.programs import F32, F64, NEAR, ULP, Leaf, RandomProgram, Step, Variant

__all__ = ["CHECKED", "DRAWN", "ModuleStep", "ModuleValues", "RandomModule", "evaluated"]

DRAWN = (F32, F64, *NEAR[:4], Variant(torch.float64, 256.0, 100))
"""The variants in which a step is evaluated while the module is drawn."""
CHECKED = (F32, F64, *NEAR)
"""The variants from which the bound of a result is derived."""
_WIDE = (torch.float32, torch.float64)


@dataclass(frozen=True)
class ModuleStep(Step):
    """A step, or a statement that writes into its first operand.

    Attributes
    ----------
    writes : bool
        The step has no result. It writes into the memory of its first operand.
    shares : tuple of str
        The operands whose memory the results share.
    """

    writes: bool = False
    shares: tuple[str, ...] = ()

    def text(self) -> str:
        return self.expression if self.writes else super().text()


@dataclass(frozen=True)
class RandomModule(RandomProgram):
    """A module: `steps` may be statements, and leaves may be states (buffers that persist over calls)."""

    @property
    def states(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.kind == "state")

    def pruned(self) -> RandomModule:
        """Returns the module without steps and leaves that no output needs, but with at least one input.

        A statement is needed if it writes into memory that a needed value shares.
        """
        root = self._roots()
        needed = {root[name] for name in self.outputs}
        kept: set[int] = set()
        while True:
            before = len(kept)
            for i, step in enumerate(self.steps):
                touched = [root[name] for name in (step.operands[:1] if step.writes else step.results)]
                if i not in kept and needed.intersection(touched):
                    kept.add(i)
                    needed.update(root[name] for name in step.operands)
            if len(kept) == before:
                break
        steps = tuple(step for i, step in enumerate(self.steps) if i in kept)
        used = {name for step in steps for name in step.operands} | set(self.outputs)
        leaves = tuple(leaf for leaf in self.leaves if leaf.name in used)
        if not any(leaf.kind == "input" for leaf in leaves):
            leaves = (*leaves, *self.inputs[:1])
        return replace(self, leaves=leaves, steps=steps)

    def _roots(self) -> dict[str, str]:
        """Returns, for each name, a name that stands for all names that share its memory."""
        root: dict[str, str] = {leaf.name: leaf.name for leaf in self.leaves}
        for step in self.steps:
            for name in step.results:
                root[name] = name
            shared = [
                *step.results,
                *(name for name in getattr(step, "shares", ()) if name in root),
            ]
            for name in shared[1:]:
                old, new = root[name], root[shared[0]]
                root = {key: new if value == old else value for key, value in root.items()}
        return root

    def body(self) -> str:
        leaves = (*self.parameters, *self.states)
        lines = [f"    {leaf.name} = self.{leaf.name}" for leaf in leaves]
        lines += [f"    {step.text()}" for step in self.steps]
        lines.append(f"    return {', '.join(self.outputs)},")
        return "\n".join(lines)

    def module(self) -> torch.nn.Module:
        source = self.source()
        name = f"<random module {self.seed}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        scope: dict[str, Any] = {"torch": torch, "F": torch.float32}
        exec(compile(source, name, "exec"), scope)
        module = type("RandomModule", (torch.nn.Module,), {"forward": scope["forward"]})()
        for leaf in (*self.parameters, *self.states):
            module.register_buffer(leaf.name, leaf.draw(self.seed))
        return module.eval()

    def on_the_model(self) -> RandomModule:
        """Returns the module with the reference model's errors beyond rounding errors.

        TOSA lets TANH be wrong by an absolute error, 4 * (1 + abs(x)) units in the last place of 1, and the
        reference model uses some of it: its largest error over -12 to 12 is 1.1 of them, and tanh(1e-30)
        is 0. A quarter of a unit as `inner` adds at most 1.5 units to the bound, near 0 as elsewhere.
        """
        steps = (
            replace(step, inner="{0} * 0 + 0.25") if re.search(r"(?<!hard)tanh", step.template) else step
            for step in self.steps
        )
        return replace(self, steps=tuple(steps))

    def sample(self, number: int) -> tuple[torch.Tensor, ...]:
        """Returns new arguments. Sample 0 has the values on which the module was drawn."""
        seed = self.seed if number == 0 else self.seed + 1_000_003 * number
        return tuple(leaf.draw(seed) for leaf in self.inputs)

    def arguments(self) -> tuple[torch.Tensor, ...]:
        return self.sample(0)


@cache
def _function(template: str, count: int, writes: bool) -> Any:
    names = [f"a{i}" for i in range(count)]
    head = f"def run({', '.join(['torch', 'F', *names])}):\n    {'' if writes else 'return '}"
    scope: dict[str, Any] = {}
    exec(head + template.format(*names), scope)
    return scope["run"]


def _call(step: Step, variant: Variant, operands: Sequence[torch.Tensor]) -> Any:
    """Evaluates a step. torch's default dtype, to which integers promote, is that of the variant."""
    function = _function(step.template, len(operands), getattr(step, "writes", False))
    torch.set_default_dtype(variant.dtype)
    try:
        return function(torch, variant.dtype, *operands)
    finally:
        torch.set_default_dtype(torch.float32)


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != 0


@dataclass
class ModuleValues:
    """The values of a module in all variants, filled step by step (see `random_graphs.programs.Evaluation`).

    Values that share memory in torch share it here, in each variant, so a statement changes all of them.
    """

    seed: int
    variants: tuple[Variant, ...] = DRAWN
    values: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    count: int = 0
    _moves: bool = False
    """Whether a result of the present step shares memory with an operand; known from the first variant on."""

    def add_leaf(self, leaf: Leaf, drawn: torch.Tensor | None = None) -> None:
        drawn = leaf.draw(self.seed) if drawn is None else drawn
        wide = drawn.dtype in _WIDE
        self.values[leaf.name] = [(drawn.to(v.dtype) if wide else drawn).clone() for v in self.variants]

    def of_step(self, step: Step) -> list[list[torch.Tensor]]:
        """Returns the values of a step: for each result, a list with one tensor for each variant.

        A statement has no results: the values that it writes into change.
        """
        per_variant = [self._run(step, i, variant) for i, variant in enumerate(self.variants)]
        return [list(values) for values in zip(*per_variant, strict=True)]

    def add_step(self, step: Step) -> None:
        for name, values in zip(step.results, self.of_step(step), strict=True):
            self.values[name] = values
        self.count += 1

    def shares(self, names: Sequence[str], results: list[list[torch.Tensor]]) -> tuple[str, ...]:
        """Returns the names whose memory a result shares."""
        found = dict.fromkeys(
            name for name in names for values in results if share_memory(self.values[name][0], values[0])
        )
        return tuple(found)

    def _run(self, step: Step, index: int, variant: Variant) -> list[torch.Tensor]:
        operands = [self.values[name][index] for name in step.operands]
        noisy = variant.ulp > 0 and not step.exact and not step.stepped
        if not noisy:
            found = _call(step, variant, operands)
            if getattr(step, "writes", False):
                return []
            results = list(found) if step.tuple_valued else [found]
            if index == 0:
                self._moves = any(share_memory(r, x) for r in results for x in operands)
            return results
        digest = hashlib.sha256(f"{self.seed}/{self.count}/{variant.seed}".encode()).digest()
        rng = np.random.default_rng(list(digest[:8]))
        if getattr(step, "writes", False):
            inside = replace(step, template=step.inner, writes=False)  # type: ignore[call-arg]
            size = _call(inside, variant, operands) if step.inner else None
            _call(step, variant, operands[:1] + [_shaken(x, variant, rng) for x in operands[1:]])
            written = operands[0]
            if written.dtype in _WIDE and written.numel():
                written.mul_(1 + _noise(written, variant, rng))
            if size is not None:
                written.add_(_noise(written, variant, rng) * size)
            return []
        if self._moves:
            found = _call(step, variant, operands)
            return list(found) if step.tuple_valued else [found]
        shaken = [_shaken(x, variant, rng) for x in operands]
        found = _call(step, variant, shaken)
        results = [_shaken(x, variant, rng) for x in (found if step.tuple_valued else [found])]
        if step.inner:
            size = _call(replace(step, template=step.inner), variant, shaken)
            results = [x + _noise(x, variant, rng) * size for x in results]
        return results


def _noise(x: torch.Tensor, variant: Variant, rng: np.random.Generator) -> torch.Tensor:
    """Returns random relative errors of either sign, between half of the variant's noise and all of it."""
    size = tuple(x.shape)
    drawn = rng.uniform(0.5, 1.0, size) * rng.choice((-1.0, 1.0), size)
    return torch.from_numpy(np.asarray(drawn * variant.ulp * ULP))


def _shaken(x: torch.Tensor, variant: Variant, rng: np.random.Generator) -> torch.Tensor:
    return x * (1 + _noise(x, variant, rng)) if x.dtype in _WIDE else x


def evaluated(
    module: RandomModule, calls: Sequence[Sequence[torch.Tensor]], variants: Iterable[Variant] = CHECKED
) -> list[ModuleValues]:
    """Evaluates a module for these calls, one after the other: states pass from call to call."""
    found: list[ModuleValues] = []
    for arguments in calls:
        values = ModuleValues(module.seed, tuple(variants))
        given = iter(arguments)
        for leaf in module.leaves:
            if leaf.kind == "state" and found:
                values.values[leaf.name] = [x.clone() for x in found[-1].values[leaf.name]]
            else:
                values.add_leaf(leaf, next(given) if leaf.kind == "input" else None)
        for step in module.steps:
            values.add_step(step)
        found.append(values)
    return found
