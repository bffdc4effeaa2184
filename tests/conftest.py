"""Options of the test suite."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files of tests/golden anew")


@pytest.fixture(scope="module")
def one_thread_without_traces() -> Iterator[None]:
    """Threads of torch only wait for each other on tensors this small; its traces would fill the log."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def converted_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `models.integers.convert` that all workers share: a run quantizes a network once."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # a worker's folder is inside the one of the run
    return folder / "converted_programs"
