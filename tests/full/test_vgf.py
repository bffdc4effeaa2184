"""`prepare(on="vgf")` runs the groups of a split program on Vulkan.

Needs the extra ``devices`` and Debian's packages ``mesa-vulkan-drivers`` and ``libvulkan1``.
"""

from __future__ import annotations

import pickle

import numpy as np
import tosaic
from api.test_vgf import VGF, programs


def test_integers_equal_those_of_tosaic() -> None:
    quantized, args = programs()
    split = tosaic.lower(quantized, unsupported="split", claimants=[VGF])
    assert len(split.parts) == 2
    expected = split.run(*args)
    prepared = split.prepare(on="vgf")
    assert prepared.on == "vgf"
    for run in (prepared, pickle.loads(pickle.dumps(prepared))):
        for found, right in zip(run.run(*args), expected, strict=True):
            np.testing.assert_array_equal(found, right)
            assert len(np.unique(right)) > 8
