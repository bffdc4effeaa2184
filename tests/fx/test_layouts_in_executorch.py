"""Layout plans together with ExecuTorch: through its lowering, on its edge dialect, and in its runtime."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
import tosaic
from models import zoo
from models.delegates import (
    WithDelegates,
    delegates_of,
    lower_with_executorch,
    run_file_on_reference_model,
    transposes_of,
)
from models.quantize import converted

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")

import torch.nn.functional as F  # noqa: E402
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge  # noqa: E402
from fx.test_layouts import LAST, ROWS, is_in, same, seen, untrue, val  # noqa: E402
from torch import nn  # noqa: E402
from tosaic.executorch import ConversionsOutside  # noqa: E402
from tosaic.fx import Convert, apply_layout  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread_without_traces")]
X = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(1))
DECLARED = {"inputs": "channels_last", "outputs": "channels_last"}
CONVERTED = {"inputs": Convert("channels_last"), "outputs": Convert("channels_last")}


class Net(nn.Module):
    """A convolution, a row-major clone, a depthwise convolution, and optionally a pad."""

    def __init__(self, pad: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pad = pad
        self.first = nn.Conv2d(4, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu().clone(memory_format=torch.contiguous_format)
        y = self.depthwise(y)
        return F.pad(y, (1, 1, 1, 1), value=0.5) if self.pad else y


def exported(quantized: bool = False, pad: bool = True) -> Any:
    net = Net(pad).eval().requires_grad_(False)
    return converted(net, [(X,)], "arm") if quantized else torch.export.export(net, (X,))


def edge_of(ep: Any, **options: Any) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        return to_edge(ep, compile_config=EdgeCompileConfig(**options)).exported_program()


def run_delegates(program: Any, x: torch.Tensor) -> np.ndarray[Any, Any]:
    return WithDelegates(program, run_file_on_reference_model).run(x)[0]


def transposes(program: Any) -> int:
    return sum(len(transposes_of(file)) for file in delegates_of(program))


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "int8"])
def test_inputs_and_outputs_of_declared_order_are_lowered_by_executorch_without_transposes(
    quantized: bool,
) -> None:
    ep = exported(quantized)
    target = "TOSA-1.0+INT" if quantized else "TOSA-1.0+FP"
    plain = lower_with_executorch(ep, target)
    applied = apply_layout(ep, mode="convert", orders=DECLARED)
    assert applied.layout.transposes == applied.conversions == ()
    lowered = lower_with_executorch(applied.program, target)
    assert transposes(plain) == 2
    assert transposes(lowered) == 0
    (x,) = [n for n in lowered.graph.nodes if n.name in lowered.graph_signature.user_inputs]
    assert is_in(x.meta["val"], LAST)
    found = run_delegates(lowered, X.contiguous(memory_format=torch.channels_last))
    np.testing.assert_allclose(found, run_delegates(plain, X), rtol=1e-5, atol=1e-5)


def test_a_converted_program_is_lowered_by_executorch_with_the_same_results() -> None:
    ep = exported()
    plain = lower_with_executorch(ep, "TOSA-1.0+FP")
    made = apply_layout(ep, mode="convert")
    lowered = lower_with_executorch(made.program, "TOSA-1.0+FP")
    assert len(delegates_of(lowered)) == 1
    assert transposes(lowered) == transposes(plain) == len(made.conversions) == 2
    np.testing.assert_allclose(run_delegates(lowered, X), run_delegates(plain, X), rtol=1e-5, atol=1e-5)


def test_conversions_are_inside_or_outside_of_the_partition() -> None:
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
    from executorch.exir import to_edge_transform_and_lower

    applied = apply_layout(exported(), mode="convert", orders=CONVERTED)
    assert [order for _, order in seen(applied.conversions)] == [LAST, ROWS]

    def lowered(*checks: Any) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            partitioner = TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"), additional_checks=checks)
            return to_edge_transform_and_lower(applied.program, partitioner=[partitioner]).exported_program()

    def on_host(program: Any) -> list[Any]:
        calls = [n for n in program.graph.nodes if "_clone_dim_order" in str(n.target)]
        return [tuple(n.kwargs["dim_order"]) for n in calls]

    inside, outside = lowered(), lowered(ConversionsOutside())
    assert (transposes(inside), on_host(inside)) == (2, [])
    assert (transposes(outside), on_host(outside)) == (0, [LAST, ROWS])
    np.testing.assert_allclose(run_delegates(outside, X), run_delegates(inside, X), rtol=1e-5, atol=1e-5)


def test_channels_last_example_inputs_need_no_conversion() -> None:
    x = X.contiguous(memory_format=torch.channels_last)
    net = (
        nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8))
        .eval()
        .requires_grad_(False)
    )
    edge = edge_of(torch.export.export(net, (x,)))
    applied = apply_layout(edge, mode="convert")
    assert applied.conversions == applied.layout.transposes == ()
    assert is_in(val(applied, "input_1"), LAST)
    same(applied.program, edge, x)


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("dim_order", [True, False])
def test_an_edge_program_is_converted_by_operators_of_its_dialect(dim_order: bool, quantized: bool) -> None:
    edge = edge_of(exported(quantized), _skip_dim_order=not dim_order)
    applied = apply_layout(edge, mode="convert")
    assert applied.program.dialect == "EDGE"
    assert [order for _, order in seen(applied.conversions)] == [LAST, ROWS]
    for conversion in applied.conversions:
        (made,) = [n for n in applied.program.graph.nodes if n.name == conversion.node]
        if dim_order:
            assert "_clone_dim_order" in str(made.target)
            assert tuple(made.kwargs["dim_order"]) == conversion.to_order
        else:
            assert "aten.clone" in str(made.target)
            assert set(made.kwargs) == {"memory_format"}
    assert untrue(applied.program, (X,)) == []
    same(applied.program, edge, X, tolerance=1e-5)


def test_a_clone_dim_order_has_the_order_that_it_names() -> None:
    edge = edge_of(exported())
    (clone,) = [n.name for n in edge.graph.nodes if "_clone_dim_order" in str(n.target)]
    for mode, expected in (("annotate", ROWS), ("convert", LAST)):
        applied = apply_layout(edge, mode=mode)
        (made,) = [n for n in applied.program.graph.nodes if n.name == clone]
        assert tuple(made.kwargs["dim_order"]) == expected
        assert tuple(made.meta["val"].dim_order()) == expected


@pytest.mark.parametrize("orders", [None, DECLARED], ids=["traced", "declared"])
def test_a_converted_edge_program_runs_in_the_runtime(orders: Any) -> None:
    from executorch.runtime import Runtime

    # The runtime's portable pad computes wrong results in channels-last order, for any program.
    ep = exported(pad=orders is None)
    applied = apply_layout(edge_of(ep), mode="convert", orders=orders)
    with contextlib.redirect_stdout(io.StringIO()):
        buffer = EdgeProgramManager({"forward": applied.program}).to_executorch().buffer
    x = X.contiguous(memory_format=torch.channels_last) if orders else X
    program = Runtime.get().load_program(buffer)  # owns the memory of its methods
    (found,) = program.load_method("forward").execute([x])
    torch.testing.assert_close(found, ep.module()(X), rtol=1e-4, atol=1e-4)
    assert found.is_contiguous(memory_format=torch.channels_last if orders else torch.contiguous_format)


def require_conversion_of_network(name: str) -> None:
    """Asserts that a network quantized by XNNPACK's quantizer, in the edge dialect, becomes channels last."""
    made = zoo.build(name)
    sample = made.sample()
    edge = edge_of(converted(made.module, [sample], "xnnpack"))
    applied = apply_layout(edge, mode="convert")
    assert len(applied.conversions) == len(applied.layout.transposes) == 1
    assert untrue(applied.program, sample, {c.node for c in applied.conversions}) == []
    assert is_in(val(applied, applied.conversions[0].node), LAST)


def test_a_network_of_the_edge_dialect_is_converted_to_channels_last() -> None:
    require_conversion_of_network("resnet18_small")


def test_an_order_that_the_edge_dialect_cannot_express_is_refused_for_an_input() -> None:
    edge = edge_of(exported())
    with pytest.raises(
        tosaic.LayoutMismatch, match=r"no conversion of the edge dialect gives 'x'.*\(0, 3, 1, 2\)"
    ):
        apply_layout(edge, orders={"inputs": {"x": Convert((0, 3, 1, 2))}})


def test_an_order_that_the_edge_dialect_cannot_express_is_reported_for_inner_values() -> None:
    class Volume(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv3d(3, 4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x).relu()

    ep = torch.export.export(Volume().eval().requires_grad_(False), (torch.randn(1, 3, 4, 5, 6),))
    applied = apply_layout(edge_of(ep), mode="convert")
    assert [(each.value, each.reader) for each in applied.unmet] == [
        ("x", "aten_convolution_default"),
        ("aten_convolution_default", "aten_relu_default"),
    ]
    assert {each.order for each in applied.unmet} == {(0, 2, 3, 4, 1)}
    assert applied.conversions == ()
    (here,) = apply_layout(ep, mode="convert").conversions[:1]
    assert here.to_order == (0, 2, 3, 4, 1)
    same(applied.program, ep, torch.randn(1, 3, 4, 5, 6))
