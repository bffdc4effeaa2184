"""The tosa.custom of ExecuTorch's VGF flow: read, run, compared and written; RGBA images; the claimant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from torch import nn
from tosaic.annotation import Fixed, Operator

from grid_sampler.cases import COMBINATIONS, GRID8, SNORM, IntegerCall, Sample

SNORM8 = Fixed("int8", 1 / 127, 0, -127, 127, "per_tensor_symmetric")
UNIT16 = Fixed("int16", 1 / 32767, 0, -32767, 32767, "per_tensor_symmetric")
SHADERS = dict.fromkeys(
    ("image", "image_align_corners", "image_int8", "image_int8_align_corners"), "AwIjBw=="
)
IMAGE = [c for c in COMBINATIONS if c[0] != "bicubic"]


class Warp(nn.Module):
    """A sampler of an RGB image, and a convolution after it."""

    def __init__(self, *, behind: bool = True) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.last = nn.Conv2d(3, 5, 3, padding=1) if behind else nn.Identity()

    def forward(self, image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return self.last(F.grid_sample(image, grid, align_corners=False))


def arguments(channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    image = torch.rand(1, channels, 8, 9, generator=generator) * 2 - 1
    return image, torch.rand(1, 6, 7, 2, generator=generator) * 2.4 - 1.2


def with_samplers(target: str, shaders: dict[str, str] = SHADERS) -> tosaic.Pipeline:
    pipeline = tosaic.Pipeline.default(target)
    if "INT" in target:
        pipeline.insert_after("fold-qdq", tosaic.lowering.rgba_pass())
    else:
        pipeline.insert_before("decompose", tosaic.lowering.rgba_pass())
    pipeline.insert_after("rgba", tosaic.lowering.custom_samplers(shaders))
    return pipeline


def custom_of(program: Any) -> Any:
    (node,) = (node for node in program.graph.nodes if node.op == "tosa.custom")
    return node


@pytest.mark.parametrize("combination", IMAGE, ids=str)
def test_a_float_sampler_is_written_read_and_run_as_torch_computes_it(
    combination: Any, tmp_path: Path
) -> None:
    args = arguments(4)
    exported = torch.export.export(Sample(combination), args)
    lowered = tosaic.lower(exported, pipeline=with_samplers("TOSA-1.0+FP"))
    lowered.save(tmp_path / "model.tosa")
    read = tosaic.load_tosa(tmp_path / "model.tosa")
    mode, padding, corners = combination
    assert (
        custom_of(read).attrs["operator_name"].endswith(f"{mode}.padding.{padding}.align_corners.{corners}")
    )
    expected = F.grid_sample(*args, mode, padding, corners).numpy()
    np.testing.assert_allclose(read.run(*args), expected, atol=2e-6)
    assert tosaic.compare(exported, lowered, args).ok


@pytest.mark.parametrize("combination", IMAGE, ids=str)
def test_an_integer_sampler_differs_from_its_expansion_by_one_unit_at_most(combination: Any) -> None:
    rng = np.random.default_rng(3)
    call = IntegerCall(
        combination, SNORM, GRID8, SNORM, (SNORM.draw(rng, (1, 3, 9, 8)), GRID8.draw(rng, (1, 12, 11, 2)))
    )
    exported = torch.export.export(call.module(), call.tensors())
    custom = tosaic.lower(exported, pipeline=with_samplers("TOSA-1.0+INT+FP"))
    assert [v.dtype for v in custom_of(custom).operands] == ["i8", "i8", "f32", "i32"]
    found = custom.run(*call.args).astype(int)
    expanded = tosaic.lower(exported, target="TOSA-1.0+INT").run(*call.args)
    apart = np.abs(found - expanded)
    assert apart.max() <= 1 or call.combination[0] == "nearest"
    assert (apart != 0).mean() < 0.05  # halves are rounded to even here, and up by a RESCALE


def test_samplers_without_a_shader_are_expanded() -> None:
    exported = torch.export.export(Sample(("bicubic", "zeros", False)), arguments(4))
    lowered = tosaic.lower(exported, pipeline=with_samplers("TOSA-1.0+FP"))
    assert "tosa.custom" not in {node.op for node in lowered.graph.nodes}
    with pytest.raises(tosaic.InvalidGraph, match=r"custom_samplers.*shaders"):
        tosaic.lowering.custom_samplers({"volume": ""})


def test_the_payload_equals_executorchs() -> None:
    payloads = pytest.importorskip("executorch.backends.arm.vgf.shaders.grid_sampler")
    shaders = tosaic.executorch.sampler_shaders()
    for number, (mode, padding, corners) in enumerate(IMAGE):
        exported = torch.export.export(Sample((mode, padding, corners)), arguments(4))
        lowered = tosaic.lower(exported, pipeline=with_samplers("TOSA-1.0+FP", shaders))
        expected = payloads.build_grid_sampler_2d_payload(
            ("bilinear", "nearest").index(mode),
            ("zeros", "border", "reflection").index(padding),
            corners,
            input_shape=(1, 4, 8, 9),
            output_shape=(1, 4, 6, 7),
            input_dtype=torch.float32,
        )
        assert json.loads(custom_of(lowered).attrs["implementation_attrs"]) == expected, number


# ---- RGBA images ----


def test_rgba_pads_the_image_once_and_the_weights_and_results_do_not_change() -> None:
    args = arguments()
    program = tosaic.from_exported(torch.export.export(Warp(), args))
    made = tosaic.lowering.rgba(program)
    assert [node.op for node in made.graph.nodes] == ["pad", "grid_sample", "conv"]
    assert made.graph.nodes[2].operands[1].shape == (5, 4, 3, 3)
    np.testing.assert_array_equal(made.run(*args), program.run(*args))
    assert (
        tosaic.lowering.rgba(tosaic.from_exported(torch.export.export(Warp(), arguments())))
        .graph.inputs[0]
        .value.shape[1]
        == 3
    )


def test_chosen_inputs_and_outputs_have_four_channels_and_alpha_has_no_influence() -> None:
    args = arguments()
    program = tosaic.from_exported(torch.export.export(Warp(behind=False), args))
    made = tosaic.lowering.rgba(program, inputs=["image"], outputs=[0])
    assert [node.op for node in made.graph.nodes] == ["grid_sample"]
    wide = torch.cat([args[0], torch.full((1, 1, 8, 9), 77.0)], 1)
    found = made.run(wide, args[1])
    assert found.shape == (1, 4, 6, 7)
    np.testing.assert_array_equal(found[:, :3], program.run(*args))
    with pytest.raises(tosaic.InvalidGraph, match="'inputs' names no input"):
        tosaic.lowering.rgba(program, inputs=["picture"])
    with pytest.raises(tosaic.InvalidGraph, match="'grid' is no image of three channels"):
        tosaic.lowering.rgba(program, inputs=["grid"])


def quantized(grid: Fixed) -> Any:
    args = arguments()
    exported = torch.export.export(Warp(), args)
    rules = [Operator("grid_sampler", {"input": SNORM8, "grid": grid}, SNORM8)]
    return tosaic.quantize(exported, [args], rules=rules, progress=False)


@pytest.mark.parametrize("grid", [SNORM8, UNIT16], ids=["int8", "int16"])
def test_rgba_of_a_quantized_program_computes_the_same_integers(grid: Fixed) -> None:
    program, args = quantized(grid), arguments()
    pipeline = tosaic.Pipeline.default("TOSA-1.0+INT+int16")
    pipeline.insert_after("fold-qdq", tosaic.lowering.rgba_pass())
    wide = tosaic.lower(program, pipeline=pipeline)
    np.testing.assert_array_equal(
        wide.run(*args), tosaic.lower(program, target="TOSA-1.0+INT+int16").run(*args)
    )
    (pad,) = (node for node in wide.graph.nodes if node.op == "tosa.pad")
    assert 4 in pad.results[0].shape


# ---- the claimant ----


@pytest.mark.parametrize("grid", [SNORM8, UNIT16], ids=["int8", "int16"])
def test_the_claimant_takes_a_sampler_of_fixed_formats_as_one_unit_of_integers(grid: Fixed) -> None:
    claimants = [tosaic.Claimant.named("grid-sampler"), tosaic.Claimant.named("TOSA-1.0+INT+int16")]
    plan = tosaic.partition(quantized(grid), claimants)
    (group,) = (group for group in plan.groups if group.claimant == "grid-sampler")
    assert list(group.nodes) == ["grid_sampler"]
    values = {value.name: value for node in plan.graph.nodes for value in (*node.operands, *node.results)}
    assert {values[name].dtype for name in (*group.inputs, *group.outputs)} <= {"i8", "i16"}
    split = tosaic.lower(quantized(grid), unsupported="split", claimants=claimants)
    expected = tosaic.lower(quantized(grid), target="TOSA-1.0+INT+FP+int16").run(*arguments())
    np.testing.assert_array_equal(split.run(*arguments()), expected)


def test_the_claimant_refuses_other_parameters_with_the_reason() -> None:
    args = arguments()
    program = tosaic.quantize(torch.export.export(Warp(), args), [args], progress=False)
    (verdict,) = (v for v in tosaic.Claimant.named("grid-sampler").supports(program) if v.op == "grid_sample")
    assert not verdict
    assert {reason.rule for reason in verdict.reasons} >= {"snorm"}
