"""The boundary of written ``.pte`` files: physical shapes, dim orders, integers, states, written inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")

import executorch.kernels.quantized  # noqa: E402, F401 - registers the kernels of quantize and dequantize
import tosaic  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import grid_sample  # noqa: E402
from tosaic.annotation import Fixed, Inputs, Operator, Outputs  # noqa: E402
from tosaic.base.arrays import in_memory_order  # noqa: E402

from pte.calls import run_in_executorch  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

NHWC = {"inputs": "nhwc", "outputs": "nhwc"}


class Network(nn.Module):
    """A convolution, an output that is an input, one that is returned twice, and nested arguments."""

    def __init__(self, rank: int = 4) -> None:
        super().__init__()
        self.conv = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[rank](3, 4, 3, padding=1)

    def forward(self, batch: dict[str, torch.Tensor], *, bias: torch.Tensor) -> dict[str, Any]:
        y = self.conv(batch["image"])
        return {"maps": [y.relu() + bias, y], "again": y, "image": batch["image"]}


def _arguments(shape: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(2)
    return ({"image": torch.randn(tuple(shape))},), {
        "bias": torch.randn(shape[0], 4, *[1] * (len(shape) - 2))
    }


def _exported(shape: Sequence[int]) -> tuple[nn.Module, Any]:
    torch.manual_seed(1)
    module = Network(len(shape)).eval()
    args, kwargs = _arguments(shape)
    return module, torch.export.export(module, args, kwargs)


def _lowered(program: Any, kind: str, **options: Any) -> Any:
    """Lowers whole, in groups around a denied ReLU, or not at all: then kernels compute everything."""
    if kind == "whole":
        return tosaic.lower(program, target="TOSA-1.0+FP+INT+int16", **options)
    split = tosaic.Claimant.named("TOSA-1.0+FP").deny(op="relu", why="a test")
    claimants = [split] if kind == "split" else ["grid-sampler"]
    return tosaic.lower(program, unsupported="split", claimants=claimants, **options)


def _given(program: Any, arrays: Sequence[Any]) -> list[Any]:
    """Returns logical arrays in the form of the caller's: integers, physical shapes and memory orders."""
    found = []
    for array, port in zip(arrays, program.inputs, strict=True):
        array = np.asarray(array)
        if array.dtype == np.float32 and port.dtype != "f32":
            array = port.qparams.quantize(array)
        order = port.dim_order
        found.append(
            np.ascontiguousarray(array.transpose(order)) if port.physical else in_memory_order(array, order)
        )
    return found


def _check_file(program: Any, path: Path, arrays: Sequence[Any], bound: float = 0.0) -> list[Any]:
    """Saves a program, and checks the results of the file, read with and without its sidecar."""
    tosaic.save_pte(program, path, sidecar=True)
    given = _given(program, arrays)
    expected = program.run_arrays(given)
    for sidecar in (True, False):
        file = tosaic.load_pte(path, sidecar=sidecar)
        found = file.program.run_arrays(given)
        for ours, wanted, tensor in zip(found, expected, file.method().outputs, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=bound, atol=bound)
            assert (ours.dtype, ours.shape) == (wanted.dtype, tensor.shape)
    for tensor, port in zip(tosaic.load_pte(path).method().outputs, program.outputs, strict=True):
        assert tensor.dim_order == port.array_order
    return expected


def _check_runtime(path: Path, given: Sequence[Any], expected: Sequence[Any]) -> None:
    found = run_in_executorch(path.read_bytes(), [torch.from_numpy(each) for each in given])
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (kind, shape)
        for kind in ("whole", "split", "kernels")
        for shape in ((2, 3, 6), (2, 3, 5, 6), (1, 3, 1, 1), (1, 3, 4, 5, 2))
        if kind != "kernels" or len(shape) < 5  # no kernel has convolutions of three dimensions
    ],
)
def test_physical_arrays_are_row_major_in_the_file(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    module, exported = _exported(shape)
    (batch,), named = _arguments(shape)
    program = _lowered(exported, kind, orders=NHWC)
    assert all(port.physical for port in (*program.inputs, *program.outputs))
    path = tmp_path / "m.pte"
    arrays = [batch["image"], named["bias"]]
    expected = _check_file(program, path, arrays)
    file = tosaic.load_pte(path)
    rows = tuple(range(len(shape)))
    assert [each.dim_order for each in (*file.method().inputs, *file.method().outputs)] == [rows] * 6
    eager = module(batch, **named)
    last = (0, *range(2, len(shape)), 1)
    image, bias = _given(program, arrays)
    nested = file.run({"image": image}, bias=bias)
    for ours, wanted in (
        (nested["maps"][0], eager["maps"][0]),
        (nested["again"], eager["again"]),
        (nested["image"], batch["image"]),
    ):
        np.testing.assert_allclose(ours, wanted.detach().permute(last).numpy(), rtol=1e-4, atol=1e-5)
    assert tosaic.compare(exported, path, [{"batch": batch, **named}]).ok
    if kind == "kernels":
        _check_runtime(path, [image, bias], expected)


@pytest.mark.parametrize("kind", ["whole", "split", "kernels"])
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("channels_last", "nhwc"),
        ("nhwc", "channels_last"),
        ("contiguous", {"out['again']": "nhwc", "out['image']": "channels_last"}),
        ({"batch['image']": "nhwc"}, {"out['maps'][0]": (3, 0, 2, 1), "out['maps'][1]": "channels_last"}),
    ],
)
def test_outputs_have_their_declared_orders(tmp_path: Path, kind: str, inputs: Any, outputs: Any) -> None:
    _, exported = _exported((2, 3, 5, 6))
    (batch,), named = _arguments((2, 3, 5, 6))
    program = _lowered(exported, kind, orders={"inputs": inputs, "outputs": outputs})
    arrays = [batch["image"], named["bias"]]
    expected = _check_file(program, tmp_path / "m.pte", arrays)
    assert tosaic.compare(exported, tmp_path / "m.pte", [{"batch": batch, **named}]).ok
    if kind == "kernels":
        _check_runtime(tmp_path / "m.pte", _given(program, arrays), expected)


@pytest.mark.parametrize("kind", ["split", "kernels"])
@pytest.mark.parametrize("order", [(3, 2, 1, 0), (2, 3, 0, 1)])
def test_axes_of_extent_1_do_not_hide_the_order(tmp_path: Path, kind: str, order: tuple[int, ...]) -> None:
    """Kernels refuse operands of different dim orders, even if the orders are the same layout."""

    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (x + y).relu(), x, y

    x, y = torch.randn(1, 3, 1, 1), torch.randn(1, 3, 1, 1)
    exported = torch.export.export(Sum(), (x, y))
    orders = {"inputs": {"y": order}, "outputs": {0: "channels_last", 1: "nhwc", 2: order}}
    program = _lowered(exported, kind, orders=orders)
    expected = _check_file(program, tmp_path / "m.pte", [x, y])
    assert expected[1].shape == (1, 1, 1, 3)
    if kind == "kernels":
        _check_runtime(tmp_path / "m.pte", [x.numpy(), y.numpy()], expected)


@pytest.mark.parametrize("kind", ["whole", "kernels"])
@pytest.mark.parametrize(
    ("config", "inputs", "outputs"),
    [
        ("int8", {"batch['image']": "int8", "bias": "int8"}, {0: "int8", 1: "int8", 2: "int8", 3: "int8"}),
        ("int8", {"batch['image']": "uint8"}, {0: "uint8", 2: "int8"}),
        ("int16x8", {"bias": "int16"}, {1: "int16"}),
        ("int8", {"batch['image']": tosaic.ports.QParams("i8", (0.04,), (5,), -128, 127)}, {}),
    ],
)
def test_integers_in_physical_shapes(
    tmp_path: Path, kind: str, config: str, inputs: Any, outputs: Any
) -> None:
    _, exported = _exported((2, 3, 5, 6))
    (batch,), named = _arguments((2, 3, 5, 6))
    sample = {"batch": batch, **named}
    quantized = tosaic.quantize(exported, [sample], config=getattr(tosaic.QConfig, config)(), progress=False)
    program = _lowered(quantized, kind, io={"inputs": inputs, "outputs": outputs}, orders=NHWC)
    arrays = [batch["image"], named["bias"]]
    path = tmp_path / "m.pte"
    expected = _check_file(program, path, arrays)
    file = tosaic.load_pte(path)
    assert [port.qparams for port in file.program.inputs] == [port.qparams for port in program.inputs]
    floats = [np.ascontiguousarray(each.numpy().transpose(0, 2, 3, 1)) for each in arrays]
    np.testing.assert_array_equal(file.run({"image": floats[0]}, bias=floats[1])["again"], expected[2])
    if not isinstance(
        next(iter(inputs.values())), tosaic.ports.QParams
    ):  # its integers are not the program's
        assert tosaic.compare(quantized, path, [sample]).ok
    if kind == "kernels":
        given = [torch.from_numpy(each) for each in _given(program, arrays)]
        for ours, wanted in zip(run_in_executorch(path.read_bytes(), given), expected, strict=True):
            step = 1 if wanted.dtype.kind in "iu" else program.outputs[0].quantized[0].scale
            assert np.abs(ours.numpy().astype(float) - wanted).max() <= step * 1.01


class Writing(nn.Module):
    """A state that is returned, a written input, a returned input, and a state that becomes an input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(1, 3, 4, 5))
        self.register_buffer("last", torch.zeros(1, 3, 4, 5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        old = self.last * 1
        self.total.add_(x)
        self.last.copy_(x)
        y.mul_(2).add_(self.total)
        return x, self.total, y.relu(), old


@pytest.mark.parametrize("kind", ["whole", "split", "kernels"])
@pytest.mark.parametrize("orders", [None, NHWC, {"inputs": "nhwc"}, {"outputs": "nhwc"}])
def test_states_and_written_inputs_in_physical_shapes(tmp_path: Path, kind: str, orders: Any) -> None:
    x, y = torch.randn(1, 3, 4, 5), torch.randn(1, 3, 4, 5)
    exported = torch.export.export(Writing(), (x, y.clone()))
    program = _lowered(exported, kind, orders=orders)
    path = tmp_path / "m.pte"
    tosaic.save_pte(program, path, sidecar=True)
    module = Writing()
    files = [
        tosaic.load_pte(path, sidecar=sidecar).program.prepare(write_back=True) for sidecar in (True, False)
    ]
    runs: list[Callable[..., Any]] = [program.prepare(write_back=True).run, *(each.run for each in files)]
    ports = program.outputs
    users = [port for port in ports if port.kind == "user"]
    for step in range(3):
        written = y + step
        eager = module(x + step, written)
        for run in runs:
            given = _given(program, [x + step, y + step])
            for ours, wanted, port in zip(run(*given), eager, users, strict=True):
                wanted = wanted.permute(port.dim_order) if port.physical else wanted
                np.testing.assert_allclose(ours, wanted.numpy(), rtol=1e-5, atol=1e-5)
            new = written.permute(0, 2, 3, 1) if program.inputs[1].physical else written
            np.testing.assert_allclose(given[1], new.numpy(), rtol=1e-5, atol=1e-5)


def test_an_order_for_all_inputs_does_not_concern_states() -> None:
    exported = torch.export.export(Writing(), (torch.zeros(1, 3, 4, 5), torch.zeros(1, 3, 4, 5)))
    lowered = tosaic.lower(exported, target="TOSA-1.0+FP", orders={"inputs": "nhwc"})
    assert [port.shape for port in lowered.states] == [(1, 3, 4, 5)] * 2
    assert [port.shape for port in lowered.inputs] == [(1, 4, 5, 3)] * 2


def test_a_file_has_traced_orders_only_if_they_are_memory_formats(tmp_path: Path) -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.permute(0, 2, 3, 1), x * 2, x.mean(1, keepdim=True) * x

    x = torch.randn(1, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    program = tosaic.from_exported(torch.export.export(Views(), (x,)))
    path = tmp_path / "m.pte"
    tosaic.save_pte(program, path, sidecar=True)
    assert [each.dim_order for each in tosaic.load_pte(path).method().outputs] == [
        (0, 1, 2, 3),
        (0, 2, 3, 1),
        (0, 2, 3, 1),
    ]
    for ours, eager in zip(run_in_executorch(path.read_bytes(), [x]), Views()(x), strict=True):
        torch.testing.assert_close(ours, eager)


def test_methods_of_a_file_have_boundaries_of_their_own(tmp_path: Path) -> None:
    _, exported = _exported((1, 3, 5, 6))
    (batch,), named = _arguments((1, 3, 5, 6))
    methods = {
        "nhwc": _lowered(exported, "whole", orders=NHWC),
        "split": _lowered(exported, "split", orders={"inputs": "nhwc"}),
        "plain": tosaic.from_exported(exported),
    }
    path = tmp_path / "m.pte"
    tosaic.save_pte(methods, path, sidecar=True)
    file = tosaic.load_pte(path)
    for name, program in methods.items():
        given = _given(program, [batch["image"], named["bias"]])
        for ours, wanted in zip(
            file.method(name).program.run_arrays(given), program.run_arrays(given), strict=True
        ):
            np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)
    shapes = [file.method(name).inputs[0].shape for name in methods]
    assert shapes == [(1, 5, 6, 3), (1, 5, 6, 3), (1, 3, 5, 6)]
    assert tosaic.compare(exported, file.method("split"), [{"batch": batch, **named}]).ok


# ---- grid samplers, which are written as kernels ----


class Warps(nn.Module):
    """Three samplers: a grid that is an input, one that is a constant, and an image that is a state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.rand(1, 4, 6, 2) * 2 - 1)
        self.register_buffer("last", torch.rand(1, 3, 5, 6) * 2 - 1)

    def forward(self, image: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = grid_sample(image, grid, align_corners=False)
        b = grid_sample(self.last, self.grid, mode="nearest", align_corners=True)
        self.last.copy_(image)
        return a, torch.sigmoid(grid_sample(image, self.grid, padding_mode="border", align_corners=False)) + b


@pytest.mark.parametrize("orders", [None, NHWC, {"inputs": {"image": (0, 3, 1, 2)}, "outputs": "nhwc"}])
def test_samplers_of_floats_are_kernels(tmp_path: Path, orders: Any) -> None:
    torch.manual_seed(3)
    module = Warps()
    image, grid = torch.rand(1, 3, 5, 6) * 2 - 1, torch.rand(1, 3, 4, 2) * 2 - 1
    exported = torch.export.export(module, (image, grid))
    program = _lowered(exported, "kernels", orders=orders)
    assert {group.claimant for group in program.partitions.groups} == {"grid-sampler"}
    path = tmp_path / "m.pte"
    tosaic.save_pte(program, path, sidecar=True)
    file = tosaic.load_pte(path)
    assert not file.delegates
    assert tosaic.compare(exported, path, (image, grid)).ok
    given = _given(program, [image, grid])
    eager = [
        each.permute(port.dim_order).numpy() if port.physical else each.numpy()
        for each, port in zip(module(image, grid), program.outputs, strict=True)
    ]
    for ours, wanted in zip(file.run(*given), eager, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)
    if orders is None or orders is NHWC:
        _check_runtime(path, given, eager)


@pytest.mark.parametrize("grid_dtype", ["int8", "int16"])
@pytest.mark.parametrize("io", [None, {"inputs": {"image": "int8"}, "outputs": "int8"}])
@pytest.mark.parametrize("with_rgba", [False, True])
def test_samplers_of_integers_are_kernels(tmp_path: Path, grid_dtype: str, io: Any, with_rgba: bool) -> None:
    class Warp(nn.Module):
        def forward(self, image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            once = grid_sample(image, grid, align_corners=False)
            return grid_sample(once, grid, padding_mode="border", align_corners=False)

    torch.manual_seed(3)
    image, grid = torch.rand(1, 3, 5, 6) * 2 - 1, torch.rand(1, 5, 6, 2) * 2 - 1
    most = {"int8": 127, "int16": 32767}[grid_dtype]
    snorm = Fixed("int8", 1 / 127, 0, -127, 127, "per_tensor_symmetric")
    unit = Fixed(grid_dtype, 1 / most, 0, -most, most, "per_tensor_symmetric")
    rules = [
        Inputs({0: snorm, 1: unit}),
        Outputs({0: snorm}),
        Operator("grid_sampler", {"input": snorm, "grid": unit}, snorm),
    ]
    exported = torch.export.export(Warp(), (image, grid))
    quantized: Any = tosaic.quantize(exported, [(image, grid)], rules=rules, progress=False)
    if with_rgba:
        quantized = tosaic.lowering.rgba(quantized, inputs=["image"], outputs=[0])
        image = torch.cat([image, torch.zeros(1, 1, 5, 6)], 1)
    program = _lowered(quantized, "kernels", io=io, orders={"inputs": {"image": "nhwc"}, "outputs": "nhwc"})
    assert {group.claimant for group in program.partitions.groups} == {"grid-sampler"}
    expected = _check_file(program, tmp_path / "m.pte", [image, grid], bound=1e-6)
    method = tosaic.load_pte(tmp_path / "m.pte").method()
    assert not method.delegates
    assert sum("grid_sampler_2d" in each for each in method.instructions) == 2
    assert tosaic.compare(quantized, tmp_path / "m.pte", (image, grid)).ok
    _check_runtime(tmp_path / "m.pte", _given(program, [image, grid]), expected)


# ---- sidecars ----


def _changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    beside = path.with_name(f"{path.name}.json")
    entry = json.loads(beside.read_text())
    for method in entry["methods"]:
        for port in (*method["inputs"], *method["outputs"]):
            change(port)
    beside.write_text(json.dumps(entry))


def test_sidecars_without_the_entry_are_read_and_wrong_ones_refused(tmp_path: Path) -> None:
    _, exported = _exported((1, 3, 5, 6))
    path = tmp_path / "m.pte"
    tosaic.save_pte(_lowered(exported, "whole"), path, sidecar=True)
    _changed(path, lambda port: port.pop("physical"))
    assert not any(port.physical for port in tosaic.load_pte(path).program.inputs)
    _changed(path, lambda port: port.update(physical=1))
    with pytest.raises(tosaic.InvalidGraph, match=r"physical.*true or false"):
        tosaic.load_pte(path)
    tosaic.save_pte(_lowered(exported, "whole", orders=NHWC), path, sidecar=True)
    assert all(port.physical for port in tosaic.load_pte(path).program.inputs)
    _changed(path, lambda port: port.update(physical=False))
    with pytest.raises(tosaic.InvalidGraph, match="method 'forward', input 0: expected"):
        tosaic.load_pte(path)
