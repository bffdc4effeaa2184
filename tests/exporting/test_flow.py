"""The export flow: models of every form, stages at every place, files, scenarios and checks."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic import Recipe
from tosaic.recipes import PassChange, Stage, named, qat

from exporting.networks import HEIGHT, WIDTH, Warp, images, seeded

SAMPLES = list(images())


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        y = torch.relu(self.norm(self.conv(x))) * scale
        return {"y": y, "mean": y.mean((2, 3))}


def small() -> nn.Module:
    return seeded(Small)


def arguments() -> tuple[tuple[torch.Tensor], dict[str, torch.Tensor]]:
    return (SAMPLES[0][0],), {"scale": torch.full((1,), 2.0)}


def flow(model: Any, inputs: Any = None, **options: Any) -> tosaic.ExportResult:
    return tosaic.export_model(model, inputs, **{"recipe": "tosa-int8", "verbose": 0, **options})


def test_a_module_an_exported_program_a_file_and_a_program_give_the_same(tmp_path: Path) -> None:
    module, (args, kwargs) = small(), arguments()
    exported = torch.export.export(module, args, kwargs)
    torch.export.save(exported, tmp_path / "m.pt2")
    samples = [{"x": x, "scale": kwargs["scale"]} for (x,) in SAMPLES]
    results = [
        flow(module, (args, kwargs), samples=samples),
        flow(exported, samples=samples),
        flow(tmp_path / "m.pt2", samples=samples),
        flow(tosaic.from_exported(exported), samples=samples),
    ]
    outputs = [each.run(args[0], scale=kwargs["scale"]) for each in results]
    for found in outputs[1:]:
        np.testing.assert_array_equal(found["y"], outputs[0]["y"])
        np.testing.assert_array_equal(found["mean"], outputs[0]["mean"])
    assert [each.name for each in results[0].checks] == ["import", "quantize", "lower", "accuracy"]
    assert [each.name for each in results[3].checks] == ["quantize", "lower", "accuracy"]
    assert results[0].check("lower").compare().ok
    with pytest.raises(tosaic.InvalidGraph, match=r"there is no check 'lowr'.*Did you mean 'lower'"):
        results[0].check("lowr")


def test_the_callers_module_is_unchanged() -> None:
    module = seeded(Warp)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    flow(module, SAMPLES[0], recipe="tosa-fp16", samples=SAMPLES)
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in before.items())
    assert next(module.parameters()).dtype == torch.float32


def test_floats_of_16_bits_are_compared_with_the_model_of_32() -> None:
    result = flow(seeded(Warp), SAMPLES[0], recipe="tosa-fp16", samples=SAMPLES)
    assert {port.dtype for port in (*result.lowered.inputs, *result.lowered.outputs)} == {"f16"}
    assert [each.name for each in result.checks] == ["import", "model", "lower", "accuracy"]
    assert 30 < result.check("model").db < 100


def test_example_inputs_alone_are_noted() -> None:
    assert any("example inputs alone" in note for note in flow(seeded(Warp), SAMPLES[0]).notes)
    assert flow(seeded(Warp), SAMPLES[0], samples=SAMPLES).notes == ()


def test_samples_beyond_a_fixed_format_are_noted() -> None:
    wide = [(3 * image,) for (image,) in SAMPLES]
    (note,) = flow(seeded(Warp), wide[0], samples=wide, recipe="vgf-snorm").notes
    assert "of a sample of input 'image' is beyond the range of its integers, -1 to 1" in note


def test_samples_are_read_once_as_a_stream() -> None:
    read = []

    def stream() -> Any:
        for each in SAMPLES:
            read.append(each)
            yield each

    result = flow(seeded(Warp), SAMPLES[0], samples=stream(), check_samples=1)
    assert len(read) == len(SAMPLES)
    assert isinstance(result.quantized, tosaic.QuantizedProgram)
    assert result.quantized.samples == len(SAMPLES)
    assert len(result.samples) == 1


def test_stages_run_at_their_places_and_may_change_what_they_get() -> None:
    seen: list[tuple[str, str]] = []

    def notes(value: Any, context: Any, *, place: str) -> None:
        seen.append((place, type(value).__name__))

    def halves(model: nn.Module, context: Any) -> nn.Module:
        return nn.Sequential(model, nn.Hardtanh(-0.5, 0.5))

    stages = [
        Stage(place, place, notes, {"place": place})
        for place in ("model", "exported", "quantized", "lowered")
    ]
    recipe = named("tosa-int8").replace(stages=[Stage("halves", "model", halves), *stages])
    result = flow(seeded(Warp), SAMPLES[0], samples=SAMPLES, recipe=recipe)
    assert seen == [
        ("model", "Sequential"),
        ("exported", "ExportedProgram"),
        ("quantized", "QuantizedProgram"),
        ("lowered", "SplitLowered"),
    ]
    assert np.abs(result.run(SAMPLES[0][0])).max() <= 0.51
    assert "model: halves" in result.seconds


def test_a_stage_may_quantize() -> None:
    def quantizes(exported: Any, context: Any) -> Any:
        return tosaic.quantize(exported, SAMPLES, config=tosaic.QConfig.int16x8(), progress=False)

    recipe = Recipe(
        name="own",
        claimants=["TOSA-1.0+INT+int16"],
        stages=[Stage("own", "quantize", quantizes)],
    )
    result = flow(seeded(Warp), SAMPLES[0], samples=SAMPLES, recipe=recipe)
    plain = flow(seeded(Warp), SAMPLES[0], samples=SAMPLES, recipe="tosa-int16x8")
    np.testing.assert_array_equal(result.run(SAMPLES[1][0]), plain.run(SAMPLES[1][0]))


def test_training_with_quantization_in_the_graph() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    model(SAMPLES[0][0])
    steps = []

    def train(module: Any) -> None:
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
        for (image,) in SAMPLES:
            optimizer.zero_grad()
            module(image).square().mean().backward()
            optimizer.step()
            steps.append(1)

    recipe = named("tosa-int8").replace(stages=[qat(train)])
    result = flow(model.eval(), SAMPLES[0], samples=SAMPLES, recipe=recipe)
    assert len(steps) == len(SAMPLES)
    assert all(
        group is not None or node.op in ("quantize", "dequantize")
        for node, group in zip(
            result.lowered.partitions.graph.nodes, result.lowered.partitions.group_of, strict=True
        )
    )
    assert not model.training
    assert result.ok


def test_changes_of_passes_reach_the_groups() -> None:
    called = []

    def counts(graph: Any) -> None:
        called.append(graph.stage)

    recipe = named("vgf-snorm").replace(passes=[PassChange("insert_after", "legalize-tosa", counts)])
    result = flow(seeded(Warp), SAMPLES[0], samples=SAMPLES, recipe=recipe)
    assert called.count("tosa") >= len(result.lowered.parts)
    wrong = named("vgf-snorm").replace(passes=[PassChange("remove", "legalise")])
    with pytest.raises(tosaic.InvalidGraph, match="at 'legalise' concerns no pipeline"):
        flow(seeded(Warp), SAMPLES[0], samples=SAMPLES, recipe=wrong)


def test_the_files_of_an_export_are_read_back(tmp_path: Path) -> None:
    result = flow(
        seeded(Warp),
        SAMPLES[0],
        samples=SAMPLES,
        folder=tmp_path / "deep" / "out",
        io={"inputs": "int8", "outputs": "int8"},
        orders={"inputs": "channels_last", "outputs": "channels_last"},
        name="warp",
    )
    folder = tmp_path / "deep" / "out"
    assert result.folder == folder
    assert {each.relative_to(folder).as_posix() for each in result.files} == {
        "groups/group0.tosa",
        "groups/group0.tosa.json",
        "groups/host.tosaic",
        "groups/partitions.json",
        "io.json",
        "programs/float.tosaic",
        "programs/quantized.tosaic",
        "recipe.json",
        "report.html",
        "report.json",
        "report.txt",
        "scenario/sample0.input0.npy",
        "scenario/sample0.output0.npy",
        "scenario/sample1.input0.npy",
        "scenario/sample1.output0.npy",
        "scenario/scenario.json",
        "warp.pte",
        "warp.pte.json",
    }
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["out"]
    assert Recipe.load(folder / "recipe.json") == result.recipe
    assert tosaic.IoQuant.from_json((folder / "io.json").read_text()) == result.io
    x = result.samples[0]["image"]
    integers = result.io.input(0).quantize(x)
    last = np.ascontiguousarray(integers.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    expected = result.run(last)
    np.testing.assert_array_equal(tosaic.partitions.load_split(folder / "groups").run(last), expected)
    np.testing.assert_array_equal(tosaic.load_pte(folder / "warp.pte").run(last), expected)
    assert tosaic.load(folder / "programs" / "quantized.tosaic").inputs[0].shape == (1, 3, HEIGHT, WIDTH)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("last", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x) + self.last)
        self.last.copy_(y)
        return y


class Counted(nn.Module):
    """Computes with integers alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 3 + 1).clamp(max=20)


@pytest.mark.parametrize("recipe", ["tosa-int8", "tosa-int16x8", "ethos-u55", "neutron+cortex-m"])
def test_a_program_of_integers_is_not_quantized(recipe: str) -> None:
    x = torch.arange(8, dtype=torch.int32).reshape(2, 4)
    result = flow(Counted(), (x,), recipe=recipe, samples=[(x,)])
    assert result.quantized is None
    assert "nothing is quantized: the program has no floats" in result.notes
    assert {each.name: each.db for each in result.checks} == dict.fromkeys(
        ("import", "lower", "accuracy"), float("inf")
    )
    np.testing.assert_array_equal(result.run(x.numpy()), Counted()(x).numpy())


def test_each_sample_begins_with_the_initial_states(tmp_path: Path) -> None:
    model = seeded(Counter)
    samples = [(torch.randn(1, 4),) for _ in range(4)]
    result = flow(model, samples[0], samples=samples, check_samples=4, folder=tmp_path / "out")
    assert result.check("import").db > 100
    assert torch.equal(model.last, torch.zeros(1, 4))
    file = tosaic.load_pte(tmp_path / "out" / "model.pte")
    for sample in samples:  # the state persists from run to run
        np.testing.assert_array_equal(file.run(*sample), result.run(*sample))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x * 2, (x,))


def test_without_a_pte_file_the_other_files_are_written(tmp_path: Path) -> None:
    samples = [(torch.full((1, 4), value),) for value in (-0.5, 0.5, 1.0)]
    result = flow(
        seeded(Branches),
        samples[0],
        samples=samples,
        recipe="tosa-fp16",
        folder=tmp_path / "out",
    )
    assert any("there is no .pte file: [save] no kernel for 'cond'" in note for note in result.notes)
    assert not (tmp_path / "out" / "model.pte").exists()
    assert json.loads((tmp_path / "out" / "scenario" / "scenario.json").read_text())["program"] is None
    assert "there is no .pte file" in (tmp_path / "out" / "report.txt").read_text()
    assert (tmp_path / "out" / "groups" / "group0.tosa").exists()


def test_a_scenario_finds_wrong_outputs(tmp_path: Path) -> None:
    result = flow(
        seeded(Warp),
        SAMPLES[0],
        samples=SAMPLES,
        recipe="vgf-snorm",
        io={"inputs": "int8", "outputs": "int8"},
        orders={"inputs": "nhwc", "outputs": "nhwc"},
        rgba={"inputs": [0], "outputs": [0]},
        folder=tmp_path / "out",
    )
    scenario = tosaic.load_scenario(tmp_path / "out" / "scenario")
    assert [port.image_format for port in (*scenario.inputs, *scenario.outputs)] == [
        "VK_FORMAT_R8G8B8A8_SNORM"
    ] * 2
    assert str(scenario).splitlines()[0] == "scenario of 2 samples"
    assert str(scenario).splitlines()[2].startswith("  output  out ")
    assert "array(" not in repr(scenario)
    found = [[result.run(*inputs)] for inputs in scenario.samples]
    assert scenario.faults(found) == ()
    found[1][0] = found[1][0].copy()
    found[1][0][0, 0, 0, 0] += 1
    (fault,) = scenario.faults(found)
    assert fault.startswith("sample 1, output 'out': 1 of ")
    assert "expected the outputs of 2 samples" in scenario.faults(found[:1])[0]
    assert "expected 1 outputs" in scenario.faults([[], []])[0]
    assert "expected int8" in scenario.faults([[found[0][0].astype(np.int16)], found[1]])[0]
    for wrong in (None, iter(found), [{"out": found[0][0]}, found[1]]):
        with pytest.raises(tosaic.InvalidGraph, match="the list of outputs of each sample"):
            scenario.faults(wrong)
    place = tmp_path / "out" / "scenario" / "scenario.json"
    written = place.read_text()
    for wrong in (None, -1, True, "zz", [], float("inf")):
        fields = json.loads(written)
        fields["outputs"][0]["tolerance"] = wrong
        place.write_text(json.dumps(fields))
        with pytest.raises(tosaic.InvalidGraph, match=r"tolerance.*a number, 0 or more"):
            tosaic.load_scenario(place)
    fields = json.loads(written)
    fields["inputs"][0]["dim_order"] = [0, 1, 2, 2]
    place.write_text(json.dumps(fields))
    with pytest.raises(tosaic.InvalidGraph, match=r"dim_order.*each axis from 0 to 3 once"):
        tosaic.load_scenario(place)
    fields = json.loads(written)
    fields["samples"][0]["outputs"] = []
    place.write_text(json.dumps(fields))
    damaged = tosaic.load_scenario(place)
    for outputs in ([], found[0]):
        assert "the file has 0 arrays for 1 outputs" in damaged.faults([outputs, found[1]])[0]
    place.write_text(written)
    array = tmp_path / "out" / "scenario" / "sample0.input0.npy"
    np.save(array, np.zeros(scenario.samples[0][0].shape, np.int8))
    with pytest.raises(
        tosaic.InvalidGraph, match=r"'sample0\.input0\.npy' is not the array that was written"
    ):
        tosaic.load_scenario(tmp_path / "out" / "scenario")


class ConvAndSum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.conv(x), self.conv(x).sum()


@pytest.mark.parametrize(
    ("dtype", "target"),
    [(torch.float32, "TOSA-1.0+FP"), (torch.float16, "TOSA-1.0+FP"), (torch.bfloat16, "TOSA-1.0+FP+bf16")],
)
@pytest.mark.parametrize("order", [None, "channels_last"])
def test_arrays_of_a_scenario_are_what_the_program_takes(
    tmp_path: Path, dtype: torch.dtype, target: str, order: str | None
) -> None:
    sample = (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(dtype),)
    recipe = Recipe(name="r", claimants=[target], orders={"inputs": order} if order else {})
    torch.manual_seed(0)
    model = ConvAndSum().to(dtype).eval()
    result = flow(model, sample, recipe=recipe, samples=[sample], folder=tmp_path / "out")
    scenario = tosaic.load_scenario(tmp_path / "out" / "scenario")
    assert scenario.faults([list(result.run(*arrays)) for arrays in scenario.samples]) == ()
    assert scenario.expected[0][1].shape == ()
    with torch.no_grad():
        in_floats = [each.numpy() for each in model.float()(sample[0].float())]
    rounded = [
        each.astype(expected.dtype) for each, expected in zip(in_floats, scenario.expected[0], strict=True)
    ]
    assert scenario.faults([rounded]) == ()


class RunningMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, 8))
        self.out = nn.Linear(8, 4)

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        self.mean.copy_(0.9 * self.mean + 0.1 * frame)
        return self.out(torch.relu(self.mean))


def test_a_state_holds_what_samples_in_a_row_write() -> None:
    frames = [(torch.randn(1, 8, generator=torch.Generator().manual_seed(i)) + 1,) for i in range(4)]
    result = flow(RunningMean().eval(), frames[0], recipe="tosa-int8", samples=frames)
    assert result.notes == ()
    assert [each.name for each in result.checks if each.name in ("states", "stream")] == ["states", "stream"]
    assert result.ok


@pytest.mark.filterwarnings("ignore")
def test_groups_of_claimants_without_a_public_tool_have_their_inputs_as_files(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1)).eval()
    result = flow(model, SAMPLES[0], samples=SAMPLES, recipe="neutron+cortex-m", folder=tmp_path / "out")
    groups = tmp_path / "out" / "groups"
    for group in result.lowered.partitions.groups:
        with np.load(groups / f"{group.name}.inputs.npz") as arrays:
            entered = [arrays[name] for name in arrays.files]
        program = tosaic.load(groups / f"{group.name}.tosaic")
        assert [each.shape for each in entered] == [port.shape for port in program.inputs]
    assert not (tmp_path / "out" / "model.pte").exists()


def test_a_failed_check_has_the_result_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(tosaic.CheckError) as caught:
        flow(seeded(Warp), SAMPLES[0], samples=SAMPLES, least_db=90, folder=tmp_path / "out")
    assert not caught.value.result
    assert caught.value.result.check("accuracy").db < 90
    assert list(tmp_path.iterdir()) == []
    result = flow(
        seeded(Warp),
        SAMPLES[0],
        samples=SAMPLES,
        least_db=90,
        folder=tmp_path / "out",
        on_failed_check="report",
    )
    assert not result.ok
    assert (tmp_path / "out" / "report.txt").read_text().startswith("FAILED")


def test_a_wrong_lowering_fails_its_check() -> None:
    def scrambles(lowered: Any, context: Any) -> Any:
        functions = {name: Mirrored(each) for name, each in lowered.overrides.own.items()}
        return lowered._with_functions(functions)

    recipe = named("tosa-int8").replace(stages=[Stage("scrambles", "lowered", scrambles)])
    with pytest.raises(tosaic.CheckError, match="lower"):
        flow(seeded(Warp), SAMPLES[0], samples=SAMPLES, recipe=recipe)


class Mirrored:
    """A group that returns its result mirrored."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *arrays: Any) -> Any:
        made = self._function(*arrays)
        return np.ascontiguousarray(made[..., ::-1])


def test_messages_go_to_logging(caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    with caplog.at_level(logging.INFO, logger="tosaic"):
        flow(seeded(Warp), SAMPLES[0], samples=SAMPLES)
    assert [record.message.split(" took")[0] for record in caplog.records] == [
        "export",
        "import",
        "quantize",
        "lower",
        "check",
    ]
    flow(seeded(Warp), SAMPLES[0], samples=SAMPLES)
    assert capsys.readouterr().err == ""
    flow(seeded(Warp), SAMPLES[0], samples=SAMPLES, verbose=2)
    assert "tosaic.exporting: lower took" in capsys.readouterr().err
    assert logging.getLogger("tosaic").handlers == []


@pytest.mark.filterwarnings("ignore")
def test_cortex_m_leaves_the_program_of_executorch_behind(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 22 * 30, 4)).eval()
    result = flow(
        model,
        SAMPLES[0],
        samples=SAMPLES,
        recipe="cortex-m",
        folder=tmp_path / "out",
        io={"inputs": "int8"},
    )
    assert result.notes == ()
    file = tosaic.load_pte(tmp_path / "out" / "model.cortex_m.pte")
    called = set(file.method().operators)
    assert called >= {"cortex_m::quantized_conv2d.out", "cortex_m::quantized_linear.out"}
    assert not any(name.startswith("aten::conv") for name in called)
    assert file.method().inputs[0].dtype == "int8"
    listed = (tmp_path / "out" / "kernels.cortex_m.yaml").read_text()
    assert all(name in listed for name in called)


def test_kernels_of_the_host_are_listed(tmp_path: Path) -> None:
    flow(seeded(Warp), SAMPLES[0], samples=SAMPLES, recipe="vgf-snorm", folder=tmp_path / "out")
    listed = (tmp_path / "out" / "kernels.yaml").read_text()
    assert all(name in listed for name in tosaic.load_pte(tmp_path / "out" / "model.pte").method().operators)
    assert "aten::grid_sampler_2d.out" in listed
