"""Settings of the process that tosaic changes for a while are as before afterwards, whatever happens."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import tosaic
from tosaic.base.process import collection_paused, output_captured, setting_changed


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def fail(is_as_expected: bool) -> None:
    assert is_as_expected
    raise ZeroDivisionError


def test_the_collector_runs_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), collection_paused():
        fail(not gc.isenabled())
    assert gc.isenabled()


def test_the_collector_of_a_caller_who_disabled_it_stays_disabled() -> None:
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()


def test_the_last_of_overlapping_blocks_restores_the_collector() -> None:
    first, second = collection_paused(), collection_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_an_import_that_fails_leaves_the_collector_running() -> None:
    class GivesComplex(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.complex(x, x)

    exported = torch.export.export(GivesComplex(), (torch.ones(2),))
    with pytest.raises(tosaic.UnsupportedOp):
        tosaic.from_exported(exported)
    assert gc.isenabled()


def test_output_is_captured_and_restored_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), output_captured():
        fail(os.write(1, b"hidden") == 6)
    with output_captured() as log:
        os.write(1, b"one ")
        os.write(2, b"two")
    os.write(1, b"seen")
    sys.stdout.flush()
    assert log == ["one two"]
    assert capfd.readouterr() == ("seen", "")


def test_reading_a_damaged_program_leaves_no_filter_on_the_logger_of_torch(tmp_path: Path) -> None:
    file = tmp_path / "a.pt2"
    file.write_bytes(b"PK no archive")
    log = logging.getLogger("torch.export")
    before = list(log.filters)
    with pytest.raises(tosaic.InvalidGraph):
        tosaic.open_program(file)
    assert log.filters == before


def test_a_setting_of_another_library_is_restored_after_an_error() -> None:
    settings = [3]
    with (
        pytest.raises(ZeroDivisionError),
        setting_changed(lambda: settings[0], lambda value: settings.__setitem__(0, value), 1),
    ):
        fail(settings == [1])
    assert settings == [3]
