"""`layout_pass` among ExecuTorch's passes: it has the dim orders that ExecuTorch's own passes compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.exir")

import tosaic  # noqa: E402
from executorch.backends.arm.quantizer import (  # noqa: E402
    TOSAQuantizer,
    get_symmetric_quantization_config,
)
from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec  # noqa: E402
from executorch.backends.arm.tosa.partitioner import TOSAPartitioner  # noqa: E402
from executorch.backends.arm.tosa.specification import TosaSpecification  # noqa: E402
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
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from tosaic.executorch import TosaicPartitioner, layout_pass, run_payloads  # noqa: E402
from tosaic.fx.io.quantize_calls import is_dequantize, is_quantize  # noqa: E402

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


class Reordered(nn.Module):
    """Operators that compute in row-major order between convolutions, and one that two orders read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 1),
            nn.LayerNorm(8),
        )

    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.first(x)
        z = torch.relu(self.norm(y))
        sampled = functional.grid_sample(self.second(z), grid, align_corners=False)
        return self.second(sampled) + y, torch.softmax(y, -1), self.second(torch.softmax(z, 1))


@pytest.mark.parametrize("objective", ["bytes", "count"])
@pytest.mark.parametrize("orders", [None, {"inputs": "channels_last"}, {"outputs": "channels_last"}], ids=str)
def test_no_conversion_comes_between_an_operator_and_its_quantization(objective: Any, orders: Any) -> None:
    """ExecuTorch's partitioners look for dequantize, operator and quantize next to each other."""
    torch.manual_seed(0)
    x, grid = torch.randn(1, 3, 8, 8), torch.rand(1, 8, 8, 2) * 2 - 1
    program = torch.export.export(Reordered().eval(), (x, grid))
    program = tosaic.quantize(program, [(x, grid)], progress=False).to_exported()
    applied = tosaic.fx.apply_layout(program, mode="convert", orders=orders, objective=objective)
    nodes = {node.name: node for node in applied.program.graph.nodes}
    assert applied.conversions
    for conversion in applied.conversions:
        node = nodes[conversion.node]
        assert not is_dequantize(node.args[0]), conversion
        assert not any(map(is_quantize, node.users)), conversion
    assert not any(is_dequantize(node) and not node.users for node in nodes.values())
    args = (x, grid)
    if orders == {"inputs": "channels_last"}:
        args = tuple(each.contiguous(memory_format=torch.channels_last) for each in args)
    found = applied.program.module(check_guards=False)(*args)
    for ours, theirs in zip(found, program.module(check_guards=False)(x, grid), strict=True):
        assert torch.equal(ours, theirs)
    returned = next(iter(reversed(applied.program.graph.nodes))).args[0]
    assert [each.meta["val"].stride() for each in returned] == [each.stride() for each in found]


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(torch.softmax(y, -1) + torch.sigmoid(y))


@pytest.mark.parametrize("spec", ["TOSA-1.0+INT", "TOSA-1.0+INT+FP"])
def test_arms_partitioner_computes_the_same_behind_a_layout(spec: str) -> None:
    torch.manual_seed(0)
    x, compiled = torch.randn(1, 3, 8, 8), TosaCompileSpec(TosaSpecification.create_from_string(spec))
    quantizer = TOSAQuantizer(compiled)
    quantizer.set_global(get_symmetric_quantization_config())
    with quiet():
        traced = torch.export.export(Attending().eval(), (x,)).module(check_guards=False)
        prepared = prepare_pt2e(traced, quantizer)
        prepared(x)
        program = torch.export.export(convert_pt2e(prepared), (x,))
        planner = layout_pass(orders={"inputs": "channels_last"}, objective="count")
        manager = to_edge_transform_and_lower(
            program, transform_passes=[planner], partitioner=[TOSAPartitioner(compiled)]
        )
    assert planner.applied[0].conversions
    (found,) = run_payloads(manager, (x.contiguous(memory_format=torch.channels_last),))
    expected = program.module(check_guards=False)(x)
    assert (found - expected).abs().max() <= 2 * (expected.max() - expected.min()) / 255


def test_it_runs_on_each_method() -> None:
    planner = layout_pass()
    programs = {"a": exported("sorted"), "b": exported("residual")}
    with quiet():
        edge = to_edge_transform_and_lower(programs, transform_passes=[planner])
    assert len(planner.applied) == len(edge.methods) == 2
