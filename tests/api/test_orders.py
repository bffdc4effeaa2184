"""Dim orders of inputs and outputs: as traced, as declared, or in the physical shape; and refused orders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic
from torch import nn

X = torch.randn(2, 3, 8, 6)


def exported(*inputs: torch.Tensor) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    return torch.export.export(nn.Conv2d(3, 4, 3).eval(), inputs or (X,), strict=False)


def truth() -> np.ndarray[Any, Any]:
    torch.manual_seed(0)
    with torch.no_grad():
        return nn.Conv2d(3, 4, 3).eval()(X).numpy()


def transposes(lowered: tosaic.Lowered) -> int:
    return sum(node.op == "tosa.transpose" for node in lowered.graph.nodes)


def test_a_network_traced_with_channels_last_has_no_transposes() -> None:
    lowered = tosaic.lower(exported(X.to(memory_format=torch.channels_last)))
    assert transposes(lowered) == 0
    found = lowered.run(X.to(memory_format=torch.channels_last))
    np.testing.assert_allclose(found, truth(), rtol=1e-5, atol=1e-5)
    assert found.shape == (2, 4, 6, 4)


def test_an_input_declared_channels_last_has_the_logical_shape() -> None:
    lowered = tosaic.lower(exported(), orders={"inputs": "channels_last", "outputs": "channels_last"})
    assert transposes(lowered) == 0
    assert lowered.io.inputs[0].dim_order == (0, 2, 3, 1)
    found = lowered.run(X.to(memory_format=torch.channels_last))
    np.testing.assert_allclose(found, truth(), rtol=1e-5, atol=1e-5)


def test_an_input_declared_nhwc_has_the_physical_shape() -> None:
    lowered = tosaic.lower(exported(), orders={"inputs": {0: "nhwc"}, "outputs": {"out": "nhwc"}})
    assert transposes(lowered) == 0
    found = lowered.run(np.ascontiguousarray(X.numpy().transpose(0, 2, 3, 1)))
    np.testing.assert_allclose(found, truth().transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)


class ToRows(nn.Module):
    """A convolution whose result torch returns as permuted views."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        return y.permute(0, 2, 3, 1), y[0, 0].t()


@pytest.mark.parametrize(
    ("orders", "found", "count"),
    [
        (None, ((0, 1, 2, 3), (0, 1)), 2),
        ({"outputs": {1: "traced"}}, ((0, 1, 2, 3), (1, 0)), 1),
        ({"outputs": {"out[0]": "traced", "out[1]": "traced"}}, ((0, 3, 1, 2), (1, 0)), 2),
        ({"outputs": "traced"}, ((0, 3, 1, 2), (0, 1)), 3),
    ],
)
def test_outputs_that_torch_returns_as_views_are_row_major_unless_declared(
    orders: dict[str, Any] | None, found: tuple[tuple[int, ...], ...], count: int
) -> None:
    torch.manual_seed(0)
    program = torch.export.export(ToRows().eval(), (X,), strict=False)
    lowered = tosaic.lower(program, orders=orders)
    assert tuple(port.dim_order for port in lowered.io.outputs) == found
    assert transposes(lowered) == count
    with torch.no_grad():
        for ours, expected in zip(lowered.run(X), program.module()(X), strict=True):
            np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_inputs_and_outputs_are_transposed_if_another_order_is_declared() -> None:
    lowered = tosaic.lower(
        exported(X.to(memory_format=torch.channels_last)),
        orders={"inputs": "contiguous", "outputs": "contiguous"},
    )
    assert transposes(lowered) == 2
    np.testing.assert_allclose(lowered.run(X), truth(), rtol=1e-5, atol=1e-5)


def test_any_order_of_the_axes_may_be_declared() -> None:
    lowered = tosaic.lower(exported(), orders={"inputs": {"input": (1, 0, 2, 3)}})
    laid = np.ascontiguousarray(X.numpy().transpose(1, 0, 2, 3)).transpose(1, 0, 2, 3)
    np.testing.assert_allclose(lowered.run(laid), truth(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("declared", "given", "expected", "found", "line"),
    [
        (
            "channels_last",
            X,
            r"\[0,2,3,1\]",
            r"\[0,1,2,3\]",
            r"x\.to\(memory_format=torch\.channels_last\)",
        ),
        (
            "contiguous",
            X.to(memory_format=torch.channels_last),
            r"\[0,1,2,3\]",
            r"\[0,2,3,1\]",
            r"x\.contiguous\(\)",
        ),
    ],
)
def test_strides_of_another_order_are_refused_with_the_line_of_code_that_fixes_it(
    declared: str, given: torch.Tensor, expected: str, found: str, line: str
) -> None:
    lowered = tosaic.lower(exported(), orders={"inputs": declared})
    message = f"input 'input' lies in another dim order.*expected {expected}, got {found}.*{line}"
    with pytest.raises(tosaic.LayoutMismatch, match=message):
        lowered.run(given)


def test_an_example_with_gaps_has_the_order_of_its_strides() -> None:
    part = torch.randn(2, 6, 8, 6).to(memory_format=torch.channels_last)[:, :3].copy_(X)
    lowered = tosaic.lower(exported(part))
    assert lowered.io.inputs[0].dim_order == (0, 2, 3, 1)
    np.testing.assert_allclose(lowered.run(part), truth(), rtol=1e-5, atol=1e-5)


def test_an_array_of_logical_shape_is_refused_by_an_input_of_physical_shape() -> None:
    lowered = tosaic.lower(exported(), orders={"inputs": "nhwc"})
    with pytest.raises(
        tosaic.LayoutMismatch, match=r"input 'input' has the wrong shape.*pass the permuted array"
    ):
        lowered.run(X)


def test_strides_of_axes_of_extent_1_are_ignored() -> None:
    one = torch.randn(2, 1, 8, 6)
    program = torch.export.export(nn.Conv2d(1, 4, 3).eval(), (one,), strict=False)
    lowered = tosaic.lower(program, orders={"inputs": "channels_last"})
    for laid in (
        one,
        one.to(memory_format=torch.channels_last),
        one.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    ):
        assert lowered.run(laid).shape == (2, 4, 6, 4)


@pytest.mark.parametrize(
    ("orders", "text"),
    [
        ({"input": "nhwc"}, "unknown entry of 'orders': 'input'"),
        ({"inputs": "NHWC"}, "unknown order of all inputs: expected one of traced"),
        ({"inputs": {"y": "nhwc"}}, "no such entry of inputs: expected one of 'input'"),
        ({"inputs": {1: "nhwc"}}, "no such entry of inputs.*an index below 1"),
        ({"outputs": {0: (0, 1, 2)}}, "the order of output 0 is none of its axes"),
        ({"inputs": {0: None}}, "unknown order of input 0: expected one of traced"),
        ({"inputs": 5}, "unknown order of all inputs"),
        ({"inputs": {0: (0.0, 2.5, 3, 1)}}, "unknown order of input 0"),
        ({"inputs": torch.channels_last}, "unknown order of all inputs.*got torch.channels_last"),
        ({"inputs": {0: "nhwc", "input": "contiguous"}}, "one entry of inputs is named twice.*0 and 'input'"),
        ("channels_last", "'orders' is no mapping: expected entries 'inputs' and 'outputs'"),
    ],
)
def test_invalid_orders_are_refused_by_name(orders: Any, text: str) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=text):
        tosaic.lower(exported(), orders=orders)


@pytest.mark.parametrize("form", ["nhwc", "channels_last"])
def test_integer_inputs_and_outputs_have_the_declared_order(form: str) -> None:
    Q = torch.ops.quantized_decomposed
    weight = torch.randint(-127, 128, (4, 3, 3, 3)).to(torch.int8)

    class Quantized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = Q.dequantize_per_tensor(
                Q.quantize_per_tensor(x, 0.02, 3, -128, 127, torch.int8), 0.02, 3, -128, 127, torch.int8
            )
            kernel = Q.dequantize_per_tensor(weight, 0.01, 0, -127, 127, torch.int8)
            y = Q.quantize_per_tensor(nn.functional.conv2d(x, kernel), 0.05, 1, -128, 127, torch.int8)
            return Q.dequantize_per_tensor(y, 0.05, 1, -128, 127, torch.int8)

    program = torch.export.export(Quantized().eval(), (X,), strict=False)
    orders = {"inputs": form, "outputs": form}
    low = tosaic.lower(
        program, target="TOSA-1.0+INT", io={"inputs": "int8", "outputs": "int8"}, orders=orders
    )
    assert transposes(low) == 0
    plain = tosaic.lower(program, target="TOSA-1.0+INT", io={"inputs": "int8", "outputs": "int8"})
    given = torch.randint(-128, 128, X.shape).to(torch.int8)
    expected = plain.run(given)
    last = given.to(memory_format=torch.channels_last)
    if form == "nhwc":
        assert np.array_equal(low.run(last.permute(0, 2, 3, 1)), expected.transpose(0, 2, 3, 1))
    else:
        assert np.array_equal(low.run(last), expected)


def channels_last_network() -> tuple[Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    example = torch.randn(1, 3, 6, 5).to(memory_format=torch.channels_last)
    return torch.export.export(model, (example,)), [torch.randn(1, 3, 6, 5) for _ in range(4)]


def test_samples_of_another_dim_order_than_the_example_are_taken() -> None:
    """A file of arrays has no dim orders, and a DataLoader stacks row-major images."""
    exported, rows = channels_last_network()
    last = [x.to(memory_format=torch.channels_last) for x in rows]
    stack = np.concatenate([x.numpy() for x in rows])
    texts = {
        tosaic.quantize(exported, samples, progress=False).graph.text() for samples in (rows, last, stack)
    }
    assert len(texts) == 1
    with pytest.raises(tosaic.LayoutMismatch, match="another dim order than was declared"):
        tosaic.from_exported(exported).run(rows[0])


@pytest.mark.parametrize("orders", [None, {"inputs": "nhwc", "outputs": "nhwc"}], ids=["as traced", "nhwc"])
def test_a_comparison_takes_stacks_of_samples_as_quantize_does(orders: Any) -> None:
    exported, rows = channels_last_network()
    stack = np.concatenate([x.numpy() for x in rows])
    quantized = tosaic.quantize(exported, stack, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT", orders=orders)
    one_by_one = tosaic.compare(quantized, lowered, rows)
    for samples in (stack, {"input": stack}, [stack[:2], stack[2:]]):
        found = tosaic.compare(quantized, lowered, samples)
        assert found.ok
        assert found.samples == 4
        assert [row.metrics for row in found.outputs] == [row.metrics for row in one_by_one.outputs]
    assert tosaic.compare(exported, lowered, stack).samples == 4
