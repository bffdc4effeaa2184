"""Options and fixtures of the test suite."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pattern_traces
import pytest

# Each CPU has a process of pytest, so more threads of torch would wait for each other. And a child of os.fork
# could wait forever for threads that only its parent has. Torch is not loaded yet.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files of tests/golden anew")


@pytest.fixture(scope="module")
def one_thread_without_traces() -> Iterator[None]:
    """Runs torch with one thread and without log messages of level WARNING or below.

    On small tensors the threads of torch mostly wait for each other, and torch's messages would fill the log.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _few_patterns() -> None:
    pattern_traces.only_of_present_operators()


@pytest.fixture(scope="session")
def converted_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of `models.integers.convert`.

    All tests share it, so a run quantizes each network once.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the folder that all workers share
    return folder / "converted_programs"
