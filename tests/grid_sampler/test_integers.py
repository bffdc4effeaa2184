"""Samplers over integers: within one unit, equal by kernel, by expansion and on the reference model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from tosaic.lowering.reference_model import run_reference_model

from grid_sampler.cases import (
    COMBINATIONS,
    GRID8,
    GRID16,
    SNORM,
    Array,
    Combination,
    IntegerCall,
    Quantized,
    draw_integers,
)
from grid_sampler.exact import distance

TARGET = "TOSA-1.0+INT+int16"
DTYPES = [("int8", "int16"), ("int8", "int8"), ("int16", "int16"), ("int16", "int8")]


def exported(call: IntegerCall) -> Any:
    return torch.export.export(call.module(), call.tensors())


def integer_graph(call: IntegerCall) -> Any:
    """Returns the graph at stage integer, in which the sampler is one operator."""
    graph = tosaic.from_exported(exported(call)).graph
    pipeline = tosaic.Pipeline.default(TARGET)
    for name in ("fold-qdq", "lower-to-integer", "quantize-boundary"):
        graph = pipeline[name].run(graph)
    assert [node.op for node in graph.nodes].count("integer_grid_sample") == 1
    return graph


def by_kernel(call: IntegerCall) -> Array:
    """Runs the graph of `integer_graph`."""
    return np.asarray(tosaic.program.from_graph(integer_graph(call)).run(*call.args))


def lowered(call: IntegerCall, target: str = TARGET) -> tosaic.Lowered:
    made = tosaic.lower(exported(call), target=target)
    assert not [node.name for node in made.graph.nodes if "f32" in {v.dtype for v in node.results}]
    return made


@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_a_sample_is_within_one_unit_of_the_exact_result(combination: Combination) -> None:
    number = COMBINATIONS.index(combination)
    image, grid = DTYPES[number % 4]
    call = draw_integers(np.random.default_rng([7, number]), combination, image, grid, most=20)
    found = by_kernel(call)
    assert distance(call, found).max() <= 1
    made = lowered(call)
    np.testing.assert_array_equal(made.run(*call.args), found)
    if image == "int8":
        on_model = run_reference_model(made, *call.args)
        assert on_model.ok, on_model.log
        np.testing.assert_array_equal(on_model.outputs, found)


def test_int8_needs_no_extension_of_16_bits_also_with_a_grid_of_int16() -> None:
    call = draw_integers(np.random.default_rng(1), ("bicubic", "reflection", False), "int8", "int16")
    made = lowered(call, "TOSA-1.0+INT")
    np.testing.assert_array_equal(made.run(*call.args), by_kernel(call))


def snorm_call(combination: Combination, grid: Quantized, image: Array) -> IntegerCall:
    places = grid.draw(np.random.default_rng(2), (1, 9, 9, 2))
    return IntegerCall(combination, SNORM, grid, SNORM, (image, places))


@pytest.mark.parametrize("grid", [GRID8, GRID16], ids=["int8", "int16"])
@pytest.mark.parametrize("combination", COMBINATIONS[::4], ids=str)
def test_the_least_two_integers_of_snorm_both_mean_minus_one(
    combination: Combination, grid: Quantized
) -> None:
    image = np.random.default_rng(3).integers(-128, -125, (1, 2, 6, 6)).astype(np.int8)
    least, next_to_it = (
        snorm_call(combination, grid, image),
        snorm_call(combination, grid, np.maximum(image, -127)),
    )
    np.testing.assert_array_equal(by_kernel(least), by_kernel(next_to_it))
    np.testing.assert_array_equal(lowered(least).run(*least.args), by_kernel(next_to_it))


def test_positions_in_the_middle_of_two_pixels_are_rounded_half_to_even() -> None:
    image = np.arange(6, dtype=np.int8).reshape(1, 1, 1, 6)
    grid = np.array([0, -127, 127], np.int8).reshape(1, 1, 3, 1)  # pixels 2.5, -0.5 and 5.5
    grid = np.concatenate([grid, np.zeros_like(grid)], -1)
    call = IntegerCall(("nearest", "zeros", False), SNORM, GRID8, SNORM, (image, grid))
    np.testing.assert_array_equal(by_kernel(call).ravel(), [2, 0, 0])  # 6 is outside of the image


def test_a_reflected_grid_that_reaches_far_goes_round_several_times() -> None:
    far = Quantized("int16", 11 / 32767, 0, -32767, 32767)
    rng = np.random.default_rng(6)
    for combination in (c for c in COMBINATIONS if c[1] == "reflection"):
        call = IntegerCall(
            combination, SNORM, far, SNORM, (SNORM.draw(rng, (1, 2, 5, 3)), far.draw(rng, (1, 8, 8, 2)))
        )
        assert distance(call, by_kernel(call)).max() <= 1
        np.testing.assert_array_equal(lowered(call).run(*call.args), by_kernel(call))


def test_zero_points_of_16_bits_are_refused_with_the_reason() -> None:
    rng = np.random.default_rng(8)
    plain = Quantized("int16", 1 / 32767, 0, -32768, 32767)
    shifted = Quantized("int16", 1 / 32767, 100, -32768, 32767)
    for image, grid, result, name in (
        (shifted, GRID16, plain, "operand 'image'"),
        (SNORM, shifted, SNORM, "operand 'grid'"),
        (plain, GRID16, shifted, "result"),
    ):
        args = image.draw(rng, (1, 2, 4, 4)), grid.draw(rng, (1, 2, 2, 2))
        call = IntegerCall(("bilinear", "zeros", False), image, grid, result, args)
        with pytest.raises(tosaic.UnsupportedOp, match=f"{name}.*i16 with a zero point.*grid_sampler"):
            tosaic.lower(exported(call), target=TARGET)
