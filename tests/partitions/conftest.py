"""Programs and arguments that several tests of partitions use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tosaic

from partitions.test_plans import Warped, exported


@pytest.fixture(scope="session")
def image() -> torch.Tensor:
    return torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def grid() -> torch.Tensor:
    return torch.rand(1, 8, 8, 2, generator=torch.Generator().manual_seed(2)) * 2 - 1


@pytest.fixture(scope="session")
def warped(image: torch.Tensor, grid: torch.Tensor) -> Any:
    return tosaic.quantize(exported(Warped(), image, grid), [(image, grid)], progress=False)
