"""Samplers of volumes: against torch, by each kernel, lowered to TOSA, and between quantized tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from tosaic import _core
from tosaic.lowering.reference_model import run_reference_model

from grid_sampler.cases import (
    GRID8,
    GRID16,
    SNORM,
    VOLUMES,
    Combination,
    IntegerCall,
    Quantized,
    Sample,
    Shapes,
    draw_floats,
    draw_shapes,
)
from grid_sampler.exact import units_apart
from grid_sampler.test_floats import assert_close, exported, torch_result

SMALL = Shapes((1, 2, 3, 4, 5), (1, 2, 2, 2, 3))


@pytest.mark.parametrize("combination", VOLUMES, ids=str)
def test_samples_of_volumes_agree_with_torch_also_at_positions_that_are_nan_or_infinite(
    combination: Combination,
) -> None:
    rng = np.random.default_rng([1, VOLUMES.index(combination)])
    for odd in (False, True, True):
        args = draw_floats(rng, draw_shapes(rng, most=7, spatial=3), odd=odd)
        expected = torch_result(combination, args)
        program = exported(combination, args)
        assert [node.op for node in program.graph.nodes] == ["grid_sample"]
        assert_close(program.run(*args), expected, args[0])
        lowered = tosaic.lower(program, target="TOSA-1.0+FP")
        assert_close(lowered.run(*args), expected, args[0])


def test_all_instruction_sets_compute_the_same_numbers_and_the_reference_equals_torch() -> None:
    rng = np.random.default_rng(2)
    for combination in VOLUMES:
        args = draw_floats(rng, Shapes((2, 3, 6, 9, 11), (2, 5, 7, 8, 3)), odd=True)
        graph = exported(combination, args).graph
        found = [_core.Session(graph, isa=isa).run(args)[0] for isa in _core.usable_isas()]
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)
        (reference,) = _core.Session(graph, reference=True).run(args)
        assert_close(reference, torch_result(combination, args), args[0])


def test_a_voxel_that_is_infinite_is_read_only_where_torch_reads_it() -> None:
    rng = np.random.default_rng(3)
    volume, grid = draw_floats(rng, Shapes((1, 2, 4, 5, 6), (1, 6, 6, 6, 3)), odd=False)
    volume[0, 0, 0, 0, 0] = np.inf
    for combination in VOLUMES:
        expected = torch_result(combination, (volume, grid))
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(
                np.isfinite(exported(combination, (volume, grid)).run(volume, grid)), np.isfinite(expected)
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_floats_are_sampled_in_the_precision_of_torch(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(4)
    floats = draw_floats(rng, Shapes((1, 3, 4, 5, 6), (1, 5, 4, 3, 3)), odd=False)
    args = [torch.from_numpy(a).to(dtype) for a in floats]
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    for combination in VOLUMES:
        program = tosaic.from_exported(torch.export.export(Sample(combination), tuple(args)))
        found = torch.as_tensor(np.asarray(program.run(*args), dtype=np.float64))
        expected = F.grid_sample(*(a.to(wide) for a in args), *combination).to(dtype).double()
        step = torch.finfo(dtype).eps
        assert (found - expected).abs().max() <= 4 * step * args[0].abs().max().double()


@pytest.mark.parametrize("combination", VOLUMES[::3], ids=str)
def test_the_reference_model_samples_a_lowered_volume(combination: Combination) -> None:
    rng = np.random.default_rng(5)
    args = draw_floats(rng, Shapes((2, 3, 3, 4, 5), (2, 2, 3, 4, 3)), odd=False)
    lowered = tosaic.lower(exported(combination, args), target="TOSA-1.0+FP")
    on_model = run_reference_model(lowered, *args)
    assert on_model.ok, on_model.log
    assert_close(np.asarray(on_model.outputs), torch_result(combination, args), args[0])


def quantized_call(combination: Combination, grid: Quantized = GRID16) -> IntegerCall:
    rng = np.random.default_rng([6, VOLUMES.index(combination)])
    shapes = draw_shapes(rng, most=6, spatial=3)
    args = SNORM.draw(rng, shapes.image), grid.draw(rng, shapes.grid)
    return IntegerCall(combination, SNORM, grid, SNORM, args)


@pytest.mark.parametrize("grid", [GRID8, GRID16], ids=["int8", "int16"])
@pytest.mark.parametrize("combination", VOLUMES, ids=str)
def test_a_quantized_volume_is_sampled_in_integers_within_one_unit(
    combination: Combination, grid: Quantized
) -> None:
    call = quantized_call(combination, grid)
    lowered = tosaic.lower(torch.export.export(call.module(), call.tensors()), target="TOSA-1.0+INT")
    assert "f32" not in {value.dtype for node in lowered.graph.nodes for value in node.results}
    found = lowered.run(*call.args)
    numbers = (torch.from_numpy(part.numbers(a)) for part, a in zip((SNORM, grid), call.args, strict=True))
    assert units_apart(found, F.grid_sample(*numbers, *combination).numpy(), SNORM).max() <= 1
    on_model = run_reference_model(lowered, *call.args)
    assert on_model.ok, on_model.log
    np.testing.assert_array_equal(on_model.outputs, found)


def test_the_claimant_of_texture_samplers_refuses_volumes() -> None:
    call = quantized_call(VOLUMES[0])
    program = tosaic.from_exported(torch.export.export(call.module(), call.tensors()))
    verdicts: Any = tosaic.Claimant.named("grid-sampler").supports(program)
    (verdict,) = (v for v in verdicts if v.op == "grid_sample")
    assert "rank" in {reason.rule for reason in verdict.reasons}


def test_quantize_gives_the_grid_of_a_volume_16_bits() -> None:
    args = (torch.rand(1, 2, 4, 5, 6) * 2 - 1, torch.rand(1, 3, 4, 5, 3) * 2 - 1)
    program = torch.export.export(Sample(("bilinear", "zeros", False)), args)
    quantized = tosaic.quantize(program, [args], progress=False)
    assert "i16" in {value.dtype for node in quantized.graph.nodes for value in node.results}


def test_bicubic_samples_of_volumes_are_refused() -> None:
    text = exported(VOLUMES[6], draw_floats(np.random.default_rng(7), SMALL, odd=False)).graph.text()
    assert "nearest" in text
    with pytest.raises(tosaic.InvalidGraph, match="bilinear or nearest, got bicubic"):
        _core.Graph.parse(text.replace("nearest", "bicubic"))
