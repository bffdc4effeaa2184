"""Options and fixtures of the test suite."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


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


@pytest.fixture
def patterns_of_present_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has torchao trace the patterns of training only for kinds of convolutions that the graph contains.

    Otherwise `prepare_qat_pt2e` and `convert_pt2e` trace 30 patterns of each of four kinds, for 20 seconds.
    """
    from torchao.quantization.pt2e import qat_utils

    def of_present(replaced: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, convolution: Any, *args: Any, **kwargs: Any) -> Any:
            kind = f"aten.{convolution.__name__}."
            if any(kind in str(node.target) for node in module.graph.nodes):
                return replaced(module, convolution, *args, **kwargs)
            return module

        return call

    for name in ("_fuse_conv_bn_qat_helper", "_fold_conv_bn_qat_helper"):
        monkeypatch.setattr(qat_utils, name, of_present(getattr(qat_utils, name)))


@pytest.fixture(scope="session")
def converted_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of `models.integers.convert`.

    All tests share it, so a run quantizes each network once.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the folder that all workers share
    return folder / "converted_programs"
