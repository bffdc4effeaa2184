"""Shrinks a failing program to a small one that fails in the same way: fewer outputs, then fewer steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from random_graphs.programs import F32, F64, Leaf, RandomProgram, evaluate

Fails = Callable[[RandomProgram], bool]


def shrink(program: RandomProgram, fails: Fails) -> RandomProgram:
    """Returns a smaller program that still fails. No single output or step can be removed from it.

    `fails` returns True if a program has the failure.
    """
    program = _one_output(program, fails)
    while True:
        smaller = _cut(program, fails)
        if smaller is None:
            return program
        program = smaller


def _one_output(program: RandomProgram, fails: Fails) -> RandomProgram:
    for name in program.outputs:
        single = replace(program, outputs=(name,)).pruned()
        if fails(single):
            return single
    for name in program.outputs:
        rest = tuple(other for other in program.outputs if other != name)
        if rest and fails(smaller := replace(program, outputs=rest).pruned()):
            return _one_output(smaller, fails)
    return program


def _cut(program: RandomProgram, fails: Fails) -> RandomProgram | None:
    """Returns a failing program with fewer steps, or None.

    Either it ends at an earlier result, or the results of one step are inputs instead.
    """
    for step in program.steps:
        for name in step.results:
            if (name,) != program.outputs:
                earlier = replace(program, outputs=(name,)).pruned()
                if len(earlier.steps) < len(program.steps) and fails(earlier):
                    return earlier
    values = evaluate(program, (F32, F64)).values
    for step in reversed(program.steps):
        if any(name in program.outputs for name in step.results):
            continue
        smaller = program
        for name in step.results:
            smaller = _with_leaf(smaller, name, values[name][0])
        steps = tuple(other for other in smaller.steps if other.results != step.results)
        smaller = replace(smaller, steps=steps).pruned()
        if len(smaller.steps) < len(program.steps) and fails(smaller):
            return smaller
    return None


def _with_leaf(program: RandomProgram, name: str, value: torch.Tensor) -> RandomProgram:
    """Returns the program with an additional input `name`, whose values have the range of `value`."""
    low, high = float(value.min()), float(value.max())
    leaf = Leaf(name, "input", value.dtype, tuple(value.shape), low, high)
    return replace(program, leaves=(*program.leaves, leaf))
