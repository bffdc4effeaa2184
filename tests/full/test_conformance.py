"""The whole official TOSA conformance suite; it takes hours, and an interrupted run continues."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full


@pytest.mark.parametrize("profile", ["int", "fp"])
def test_the_suite_accepts_every_test(profile: str) -> None:
    command = [sys.executable, Path(__file__).with_name("run_conformance.py"), "--profile", profile]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
