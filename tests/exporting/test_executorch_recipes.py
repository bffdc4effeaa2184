"""Recipes in the form of ExecuTorch's: ExecuTorch's session quantizes, lowers and writes the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from executorch.export import export
from models.zoo import quiet
from tosaic.recipes import PassChange, Stage, named, qat

from exporting.networks import Warp, images, seeded

SAMPLES = list(images())


def exported_by_executorch(model: Any, recipe: Any, folder: Path) -> tosaic.PteFile:
    with quiet():
        session = export(model, SAMPLES[:2], recipe)
    (folder / "m.pte").write_bytes(session.get_pte_buffer())
    return tosaic.load_pte(folder / "m.pte")


@pytest.mark.filterwarnings("ignore")
def test_a_session_of_executorch_makes_the_file_of_a_recipe(tmp_path: Path) -> None:
    recipe = named("tosa-int8").replace(io={"inputs": "int8"})
    file = exported_by_executorch(seeded(Warp), recipe.to_executorch(), tmp_path)
    delegates = file.delegates
    assert [each.backend for each in delegates] == ["TOSABackend"]
    assert "quantized_decomposed::quantize_per_tensor.out" in file.method().operators
    with torch.no_grad():
        expected = seeded(Warp)(*SAMPLES[1]).numpy()
    (found,) = np.asarray(file.run(*SAMPLES[1])).reshape(1, *expected.shape)
    assert np.abs(found - expected).max() < 0.1
    assert len(np.unique(found)) > 8


@pytest.mark.filterwarnings("ignore")
def test_a_stage_and_layouts_are_part_of_it(tmp_path: Path) -> None:
    seen = []

    def notes(program: Any, context: Any) -> None:
        seen.append((type(program).__name__, context.recipe.name))

    recipe = named("tosa-int8").replace(
        stages=[Stage("notes", "exported", notes)], orders={"inputs": "channels_last"}
    )
    file = exported_by_executorch(seeded(Warp), recipe.to_executorch(), tmp_path)
    assert seen == [("ExportedProgram", "tosa-int8")]
    assert file.method().inputs[0].dim_order == (0, 2, 3, 1)


def test_what_executorch_has_no_place_for_is_refused() -> None:
    recipe = named("vgf-snorm").replace(
        tools=["gptq"],
        passes=[PassChange("remove", "decompose")],
        stages=[qat(print)],
        claimants=["cortex-m55", "grid-sampler", "vgf"],
        objective="count",
        orders={"inputs": "nhwc", "outputs": {"out": "nhwc"}},
    )
    with pytest.raises(tosaic.UnsupportedOp) as caught:
        recipe.to_executorch()
    parts = ["accuracy tools", "rgba", "passes", "'count'", "stage 'qat'", "claimant 'cortex-m55'"]
    for part in (*parts, "'nhwc' of the inputs", "'nhwc' of the outputs"):
        assert part in str(caught.value), part
    assert "grid-sampler" not in str(caught.value)
    with pytest.raises(tosaic.InvalidGraph, match="is no recipe"):
        tosaic.executorch.export_recipe("tosa-int8")


def test_functions_of_the_package_stay_functions_when_they_are_called() -> None:
    """A module that has the name of a function would replace it when it is imported."""
    tosaic.executorch.layout_pass(orders={"inputs": "channels_last"})
    for name in tosaic.executorch.__all__:
        assert callable(getattr(tosaic.executorch, name)), name
