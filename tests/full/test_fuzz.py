"""Text parser, `.tosa` and `.pte` readers with sanitizers, on 1,000,000 mutated inputs each: errors only.

The C++ tests with the tag [fuzz] do this; the CI tier runs them with 3,000 inputs. Needs the sanitized build
of `tests/run`, and brings it up to date.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ITERATIONS = 1_000_000

pytestmark = pytest.mark.full


def test_mutated_texts_and_files_cause_errors_and_no_crash() -> None:
    subprocess.run(["cmake", "--build", "--preset", "asan"], cwd=ROOT, check=True)
    environment = os.environ | {
        "TOSAIC_FUZZ_ITERATIONS": str(ITERATIONS),
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    done = subprocess.run(
        [ROOT / "build" / "asan" / "tosaic_tests", "[fuzz]"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "All tests passed" in done.stdout
    assert "3 test cases" in done.stdout
