"""Verdict and file agree: Vela compiles what a claimant takes, in every dim order and next to other nodes.

tests/full/device_verdicts.py does the same for all cases.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from full.device_verdicts import DEVICES, tried
from models.zoo import quiet
from partitions.device_cases import DeviceCase, exported
from quantize_calls import qdq
from torch import nn
from tosaic.lowering.reference_model import run_reference_model
from tosaic.partitions.emitted import exceeded_limits

from devices.claimed_cases import CASES

pytest.importorskip("ethosu.vela", reason="Vela is not installed: pip install ethos-u-vela")

U55 = "ethos-u55-128"
_BY_NAME = {case.name: case for case in CASES}
_SAMPLE = (
    *("mean of 1x1x100x100 int8", "mean of 1x3x300x300 int8 rescaled", "mean of 2x3x65x64 int8"),
    *("sum of 1x3x65x64 int16", "pool of 1x1x257x3 int16 rescaled", "max_pool of 1x3x257x3 int8"),
    *("mean of width of 1x100 int8 rescaled", "avg_pool (66, 66) by (66, 66) int8 rescaled"),
    *("softmax 3 of 2x3x4x300 int8", "transpose of 1x1x70x70 int8", "conv2d stride 4x4 int8"),
    *("argmax of images of 4x1x1x6 int8", "amin of one of 2x2x3x6x1 int8", "flip of images of 2x3x4x6 int8"),
)


@pytest.mark.parametrize("name", _SAMPLE)
def test_vela_compiles_what_a_claimant_takes_in_every_place(name: str) -> None:
    outcomes = tried(_BY_NAME[name]).outcomes
    assert {outcome.device for outcome in outcomes} == set(DEVICES)
    assert [outcome for outcome in outcomes if outcome.kind == "wrong"] == []


IMAGES = [(1, 3, 112, 112), (1, 1, 100, 100), (2, 2, 70, 59), (1, 2, 4099, 1), (1, 2, 257, 3)]


class Mean(nn.Module):
    """A mean of images, behind a convolution if there is one."""

    def __init__(self, channels: int, behind_conv: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1) if behind_conv else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean((2, 3))


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("behind_conv", [False, True], ids=["alone", "behind a convolution"])
@pytest.mark.parametrize("one_scale", [False, True], ids=["", "one scale"])
def test_the_mean_of_a_large_image_has_windows_that_ethos_u55_takes(
    shape: tuple[int, ...], behind_conv: bool, one_scale: bool
) -> None:
    torch.manual_seed(0)
    sample = torch.randn(shape) + 0.5
    config = tosaic.recipes.named("ethos-u55").config if one_scale else tosaic.QConfig.int8()
    program = torch.export.export(Mean(shape[1], behind_conv).eval(), (sample,))
    quantized = tosaic.quantize(program, [(sample,)], config=config, progress=False)
    plan = tosaic.partition(quantized, [U55])
    host = {node.op for node, group in zip(plan.graph.nodes, plan.group_of, strict=True) if group is None}
    assert host <= {"quantize", "dequantize"}
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    assert exceeded_limits(lowered.graph, tosaic.Claimant.named(U55)) == ()
    ours = np.asarray(lowered.run(sample))
    assert np.array_equal(ours, np.asarray(run_reference_model(lowered, sample).outputs))
    unit = lowered.graph.outputs[0].qparams.scales[0]
    assert np.abs(ours - np.asarray(quantized.run(sample))).max() <= 1.001 * unit


def pooled_behind_conv(x: torch.Tensor) -> torch.Tensor:
    x = qdq(F.conv2d(x, qdq(torch.eye(2)[..., None, None], 0.01)), 0.05)
    return F.avg_pool2d(x, 66, 66)


POOL = DeviceCase("pool", pooled_behind_conv, ((1, 2, 132, 132),), result_scale=0.03)


@pytest.fixture(scope="module")
def beyond() -> tosaic.Program:
    """A pool that U55 takes in logical dim order, as reductions, but not in that of a convolution."""
    return tosaic.from_exported(exported(POOL))


def test_a_node_whose_operators_exceed_limits_in_its_group_goes_to_the_host(beyond: tosaic.Program) -> None:
    plan = tosaic.partition(beyond, [U55])
    place = plan.why("avg_pool2d")
    assert place.group is None
    (reason,) = [each for each in place.refusals if each.problem.expected == "1 to 64"]
    assert reason.rule == "rejected"
    assert reason.problem.message.startswith(
        "[claimant] the height of the kernel of 'tosa.depthwise_conv2d' is not what ethos-u55-128 takes: "
        "expected 1 to 64, got 66 (node 'avg_pool2d'"
    )
    split = tosaic.lower(beyond, claimants=[U55], unsupported="split")
    assert len(split.parts) == 1
    x = torch.randn(1, 2, 132, 132)
    assert np.array_equal(np.asarray(split.run(x)), np.asarray(beyond.run(x)))


def test_a_rule_of_the_user_allows_an_emitted_operator_beyond_limits(beyond: tosaic.Program) -> None:
    allowing = tosaic.Claimant.named(U55).allow(op="avg_pool")
    assert tosaic.partition(beyond, [allowing]).why("avg_pool2d").group is not None


def test_dim_orders_of_the_file_may_move_a_node_to_the_host(monkeypatch: Any, beyond: tosaic.Program) -> None:
    """The plan judges groups before the orders of their borders are known; the file is judged again."""
    from tosaic.partitions import propose

    monkeypatch.setattr(propose, "exceeded_limits", lambda *_, **__: ())
    split = tosaic.lower(beyond, claimants=[U55], unsupported="split")
    assert split.partitions.why("avg_pool2d").group is None
    assert [part for part in split.parts if exceeded_limits(part.graph, tosaic.Claimant.named(U55))] == []


def test_a_partitioner_of_executorch_leaves_such_a_node_outside() -> None:
    with quiet():
        exir = pytest.importorskip("executorch.exir", reason="executorch is not installed")
        partitioner = tosaic.executorch.TosaicPartitioner(U55)
        exir.to_edge_transform_and_lower(exported(POOL), partitioner=[partitioner])
    place = partitioner.why("aten_avg_pool2d_default")
    assert "expected 1 to 64, got 66" in "".join(each.problem.message for each in place.refusals)
