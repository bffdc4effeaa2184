"""Six wrapped partitioners on five networks: tags, boundaries, and results of payloads. They are stored."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from full.wrapped_partitioners import NETWORKS, PAGE, measured, violations, write_page
from models.wrapped import PARTITIONERS

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("kind", PARTITIONERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_delegates_are_bounded_as_asked_and_compute_the_same(
    network: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert violations(measured(network, kind)) == []


def test_the_table_is_in_the_docs() -> None:
    write_page()
    assert "| mobilenet_v2 | vgf |" in PAGE.read_text()
