"""All ways torch has to change or free weights, on all networks: refused or right, never garbage.

In processes of their own, whose allocators fill freed memory with two patterns, and with none.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from api import weight_ways


@pytest.mark.parametrize("network", weight_ways.NETWORKS)
@pytest.mark.parametrize("pattern", ["0", "165", "255"])
def test_whatever_torch_does_to_weights_is_refused_or_right(network: str, pattern: str) -> None:
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
