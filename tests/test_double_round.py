"""Targets with extension doubleround: RESCALE rounds twice; our results equal the reference model's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
import tosaic
from fx.exporting import exported
from quantize_calls import dq, q
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
Q = torch.ops.quantized_decomposed
TWICE, ONCE = "TOSA-1.0+INT+doubleround", "TOSA-1.0+INT"


def weight(*shape: int) -> Callable[[], torch.Tensor]:
    """Returns a function that dequantizes a constant weight with one scale per channel (axis 0)."""
    generator = torch.Generator().manual_seed(6)
    stored = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
    scales = torch.rand(shape[0], generator=generator) * 0.02 + 0.001
    zeros = torch.zeros(shape[0], dtype=torch.int64)
    return lambda: Q.dequantize_per_channel(stored, scales, zeros, 0, -127, 127, torch.int8)


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(5)).to(torch.int8)


KERNEL, MATRIX = weight(5, 4, 3, 3), weight(6, 9)
X, Y = integers(2, 4, 9, 9), integers(2, 4, 9, 9).flip(0)
CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "conv": (lambda x: q(F.conv2d(dq(x, 0.02, 3), KERNEL()), 0.9, -7), (X,)),
    "linear": (lambda x: q(F.linear(dq(x, 0.02, 3), MATRIX()), 0.7), (X,)),
    "add": (lambda x, y: q(dq(x, 0.02, 3) + dq(y, 0.031, -5), 0.06), (X, Y)),
    "mul": (lambda x, y: q(dq(x, 0.02, 3) * dq(y, 0.03), 0.5), (X, Y)),
    "mean": (lambda x: q(dq(x, 0.02, 3).mean((2, 3)), 0.01), (X,)),
    "softmax": (lambda x: q(F.softmax(dq(x, 0.1), -1), 1 / 256, -128), (X,)),
    "layer norm": (lambda x: q(F.layer_norm(dq(x, 0.02, 3), (9,)), 0.03), (X,)),
}


def rescales(lowered: tosaic.Lowered) -> list[dict[str, Any]]:
    return [node.attrs for node in lowered.graph.nodes if node.op == "tosa.rescale"]


@pytest.mark.parametrize("name", CALLS)
def test_a_target_with_doubleround_rounds_every_rescale_twice(name: str) -> None:
    call, arrays = CALLS[name]
    with torch.no_grad():
        expected = call(*arrays).numpy()
        lowered = tosaic.lower(exported(call, *arrays), target=TWICE)
    modes = {attrs["rounding_mode"] for attrs in rescales(lowered)}
    assert modes == {"double_round"}
    reference = run_reference_model(lowered, *arrays)
    assert reference.status == "VALID", reference.log
    given = lowered.arrays(*arrays)
    for graph in (lowered.stages["canonical"], lowered.graph):
        for how in ({"reference": True}, *({"isa": isa} for isa in _core.usable_isas())):
            (got,) = _core.Session(graph, **how).run(given)
            np.testing.assert_array_equal(got, reference.outputs, err_msg=f"{graph.stage} {how}")
    assert np.abs(np.asarray(reference.outputs).astype(int) - expected.astype(int)).max() <= 1


def test_a_target_without_doubleround_rounds_once() -> None:
    call, arrays = CALLS["conv"]
    with torch.no_grad():
        lowered = tosaic.lower(exported(call, *arrays), target=ONCE)
    assert {attrs["rounding_mode"] for attrs in rescales(lowered)} == {"single_round"}


def test_rounding_twice_changes_some_results_by_one_unit() -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16)[None]

    def call(x: torch.Tensor) -> torch.Tensor:
        wide = Q.dequantize_per_tensor(x, 1e-4, 0, -32768, 32767, torch.int16)
        return q(wide, 0.0266)

    results = []
    for target in (TWICE, ONCE):
        lowered = tosaic.lower(exported(call, x), target=target + "+int16")
        (attrs,) = rescales(lowered)
        assert attrs["shift"][0] > 31
        result = np.asarray(lowered.run(x)).astype(np.int64)
        np.testing.assert_array_equal(run_reference_model(lowered, x).outputs, result)
        scaled = x.numpy().astype(np.int64) * attrs["multiplier"][0]
        second = np.where(x.numpy() >= 0, 1 << 30, -(1 << 30)) if target == TWICE else 0
        rounded = scaled + (1 << (attrs["shift"][0] - 1)) + second >> attrs["shift"][0]
        np.testing.assert_array_equal(result, rounded.clip(-128, 127))
        results.append(result)
    difference = np.abs(results[0] - results[1])
    assert difference.max() == 1


def test_rescales_of_48_bit_sums_round_once() -> None:
    x = torch.randint(-32768, 32768, (1, 4, 6, 6), generator=torch.Generator().manual_seed(1)).to(torch.int16)

    def call(x: torch.Tensor) -> torch.Tensor:
        sums = F.conv2d(Q.dequantize_per_tensor(x, 1e-4, 0, -32768, 32767, torch.int16), KERNEL())
        return Q.quantize_per_tensor(sums, 2e-3, 0, -32768, 32767, torch.int16)

    with torch.no_grad():
        lowered = tosaic.lower(exported(call, x), target=TWICE + "+int16")
    found = rescales(lowered)
    assert {(attrs["scale32"], attrs["rounding_mode"]) for attrs in found} >= {(False, "single_round")}
    assert not any(attrs["rounding_mode"] == "double_round" and not attrs["scale32"] for attrs in found)
    reference = run_reference_model(lowered, x)
    assert reference.status == "VALID"
    np.testing.assert_array_equal(lowered.run(x), reference.outputs)


def test_a_file_records_double_rounding_and_a_target_without_it_refuses_the_file(tmp_path: Path) -> None:
    call, arrays = CALLS["conv"]
    with torch.no_grad():
        lowered = tosaic.lower(exported(call, *arrays), target=TWICE)
    path = tmp_path / "twice.tosa"
    lowered.save(path)
    program = tosaic.load_tosa(path)
    assert tosaic.lower(program, target=TWICE).to_bytes() == path.read_bytes()
    np.testing.assert_array_equal(program.run(*lowered.arrays(*arrays)), lowered.run(*arrays))
    with pytest.raises(
        tosaic.SpecViolation, match=r"tosa\.rescale rounds in a way .* expected EXT-DOUBLEROUND"
    ):
        tosaic.lower(program, target=ONCE)
