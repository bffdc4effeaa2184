"""The text that is printed for a module that failed."""

from __future__ import annotations

import time

import torch

from random_modules.checking import Checked, check
from random_modules.generate import generate
from random_modules.programs import RandomModule
from random_modules.shrinking import kind_of, shrink

__all__ = ["report"]


def report(found: Checked, patience: float = 60.0) -> str:
    """Returns the source of a minimal module that fails as this one does, and its failures.

    Shrinking ends after `patience` seconds, with the smallest module so far.
    """
    kinds = {kind_of(failure) for failure in found.failures}
    end = time.monotonic() + patience

    def fails(module: RandomModule) -> bool:
        return time.monotonic() < end and not kinds.isdisjoint(map(kind_of, check(module).failures))

    with torch.no_grad():
        small = shrink(generate(found.seed), fails)
    again = check(small).failures
    return "\n".join([small.source(), *(f"{step}: {text[:900]}" for step, text in again)])
