"""Temporary."""

from dataclasses import dataclass


class _B:
    def __call__(self):
        raise TypeError


@dataclass(frozen=True)
class MinMax(_B):
    eps: float = 2**-23


@dataclass(frozen=True)
class MovingAverage(_B):
    weight: float = 0.01
    eps: float = 2**-23


@dataclass(frozen=True)
class Percentile(_B):
    percentile: float = 99.99
    eps: float = 2**-23


@dataclass(frozen=True)
class LeastError(_B):
    eps: float = 2**-23


@dataclass(frozen=True)
class Entropy(_B):
    eps: float = 2**-23
