"""Every pool of `tests/test_pool_layouts.py` compared with Arm's lowering, in floats and in integers."""

from __future__ import annotations

import pytest
import test_pool_layouts as pools
from test_pool_layouts import POOLS, beside_arm

pytestmark = [pytest.mark.full, *pools.pytestmark]


@pytest.mark.parametrize("kind", ["float", "int8"])
@pytest.mark.parametrize("name", POOLS)
def test_no_pool_moves_more_than_in_the_arm_lowering(name: str, kind: str) -> None:
    assert beside_arm(name, kind) == []
