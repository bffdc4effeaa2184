"""Bad arrays, bad indices, changed weights and unbound sizes are refused by name, not run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from errors.broken import export, place
from refusals import refusal
from tosaic import _core

STAGES = ("imported", "exported", "canonical", "tosa")
at_every_stage = pytest.mark.parametrize("stage", STAGES)


def forward(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(x, torch.ones(5, 2))


@pytest.fixture(scope="module")
def pooled() -> tosaic.Lowered:
    return tosaic.lower(
        export(lambda x: torch.nn.functional.avg_pool2d(x.relu(), 2), torch.randn(1, 2, 8, 8))
    )


@pytest.fixture(scope="module")
def lookup() -> tosaic.Lowered:
    return tosaic.lower(export(forward, torch.zeros(1, 2, dtype=torch.int64)))


@at_every_stage
@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.zeros((1, 2, 8, 9), np.float32), "has the wrong shape: expected [1,2,8,8], got [1,2,8,9]"),
        (np.zeros((2, 8, 8), np.float32), "has the wrong shape: expected [1,2,8,8], got [2,8,8]"),
        (np.zeros((1, 8, 8, 2), np.float32), "has the wrong shape: expected [1,2,8,8], got [1,8,8,2]"),
        (np.zeros((1, 2, 8, 8), np.float64), "has the wrong dtype: expected f32, got f64"),
        (np.zeros((1, 2, 8, 8), np.int32), "has the wrong dtype: expected f32, got i32"),
        (np.zeros((1, 2, 8, 8), np.bool_), "has the wrong dtype: expected f32, got bool"),
    ],
)
def test_an_array_of_another_shape_or_dtype_is_refused(
    pooled: tosaic.Lowered, stage: str, array: Any, what: str
) -> None:
    text = refusal(tosaic.LayoutMismatch, pooled.at(stage).run, array)
    assert text.startswith(f"[run] input 'x' {what}")


@pytest.mark.parametrize("dtype", ["c8", ">c8", "M8[s]", "U4", "O"])
def test_a_dtype_that_no_value_can_have_is_refused(pooled: tosaic.Lowered, dtype: str) -> None:
    text = refusal(tosaic.Error, pooled.run, np.zeros((1, 2, 8, 8)).astype(dtype))
    assert "dtype" in text or "array" in text


def test_an_array_in_another_memory_order_is_refused(pooled: tosaic.Lowered) -> None:
    x = np.random.default_rng(3).normal(size=(1, 8, 8, 2)).astype(np.float32).transpose(0, 3, 1, 2)
    text = refusal(tosaic.LayoutMismatch, pooled.run, x)
    assert "lies in another dim order than was declared: expected [0,1,2,3], got [0,2,3,1]" in text


def test_an_array_that_is_part_of_another_is_read_by_its_strides(pooled: tosaic.Lowered) -> None:
    x = np.random.default_rng(3).normal(size=(1, 2, 16, 10)).astype(np.float32)[:, :, ::-2, 1:9]
    np.testing.assert_array_equal(pooled.run(x), pooled.run(np.ascontiguousarray(x)))


def test_a_file_accepts_physical_shapes_only(tmp_path: Any) -> None:
    """A .tosa file has no dim orders: a channels-last input has its physical shape only."""
    x = torch.randn(1, 2, 8, 8).to(memory_format=torch.channels_last)
    low = tosaic.lower(export(torch.relu, x))
    low.save(tmp_path / "a.tosa")
    text = refusal(tosaic.LayoutMismatch, tosaic.load_tosa(tmp_path / "a.tosa").run, x)
    assert text.startswith("[run] input 'x' has the wrong shape: expected [1,8,8,2], got [1,2,8,8]")


@pytest.mark.parametrize("stage", ["imported", "canonical", "tosa"])
def test_an_index_outside_the_table_names_node_module_and_line(lookup: tosaic.Lowered, stage: str) -> None:
    text = refusal(tosaic.InvalidGraph, lookup.at(stage).run, np.array([[0, 5]]))
    assert text.endswith(
        f"index out of range: expected an index in [0, 5), got 5 {place(forward, 'embedding')}"
    )
    assert "got -1" in refusal(tosaic.InvalidGraph, lookup.at(stage).run, np.array([[-1, 0]]))


@pytest.mark.parametrize("target", ["TOSA-1.0+FP", "TOSA-1.0+FP+INT"])
def test_an_index_beyond_the_range_of_the_input_is_refused(target: str) -> None:
    low, high = -(2**31), 2**31 - 1
    program = tosaic.lower(export(forward, torch.zeros(1, 2, dtype=torch.int64)), target=target)
    assert refusal(tosaic.InvalidGraph, program.run, np.array([[0, 2**40]])) == (
        f"[run] input 'x' holds a value outside its range at [0,1]: expected {low} to {high}, got {2**40}"
    )


def linear_program() -> tuple[Any, tosaic.Program]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 200))
    return model, tosaic.from_exported(torch.export.export(model, (torch.ones(1, 4),)))


def test_a_weight_changed_after_import_is_refused() -> None:
    model, program = linear_program()
    with torch.no_grad():
        model[0].weight.mul_(2)
    for call in [lambda: tosaic.lower(program), lambda: program.run(np.ones((1, 4), np.float32))]:
        text = refusal(tosaic.InvalidGraph, call)
        assert "'0.weight' was changed in place after import; import the program again" in text
    assert "(node 'linear', module '0', linear.py:" in text


def test_a_weight_changed_after_lowering_changes_nothing() -> None:
    model, program = linear_program()
    ones = np.ones((1, 4), np.float32)
    lowered = tosaic.lower(program)
    file, result = lowered.to_bytes(), lowered.run(ones)
    again = tosaic.lower(program)
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert lowered.to_bytes() == again.to_bytes() == file
    np.testing.assert_array_equal(lowered.run(ones), result)
    np.testing.assert_array_equal(again.run(ones), result)


@pytest.fixture(scope="module")
def dynamic() -> Any:
    rows = torch.export.Dim("rows", min=1, max=64)
    return torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),), dynamic_shapes=({0: rows},))


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ({"input": {0: 65}}, "was exported for another range: expected 1 to 64, got 65"),
        (
            {"inputs": {0: 5}},
            "[bind] no such input: expected one of ['input'] or an index below 1, got 'inputs'",
        ),
        ({"input": {3: 5}}, "[bind] input 'input' has no such axis: expected an axis of its 2, got 3"),
        ({"input": {0: 5, 1: 7}}, "[bind] axis 1 of input 'input' is static: expected 4, got 7"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(dynamic: Any, bind: Any, message: str) -> None:
    assert message in refusal(tosaic.InvalidGraph, tosaic.from_exported, dynamic, bind=bind)


@pytest.mark.parametrize("call", [tosaic.from_exported, tosaic.lower])
def test_an_unbound_dimension_is_named_by_input_and_axis(dynamic: Any, call: Any) -> None:
    text = refusal(tosaic.UnsupportedOp, call, dynamic)
    assert text.startswith(
        "[bind] symbolic dimensions are not bound: expected a size for each, got axis 0 of input"
    )
    assert text.endswith('Pass bind={"<input>": {<axis>: <size>}} or bind=<example inputs>.')


def test_an_unknown_instruction_set_is_refused(pooled: tosaic.Lowered) -> None:
    text = refusal(tosaic.Error, _core.Session, pooled.graph, isa="mmx")
    assert "mmx" in text
