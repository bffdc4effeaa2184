"""Views between elementwise operators: transposes move no more bytes than with any other operator shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.exporting import exported
from layouts.beside import beside
from layouts.view_checking import check_views
from layouts.view_programs import VIEW_PROGRAMS, view_program
from models.quantize import converted

pytestmark = pytest.mark.filterwarnings("ignore")

GRAPHS = 200
# Programs that are compared with ExecuTorch's Arm lowering: a minimal one, and some for which one of the two
# lowerings needs fewer transposes than the other.
BESIDE = (
    "scaled between pools",
    "there and back twice",
    "clamps",
    "cat, scaled, split",
    "two readers, two images",
    "convolutions, foreign gelu",
)


@pytest.mark.parametrize("start", range(0, GRAPHS, 100))
def test_no_graph_of_views_moves_more_than_before_choose_shapes_or_than_in_other_shapes(start: int) -> None:
    found = {seed: check_views(seed, plain=seed % 2 == 1) for seed in range(start, start + 100)}
    assert {seed: each.failures for seed, each in found.items() if each.failures} == {}
    assert [seed for seed, each in found.items() if each.above_least] == []
    assert sum(each.before > each.after for each in found.values()) > 6
    assert sum(each.least is not None for each in found.values()) > 30


def test_elementwise_operators_between_views_compute_in_a_shape_with_the_channels_of_the_pools() -> None:
    a, b = torch.randn(1, 4, 2, 2), torch.randn(1, 2, 4, 2)

    def call(x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(x, 1).view(1, 4, 2, 2) * a
        return F.max_pool2d(y.view(1, 2, 4, 2) * b, 1)

    x = torch.randn(1, 2, 2, 4)
    low = tosaic.lower(exported(call, x), target="TOSA-1.0+FP")
    assert [(t.value, t.bytes) for t in low.layout.transposes] == [("args_0", 64), ("max_pool2d_1", 64)]
    assert low.layout.is_minimal
    assert sum(node.op == "tosa.transpose" for node in low.graph.nodes) == 2
    np.testing.assert_array_equal(low.run(x), call(x).numpy())


@pytest.mark.parametrize("objective", ["count", lambda value: 1000 + value.bytes])
def test_shapes_are_chosen_for_the_objective(objective: Any) -> None:
    sized = view_program("there and back")
    low = tosaic.lower(exported(sized.module, *sized.inputs), objective=objective)
    assert len(low.layout.transposes) == 2


def test_an_operator_is_not_reshaped_if_that_saves_nothing() -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (F.max_pool2d(x, 1).view(1, 4, 6, 4) + y).relu()

    low = tosaic.lower(exported(call, torch.randn(1, 6, 4, 4), torch.randn(1, 4, 6, 4)))
    shapes = {node.op: tuple(node.results[0].shape) for node in low.graph.nodes}
    assert shapes["tosa.add"] == (1, 4, 6, 4)


def quantized(name: str) -> torch.export.ExportedProgram:
    """Returns the program, converted by Arm's quantizer."""
    sized = view_program(name)
    samples = [sized.inputs, tuple(torch.randn(x.shape) for x in sized.inputs)]
    return converted(sized.module, samples, "arm")


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("kind", ["float", "int8"])
def test_no_program_of_views_moves_more_than_in_the_arm_lowering(name: str, kind: str) -> None:
    sized = view_program(name)
    program = quantized(name) if kind == "int8" else exported(sized.module, *sized.inputs)
    found = beside(name, program, "TOSA-1.0+INT" if kind == "int8" else "TOSA-1.0+FP")
    assert not found.theirs
    assert found.violations == []


@pytest.mark.parametrize("name", VIEW_PROGRAMS)
def test_programs_of_views_agree_with_torch(name: str) -> None:
    sized = view_program(name)
    expected = sized.module(*sized.inputs)
    got = tosaic.lower(exported(sized.module, *sized.inputs)).run(*sized.inputs)
    pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)
