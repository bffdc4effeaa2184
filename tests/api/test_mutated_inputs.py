"""Inputs that the module mutates: `run` writes their new values to the caller's arrays, as torch does.

`run_functional` returns the new values instead. All tests compare with torch's results for equal arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import refusals
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic
from function_module import FunctionModule
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic.cli import main
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")

Q = torch.ops.quantized_decomposed
POSITION = torch.tensor([3])


def exported(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Exports a function; the inputs have the names of the function's parameters."""
    module = torch.nn.Module()
    module.forward = function
    return torch.export.export(module, args, kwargs)


def integers(*shape: int) -> torch.Tensor:
    """Returns floats with small integer values, whose sums are exact."""
    return torch.randint(-9, 10, shape).float()


def step(x: torch.Tensor, cache: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Computes one step of a decoder with a key cache that its caller owns."""
    cache.index_copy_(1, position, x)
    return cache.sum(1) * 2


def arguments() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return integers(2, 1, 4), integers(2, 8, 4), POSITION


def step_programs() -> dict[str, tosaic.Program | tosaic.Lowered]:
    ep = exported(step, *arguments())
    functional = ep.run_decompositions()
    program = tosaic.from_exported(functional)
    return {
        "in place": tosaic.from_exported(ep),
        "functional": program,
        "lowered": tosaic.lower(program),
        "lowered from in place": tosaic.lower(ep),
    }


FORMS = ("in place", "functional", "lowered", "lowered from in place")


@pytest.fixture(scope="module")
def programs() -> dict[str, tosaic.Program | tosaic.Lowered]:
    return step_programs()


refusal = partial(refusals.refusal, tosaic.LayoutMismatch)


@pytest.mark.parametrize("form", FORMS)
def test_a_run_writes_the_callers_tensor_as_torch_does(programs, form) -> None:
    x, cache, position = arguments()
    expected = cache.clone()
    result = step(x, expected, position)
    version = cache._version
    found = programs[form].run(x, cache, position)
    assert torch.equal(cache, expected)
    np.testing.assert_array_equal(found, result.numpy())
    assert cache._version > version  # autograd sees the change


@pytest.mark.parametrize("form", FORMS)
def test_a_run_writes_the_callers_array_and_steps_follow_each_other(programs, form) -> None:
    x, cache, _ = arguments()
    mine, reference = cache.numpy().copy(), cache.clone()
    for at in (0, 5, 5, 7):
        expected = step(x * at, reference, torch.tensor([at]))
        found = programs[form].run((x * at).numpy(), mine, np.array([at]))
        np.testing.assert_array_equal(mine, reference.numpy())
        np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize("form", FORMS)
def test_a_run_writes_a_view_of_a_larger_array_and_nothing_around_it(programs, form) -> None:
    x, cache, position = arguments()
    whole = torch.zeros(3, 2, 8, 8)
    whole[1, :, :, ::2] = cache
    mine = whole.numpy().copy()
    step(x, whole[1, :, :, ::2], position)
    programs[form].run(x, mine[1, :, :, ::2], position)
    np.testing.assert_array_equal(mine, whole.numpy())


@pytest.mark.parametrize("form", FORMS)
def test_run_functional_returns_the_new_value_and_writes_nothing(programs, form) -> None:
    x, cache, position = arguments()
    expected = cache.clone()
    result = step(x, expected, position)
    given = cache.numpy().copy()
    given.flags.writeable = False
    found, mutations = programs[form].run_functional(x, given, position)
    np.testing.assert_array_equal(given, cache.numpy())
    assert list(mutations) == ["cache"]
    np.testing.assert_array_equal(mutations["cache"], expected.numpy())
    np.testing.assert_array_equal(found, result.numpy())


@pytest.mark.parametrize("form", FORMS)
def test_outputs_reports_and_json_show_the_new_value(programs, form) -> None:
    program = programs[form]
    assert [(port.path, port.kind) for port in program.outputs] == [("cache", "mutation"), ("out", "user")]
    assert program.states == ()
    rows = [line.split()[:2] for line in str(program).splitlines()]
    assert ["mutation", "cache"] in rows
    assert ["output", "out"] in rows
    data = json.loads(program.report().json)
    assert [port["kind"] for port in data["outputs"]] == ["mutation", "user"]


def test_several_inputs_and_nested_ones_are_written() -> None:
    def update(caches: dict[str, torch.Tensor], x: torch.Tensor, *, count: torch.Tensor) -> torch.Tensor:
        caches["v"].mul_(2)
        caches["k"][:, 1:3] = x
        count.add_(1)
        return caches["k"] + caches["v"]

    def given() -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        return {"k": integers(2, 4), "v": integers(2, 4)}, integers(2, 2), torch.tensor([7])

    caches, x, count = given()
    ep = exported(update, caches, x, count=count)
    functional = ep.run_decompositions()
    for runnable in (tosaic.from_exported(functional), tosaic.lower(functional)):
        (reference, x, count), (mine, _, my_count) = given(), given()
        expected = update(reference, x, count=count)
        np.testing.assert_array_equal(runnable.run(mine, x, count=my_count), expected.numpy())
        assert all(torch.equal(mine[key], reference[key]) for key in ("k", "v"))
        assert torch.equal(my_count, count)
        fresh, x, count = given()
        _, mutations = runnable.run_functional(fresh, x, count=count)
        assert set(mutations) == {"caches['k']", "caches['v']", "count"}
        np.testing.assert_array_equal(mutations["count"], [8])


@pytest.mark.parametrize(
    ("given", "expected", "got"),
    [
        (lambda cache: list(cache.numpy()), "a numpy array or torch tensor", "list"),
        (
            lambda cache: np.broadcast_to(cache[:1, :1].numpy(), (2, 8, 4)),
            "a writable array",
            "a read-only one",
        ),
        (
            lambda cache: cache[:1, :1].expand(2, 8, 4),
            "an array with memory for each element",
            "a broadcast one",
        ),
    ],
)
def test_an_array_that_cannot_be_written_is_refused_by_name_before_the_run(
    programs, given, expected, got
) -> None:
    x, cache, position = arguments()
    for form in FORMS:
        text = refusal(programs[form].run, x, given(cache), position)
        assert text == (
            "[inputs] the program writes input 'cache', and what was given cannot take its new value: "
            f"expected {expected}, got {got}. "
            "Pass such an array, or call run_functional, which returns the new value."
        )
        programs[form].run_functional(x, given(cache), position)


def test_a_refused_run_changes_neither_states_nor_other_inputs() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            a.add_(1)
            b.add_(self.count)
            return a + b

    program = tosaic.from_exported(torch.export.export(Both(), (torch.ones(2), torch.ones(2))))
    a, locked = np.ones(2, np.float32), np.ones(2, np.float32)
    locked.flags.writeable = False
    assert "'b'" in refusal(program.run, a, locked)
    np.testing.assert_array_equal(a, [1, 1])
    np.testing.assert_array_equal(program.session.state("count"), [0, 0])
    b = np.ones(2, np.float32)
    np.testing.assert_array_equal(program.run(a, b), [4, 4])
    np.testing.assert_array_equal((a, b), [[2, 2], [2, 2]])


def test_an_input_that_is_written_must_not_share_memory_with_another_input() -> None:
    def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    ep = exported(add, torch.ones(2, 3), torch.ones(2, 3))
    for program in (tosaic.from_exported(ep), tosaic.lower(ep)):
        whole = np.ones((4, 3), np.float32)
        for other in (whole[:2], whole[1:3]):
            text = refusal(program.run, whole[:2], other)
            assert "the program writes input 'a', which shares memory with 'b'" in text
            assert text.endswith("Pass a copy of one of them.")
        np.testing.assert_array_equal(whole, np.ones((4, 3)))
        _, mutations = program.run_functional(whole[:2], whole[:2])  # as if they were two arrays
        np.testing.assert_array_equal(mutations["a"], np.full((2, 3), 2))
        # Adjacent parts, and alternating rows: no element is in both arrays.
        np.testing.assert_array_equal(program.run(whole[:2], whole[2:]), np.full((2, 3), 2))
        np.testing.assert_array_equal(program.run(whole[::2], whole[1::2]), [[6, 6, 6], [2, 2, 2]])
        np.testing.assert_array_equal(whole[:, 0], [3, 2, 2, 1])


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8],
)
def test_tensors_of_every_dtype_are_written(dtype) -> None:
    pytest.importorskip("ml_dtypes")

    def double(a: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + 1

    a = torch.arange(-6, 6).reshape(3, 4).to(dtype)
    program = tosaic.from_exported(exported(double, a.clone()))
    expected = a.clone()
    double(expected)
    program.run(a)
    assert torch.equal(a, expected)


def test_tensors_that_require_gradients_and_tensors_of_inference_mode_are_written() -> None:
    program = tosaic.from_exported(exported(lambda a: a.add_(1) * 2, torch.zeros(3)))
    leaf = torch.zeros(3, requires_grad=True)
    program.run(leaf)
    assert leaf.tolist() == [1, 1, 1]
    assert leaf.requires_grad
    with torch.inference_mode():
        frozen = torch.zeros(3)
    program.run(frozen)
    assert frozen.tolist() == [1, 1, 1]


@pytest.mark.parametrize("form", ["contiguous", "channels_last", "nhwc", "traced"])
def test_a_new_value_has_the_dim_order_of_its_input_whatever_the_order_of_outputs(form) -> None:
    def pool(x: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        image.copy_(torch.nn.functional.max_pool2d(image, 3, 1, 1) + x)
        return image.relu()

    last = torch.channels_last
    x, image = integers(1, 3, 8, 6).to(memory_format=last), integers(1, 3, 8, 6).to(memory_format=last)
    low = tosaic.lower(exported(pool, x, image.clone()), orders={"inputs": form, "outputs": "contiguous"})
    mutation, out = low.outputs
    given = low.inputs[1]
    assert (mutation.shape, mutation.dim_order) == (given.shape, given.dim_order)
    assert out.shape == (1, 3, 8, 6)

    def as_declared(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        if form == "nhwc":
            return np.ascontiguousarray(tensor.permute(0, 2, 3, 1).numpy())
        return (tensor.contiguous() if form == "contiguous" else tensor).clone().numpy()

    mine = as_declared(image)
    reference = image.clone()
    expected = pool(x, reference)
    np.testing.assert_array_equal(low.run(as_declared(x), mine), expected.numpy())
    np.testing.assert_array_equal(mine, as_declared(reference))


def test_comparisons_count_new_values_as_outputs_and_find_wrong_ones(programs) -> None:
    ep = exported(step, *arguments())
    for reference in (ep, ep.run_decompositions(), tosaic.from_exported(ep)):
        found = tosaic.compare(reference, programs["lowered"], arguments())
        assert found.ok
        assert [row.path for row in found.outputs] == ["cache", "out"]
    given = arguments()
    assert torch.equal(given[1], arguments()[1])

    def wrong(x: torch.Tensor, cache: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        result = cache.index_copy(1, position, x).sum(1) * 2
        cache.index_copy_(1, position, -x)
        return result

    found = tosaic.compare(ep, tosaic.lower(exported(wrong, *arguments())), arguments())
    assert not found.ok
    cache, out = found.outputs
    assert cache.metrics.sqnr_db < 30 < out.metrics.sqnr_db


def test_the_file_has_the_new_value_among_its_outputs(programs, tmp_path: Path) -> None:
    low = programs["lowered"]
    low.save(tmp_path / "step.tosa")
    file = tosaic.load_tosa(tmp_path / "step.tosa")
    x, cache, position = arguments()
    expected = cache.clone()
    step(x, expected, position)
    new, _ = file.run(x, cache, position.int())
    np.testing.assert_array_equal(new, expected.numpy())
    model = run_reference_model(low, x, cache, position)
    assert model.status == "VALID"
    np.testing.assert_array_equal(model.mutations["cache"], expected.numpy())


def test_an_archive_writes_inputs_as_the_program_did(programs, tmp_path: Path) -> None:
    programs["functional"].save(tmp_path / "step.tosaic")
    x, cache, position = arguments()
    expected = cache.clone()
    step(x, expected, position)
    tosaic.load(tmp_path / "step.tosaic").run(x, cache, position)
    assert torch.equal(cache, expected)


def test_the_command_line_writes_new_values_beside_the_outputs(programs, tmp_path: Path) -> None:
    programs["functional"].save(tmp_path / "step.tosaic")
    x, cache, position = arguments()
    np.savez(tmp_path / "in.npz", x=x.numpy(), cache=cache.numpy(), position=position.numpy())
    code = main(
        [
            "run",
            str(tmp_path / "step.tosaic"),
            "--input",
            str(tmp_path / "in.npz"),
            "-o",
            str(tmp_path / "out.npz"),
        ]
    )
    assert code == 0
    result = step(x, cache, position)
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["cache"], cache.numpy())
        np.testing.assert_array_equal(found["out"], result.numpy())


def quantized(scale: float) -> Callable[..., torch.Tensor]:
    """Computes a step over quantized tensors; `scale` is the scale of the cache's new value."""

    def qdq(x: torch.Tensor, scale: float) -> torch.Tensor:
        integers = Q.quantize_per_tensor(x, scale, 0, -128, 127, torch.int8)
        return Q.dequantize_per_tensor(integers, scale, 0, -128, 127, torch.int8)

    def step(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        new = qdq(qdq(cache, 0.25) + qdq(x, 0.25), scale)
        cache.copy_(new)
        return qdq(new.relu(), scale)

    return step


@pytest.mark.parametrize("scale", [0.25, 0.5])
def test_new_values_of_quantized_inputs_are_written_as_the_callers_floats(scale) -> None:
    step, (x, cache) = quantized(scale), (integers(2, 6) / 4, integers(2, 6) / 4)
    ep = exported(step, x, cache.clone()).run_decompositions()
    low = tosaic.lower(ep, target="TOSA-1.0+INT")
    reference, mine = cache.clone(), cache.clone()
    for _ in range(3):
        expected = step(x, reference)
        np.testing.assert_allclose(low.run(x, mine), expected.numpy(), atol=scale)
        np.testing.assert_allclose(mine.numpy(), reference.numpy(), atol=scale)
        mine.copy_(reference)
    assert all(value.dtype != "f32" for value in low.graph.values)
    assert run_reference_model(low, x, cache).status == "VALID"
    assert [row.path for row in tosaic.compare(ep, low, (x, cache)).outputs] == ["cache", "out"]


def test_integers_are_written_if_the_input_and_its_new_value_have_the_same_parameters() -> None:
    x, cache = integers(2, 6) / 4, integers(2, 6) / 4
    target, io = "TOSA-1.0+INT+FP", {"inputs": "int8", "outputs": "float32"}
    low = tosaic.lower(exported(quantized(0.25), x, cache.clone()).run_decompositions(), target=target, io=io)
    given = [np.rint(array.numpy() * 4).astype(np.int8) for array in (x, cache)]
    reference = cache.clone()
    quantized(0.25)(x, reference)
    low.run(*given)
    np.testing.assert_allclose(given[1] * 0.25, reference.numpy(), atol=0.25)
    other = exported(quantized(0.5), x, cache.clone()).run_decompositions()
    with pytest.raises(tosaic.QuantMismatch, match="'cache' of the inputs cannot be int8"):
        tosaic.lower(other, target=target, io=io)


def test_a_quantized_input_that_is_written_and_never_read_has_integers_in_the_graph() -> None:
    def store(x: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
        integers = Q.quantize_per_tensor(x, 0.25, 0, -128, 127, torch.int8)
        new = Q.dequantize_per_tensor(integers, 0.25, 0, -128, 127, torch.int8)
        log.copy_(new)
        return new

    x, log = integers(2, 6) / 4, torch.zeros(2, 6)
    low = tosaic.lower(exported(store, x, log.clone()).run_decompositions(), target="TOSA-1.0+INT")
    assert all(value.dtype == "i8" for value in low.graph.values)
    low.run(x, log)
    assert torch.equal(log, x)


# ---- bounded numbers that a program of integers stores in an input ----


def bounded(x: torch.Tensor) -> torch.Tensor:
    x.clamp_(-0.5, 0.6)
    return x


def bounded_product(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.3
    x.copy_(y.clamp(-0.51, 0.63))
    return y


def bounded_and_moved(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.3
    x.copy_((y + 1).view(6, 4).clamp(0.1, 2.3).view(4, 6))
    return y.sum(0)


def filled_and_bounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x[:1].fill_(0.75)
    x.clamp_(-1, 0.6)
    return x.amax(0), x


def rectified(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    x.relu_()
    return y


def swapped(x: torch.Tensor) -> torch.Tensor:
    low = x[:2].clone()
    x[:2].copy_(x[2:])
    x[2:].copy_(low)
    return x * 2


@pytest.mark.parametrize("door", ["quantize", "torchao"])
@pytest.mark.parametrize(
    "step", [bounded, bounded_product, bounded_and_moved, filled_and_bounded, rectified, swapped]
)
def test_bounded_numbers_that_are_stored_in_an_input_are_integers(step, door: str) -> None:
    torch.manual_seed(0)
    calls = [(torch.randn(4, 6),) for _ in range(4)]

    def copies() -> list[tuple[torch.Tensor, ...]]:
        return [tuple(each.clone() for each in call) for call in calls]

    program = torch.export.export(FunctionModule(step), copies()[0])
    if door == "quantize":
        quantized = tosaic.quantize(program, copies(), progress=False)
    else:
        prepared = prepare_pt2e(program.module(), tosaic.Quantizer())
        for call in copies():
            prepared(*call)
        quantized = torch.export.export(convert_pt2e(prepared), copies()[0])
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    for (found,), (wanted,) in zip(copies(), copies(), strict=True):
        outputs, eager = map(torch.utils._pytree.tree_leaves, (lowered.run(found), step(wanted)))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0.04)
        for got, exact in zip(outputs, eager, strict=True):
            np.testing.assert_allclose(got, exact.numpy(), rtol=0, atol=0.1)


@pytest.mark.parametrize("number", [-1e4, 3e4])
def test_large_numbers_that_are_stored_in_an_input_leave_its_other_numbers_their_bits(number: float) -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ torch.linspace(-1, 1, 36).view(6, 6)
        x[:, :1].fill_(number)
        return y, x[:, 1:].abs().clamp(0.25, 20)

    torch.manual_seed(0)
    calls = [(torch.randn(4, 6),) for _ in range(4)]
    program = torch.export.export(FunctionModule(step), (calls[0][0].clone(),))
    quantized = tosaic.quantize(program, [(x.clone(),) for (x,) in calls], progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    for (x,) in calls:
        found, wanted = x.clone(), x.clone()
        model = run_reference_model(lowered, x.clone())
        outputs, eager = lowered.run(found), step(wanted)
        assert model.ok, model.log
        torch.testing.assert_close(found, wanted, rtol=0, atol=2**-9)
        for got, by_model, exact in zip(outputs, model.outputs or (), eager, strict=False):
            np.testing.assert_array_equal(got, by_model)
            np.testing.assert_allclose(got, exact.numpy(), rtol=0, atol=0.05)


def test_an_input_that_holds_numbers_beyond_32_bits_stays_float() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x[:1].fill_(1e9)
        return x[1:] * 2

    calls = [(torch.randn(4, 6),) for _ in range(4)]
    program = torch.export.export(FunctionModule(step), (calls[0][0].clone(),))
    quantized = tosaic.quantize(program, [(x.clone(),) for (x,) in calls], progress=False)
    with pytest.raises(tosaic.UnsupportedOp, match="one unit for all operands leaves"):
        tosaic.lower(quantized, target="TOSA-1.0+INT")
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+FP")
    found = calls[0][0].clone()
    lowered.run(found)
    assert torch.equal(found[:1], torch.full((1, 6), 1e9))
