"""Arrays that `run` accepts: any strides and byte order, integers that fit, Python numbers, tensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import tosaic
from function_module import FunctionModule
from refusals import refusal

FP, BOTH = "TOSA-1.0+FP", "TOSA-1.0+FP+INT"


def export(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    return torch.export.export(FunctionModule(function).eval(), args)


def forms(function: Callable[..., Any], *args: torch.Tensor, target: str = FP) -> list[Any]:
    """Returns the imported program, and the lowered one."""
    program = tosaic.from_exported(export(function, *args))
    return [program, tosaic.lower(program, target=target)]


SHAPES = [(5,), (4, 6), (2, 3, 4), (2, 3, 4, 6), (2, 3, 2, 4, 3), (2, 1, 3, 2, 2, 2)]
STRIDED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Fortran": np.asfortranarray,
    "negative strides": lambda x: np.flip(np.ascontiguousarray(np.flip(x))),
    "one negative stride": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "a slice with steps": lambda x: np.repeat(x, 2, axis=0)[::2],
    "a part of a larger array": lambda x: np.pad(x, 1)[(slice(1, -1),) * x.ndim],
    "repeated elements": lambda x: np.broadcast_to(x[:1], x.shape),
    "one element": lambda x: np.broadcast_to(x.ravel()[0], x.shape),
    "rotated axes": lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0),
    "big-endian": lambda x: x.astype(">f4"),
    "big-endian Fortran": lambda x: np.asfortranarray(x.astype(">f4")),
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("shape", SHAPES, ids=len)
def test_arrays_of_any_strides_byte_order_and_rank_are_read(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(7).normal(size=shape).astype(np.float32)
    for runnable in forms(lambda x: torch.relu(x) - 1, torch.from_numpy(x)):
        for name, form in STRIDED.items():
            given = form(x)
            expected = np.maximum(np.ascontiguousarray(given).astype(np.float32), 0) - 1
            assert np.array_equal(runnable.run(given), expected), name


@pytest.mark.parametrize("shape", SHAPES, ids=len)
def test_tensors_of_any_strides_and_with_gradients_are_read(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    given = {
        "plain": x,
        "with gradients": x.clone().requires_grad_(),
        "computed with gradients": x.clone().requires_grad_() * 2,
        "expanded": x[:1].expand(shape),
        "rotated axes": x.movedim(0, -1).contiguous().movedim(-1, 0),
        "a slice with steps": x.repeat_interleave(2, 0)[::2],
        "negated by a bit": torch.complex(x, x).conj().imag,
    }
    for runnable in forms(lambda x: torch.relu(x) - 1, x):
        for name, tensor in given.items():
            assert np.array_equal(runnable.run(tensor), (torch.relu(tensor) - 1).detach().numpy()), name


def test_tensors_of_bfloat16_with_any_strides_are_read() -> None:
    x = torch.randn(4, 6).to(torch.bfloat16)
    program = tosaic.from_exported(export(torch.relu, x))
    for given in (x, x.clone().requires_grad_(), x.t().contiguous().t(), x[:1].expand(4, 6)):
        assert np.array_equal(program.run(given), program.run(given.detach().contiguous()))
        expected = torch.relu(given).detach().float().numpy()
        assert np.array_equal(program.run(given).astype(np.float32), expected)


@pytest.mark.parametrize("rank", [4, 5])
def test_a_memory_format_that_was_not_declared_is_refused(rank: int) -> None:
    shape = (2, 3, 4, 6, 2)[:rank]
    last = torch.channels_last if rank == 4 else torch.channels_last_3d
    x = torch.randn(shape)
    for runnable in forms(torch.relu, x):
        text = refusal(tosaic.LayoutMismatch, runnable.run, x.to(memory_format=last))
        assert "lies in another dim order than was declared" in text
    declared = tosaic.lower(tosaic.from_exported(export(torch.relu, x)), orders={"inputs": "channels_last"})
    refusal(tosaic.LayoutMismatch, declared.run, x)
    assert np.array_equal(declared.run(x.to(memory_format=last)), torch.relu(x).numpy())


def test_arrays_in_physical_order_may_be_strided_too() -> None:
    x = torch.randn(2, 3, 4, 6)
    lowered = tosaic.lower(tosaic.from_exported(export(torch.relu, x)), orders={"inputs": "nhwc"})
    physical = x.permute(0, 2, 3, 1).contiguous().numpy()
    expected = torch.relu(x).numpy()
    for given in (physical, np.asfortranarray(physical), physical[..., ::-1].copy()[..., ::-1]):
        assert np.array_equal(lowered.run(given), expected)


# ---- integers of other widths ----


def embed(ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(ids, torch.arange(12.0).reshape(6, 2))


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i2", ">i4", ">i8"])
def test_integers_of_any_width_that_fit_are_read(dtype: str, tmp_path: Path) -> None:
    ids = torch.tensor([[0, 5, 2]])
    program = tosaic.from_exported(export(embed, ids))
    lowered = tosaic.lower(program, target=BOTH)
    lowered.save(tmp_path / "ids.tosa")
    file = tosaic.load_tosa(tmp_path / "ids.tosa")
    assert file.inputs[0].dtype == "i32"
    for runnable in (program, lowered, file):
        assert np.array_equal(runnable.run(ids.numpy().astype(dtype)), embed(ids).numpy())


def test_an_int32_input_of_a_file_refuses_int64_values_that_do_not_fit_by_name(tmp_path: Path) -> None:
    ids = torch.zeros(1, 3, dtype=torch.int64)
    tosaic.lower(export(embed, ids), target=BOTH).save(tmp_path / "ids.tosa")
    text = refusal(
        tosaic.InvalidGraph, tosaic.load_tosa(tmp_path / "ids.tosa").run, np.array([[0, 2**40, 1]])
    )
    assert "[run] input '" in text
    assert (
        "holds a value outside its range at [0,1]: expected -2147483648 to 2147483647, got 1099511627776"
        in text
    )


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(torch.int8, -128, 127), (torch.uint8, 0, 255), (torch.int16, -32768, 32767)],
)
def test_narrow_inputs_accept_wider_integers_only_if_they_fit(
    dtype: torch.dtype, low: int, high: int
) -> None:
    x = torch.tensor([low, 0, high], dtype=dtype)
    program = tosaic.from_exported(export(lambda x: x.float() * 2, x))
    for runnable in (program, tosaic.lower(program, target=BOTH)):
        for wide in (np.int32, np.int64):
            assert np.array_equal(runnable.run(x.numpy().astype(wide)), x.numpy().astype(np.float32) * 2)
        for outside in (low - 1, high + 1):
            text = refusal(tosaic.InvalidGraph, runnable.run, np.array([0, outside, 0]))
            assert "holds a value outside its range at [1]" in text
            assert f"expected {low} to {high}, got {outside}" in text


def test_an_array_of_another_kind_of_dtype_is_refused() -> None:
    program = tosaic.from_exported(export(lambda x: x + 1, torch.zeros(3, dtype=torch.int64)))
    for given in (np.zeros(3, np.float32), np.zeros(3, np.bool_), 0.5):
        assert "wrong dtype" in refusal(tosaic.LayoutMismatch, program.run, given)
    text = refusal(tosaic.LayoutMismatch, program.run, np.full(3, 2**63, np.uint64))
    assert "holds a number beyond 64 bits" in text
    floats = tosaic.from_exported(export(lambda x: x + 1, torch.zeros(3)))
    for given in (np.zeros(3, np.int64), np.zeros(3, np.float64), np.zeros(3, np.complex64)):
        assert "input '" in refusal(tosaic.LayoutMismatch, floats.run, given)


# ---- Python numbers ----


def test_python_numbers_are_read_in_the_dtype_of_their_input() -> None:
    for runnable in forms(lambda x, y: x * y, torch.ones(3), torch.tensor(2.0)):
        expected = np.array([1.5, 3, 4.5], np.float32)
        assert np.array_equal(runnable.run(np.array([1, 2, 3], np.float32), 1.5), expected)
        assert np.array_equal(runnable.run([1.0, 2.0, 3.0], 1.5), expected)
        assert np.array_equal(runnable.run((1, 2, 3), 1.5), expected)
    half = tosaic.from_exported(export(lambda x: x + 1, torch.tensor(2.0, dtype=torch.float16)))
    assert half.run(0.5).dtype == np.float16
    whole = tosaic.from_exported(export(lambda x: x + 1, torch.tensor(2, dtype=torch.int32)))
    assert whole.run(41) == 42
    assert "outside its range" in refusal(tosaic.InvalidGraph, whole.run, 2**40)
    assert "wrong dtype" in refusal(tosaic.LayoutMismatch, whole.run, 1.5)
    refusal(tosaic.LayoutMismatch, whole.run, 2**70)


# ---- images of uint8 ----


IMAGE = np.random.default_rng(9).integers(0, 256, (1, 4, 6, 3), np.uint8)


def normalized(x: torch.Tensor) -> torch.Tensor:
    return x.float() / 255


def prepared(x: torch.Tensor) -> torch.Tensor:
    """Mirrors, batches, permutes, crops and scales a channels-last image, as preprocessing usually does."""
    return torch.cat([x, x.flip(2)]).permute(0, 3, 1, 2)[:, :, 1:].float() / 255 - 0.5


@pytest.mark.parametrize("target", [FP, BOTH])
@pytest.mark.parametrize("function", [normalized, prepared])
def test_images_of_uint8_lower_and_agree_with_torch(function: Callable[..., Any], target: str) -> None:
    x = torch.from_numpy(IMAGE)
    program, lowered = forms(function, x, target=target)
    expected = function(x).numpy()
    assert np.abs(lowered.run(IMAGE) - expected).max() <= 2e-7
    assert np.array_equal(lowered.run(IMAGE), lowered.run(x))
    assert np.abs(program.run(IMAGE) - expected).max() <= 2e-7
    assert tosaic.check(program, target=target)


def test_ports_have_dtype_uint8_and_the_file_has_the_dtype_that_its_profile_allows(tmp_path: Path) -> None:
    x = torch.from_numpy(IMAGE)
    for target, dtype, operators in ((FP, "i32", {"tosa.cast"}), (BOTH, "i8", {"tosa.rescale", "tosa.cast"})):
        lowered = tosaic.lower(export(normalized, x), target=target)
        assert [port.dtype for port in lowered.inputs] == ["u8"]
        assert "u8" in str(lowered)
        lowered.save(tmp_path / "image.tosa")
        file = tosaic.load_tosa(tmp_path / "image.tosa")
        assert [port.dtype for port in file.inputs] == [dtype]
        assert operators <= {node.op for node in file.graph.nodes}
        bits = IMAGE.view(np.int8) if dtype == "i8" else IMAGE.astype(np.int32)
        assert np.array_equal(file.run(bits), lowered.run(IMAGE))


def test_compare_accepts_images_of_uint8() -> None:
    exported = export(normalized, torch.from_numpy(IMAGE))
    for target in (FP, BOTH):
        assert tosaic.compare(exported, tosaic.lower(exported, target=target), (IMAGE,)).ok


@pytest.mark.parametrize("target", [FP, BOTH])
def test_the_reference_model_computes_the_same_floats_for_images(target: str) -> None:
    reference_model = pytest.importorskip("tosaic.lowering.reference_model")
    pytest.importorskip("tosa_reference_model")
    lowered = tosaic.lower(export(prepared, torch.from_numpy(IMAGE)), target=target)
    run = reference_model.run_reference_model(lowered, IMAGE)
    assert run.status == "VALID"
    assert np.array_equal(run.outputs, lowered.run(IMAGE))


@pytest.mark.parametrize("target", [FP, BOTH])
def test_floats_can_be_cast_to_uint8(target: str) -> None:
    def back(x: torch.Tensor) -> torch.Tensor:
        return (x * 255).clamp(0, 255).to(torch.uint8)

    x = torch.rand(2, 7)
    for runnable in forms(back, x, target=target):
        made = runnable.run(x)
        assert made.dtype == np.uint8
        assert np.array_equal(made, back(x).numpy())


@pytest.mark.parametrize("target", [FP, BOTH])
def test_images_are_cast_to_wider_integers_exactly(target: str) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.int32) * 2

    x = torch.from_numpy(IMAGE)
    assert np.array_equal(tosaic.lower(export(doubled, x), target=target).run(IMAGE), doubled(x).numpy())


def test_arithmetic_wraps_around_in_uint8() -> None:
    x = torch.tensor([0, 127, 128, 255], dtype=torch.uint8)
    lowered = tosaic.lower(export(lambda x: x + x, x), target=BOTH)
    assert np.asarray(lowered.run(x)).tolist() == [0, 254, 0, 254]


def test_a_cast_that_wraps_around_in_uint8_is_lowered() -> None:
    x = torch.tensor([0, 127, 128, 255], dtype=torch.uint8)
    lowered = tosaic.lower(export(lambda x: (x.int() * 3).to(torch.uint8), x), target=BOTH)
    np.testing.assert_array_equal(np.asarray(lowered.run(x)), (x.int() * 3).to(torch.uint8).numpy())


def test_a_quantized_program_accepts_images_of_uint8() -> None:
    import torch.ao.quantization.fx._decomposed

    def forward(x: torch.Tensor) -> torch.Tensor:
        ops: Any = torch.ops.quantized_decomposed
        q = ops.quantize_per_tensor(x.float() / 255, 1 / 127, 0, -128, 127, torch.int8)
        y = torch.relu(ops.dequantize_per_tensor(q, 1 / 127, 0, -128, 127, torch.int8))
        q = ops.quantize_per_tensor(y, 1 / 127, 0, -128, 127, torch.int8)
        return ops.dequantize_per_tensor(q, 1 / 127, 0, -128, 127, torch.int8)

    x = torch.from_numpy(IMAGE)
    lowered = tosaic.lower(export(forward, x), target="TOSA-1.0+INT")
    assert [port.dtype for port in lowered.inputs] == ["u8"]
    assert np.abs(lowered.run(IMAGE) - forward(x).numpy()).max() <= 1.001 / 127


def test_an_array_of_ml_dtypes_is_read_with_strides() -> None:
    x = np.random.default_rng(1).normal(size=(4, 6)).astype(ml_dtypes.bfloat16)
    program = tosaic.from_exported(export(torch.relu, torch.ones(4, 6, dtype=torch.bfloat16)))
    assert np.array_equal(program.run(np.asfortranarray(x)), np.maximum(x, 0))


class Refusing:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("not now")


STRUCTURED = np.zeros((2, 2), [("a", "f4"), ("b", "f4")])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 2), object), "is not an array: .* got an array of object"),
        (np.zeros((2, 2), "U3"), "is not an array: .* got an array of <U3"),
        (np.zeros((2, 2), "M8[s]"), r"is not an array: .* got an array of datetime64\[s\]"),
        (STRUCTURED, r"is not an array: .* got an array of \[\('a', '<f4'\), \('b', '<f4'\)\]"),
        (np.zeros((2, 2), "V4"), r"is not an array: .* got an array of \|V4"),
        (Refusing(), "is not an array: .* got Refusing"),
        ([[1, 2], [3]], "is not an array: .* got list"),
        (np.ma.masked_greater(np.float32([[1, 2], [3, 4]]), 2), "has masked elements: .* got 2 of 4 masked"),
        (np.zeros((2, 2), np.complex64), "has a dtype without a counterpart: .* got complex64"),
        (
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "is not an array: .* got a nested tensor of",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_value_that_is_not_a_numeric_array_is_refused_by_name_and_by_its_type(
    value: Any, message: str
) -> None:
    for form in forms(lambda x: x + 1, torch.ones(2, 2)):
        assert re.match(
            rf"\[inputs\] input 'args_0' {message}", refusal(tosaic.LayoutMismatch, form.run, value)
        )


def test_array_subclasses_and_buffers_are_read_as_plain_arrays() -> None:
    class Own(np.ndarray):
        pass

    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 2)
    frozen = x.copy()
    frozen.setflags(write=False)
    named = np.zeros((2, 2), STRUCTURED.dtype)
    named["b"] = x
    given = [x.view(Own), np.ma.masked_array(x), unaligned, frozen, named["b"], memoryview(x)]
    for form in forms(lambda x: x + 1, torch.ones(2, 2)):
        for value in given:
            found = form.run(value)
            assert type(found) is np.ndarray
            np.testing.assert_array_equal(found, x + 1)
