"""The options `io`, `orders` and `dump` of `tosaic.lower` with a split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from refusals import refusal

from partitions.test_plans import denying, exported


def split_of(warped: Any, **options: Any) -> Any:
    return tosaic.lower(warped, unsupported="split", claimants=[denying("grid_sample")], **options)


@pytest.mark.parametrize(
    ("io", "dtypes"),
    [
        ({"inputs": {"x": "int8"}}, ("i8", "f32", "f32")),
        ({"inputs": {0: "int8", "grid": "int16"}, "outputs": "uint8"}, ("i8", "i16", "u8")),
        ({"outputs": "int8"}, ("f32", "f32", "i8")),
        ({"inputs": "float32", "outputs": {"out": "float32"}}, ("f32", "f32", "f32")),
    ],
)
def test_io_makes_inputs_and_outputs_integers(
    warped: Any, image: torch.Tensor, grid: torch.Tensor, io: Any, dtypes: tuple[str, ...]
) -> None:
    split = split_of(warped, io=io)
    ports = (*split.inputs, *split.outputs)
    assert tuple(port.dtype for port in ports) == dtypes
    given = [
        port.quantized[0].quantize(array) if port.dtype != "f32" else array
        for port, array in zip(split.inputs, (image.numpy(), grid.numpy()), strict=True)
    ]
    found, expected = split.run(*given), split_of(warped).run(image, grid)
    if dtypes[2] != "f32":
        found = split.outputs[0].quantized[0].dequantize(found)
    np.testing.assert_array_equal(found, expected)
    assert tosaic.compare(warped, split, [(image, grid)]).ok


@pytest.mark.parametrize("form", ["channels_last", "nhwc"])
def test_declared_orders_reach_the_groups(
    warped: Any, image: torch.Tensor, grid: torch.Tensor, form: str
) -> None:
    plain = split_of(warped)
    split = split_of(warped, orders={"inputs": {"x": form}, "outputs": form}, io={"inputs": {"x": "int8"}})
    quantized = split.inputs[0].quantized[0].quantize(image.numpy()).transpose(0, 2, 3, 1)
    moved = np.ascontiguousarray(quantized)
    found = split.run(moved if form == "nhwc" else moved.transpose(0, 3, 1, 2), grid)
    expected = plain.run(image, grid)
    np.testing.assert_array_equal(found, expected.transpose(0, 2, 3, 1) if form == "nhwc" else expected)
    assert plain.transposed_bytes > 0
    assert split.transposed_bytes == 0
    assert [port.dim_order for part in split.parts for port in (*part.inputs, *part.outputs)] == [
        (0, 2, 3, 1)
    ] * 4
    assert tosaic.compare(warped, split, [(image, grid)]).ok
    assert all(each.ok for each in split.compare_groups([(image, grid)]).values())
    with pytest.raises(tosaic.LayoutMismatch, match="x"):
        split.run(np.ascontiguousarray(quantized.transpose(0, 3, 1, 2)), grid)


def test_a_saved_split_has_its_integers_and_orders(
    warped: Any, image: torch.Tensor, grid: torch.Tensor, tmp_path: Path
) -> None:
    split = split_of(warped, orders={"inputs": {"x": "nhwc"}}, io={"inputs": {"x": "int8"}})
    split.save(tmp_path / "out")
    array = np.ascontiguousarray(split.inputs[0].quantized[0].quantize(image.numpy()).transpose(0, 2, 3, 1))
    program = tosaic.partitions.load_split(tmp_path / "out")
    np.testing.assert_array_equal(program.run(array, grid), split.run(array, grid))


def test_dumps_have_the_names_of_groups(warped: Any, tmp_path: Path) -> None:
    split_of(warped, dump=tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name[:2] for name in names] == [f"{i:02d}" for i in range(len(names))]
    assert {name.split("-")[1] for name in names} == {"group0", "group1"}
    assert sum("legalize-tosa" in name for name in names) == 2
    tosaic.program.Graph.parse((tmp_path / names[-1]).read_text())


def test_entries_that_do_not_fit_are_refused(warped: Any) -> None:
    message = refusal(tosaic.InvalidGraph, lambda: split_of(warped, io={"inputs": {"image": "int8"}}))
    assert "no such entry of inputs" in message
    assert "image" in message
    message = refusal(tosaic.QuantMismatch, lambda: split_of(warped, io={"inputs": {"x": "int16"}}))
    assert "'x'" in message
    assert "int16" in message
    message = refusal(
        tosaic.LayoutMismatch, lambda: split_of(warped, orders={"inputs": {"grid": "channels_last"}})
    )
    assert "grid of a grid sampler" in message
    message = refusal(
        tosaic.InvalidGraph, lambda: split_of(warped, pipeline=tosaic.Pipeline.default("TOSA-1.0+INT"))
    )
    assert "Each claimant has its own pipeline" in message


def test_integers_of_a_program_stay_as_they_are(image: torch.Tensor) -> None:
    class Indexed(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return torch.relu(x.flatten()[i.to(torch.int64)])

    index = torch.tensor([1, 5], dtype=torch.int32)
    program = exported(Indexed(), image, index)
    split = tosaic.lower(program, unsupported="split", claimants=["TOSA-1.0+FP"], io={"inputs": "float32"})
    assert [port.dtype for port in split.inputs] == ["f32", "i32"]
    np.testing.assert_allclose(split.run(image, index), Indexed()(image, index))
