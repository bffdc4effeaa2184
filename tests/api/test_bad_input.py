"""An error about a wrong input names the input; it is raised before anything runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tosaic
from refusals import refusal
from tosaic import _core


@pytest.fixture(params=["as exported", "as TOSA"])
def runnable(request, case):
    return case.program if request.param == "as exported" else case.lowered


def test_a_wrong_shape_is_refused(runnable) -> None:
    text = refusal(tosaic.LayoutMismatch, runnable.run, np.zeros((2, 3, 9, 8), np.float32))
    assert text == "[run] input 'x' has the wrong shape: expected [2,3,8,8], got [2,3,9,8]"


def test_a_wrong_rank_is_refused(runnable) -> None:
    text = refusal(tosaic.LayoutMismatch, runnable.run, np.zeros((3, 8, 8), np.float32))
    assert text == "[run] input 'x' has the wrong shape: expected [2,3,8,8], got [3,8,8]"


@pytest.mark.parametrize("form", ["meta", "sparse_coo"])
def test_a_meta_or_sparse_tensor_is_refused(runnable, case, form) -> None:
    given = case.x.to("meta") if form == "meta" else case.x.to_sparse()
    text = refusal(tosaic.LayoutMismatch, runnable.run, given)
    assert text.endswith(f"is not an array: expected a numpy array or torch tensor, got a {form} tensor")


def test_an_array_in_the_physical_shape_of_channels_last_is_refused(runnable) -> None:
    text = refusal(tosaic.LayoutMismatch, runnable.run, np.zeros((2, 8, 8, 3), np.float32))
    assert "input 'x'" in text
    assert "expected [2,3,8,8], got [2,8,8,3]" in text


def test_channels_last_strides_are_refused_if_row_major_ones_were_declared(runnable, case) -> None:
    text = refusal(tosaic.LayoutMismatch, runnable.run, case.x.to(memory_format=torch.channels_last))
    assert text == (
        "[run] input 'x' lies in another dim order than was declared: expected [0,1,2,3], got [0,2,3,1]. "
        "Pass numpy.ascontiguousarray(x), or x.contiguous()."
    )


def test_a_wrong_dtype_is_refused(runnable) -> None:
    text = refusal(tosaic.LayoutMismatch, runnable.run, np.zeros((2, 3, 8, 8), np.float64))
    assert text.startswith("[run] input 'x' has the wrong dtype: expected f32, got f64")


def test_too_few_arguments_are_refused(runnable) -> None:
    text = refusal(tosaic.InvalidGraph, runnable.run)
    assert text == (
        "[inputs] the arguments are not those of the exported call: expected 1 positional (x) and the "
        "keywords [], got 0 positional and the keywords []"
    )


def test_a_wrong_nesting_is_refused(nested) -> None:
    one = np.ones((2, 3), np.float32)
    text = refusal(tosaic.InvalidGraph, nested.run, one, scale=np.float32(1))
    assert "the structure of '" in text
    assert "expected a tuple of 2" in text


def test_a_value_that_is_not_an_array_is_refused(runnable) -> None:
    text = refusal(tosaic.LayoutMismatch, runnable.run, "x.npy")
    assert text == "[inputs] input 'x' is not an array: expected a numpy array or torch tensor, got str"


def test_a_weight_changed_after_import_is_refused() -> None:
    model = torch.nn.Linear(4, 20)
    program = tosaic.from_exported(torch.export.export(model, (torch.ones(1, 4),)))
    with torch.no_grad():
        model.weight.mul_(2)
    text = refusal(tosaic.InvalidGraph, program.run, np.ones((1, 4), np.float32))
    assert "'weight' was changed in place after import; import the program again" in text


def test_a_weight_changed_after_import_is_refused_by_lower_too() -> None:
    model = torch.nn.Linear(4, 20)
    program = tosaic.from_exported(torch.export.export(model, (torch.ones(1, 4),)))
    with torch.no_grad():
        model.weight.mul_(2)
    assert "'weight' was changed in place after import" in refusal(
        tosaic.InvalidGraph, lambda: tosaic.lower(program).to_bytes()
    )


def test_an_unbound_dimension_is_refused(dynamic) -> None:
    text = refusal(tosaic.UnsupportedOp, tosaic.from_exported, dynamic)
    assert text.startswith(
        "[bind] symbolic dimensions are not bound: expected a size for each, got axis 0 of input 'input'"
    )
    assert text.endswith('Pass bind={"<input>": {<axis>: <size>}} or bind=<example inputs>.')


def test_a_size_outside_the_exported_range_is_refused(dynamic) -> None:
    text = refusal(tosaic.InvalidGraph, tosaic.from_exported, dynamic, bind={"input": {0: 65}})
    assert "was exported for another range" in text


def test_an_index_that_does_not_fit_32_bits_is_refused() -> None:
    program = tosaic.from_exported(
        torch.export.export(torch.nn.Embedding(10, 16), (torch.zeros(1, 3, dtype=torch.int64),))
    )
    text = refusal(tosaic.InvalidGraph, tosaic.lower(program).run, np.array([[0, 2**40, 1]]))
    assert "input 'input'" in text


def test_a_truncated_tosa_file_is_refused(case, tmp_path) -> None:
    (tmp_path / "model.tosa").write_bytes(case.lowered.to_bytes()[:200])
    with pytest.raises(tosaic.InvalidGraph):
        tosaic.load_tosa(tmp_path / "model.tosa")


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(FileNotFoundError):
        tosaic.lower("nowhere.pt2")


class WideWindow(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool1d(x, 9000)


class NanBound(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, float("nan"), 1.0)


def test_every_level_violation_is_listed() -> None:
    exported = torch.export.export(WideWindow(), (torch.ones(1, 1, 10_000),))
    with pytest.raises(tosaic.SpecViolation) as error:
        tosaic.lower(exported)
    kernel, stride = error.value.problems
    assert kernel.message.startswith(
        "[target] the kernel is beyond level 8K: expected at most 8192 (MAX_KERNEL), got 9000 "
        "(node 'avg_pool1d', test_bad_input.py:"
    )
    assert stride.message.startswith("[target] the stride is beyond level 8K")
    assert kernel.message in str(error.value)
    assert stride.message in str(error.value)


def test_a_clamp_bound_that_is_nan_is_refused() -> None:
    exported = torch.export.export(NanBound(), (torch.ones(3),))
    text = refusal(tosaic.UnsupportedOp, tosaic.lower, exported)
    assert text.startswith(
        "[legalize-tosa] clamp bounds are NaN, which TOSA gives no meaning (node 'clamp', test_bad_input.py:"
    )


def test_too_many_axes_for_tosa_are_refused() -> None:
    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(x) + x

    exported = torch.export.export(Wide(), (torch.ones(1, 2, 1, 2, 1, 2, 1, 2),))
    result = tosaic.check(exported)
    assert not result
    assert refusal(tosaic.Error, tosaic.lower, exported)


def test_functions_over_graphs_refuse_none() -> None:
    calls = [
        _core.Session,
        _core.serialize,
        _core.lower,
        _core.layout_choices,
        _core.plan_calls,
        _core.carries_grid,
        lambda none: _core.run_pass("simplify", none),
        lambda none: _core.compare_traces(none, none, {}),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="incompatible"):
            call(None)
