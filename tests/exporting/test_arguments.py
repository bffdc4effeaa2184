"""Arguments that are not tensors, symbolic batches, equal extents, and places of the folder."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import tosaic
from torch import nn
from tosaic.recipes import Stage, named

X = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, factor: int = 2) -> torch.Tensor:
        y = self.conv(x) * factor
        return y if mask is None else y * mask


def network() -> nn.Module:
    torch.manual_seed(0)
    return Optional().eval()


def flow(model: Any, inputs: Any, **options: Any) -> tosaic.ExportResult:
    return tosaic.export_model(model, inputs, **{"recipe": "tosa-int8", "verbose": 0, **options})


@pytest.mark.parametrize("inputs", [(X, None), (X, None, 3), ((X,), {"factor": 4})])
def test_arguments_that_are_not_tensors_are_constants_of_the_program(inputs: Any) -> None:
    result = flow(network(), inputs)
    assert result.ok
    assert result.check("import").db > 100
    assert [port.path for port in result.lowered.inputs] == ["x"]


def test_a_symbolic_batch_is_bound_before_it_is_quantized() -> None:
    dynamic = {"x": {0: torch.export.Dim("batch", min=1, max=8)}}
    exported = torch.export.export(network(), (torch.rand(3, 3, 8, 8),), dynamic_shapes=dynamic)
    result = flow(exported, None, bind={"x": {0: 1}}, samples=[X, X])
    assert result.ok
    assert result.lowered.inputs[0].shape == (1, 3, 8, 8)


def test_outputs_whose_physical_shape_equals_the_logical_one_are_compared_by_axes() -> None:
    result = flow(
        network(), (X,), orders={"outputs": "nhwc"}, io={"outputs": "uint8"}, check_on=["reference"]
    )
    assert result.lowered.outputs[0].shape == (1, 6, 6, 6)
    assert result.check("lower").differing == 0


def test_a_module_of_bfloat16_is_compared_with_its_half_copy() -> None:
    result = flow(network().to(torch.bfloat16), (X.to(torch.bfloat16),), recipe="tosa-fp16")
    assert result.check("model").db > 30


def test_a_link_to_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    flow(network(), (X,), folder=tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "model.pte").is_file()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "real"]


@pytest.mark.parametrize("name", ["model.pte", "report.html", "groups", "recipe.json"])
def test_a_stage_adds_no_file_of_a_name_that_the_export_uses(tmp_path: Path, name: str) -> None:
    stage = Stage("adds", "lowered", lambda _, context: context.add_file(name, "x"))
    with pytest.raises(tosaic.InvalidGraph, match=f"the export has a file or folder '{name}' itself"):
        flow(network(), (X,), recipe=named("tosa-int8").replace(stages=[stage]), folder=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_flags_that_no_compiler_takes_are_refused_before_anything_runs() -> None:
    ran = []
    recipe = named("tosa-int8").replace(
        flags={"TOSA-1.0+INT": ["--fast"]}, stages=[Stage("runs", "model", lambda *_: ran.append(1))]
    )
    with pytest.raises(tosaic.InvalidGraph, match=r"'flags'.*none for 'TOSA-1.0\+INT'.*--fast"):
        flow(network(), (X,), recipe=recipe)
    assert not ran


def test_cortex_m_notes_that_nothing_is_quantized() -> None:
    result = flow(network(), (X,), recipe="cortex-m", quantize=False, claimants=["TOSA-1.0+FP"])
    assert result.notes == ("no program of Cortex-M kernels: nothing is quantized",)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_cortex_m_notes_what_to_pass_in_the_place_of_a_program() -> None:
    """Before, the export failed, since it had no exported program to write the scales into."""
    exported, recipe = torch.export.export(network(), (X,)), "cortex-m"
    program = flow(tosaic.from_exported(exported), None, recipe=recipe, samples=[(X,), (X * 0.5,)])
    assert program.ok
    (note,) = (each for each in program.notes if "Cortex-M" in each)
    assert "Pass the module, the ExportedProgram or the .pt2 file" in note
    assert "model.cortex_m.pte" not in program.added
    whole = flow(exported, None, recipe=recipe, samples=[(X,), (X * 0.5,)])
    assert "model.cortex_m.pte" in whole.added
    assert len(program.lowered.parts) == len(whole.lowered.parts)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("recipe", ["cortex-m", "tosa-int8"])
def test_a_symbolic_batch_has_the_bound_size_in_every_recipe(recipe: str, tmp_path: Path) -> None:
    dynamic = {"x": {0: torch.export.Dim("batch", min=1, max=8)}}
    exported = torch.export.export(network(), (torch.rand(3, 3, 8, 8),), dynamic_shapes=dynamic)
    result = flow(exported, None, recipe=recipe, bind={"x": {0: 1}}, samples=[X, X])
    assert result.ok
    if recipe == "cortex-m":
        (tmp_path / "m.pte").write_bytes(result.added["model.cortex_m.pte"])
        method = tosaic.load_pte(tmp_path / "m.pte").method()
        assert method.inputs[0].shape == (1, 3, 8, 8)


def test_threads_export_the_same_module_at_once(tmp_path: Path) -> None:
    model, found = network(), dict[int, Any]()

    def export(number: int) -> None:
        try:
            found[number] = flow(model, (X,), folder=tmp_path / str(number)).ok
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=export, args=(number,)) for number in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {0: True, 1: True, 2: True}
