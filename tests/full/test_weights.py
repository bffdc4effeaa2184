"""After each way in which torch can change or free weights, uses of a program are refused or right.

Each network runs in processes of its own, whose allocators fill freed memory with one of two patterns, or
with none.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from api import weight_ways


@pytest.mark.parametrize("network", weight_ways.NETWORKS)
@pytest.mark.parametrize("pattern", ["0", "165", "255"])
def test_after_any_change_of_weights_by_torch_a_use_is_refused_or_right(network: str, pattern: str) -> None:
    done = subprocess.run(
        [sys.executable, weight_ways.__file__, "--networks", network],
        env={**os.environ, "MALLOC_PERTURB_": pattern},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("right") == len(weight_ways.WAYS)
