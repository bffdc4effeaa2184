"""The kernel of grid_sample for floats: against torch, on each instruction set, and its scalar reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from tosaic import _core

from grid_sampler.cases import COMBINATIONS, Array, Combination, Sample, Shapes, draw_floats, draw_shapes

CALLS = 3  # per combination
RELATIVE = 1e-5
"""Relative to the largest pixel. A position far outside of a large image errs by a large part of a pixel."""


def exported(combination: Combination, args: tuple[Array, Array]) -> tosaic.Program:
    tensors = torch.from_numpy(args[0]), torch.from_numpy(args[1])
    return tosaic.from_exported(torch.export.export(Sample(combination), tensors))


def torch_result(combination: Combination, args: tuple[Array, Array]) -> Array:
    mode, padding, corners = combination
    return F.grid_sample(*(torch.from_numpy(a) for a in args), mode, padding, corners).numpy()


def assert_close(found: Array, expected: Array, image: Array) -> None:
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    known = ~np.isnan(expected)
    assert np.abs(found[known] - expected[known]).max(initial=0) <= RELATIVE * np.abs(image).max()


@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_samples_agree_with_torch_also_at_positions_that_are_nan_or_infinite(
    combination: Combination,
) -> None:
    rng = np.random.default_rng(3)
    for call in range(CALLS):
        args = draw_floats(rng, draw_shapes(rng), odd=call % 2 == 0)
        assert_close(exported(combination, args).run(*args), torch_result(combination, args), args[0])


@pytest.mark.parametrize("isa", [*_core.usable_isas(), "reference"])
@pytest.mark.parametrize("outputs", [(3, 5), (40, 50)], ids=["few outputs", "many outputs"])
def test_each_instruction_set_samples_a_large_image_as_torch_does(isa: str, outputs: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    for channels in (1, 3, 7, 20):
        for combination in COMBINATIONS[:: 2 if channels == 3 else 7]:
            args = draw_floats(rng, Shapes((2, channels, 33, 47), (2, *outputs, 2)), odd=False)
            options: dict[str, Any] = {"reference": True} if isa == "reference" else {"isa": isa}
            (found,) = _core.Session(exported(combination, args).graph, **options).run(args)
            assert_close(found, torch_result(combination, args), args[0])


def test_the_sampler_runs_by_a_kernel_and_not_by_its_expansion() -> None:
    args = np.zeros((1, 3, 4, 4), np.float32), np.zeros((1, 2, 2, 2), np.float32)
    (op,) = (op for op in _core.ops() if op.name == "grid_sample")
    assert "expanded" not in op.traits
    assert [node.op for node in exported(COMBINATIONS[0], args).graph.nodes] == ["grid_sample"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_are_sampled_in_the_precision_of_torch(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(5)
    args = [
        torch.from_numpy(a).to(dtype) for a in draw_floats(rng, Shapes((1, 3, 7, 8), (1, 5, 6, 2)), odd=False)
    ]
    for combination in COMBINATIONS:
        program = tosaic.from_exported(torch.export.export(Sample(combination), tuple(args)))
        found = torch.as_tensor(np.asarray(program.run(*args), dtype=np.float64))
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        mode, padding, corners = combination
        expected = F.grid_sample(*(a.to(wide) for a in args), mode, padding, corners).to(dtype).double()
        step = torch.finfo(dtype).eps
        assert (found - expected).abs().max() <= 4 * step * args[0].abs().max().double()
