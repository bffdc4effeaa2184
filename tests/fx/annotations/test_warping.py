"""Image warping: fixed formats around a grid sampler and at the boundary, grid positions in float.

    image, other -> convolutions -> flow -> base + flow -> clamp -> grid --+
    image -> convolution -> tanh = features --------------------- image --+-> grid_sampler -> convolutions
                                     \\-> a slice of them moves the grid, too
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.annotations.quantizers import QUANTIZERS, convert, qparams_of
from torch import nn
from tosaic.annotation import ExcludeFeeding, Fixed, Inputs, Operator, Outputs, Select
from tosaic.reference_model import run_reference_model

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

SNORM8 = Fixed("int8", 1 / 127, 0, -127, 127, "per_tensor_symmetric")
SNORM16 = Fixed("int16", 1 / 32767, 0, -32767, 32767, "per_tensor_symmetric")
RULES = (
    ExcludeFeeding("grid_sampler", "grid", until=Select(op="conv2d")),
    Inputs({"image": SNORM8, 1: SNORM8}),
    Operator("grid_sampler", {"input": SNORM8, "grid": SNORM16}, SNORM8),
    Outputs({0: SNORM8}),
)
WARPING_QUANTIZERS = ("vgf", "arm")
TARGET = "TOSA-1.0+INT+FP+int16"


class Warp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flow = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1))
        self.features = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
        rows, columns = torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 10)
        ys, xs = torch.meshgrid(rows, columns, indexing="ij")
        self.register_buffer("base", torch.stack([xs, ys], -1)[None])

    def forward(self, image: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        flow = self.flow(torch.cat([image, other], 1))
        features = torch.tanh(self.features(image))
        moved = (flow + features[:, :2]) * 0.25
        grid = torch.clamp(self.base + moved.permute(0, 2, 3, 1), -1.0, 1.0)
        warped = F.grid_sample(features, grid, padding_mode="border", align_corners=False)
        return self.head(warped)


@pytest.fixture(scope="module")
def samples() -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(4)
    return [tuple(torch.rand(1, 3, 8, 10, generator=generator) * 2 - 1 for _ in range(2)) for _ in range(4)]


@pytest.fixture(scope="module", params=WARPING_QUANTIZERS)
def warp(request: pytest.FixtureRequest, samples: Any) -> tuple[Any, Any, Any]:
    """Returns the wrapped quantizer, the graph that it converts, and that of the quantizer without rules."""
    torch.manual_seed(5)
    module = Warp()
    wrapped = tosaic.wrap_quantizer(QUANTIZERS[request.param](), rules=RULES)
    return wrapped, convert(module, samples, wrapped), convert(module, samples, QUANTIZERS[request.param]())


def test_every_tensor_has_the_qparams_of_the_rules_or_those_it_had(warp: tuple[Any, Any, Any]) -> None:
    wrapped, made, plain = warp
    rows = {row[0]: row[1:] for row in qparams_of(made)}
    before = {row[0]: row[1:] for row in qparams_of(plain)}
    snorm8 = (pytest.approx(1 / 127), 0, -127, 127, "int8")
    print(wrapped, *rows.items(), "plain", *before.items(), made.graph, sep="\n")
    assert rows["image"] == rows["other"] == rows["cat"] == snorm8
    assert False


def test_it_lowers_to_integers_and_floats_and_equals_the_reference_model(warp: Any, samples: Any) -> None:
    _, made, _ = warp
    exported = torch.export.export(made, samples[0])
    lowered = tosaic.lower(exported, target=TARGET)
    for sample in samples:
        reference = run_reference_model(lowered, *sample)
        assert reference.ok
        assert np.array_equal(reference.outputs, lowered.run(*sample))
    comparison = tosaic.compare(exported, lowered, *samples[:1])
    assert comparison.ok, comparison
