"""`MachinePeak`: the peak arithmetic and bandwidth of this machine, measured once per process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tosaic import _core

_FACTORS = ("f32", "f64", "i16", "i8")


@dataclass(frozen=True)
class MachinePeak:
    """The measured peak of a machine, to which the shares of a `Profile` refer.

    Multiply-adds are measured in a loop that works in registers only, with the vectors and instructions of
    tosaic's kernels and with as many independent sums as the processor can work on. The bandwidth is that of
    adding two arrays into a third one in memory; all arrays have 96 MiB together, or 12 MiB for each thread.
    Both are the best of five trials. The measurement takes about 0.2 s, and is made once per process and
    number of threads.

    Attributes
    ----------
    isa : str
        The instruction set of the measurement: the best one for which tosaic has kernels and that this
        processor supports.
    threads : int
        The number of threads that computed at the same time: the threads of the runs, but at most one for
        each core that the process may use.
    multiply_adds : mapping of str to float
        Multiply-adds per second, by the dtype of the factors: ``f32``, ``f64``, ``i16`` and, where an
        instruction multiplies bytes, ``i8``.
    bandwidth : float
        Bytes per second that are read and written.
    """

    isa: str
    threads: int
    multiply_adds: Mapping[str, float]
    bandwidth: float


def machine_peak(threads: int = 1) -> MachinePeak:
    """Returns the peak of this machine for runs of `threads` threads; the first call measures it."""
    return _measured(min(threads, _core.usable_cores()))


@cache
def _measured(threads: int) -> MachinePeak:
    isa = _core.usable_isas()[-1]
    rates = {factors: _core.peak_multiply_adds(isa, factors, threads) for factors in _FACTORS}
    return MachinePeak(
        isa=isa,
        threads=threads,
        multiply_adds={factors: rate for factors, rate in rates.items() if rate is not None},
        bandwidth=_core.peak_bandwidth(isa, threads),
    )
