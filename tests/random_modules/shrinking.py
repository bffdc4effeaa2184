"""Shrinks a failing module to a small one that fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from random_graphs.programs import F32, Leaf

from random_modules.programs import ModuleStep, RandomModule, evaluated

__all__ = ["shrink"]

Fails = Callable[[RandomModule], bool]


def shrink(module: RandomModule, fails: Fails) -> RandomModule:
    """Returns a smaller module that still fails.

    No single output or step can be removed from it. A step that is removed is replaced by one of its operands
    or by a new input. `fails` returns True if a module has the failure; candidates that torch refuses are not
    passed to it.
    """
    while True:
        for candidate in _smaller(module):
            if _size(candidate) < _size(module) and _runs(candidate) and fails(candidate):
                module = candidate
                break
        else:
            return module


def _size(module: RandomModule) -> tuple[int, int, int]:
    return len(module.steps), len(module.outputs), sum(leaf.kind != "input" for leaf in module.leaves)


def _runs(module: RandomModule) -> bool:
    try:
        with torch.no_grad():
            module.module()(*module.arguments())
    except Exception:
        return False
    return True


def _smaller(module: RandomModule) -> Iterator[RandomModule]:
    """Yields candidates: the largest cuts first."""
    for name in module.outputs:
        if len(module.outputs) > 1:
            yield replace(module, outputs=(name,)).pruned()
    for i in range(1, len(module.steps)):
        names = module.steps[i].results
        if names and not set(names).issuperset(module.outputs):
            yield replace(module, outputs=names[:1]).pruned()
    for name in module.outputs:
        rest = tuple(other for other in module.outputs if other != name)
        if rest:
            yield replace(module, outputs=rest).pruned()
    values = evaluated(module, [module.arguments()], (F32,))[0].values
    for i, step in reversed(list(enumerate(module.steps))):
        yield from _without(module, i, step, {name: of[0] for name, of in values.items()})


def _without(
    module: RandomModule, i: int, step: ModuleStep, values: dict[str, torch.Tensor]
) -> Iterator[RandomModule]:
    rest = (*module.steps[:i], *module.steps[i + 1 :])
    if not step.results:
        yield replace(module, steps=rest).pruned()
        return
    if len(step.results) == 1:
        result = values[step.results[0]]
        for name in step.operands:
            other = values[name]
            if other.shape == result.shape and other.dtype == result.dtype:
                yield _renamed(replace(module, steps=rest), step.results[0], name).pruned()
    leaves = tuple(_leaf(name, values[name]) for name in step.results)
    yield replace(module, leaves=(*module.leaves, *leaves), steps=rest).pruned()


def _leaf(name: str, value: torch.Tensor) -> Leaf:
    """Returns an input of about the numbers of a value. It has the dtype that the value has in float32."""
    numbers = value.double() if value.dtype is not torch.bool else torch.zeros(1)
    finite = numbers[torch.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (-1.0, 1.0)
    return Leaf(name, "input", value.dtype, tuple(value.shape), max(low, -100.0), min(max(high, low), 100.0))


def _renamed(module: RandomModule, old: str, new: str) -> RandomModule:
    def name_of(name: str) -> str:
        return new if name == old else name

    steps = tuple(
        replace(
            step,
            operands=tuple(map(name_of, step.operands)),
            shares=tuple(map(name_of, getattr(step, "shares", ()))),
        )
        for step in module.steps
    )
    return replace(module, steps=steps, outputs=tuple(dict.fromkeys(map(name_of, module.outputs))))


def kind_of(failure: tuple[str, str]) -> str:
    """Returns the step and the first words of a failure: failures of one kind are shrunk to one module."""
    words = re.findall(r"[A-Za-z_]{3,}", failure[1])
    return f"{failure[0]}: {' '.join(words[:5])}"
