"""`layout_pass` among ExecuTorch's passes: its dim orders are those that ExecuTorch's own passes compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.exir")

from executorch.exir import to_edge_transform_and_lower  # noqa: E402
from executorch.exir.pass_base import ExportPass  # noqa: E402
from fx.test_tosaic_partitioner import INT, expected, exported, inputs, quantized  # noqa: E402
from models.tosaic_delegates import (  # noqa: E402
    differing_from_reference_model,
    differing_payloads,
    modules_of,
    run,
)
from models.zoo import quiet  # noqa: E402
from tosaic.executorch import TosaicPartitioner, layout_pass  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]


def orders_of(graph: Any) -> dict[str, Any]:
    """Returns the dim orders of the tensors that calls make, without extents of 1."""
    found = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            found[node.name] = tuple(axis for axis in value.dim_order() if value.shape[axis] != 1)
    return found


@pytest.mark.parametrize("source", [exported, quantized])
@pytest.mark.parametrize("declared", ["traced", "channels_last"])
def test_executorchs_passes_compute_the_planned_orders(source: Any, declared: str) -> None:
    planner = layout_pass(orders={"inputs": declared})
    with quiet():
        edge = to_edge_transform_and_lower(source("sorted"), transform_passes=[planner])
        module = edge.exported_program().graph_module
        before = orders_of(module.graph)
        after = orders_of(ExportPass()(module).graph_module.graph)
    (applied,) = planner.applied
    assert list(before.values()) == list(after.values())
    assert applied.conversions
    (image, *_) = [node for node in module.graph.nodes if node.name == "x"]
    assert image.meta["val"].dim_order() == ((0, 2, 3, 1) if declared == "channels_last" else (0, 1, 2, 3))
    for node in module.graph.nodes:
        if node.op == "call_function" and "quantize_per_tensor" in str(node.target):
            assert node.meta["val"].dim_order() == node.args[0].meta["val"].dim_order()


@pytest.mark.parametrize("weights", [False, True])
def test_delegates_of_a_program_with_a_layout_compute_the_same(weights: bool) -> None:
    planner = layout_pass(orders={"inputs": "channels_last"}, weights=weights)
    program = quantized("sorted")
    with quiet():
        manager = to_edge_transform_and_lower(
            program, transform_passes=[planner], partitioner=[TosaicPartitioner(INT)]
        )
    assert len(modules_of(manager)) == 2
    assert differing_payloads(manager, INT) == 0
    args = tuple(each.contiguous(memory_format=torch.channels_last) for each in inputs("sorted", 3))
    assert differing_from_reference_model(manager, args) == 0
    wanted = expected(program, args)[0]
    np.testing.assert_allclose(run(manager, args)[0], wanted, atol=2 * np.ptp(wanted) / 255)


def test_it_runs_on_each_method() -> None:
    planner = layout_pass()
    programs = {"a": exported("sorted"), "b": exported("residual")}
    with quiet():
        edge = to_edge_transform_and_lower(programs, transform_passes=[planner])
    assert len(planner.applied) == len(edge.methods) == 2
