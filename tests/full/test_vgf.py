"""`prepare(on="vgf")` runs the groups of a split program, and delegates of ``.pte`` files, on Vulkan.

Needs the extra ``devices`` and Debian's packages ``mesa-vulkan-drivers`` and ``libvulkan1``.
"""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
import tosaic
from api.test_vgf import VGF, programs
from pte.examples import flattened, made_by_tosaic, make
from tosaic import _core
from tosaic.pte.file import PteFile


def test_integers_equal_tosaics_integers() -> None:
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


@pytest.mark.parametrize("claimant", ["TOSA-1.0+INT", "vgf", "ethos-u55-128"])
def test_delegates_of_a_file_run_on_vulkan(claimant: str) -> None:
    """TOSA payloads and sources are converted, VGF payloads run as they are."""
    example = made_by_tosaic(claimant)
    has_payload = claimant.startswith("TOSA")
    sources = None if has_payload else {f"delegate{i}": each for i, each in enumerate(example.sources)}
    read = _core.read_pte(example.data)
    file = PteFile(read, sources=sources if claimant != "vgf" else None)
    expected = flattened(PteFile(read, sources=sources).run(*example.inputs))
    prepared = file.prepare(on="vgf")
    for run in (prepared, pickle.loads(pickle.dumps(prepared))):
        for found, right in zip(flattened(run.run(*example.inputs)), expected, strict=True):
            assert np.ptp(right) > 0
            if claimant == "vgf":  # it computes with floats
                np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(found, right)


def test_two_threads_run_one_payload() -> None:
    example = made_by_tosaic("vgf")
    prepared = PteFile(_core.read_pte(example.data)).prepare(on="vgf")
    inputs = [example.inputs[0], example.inputs[0] * 0.5]
    expected = [flattened(prepared.run(x)) for x in inputs]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        found[i] = flattened(prepared.run(inputs[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2):
        for a, b in zip(found[i], expected[i], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_vgf_payload_of_another_delegate_is_refused() -> None:
    """The payload was made of a program with another input."""
    from tosaic.devices.device_compilers import compile_vgf

    example = made_by_tosaic("vgf")
    file = _core.read_pte(example.data)
    other = compile_vgf(made_by_tosaic("TOSA-1.0+INT").sources[0])
    segments = file.segments
    segments[file.methods[0].delegates[0].index] = _core.PteSegment(bytes=np.frombuffer(other, np.uint8))
    file.segments = segments
    prepared = PteFile(file).prepare(on="vgf")
    with pytest.raises(tosaic.InvalidGraph, match=r"delegate 0 \('VgfBackend'\).*of the VGF payload"):
        prepared.run(*example.inputs)


def test_delegates_that_nothing_runs_are_refused_on_vulkan_too() -> None:
    example = make("xnnpack")
    with pytest.raises(tosaic.UnsupportedOp, match="nothing here runs the payload"):
        PteFile(_core.read_pte(example.data)).prepare(on="vgf").run(*example.inputs)
