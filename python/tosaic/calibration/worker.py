"""The code that runs in workers of an executor: it runs samples through a graph and fills statistics.

A worker gets the graph once: tasks have only a token of it, and a process that does not know the token asks
for the graph. Tasks and results are plain data, so any `concurrent.futures.Executor` can send them to another
thread, process or machine, which needs numpy and tosaic.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tosaic import _core

_MOST_KNOWN = 4
_known: OrderedDict[str, tuple[_core.CalibrationProgram, _core.Statistics]] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True)
class Job:
    """A graph, the tensors to observe, and their statistics.

    Attributes
    ----------
    graph : Graph
    watches : tuple of (str, int)
        Names of values, and the index of the statistic that each feeds.
    statistics : tuple of tuple
        The kinds of the statistics: ``("range",)``, ``("histogram",)``, ``("mask_range",)``,
        ``("moving_range", weight)``.
    override_nodes, override_ops : dict
        Functions that run instead of operators.
    infinite : frozenset of str
        Values whose infinities and NaN are left out. Infinities and NaN of other values are refused.
    """

    graph: _core.Graph
    watches: tuple[tuple[str, int], ...]
    statistics: tuple[tuple[Any, ...], ...]
    override_nodes: Mapping[str, Any]
    override_ops: Mapping[str, Any]
    infinite: frozenset[str] = frozenset()

    def ready(self, threads: int = 1) -> tuple[_core.CalibrationProgram, _core.Statistics]:
        """Prepares the graph to run on this machine by `threads` threads, and makes empty statistics."""
        program = _core.CalibrationProgram(
            self.graph,
            list(self.watches),
            override_nodes=dict(self.override_nodes),
            override_ops=dict(self.override_ops),
            infinite=set(self.infinite),
            threads=threads,
        )
        return program, _core.Statistics(self.graph, list(self.statistics))


@dataclass(frozen=True)
class Failure:
    """An error of a sample: the position of the sample in the task, the kind of the error, and its parts."""

    sample: int
    kind: str
    parts: dict[str, str]


@dataclass(frozen=True)
class Raised:
    """An exception of a user's function, and the position of the sample in the task."""

    sample: int
    error: Exception


def remember(token: str, ready: tuple[_core.CalibrationProgram, _core.Statistics]) -> None:
    """Stores a prepared graph for later tasks of this process with the same token."""
    with _lock:
        _known[token] = ready
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)


def forget(token: str) -> None:
    """Frees the graph of a token."""
    with _lock:
        _known.pop(token, None)


def observe(
    token: str, pickled: bytes | None, samples: Sequence[Sequence[Any]]
) -> bytes | Failure | Raised | None:
    """Runs samples and returns the state of their statistics.

    Returns
    -------
    bytes, Failure, Raised or None
        None: this process does not know the token, and `pickled`, the bytes of its `Job`, is None.
    """
    with _lock:
        ready = _known.get(token)
    if ready is None:
        if pickled is None:
            return None
        job: Job = pickle.loads(pickled)
        ready = job.ready()
        remember(token, ready)
    program, like = ready
    calibration = _core.Calibration(program, like)
    for position, arrays in enumerate(samples):
        try:
            calibration.run(list(arrays))
        except _core.Error as error:
            parts: Any = error
            return Failure(position, type(error).__name__, dict(parts.parts))
        except MemoryError:
            raise
        except Exception as error:
            return Raised(position, error)
    return calibration.to_bytes()
