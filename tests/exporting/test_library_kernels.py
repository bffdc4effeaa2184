"""Groups of Cortex-M in ``.pte`` files: kernels of ``cortex_m`` that compute what the split program computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.backends.cortex_m.passes.cortex_m_pass_manager")

import tosaic  # noqa: E402
from cortex_m.kernel_models import run_pte  # noqa: E402
from cortex_m.programs import PROGRAMS, Drawn  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def _operators(path: Path) -> set[str]:
    return set(tosaic.registration.kernel_list(path).operators)


NOT_CLAIMED = {"hardsigmoid": "the convolution before it has floats", "transpose": "a group that only moves"}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("member", ["cortex-m55", "cortex-m4"])
def test_the_kernels_of_an_operator_compute_the_split_program(
    name: str, member: str, tmp_path: Path
) -> None:
    if name in NOT_CLAIMED:
        pytest.skip(NOT_CLAIMED[name])
    for seed in range(2):
        program = PROGRAMS[name](Drawn(seed))
        split = tosaic.lower(program.exported, unsupported="split", claimants=[member])
        assert {group.claimant for group in split.partitions.groups} == {member}
        path = tmp_path / f"{seed}.pte"
        split.save(path)
        arrays = [np.asarray(each) for each in program.arrays]
        expected, found = split.run(*arrays), run_pte(tosaic.load_pte(path), *arrays)
        np.testing.assert_array_equal(found, expected)
        assert not _float_kernels(path)


def _float_kernels(path: Any) -> set[str]:
    found = set()
    for kernel in tosaic.registration.kernel_list(path):
        if "float32" in kernel.dtypes and not kernel.operator.startswith("cortex_m::"):
            found.add(kernel.operator)
    return found
