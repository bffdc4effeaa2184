"""The text that is printed for a failing seed."""

from __future__ import annotations

from random_graphs.checking import Result, check
from random_graphs.generate import generate
from random_graphs.programs import RandomProgram
from random_graphs.shrinking import shrink


def report(seed: int, result: Result) -> str:
    """Returns the failures of a seed and a minimal program that fails at the same place."""
    where = result.failures[0].where

    def fails(program: RandomProgram) -> bool:
        return any(failure.where == where for failure in check(program).failures)

    small = shrink(generate(seed), fails)
    lines = [f"seed {seed}: {len(result.failures)} failures", *map(str, result.failures[:4]), small.source()]
    return "\n".join(
        [*lines, *(f"of the minimal program: {failure}" for failure in check(small).failures[:2])]
    )
