"""Clamps fused with contractions of floats: the same bytes as separate nodes, on each instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic import _core

INF = float("inf")
SPECIAL = (float("nan"), INF, -INF, -0.0, 1e-42)
CONTRACTIONS = ("conv", "linear", "matmul", "addmm", "tosa.conv2d", "tosa.conv3d", "tosa.depthwise_conv2d")
CONTRACTIONS += ("tosa.transpose_conv2d", "tosa.matmul")


class Clamp(nn.Module):
    def __init__(self, low: float | None, high: float | None) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, self.low, self.high)


CLAMPS = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "clamp": lambda: Clamp(-0.5, 0.75),
    "at_most": lambda: Clamp(None, 0.25),
    "at_least": lambda: Clamp(-0.25, None),
    "one_value": lambda: Clamp(0.5, 0.5),
}

HEADS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "conv2d": (lambda: nn.Conv2d(5, 19, 3, padding=1), (2, 5, 9, 11)),
    "pointwise": (lambda: nn.Conv2d(24, 37, 1), (1, 24, 7, 9)),
    "deep": (lambda: nn.Conv2d(150, 33, 3), (1, 150, 5, 6)),
    "depthwise": (lambda: nn.Conv2d(18, 18, 3, padding=1, stride=2, groups=18), (1, 18, 13, 10)),
    "multiplied": (lambda: nn.Conv2d(6, 18, 3, padding=1, groups=6), (1, 6, 8, 9)),
    "grouped": (lambda: nn.Conv2d(12, 20, 3, groups=4, bias=False), (1, 12, 8, 8)),
    "conv1d": (lambda: nn.Conv1d(7, 9, 5, stride=2), (2, 7, 40)),
    "conv3d": (lambda: nn.Conv3d(3, 5, 3, padding=1), (1, 3, 5, 6, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 10, 3, stride=2, padding=1), (1, 6, 7, 8)),
    "linear": (lambda: nn.Linear(70, 45), (3, 70)),
    "one_row": (lambda: nn.Linear(300, 200), (1, 300)),
}


def _graph(head: str, clamp: str, lowered: bool) -> tuple[Any, np.ndarray[Any, Any]]:
    make, shape = HEADS[head]
    torch.manual_seed(len(head) + len(clamp))
    module = nn.Sequential(make(), CLAMPS[clamp]()).eval()
    x = torch.randn(shape)
    exported = torch.export.export(module, (x,))
    program = tosaic.lower(exported) if lowered else tosaic.from_exported(exported)
    (array,) = program.arrays(x)
    return program.graph, np.array(array)


def _clamps_of_contractions(graph: Any) -> int:
    clamps = [node for node in graph.nodes if node.op in ("relu", "clamp", "tosa.clamp")]
    producers = [clamp.operands[0].producer for clamp in clamps]
    return sum(producer is not None and producer.op in CONTRACTIONS for producer in producers)


@pytest.mark.parametrize("lowered", [False, True], ids=["exported", "tosa"])
@pytest.mark.parametrize("clamp", CLAMPS)
@pytest.mark.parametrize("head", HEADS)
def test_a_fused_clamp_gives_the_same_bytes(head: str, clamp: str, lowered: bool) -> None:
    graph, x = _graph(head, clamp, lowered)
    special = x.copy()
    special.reshape(-1)[::17] = np.resize(np.array(SPECIAL, np.float32), x.size)[::17]
    wanted = _clamps_of_contractions(graph)
    assert wanted or lowered  # in the lowered program, a reshape may stand between them
    for isa in _core.usable_isas():
        for threads in (1, 3):
            session = _core.Session(graph, isa=isa, threads=threads, share_all=True)
            assert sum(step["kernel"] == "fused" for step in session.steps) == wanted
            for array in (x, special):
                apart = session.trace([array])["outputs"]  # shows all values, so nothing is fused
                together = session.run([array])
                assert [each.tobytes() for each in together] == [each.tobytes() for each in apart]


@pytest.mark.parametrize("low", [float("nan"), 0.0])
def test_a_clamp_without_numbers_as_bounds_is_not_fused(low: float) -> None:
    module = nn.Sequential(nn.Linear(8, 8), Clamp(low, float("nan"))).eval()
    exported = torch.export.export(module, (torch.randn(2, 8),))
    program = tosaic.from_exported(exported)
    assert not any(step["kernel"] == "fused" for step in program.session.steps)
    assert np.isnan(program.run(torch.randn(2, 8))).all()
