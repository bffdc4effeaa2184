"""Runs samples through a graph, in this thread or in the workers of an executor, and merges the statistics.

Workers get chunks of samples, and their states are merged in the order of the samples. Ranges and histograms
merge exactly, so their results do not depend on the order of samples or on the chunks. Moving averages depend
only on the order of samples: workers return each sample's range, and the merging code computes the averages.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

from tosaic import _core
from tosaic.base.options import invalid
from tosaic.base.threads import batch_threads
from tosaic.calibration import worker
from tosaic.calibration.worker import Failure, Job, Raised

_MERGED = 256  # the most samples of one state, which has a range of each for moving averages
_CHUNK_OF_WORKERS = 4  # small, so that a few samples occupy several workers

Arrays = Sequence[Any]


def calibrate(job: Job, samples: Iterable[Arrays], executor: Executor | None = None) -> _core.Statistics:
    """Returns the statistics of all samples.

    Parameters
    ----------
    job : Job
    samples : iterable of sequence of array
        For each sample an array for each input of the graph that the caller passes. It is read as far as
        workers need it.
    executor : concurrent.futures.Executor, optional
        Not used for a graph with states, whose samples run one after the other.

    Raises
    ------
    InvalidGraph, LayoutMismatch
        A sample does not fit the graph, or a tensor that is observed has infinities or NaN. The error has the
        index of the sample and the node.
    """
    if any(each.kind == "state" for each in job.graph.inputs):
        executor = None  # each sample also runs with the states that the samples before wrote
    program, total = job.ready(batch_threads() if executor is None else 1)
    if executor is None:
        _calibrate_here(program, total, samples)
        return total
    for state in _with_workers(job, (program, total), samples, executor):
        total.merge(state)
    return total


def _calibrate_here(program: Any, total: _core.Statistics, samples: Iterable[Arrays]) -> None:
    calibration = _core.Calibration(program, total)
    for index, arrays in enumerate(samples):
        if index and index % _MERGED == 0:
            calibration.merge_into(total)
        try:
            calibration.run(list(arrays))
        except _core.Error as error:
            parts: Any = error
            raise _error(index, Failure(0, type(error).__name__, dict(parts.parts))) from error
        except MemoryError:
            raise
        except Exception as error:
            raise _of_function(index, error) from error
    calibration.merge_into(total)


def _with_workers(
    job: Job, ready: tuple[Any, Any], samples: Iterable[Arrays], executor: Executor
) -> Iterator[bytes]:
    token = uuid.uuid4().hex
    # Threads share the prepared graph of this process. Other workers get the pickled job on request.
    pickled = None if isinstance(executor, ThreadPoolExecutor) else _pickled(job)
    most = 2 * _workers_of(executor)
    running: deque[tuple[int, list[Arrays], Future[Any]]] = deque()
    worker.remember(token, ready)
    try:
        for first, chunk in _chunks(samples, _CHUNK_OF_WORKERS):
            with _named(first, first + len(chunk) - 1):
                future = executor.submit(worker.observe, token, None, chunk)
            running.append((first, chunk, future))
            if len(running) >= most:
                yield _state(running.popleft(), executor, token, pickled)
        while running:
            yield _state(running.popleft(), executor, token, pickled)
    finally:
        for _, _, future in running:
            future.cancel()
        worker.forget(token)


def _state(
    task: tuple[int, list[Arrays], Future[Any]], executor: Executor, token: str, pickled: bytes | None
) -> bytes:
    first, chunk, future = task
    last = first + len(chunk) - 1
    with _named(first, last):
        found = future.result()
        if found is None:
            found = executor.submit(worker.observe, token, pickled, chunk).result()
    if isinstance(found, Failure):
        raise _error(first, found)
    if isinstance(found, Raised):
        raise _of_function(first + found.sample, found.error) from found.error
    state: bytes = found
    return state


@contextmanager
def _named(first: int, last: int) -> Iterator[None]:
    """Converts an executor's error, such as BrokenProcessPool, to an InvalidGraph that names the samples."""
    try:
        yield
    except (_core.Error, MemoryError):
        raise
    except Exception as error:
        samples = f"sample {first}" if first == last else f"samples {first} to {last}"
        kind = type(error).__name__
        raise invalid(
            "calibrate",
            f"the executor did not run {samples}",
            expected="a running executor, whose workers can import tosaic and numpy",
            got=f"{kind}: {error}".rstrip(".") if str(error) else kind,
            hint="Without executor=, the samples run in this process",
        ) from error


def _workers_of(executor: Any) -> int:
    count = getattr(executor, "_max_workers", None)
    return count if isinstance(count, int) and count > 0 else os.cpu_count() or 1


def _error(first: int, failure: Failure) -> Exception:
    parts = {**failure.parts, "what": f"sample {first + failure.sample}: {failure.parts['what']}"}
    kind: type[_core.Error] = getattr(_core, failure.kind)
    return _core.make_error(kind, **parts)


def _of_function(sample: int, error: Exception) -> Exception:
    """Returns an InvalidGraph for an exception of a user's function that runs instead of an operator."""
    return invalid(
        "calibrate",
        f"sample {sample}: a function that runs in place of an operator raised {type(error).__name__}",
        got=str(error),
    )


def _pickled(job: Job) -> bytes:
    try:
        return pickle.dumps(job)
    except MemoryError:
        raise
    except Exception as error:
        raise invalid(
            "calibrate",
            "the program cannot be sent to the workers of the executor",
            expected="functions in place of operators that pickle can copy",
            got=f"{type(error).__name__}: {error}",
            hint="Define them at the top level of a module, or use a ThreadPoolExecutor",
        ) from error


def _chunks(samples: Iterable[Arrays], size: int) -> Iterator[tuple[int, list[Arrays]]]:
    """Yields the index of the first sample of each chunk, and the chunk."""
    stream = iter(samples)
    first = 0
    while chunk := list(islice(stream, size)):
        yield first, chunk
        first += len(chunk)
