"""A refusal names its cause first: the kind of program, the module's mode, shapes that depend on data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed
import tosaic
from errors.broken import export, place
from refusals import refusal
from torch import nn

FP, INT, BOTH = "TOSA-1.0+FP", "TOSA-1.0+INT", "TOSA-1.0+FP+INT"


def quantize(x: torch.Tensor, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    ops: Any = torch.ops.quantized_decomposed
    q = ops.quantize_per_tensor(x, 0.05, 0, limits.min, limits.max, dtype)
    return ops.dequantize_per_tensor(q, 0.05, 0, limits.min, limits.max, dtype)


def observed(x: torch.Tensor) -> torch.Tensor:
    """Returns a program in which every operator reads and produces quantized values."""
    x = quantize(torch.relu(quantize(x)).permute(0, 2, 3, 1))
    return quantize(torch.nn.functional.max_pool2d(x, 2))


IMAGE = torch.ones(1, 2, 4, 4)


# ---- quantized programs and float ones ----


def product(x: torch.Tensor) -> torch.Tensor:
    """Returns a quantized program with a product of integers that f32 cannot represent exactly."""
    return observed(x) * torch.prod(x[0, 0].to(torch.int32))


def test_the_first_reason_of_a_float_target_is_that_the_program_is_quantized() -> None:
    with pytest.raises(tosaic.Error) as error:
        tosaic.lower(export(product, IMAGE), target=FP)
    first, second, *rest = str(error.value).splitlines()
    assert first.endswith("keep this program from TOSA-1.0+FP: it is quantized, lower it for TOSA-1.0+INT")
    assert second.strip() == (
        "[lower] this program is quantized, and TOSA-1.0+FP has no integer arithmetic. "
        "Lower it for TOSA-1.0+INT."
    )
    assert rest
    assert error.value.problems[0].what.startswith("this program is quantized")


def test_the_refusal_of_a_quantized_program_of_16_bits_names_the_extension_that_it_needs() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return quantize(torch.relu(quantize(x, torch.int16)).permute(0, 2, 3, 1), torch.int16)

    def refused(x: torch.Tensor) -> torch.Tensor:
        return forward(x) * torch.prod(x[0, 0].to(torch.int32))

    text = refusal(tosaic.Error, tosaic.lower, export(refused, IMAGE), target=FP)
    assert "lower it for TOSA-1.0+INT+int16" in text
    tosaic.lower(export(forward, IMAGE), target="TOSA-1.0+INT+int16")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_a_quantized_program_that_floats_can_compute_lowers_with_a_warning(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return quantize(
            torch.nn.functional.max_pool2d(quantize(torch.relu(quantize(x, dtype)), dtype), 2), dtype
        )

    x = torch.randn(1, 2, 4, 4)
    with caplog.at_level("WARNING", logger="tosaic"):
        lowered = tosaic.lower(export(forward, IMAGE), target=FP)
        tosaic.lower(export(torch.relu, IMAGE), target=FP)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("tosaic")] == [
        "this program is quantized, and TOSA-1.0+FP computes it in floats, as torch does: "
        "lower it for TOSA-1.0+INT to have integer arithmetic"
    ]
    np.testing.assert_array_equal(lowered.run(x), forward(x).numpy())


def test_the_first_reason_of_an_integer_target_is_that_the_program_has_to_be_quantized() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.nn.functional.avg_pool2d(x + 1, 2)).flatten(1)

    with pytest.raises(tosaic.UnsupportedOp) as error:
        tosaic.lower(export(forward, IMAGE), target=INT)
    first, second, *rest = str(error.value).splitlines()
    assert first.endswith("keep this program from TOSA-1.0+INT: quantize it first")
    assert second.strip().startswith("[lower] this program computes with floats, and TOSA-1.0+INT has none.")
    assert "Quantize it first, e.g. with prepare_pt2e" in second
    assert [line.split(":")[0].strip() for line in rest] == [
        "[lower] 'add' computes with floats",
        "[lower] 'avg_pool' computes with floats",
        "[lower] 'tanh' computes with floats",
    ]
    assert all("module 'layer', test_kinds.py:" in line for line in rest)


def test_check_has_the_same_first_reason() -> None:
    assert (
        tosaic.check(export(product, IMAGE), target=FP)
        .problems[0]
        .what.startswith("this program is quantized")
    )
    problems = tosaic.check(export(torch.tanh, IMAGE), target=INT).problems
    assert problems[0].what == "this program computes with floats, and TOSA-1.0+INT has none"


def test_reasons_of_a_partly_quantized_program_start_with_the_operators_left_to_floats() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = quantize(torch.relu(quantize(x)))
        return y + torch.tanh(x * 0.5).reshape(1, 2, 4, 4)

    with pytest.raises(tosaic.UnsupportedOp) as error:
        tosaic.lower(export(forward, IMAGE), target=INT)
    problems = error.value.problems
    assert [problem.node for problem in problems] == ["mul", "tanh", "add"]
    assert all("left to floats" in p.what or "computes with floats" in p.what for p in problems)
    assert all(p.source.startswith("test_kinds.py:") for p in problems)


def test_the_refusal_of_a_foreign_operator_does_not_mention_quantization() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.special.i0(quantize(x))

    assert "quantized" not in refusal(tosaic.UnsupportedOp, tosaic.lower, export(forward, IMAGE), target=FP)


def test_an_integer_program_is_not_taken_for_a_float_program() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.permute(1, 0)

    integers = export(forward, torch.ones(2, 3, dtype=torch.int32))
    assert tosaic.lower(integers, target=INT).target == INT


# ---- shapes and numbers that depend on data ----


def nonzero() -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x)

    return forward


def index() -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]

    return forward


def masked_select() -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.masked_select(x, x > 0)

    return forward


def _unique2() -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.unique(x)

    return forward


@pytest.mark.parametrize("made", [nonzero, index, masked_select, _unique2])
@pytest.mark.parametrize("call", [tosaic.from_exported, tosaic.lower])
def test_a_shape_that_depends_on_data_names_node_and_line(made: Callable[..., Any], call: Any) -> None:
    function = made()
    text = refusal(tosaic.UnsupportedOp, call, export(function, torch.ones(3)))
    assert "depends on data" in text
    assert place(function, made.__name__) in text
    way_out = "torch.sort(x)[0]" if made is _unique2 else "torch.where(mask, x, 0) in place of x[mask]"
    assert way_out in text


_X, _WEIGHTS = torch.tensor([3, 0, 3, 5, 1]), torch.tensor([0.5, 2.0, 1.0, -1.0, 4.0])
_WAYS_OUT: dict[str, tuple[Callable[..., Any], str, Callable[..., Any], Any]] = {
    "bincount": (
        lambda x: torch.bincount(x, minlength=6),
        "torch.nn.functional.one_hot(x, classes).sum(0)",
        lambda x: torch.nn.functional.one_hot(x, 6).sum(0),
        torch.bincount(_X, minlength=6),
    ),
    "bincount with weights": (
        lambda x: torch.bincount(x, _WEIGHTS, minlength=6),
        "(torch.nn.functional.one_hot(x, classes) * weights[:, None]).sum(0)",
        lambda x: (torch.nn.functional.one_hot(x, 6) * _WEIGHTS[:, None]).sum(0),
        torch.bincount(_X, _WEIGHTS, minlength=6),
    ),
    "repeat_interleave": (
        lambda x: torch.repeat_interleave(_WEIGHTS, x),
        "torch.repeat_interleave(x, repeats, output_size=..)",
        lambda x: torch.repeat_interleave(_WEIGHTS, x, output_size=12),
        torch.repeat_interleave(_WEIGHTS, _X),
    ),
    "nonzero": (
        lambda x: torch.nonzero(x > 2),
        "torch.nonzero_static(mask, size=..)",
        lambda x: torch.nonzero_static(x > 2, size=3),
        torch.nonzero(_X > 2),
    ),
    "argwhere": (
        lambda x: torch.argwhere(x > 2),
        "torch.nonzero_static(mask, size=..)",
        lambda x: torch.nonzero_static(x > 2, size=3),
        torch.nonzero(_X > 2),
    ),
    "where": (
        lambda x: torch.where(x > 2),
        "torch.nonzero_static(mask, size=..)",
        lambda x: torch.nonzero_static(x > 2, size=3),
        torch.nonzero(_X > 2),
    ),
    "unique_consecutive": (
        lambda x: torch.unique_consecutive(x),
        "x[1:] != x[:-1]",
        lambda x: x[1:] != x[:-1],
        _X[1:] != _X[:-1],
    ),
    "unique": (
        lambda x: torch.unique(x),
        "torch.sort(x)[0]",
        lambda x: torch.sort(x)[0],
        torch.sort(_X)[0],
    ),
}


@pytest.mark.parametrize("case", _WAYS_OUT)
def test_the_way_out_of_a_size_that_depends_on_data_fits_the_call_and_works(case: str) -> None:
    function, words, instead, expected = _WAYS_OUT[case]
    text = refusal(tosaic.UnsupportedOp, tosaic.from_exported, export(function, _X))
    assert "depends on data" in text
    assert words in text
    found = tosaic.from_exported(export(instead, _X)).run(_X)
    assert torch.equal(torch.as_tensor(found), expected)


def test_check_names_the_node_of_a_shape_that_depends_on_data() -> None:
    (problem,) = tosaic.check(export(index(), torch.ones(3))).problems
    assert (problem.node, problem.module_path) == ("index", "layer")
    assert problem.source.startswith("test_kinds.py:")


def test_a_number_read_from_data_names_the_reader_and_the_place_of_item() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().item()
        return x + torch.full((3,), n)

    text = refusal(tosaic.UnsupportedOp, tosaic.lower, export(forward, torch.ones(3)))
    line = int(place(forward, "").rpartition(":")[2][:-1])
    assert "it uses a result of aten.item.default that has no value here" in text
    assert (
        f"got node 'item', test_kinds.py:{line} (node 'full', module 'layer', test_kinds.py:{line + 1})"
        in text
    )
    assert "Keep the number a tensor, e.g. x + 2 * n in place of x + 2 * n.item()" in text


def test_a_size_read_from_data_names_the_node_that_has_it() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        n = x[0].to(torch.int64).item()
        torch._check(n >= 0)
        torch._check(n < 3)
        return x[:n] * 2

    text = refusal(tosaic.UnsupportedOp, tosaic.lower, export(forward, torch.ones(3)))
    assert "depends on data" in text
    assert "module 'layer', test_kinds.py:" in text


# ---- training mode ----

EVAL = "Call .eval() on the module before torch.export.export"
MODULES = {
    "dropout": (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), (2, 4)),
    "feature dropout": (nn.Dropout2d(), (2, 3, 4, 4)),
    "alpha dropout": (nn.AlphaDropout(), (2, 4)),
    "attention": (nn.TransformerEncoderLayer(8, 2), (2, 3, 8)),
    "batch norm": (nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)), (2, 3, 4, 4)),
    "rrelu": (nn.RReLU(), (2, 4)),
    "lstm": (nn.LSTM(3, 3, 2, dropout=0.5), (2, 3)),
}


def trained(name: str, *, decomposed: bool) -> Any:
    module, shape = MODULES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own code
        exported = torch.export.export(module.train(), (torch.ones(shape),))
        return exported.run_decompositions() if decomposed else exported


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_refusal_of_a_module_in_training_mode_says_to_call_eval(name: str) -> None:
    text = refusal(tosaic.UnsupportedOp, tosaic.lower, trained(name, decomposed=False))
    assert "in training mode" in text
    assert EVAL in text


@pytest.mark.parametrize("name", ["dropout", "attention", "alpha dropout", "rrelu"])
def test_the_refusal_of_a_decomposed_module_in_training_mode_says_so_too(name: str) -> None:
    text = refusal(tosaic.UnsupportedOp, tosaic.lower, trained(name, decomposed=True))
    assert EVAL in text


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_same_module_lowers_in_eval_mode_without_a_diagnostic(name: str) -> None:
    module, shape = MODULES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module.eval(), (torch.ones(shape),))
    program = tosaic.from_exported(exported)
    assert not [d for d in program.diagnostics if d.rule == "training"]
    tosaic.lower(program)


def test_batch_statistics_that_lower_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The program asks for batch statistics, but this is rarely intended for a module that is deployed."""
    program = tosaic.from_exported(trained("batch norm", decomposed=True))
    assert [d.rule for d in program.diagnostics if d.rule == "training"] == ["training"]
    assert "call .eval() before torch.export.export" in caplog.text


def test_a_norm_without_running_statistics_is_not_in_training_mode() -> None:
    module = nn.BatchNorm2d(3, track_running_stats=False).eval()
    program = tosaic.from_exported(torch.export.export(module, (torch.ones(2, 3, 4, 4),)))
    assert not [d for d in program.diagnostics if d.rule == "training"]


def test_random_numbers_that_no_mode_turns_off_are_named() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    text = refusal(tosaic.UnsupportedOp, tosaic.lower, export(forward, torch.ones(3)))
    assert "draws random numbers" in text
    assert place(forward, "rand_like") in text
    assert "or make the numbers an input" in text


# ---- overrides ----


def test_the_hint_of_an_operator_without_a_kernel_shows_an_override_that_works() -> None:
    x = np.array([0, 0.4, 1], np.float32)
    program = tosaic.from_exported(export(lambda x: torch.bernoulli(x) + 1, torch.from_numpy(x)))
    text = refusal(tosaic.UnsupportedOp, program.run, x)
    assert (
        "override it with a function of the operands: program.with_overrides({'aten.bernoulli.default': "
        "function})" in text
    )
    overridden = program.with_overrides({"aten.bernoulli.default": np.round})
    assert np.array_equal(overridden.run(x), [1, 1, 2])
    refusal(tosaic.UnsupportedOp, program.run, x)  # the program itself has no override


def test_an_override_is_found_by_the_name_of_its_node_or_operator() -> None:
    program = tosaic.from_exported(export(lambda x: torch.tanh(torch.relu(x)), torch.ones(3)))
    x = np.ones(3, np.float32)
    assert np.array_equal(program.with_overrides({"relu": lambda v: v * 0}).run(x), x * 0)
    assert np.array_equal(program.with_overrides({"tanh": lambda v: v + 1}).run(x), x + 1)
    text = refusal(tosaic.InvalidGraph, program.with_overrides, {"relux": lambda v: v})
    assert "an override names no operator: expected the name of an operator" in text
    assert "got 'relux'. Did you mean 'relu'" in text
    for name in ("no.such", "aten.relu.default"):
        text = refusal(tosaic.InvalidGraph, program.with_overrides, {name: lambda v: v})
        assert f"got '{name}'" in text
