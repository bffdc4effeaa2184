"""One ``.pte`` file for an NPU and an MCU: delegates and kernels as the plan has them.

The payloads for the NPU cannot run here, so the integer programs of their groups stand for them. Kernels of
the MCU run as ExecuTorch's Python operators (`cortex_m.kernel_models`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.backends.cortex_m.passes.cortex_m_pass_manager")
pytest.importorskip("ethosu.vela")

import torch.nn.functional as F  # noqa: E402
import tosaic  # noqa: E402
from cortex_m.kernel_models import kernel_models  # noqa: E402
from torch import nn  # noqa: E402
from tosaic import recipes  # noqa: E402
from tosaic.pte import held_plan  # noqa: E402
from tosaic.pte.group_kernels import GroupKernels  # noqa: E402
from tosaic.pte.method_saver import MethodSaver  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

RECIPE = "ethos-u55+cortex-m"
NPU, MCU = "ethos-u55-128", "cortex-m55"


class Division(nn.Module):
    """A division, which only the MCU has, between convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 5, stride=5)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return self.head((y / (torch.sigmoid(y) + 1)).flatten(1))


class Sampler(nn.Module):
    """A grid sampler, which neither has, behind a division and before a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=3)
        self.head = nn.Linear(32, 5)
        turned = torch.tensor([[[0.9, 0.2, 0.0], [-0.2, 0.9, 0.1]]])
        self.register_buffer("grid", F.affine_grid(turned, [1, 8, 8, 8], align_corners=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        y = F.grid_sample(y / (torch.sigmoid(y) + 1), self.grid, align_corners=False)
        return self.head(torch.tanh(self.second(y)).flatten(1))


class Memory(nn.Module):
    """A state, which a division computes and linear layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.register_buffer("state", torch.zeros(1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(x) + self.mix(self.state))
        self.state.copy_(y / (torch.sigmoid(y) + 1))
        return self.head(self.state)


class Layers(nn.Module):
    """Two linear layers, one for each of the claimants."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


NETWORKS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "operator of the MCU": (Division, (1, 3, 10, 10)),
    "host between": (Sampler, (1, 3, 8, 8)),
    "state": (Memory, (1, 8)),
}


def _samples(shape: tuple[int, ...]) -> list[tuple[torch.Tensor]]:
    draw = torch.Generator().manual_seed(3)
    return [(torch.randn(shape, generator=draw),) for _ in range(8)]


def _model(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return kind().eval()


@cache
def _exported(name: str, folder: Path) -> tosaic.ExportResult:
    kind, shape = NETWORKS[name]
    samples = _samples(shape)
    return tosaic.export_model(
        _model(kind), samples[0], recipe=RECIPE, samples=samples, folder=folder / name, verbose=0
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


def _claimed(result: tosaic.ExportResult, claimant: str) -> list[Any]:
    return [each for each in result.lowered.partitions.groups if each.claimant == claimant]


def _file(result: tosaic.ExportResult) -> Path:
    (path,) = (each for each in result.files if each.suffix == ".pte")
    return path


def _float_operators(path: Path) -> set[str]:
    """Returns the kernels that compute with floats, other than those that convert, copy or quantize."""
    allowed = ("cortex_m::", "quantized_decomposed::", "dim_order_ops::", "aten::copy_")
    found = tosaic.registration.kernel_list(path)
    return {
        each.operator for each in found if "float32" in each.dtypes and not each.operator.startswith(allowed)
    }


# ---- three networks ----


@pytest.mark.parametrize("name", NETWORKS)
def test_one_file_has_the_delegates_and_kernels_of_the_plan(name: str, folder: Path) -> None:
    result = _exported(name, folder)
    path = _file(result)
    assert path.name == "model.pte"
    delegates = tosaic.load_pte(path, sidecar=False).method("forward").delegates
    planned = _claimed(result, NPU)
    assert len(delegates) == len(planned) >= 1
    vela = [(result.folder / "groups" / f"{group.name}.vela").read_bytes() for group in planned]
    assert [each.payload for each in delegates] == vela
    kernels = Counter({each.operator: each.calls for each in tosaic.registration.kernel_list(path)})
    assert kernels["cortex_m::quantized_div.out"] == 1
    assert kernels["cortex_m::quantize_per_tensor.out"] >= 1
    assert kernels["cortex_m::dequantize_per_tensor.out"] >= 1
    host = {"aten::grid_sampler_2d.out"} if name == "host between" else set()
    assert _float_operators(path) == host
    assert not result.notes


@pytest.mark.parametrize("name", NETWORKS)
def test_the_file_computes_the_split_program_bit_for_bit(name: str, folder: Path) -> None:
    result = _exported(name, folder)
    groups = [result.folder / "groups" / f"{group.name}.tosa" for group in _claimed(result, NPU)]
    sources = {f"delegate{i}": path for i, path in enumerate(groups)}
    method = tosaic.load_pte(_file(result), sources=sources).method("forward")
    program = method.prepare(models=kernel_models(method.program))
    result.lowered.reset_state()
    for sample in _samples(NETWORKS[name][1]):
        expected, found = result.lowered.run(*sample), program.run(*sample)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.parametrize("name", NETWORKS)
def test_executorch_reads_the_file(name: str, folder: Path) -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary
    from executorch.runtime import Runtime

    path = _file(_exported(name, folder))
    program = Runtime.get().load_program(path)
    assert program.method_names == {"forward"}
    assert program.metadata("forward").num_inputs() == 1
    plan = deserialize_pte_binary(path.read_bytes()).program.execution_plan[0]
    assert {each.id for each in plan.delegates} == {"EthosUBackend"}
    assert {each.name for each in plan.operators} >= {"cortex_m::quantized_div"}


@pytest.mark.parametrize("name", NETWORKS)
def test_boundaries_are_quantized_by_the_mcu(name: str, folder: Path) -> None:
    plan = _exported(name, folder).lowered.partitions
    ends = [node.name for node in plan.graph.nodes if node.op in ("quantize", "dequantize")]
    assert ends
    assert {plan.why(each).claimant for each in ends} == {MCU}


def test_the_sidecar_names_the_claimant_of_each_delegate(folder: Path) -> None:
    result = _exported("operator of the MCU", folder)
    (method,) = json.loads(_file(result).with_suffix(".pte.json").read_text())["methods"]
    found = [(each["claimant"], each["sha256"]) for each in method["delegates"]]
    files = [result.folder / "groups" / f"{group.name}.vela" for group in _claimed(result, NPU)]
    assert found == [(NPU, hashlib.sha256(each.read_bytes()).hexdigest()) for each in files]


# ---- quantization by claim ----


@pytest.mark.parametrize("recipe", [RECIPE, "cortex-m", "ethos-u55", ["ethos-u55", "cortex-m"]])
def test_linear_layers_have_the_granularity_of_their_claimant(recipe: Any) -> None:
    samples = _samples((1, 8))
    npu = tosaic.Claimant.named(NPU).deny(name="linear_1")
    result = tosaic.export_model(
        _model(Layers), samples[0], recipe=recipe, samples=samples, claimants=[npu, MCU], verbose=0
    )
    plan = result.lowered.partitions
    assert (plan.why("linear").claimant, plan.why("linear_1").claimant) == (NPU, MCU)
    weights = {node.name: node.operands[1].qparams for node in plan.graph.nodes if node.op == "linear"}
    assert (weights["linear"].axis, len(weights["linear"].scales)) == (0, 16)
    assert (weights["linear_1"].axis, len(weights["linear_1"].scales)) == (None, 1)
    assert not result.notes


def test_a_trained_model_has_the_granularity_of_its_claimants() -> None:
    samples = _samples((1, 8))
    npu = tosaic.Claimant.named(NPU).deny(name="linear_1")
    recipe = recipes.named(RECIPE).replace(stages=[recipes.qat(lambda prepared: prepared(*samples[0]))])
    result = tosaic.export_model(
        _model(Layers), samples[0], recipe=recipe, samples=samples, claimants=[npu, MCU], verbose=0
    )
    nodes = result.lowered.partitions.graph.nodes
    weights = [node.operands[1].qparams for node in nodes if node.op == "linear"]
    assert [len(each.scales) for each in weights] == [16, 1]


def test_a_value_between_claimants_has_one_spec() -> None:
    samples = _samples((1, 8))
    npu = tosaic.Claimant.named(NPU).deny(name="linear_1")
    result = tosaic.export_model(
        _model(Layers), samples[0], recipe=RECIPE, samples=samples, claimants=[npu, MCU], verbose=0
    )
    parts = {
        group.claimant: part.source.graph
        for group, part in zip(result.lowered.partitions.groups, result.lowered.parts, strict=True)
        if len(group.nodes) > 1
    }
    (returned,) = (port.value.qparams for port in parts[NPU].outputs)
    (entering,) = (port.value.qparams for port in parts[MCU].inputs)
    assert returned == entering


def test_the_combination_is_a_recipe_of_its_own() -> None:
    names = recipes.names()
    assert {"ethos-u55+cortex-m", "ethos-u85+cortex-m", "neutron+cortex-m"} <= set(names)
    made = recipes.combine([recipes.named("ethos-u55"), recipes.named("cortex-m")])
    assert made == recipes.named(RECIPE)
    assert [each.name for each in made.takers] == [NPU, MCU]
    assert recipes.named("ethos-u55").config.precision.stream == "int16"
    assert made.config.precision.stream is None  # kernels of the MCU add 8 bits


# ---- a file that does not hold the plan is not written ----


def _split() -> Any:
    samples = _samples((1, 3, 10, 10))
    exported = torch.export.export(_model(Division), samples[0])
    config = tosaic.QConfig.int8(every_operator=True)
    quantized = tosaic.quantize(exported, samples, config=config, progress=False)
    npu = tosaic.Claimant.named("TOSA-1.0+INT").deny(op="div")
    return tosaic.lower(quantized, unsupported="split", claimants=[npu, MCU])


def test_a_claimed_node_that_became_a_float_kernel_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = _split()
    assert any("div" in group.nodes for group in split.partitions.groups if group.claimant == MCU)
    as_floats = lambda self, part, operands, _: self._as_kernels(part, operands)  # noqa: E731
    monkeypatch.setattr(MethodSaver, "_as_library_calls", as_floats)
    with pytest.raises(tosaic.InternalError) as error:
        split.save(tmp_path / "model.pte")
    assert "would not hold what the plan says" in str(error.value)
    assert "'aten::div.out' computes with floats 1 times, and 0 times on the host" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_node_without_a_kernel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = _split()
    monkeypatch.setattr(GroupKernels, "_written", lambda *_: None)
    with pytest.raises(tosaic.UnsupportedOp) as error:
        split.save(tmp_path / "model.pte")
    assert "cortex-m55 has no kernel for 'div', node 'div'" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_missing_delegate_is_an_error() -> None:
    split = _split()
    faults = held_plan._delegate_faults(split, None, _Method([]), [])
    planned = sum(group.claimant == "TOSA-1.0+INT" for group in split.partitions.groups)
    assert faults == [f"{planned} groups of 'TOSA-1.0+INT' are 0 delegates"]


class _Method:
    def __init__(self, delegates: list[Any]) -> None:
        self.delegates = delegates


@pytest.mark.parametrize(
    "pair", list(permutations(["TOSA-1.0+INT", MCU, "neutron", "host"], 2)), ids="+".join
)
def test_every_pair_of_claimants_has_its_plan_in_a_file_or_a_note(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    samples = _samples((1, 8))
    first = tosaic.Claimant.named(pair[0]).deny(name="linear_1")
    result = tosaic.export_model(
        _model(Layers),
        samples[0],
        recipe="cortex-m",
        samples=samples,
        claimants=[first, pair[1]],
        folder=tmp_path / "out",
        verbose=0,
    )
    plan = result.lowered.partitions
    assert (plan.why("linear").claimant, plan.why("linear_1").claimant) == pair
    files = [each for each in result.files if each.suffix == ".pte" and each.stem == "model"]
    without = [name for name in pair if name in ("neutron", "host")]
    notes = [note for note in result.notes if note.startswith("there is no .pte file")]
    if without:
        assert not files
        assert all(f"is for {name}" in notes[0] for name in without)
        return
    assert not notes
    (path,) = files
    assert len(tosaic.load_pte(path).method("forward").delegates) == len(_claimed(result, "TOSA-1.0+INT"))
    kernels = tosaic.registration.kernel_list(path)
    assert kernels["cortex_m::quantized_linear.out"].calls == 1
    assert not _float_operators(path)
    assert not [each for each in result.files if each.name == "model.cortex_m.pte"]


def test_the_command_line_writes_the_file(tmp_path: Path) -> None:
    from tosaic.cli import main

    samples = _samples((1, 8))
    torch.export.save(torch.export.export(_model(Layers), samples[0]), tmp_path / "model.pt2")
    np.savez(tmp_path / "x.npz", x=np.concatenate([sample.numpy() for (sample,) in samples]))
    recipe = ["--recipe", "ethos-u55", "--recipe", "cortex-m"]
    out = tmp_path / "out"
    model, arrays = str(tmp_path / "model.pt2"), str(tmp_path / "x.npz")
    assert main(["export", model, *recipe, "--samples", arrays, "-o", str(out)]) == 0
    kernels = tosaic.registration.kernel_list(out / "model.pte")
    assert kernels.backends == ("EthosUBackend",)
    assert kernels.operators == ("cortex_m::dequantize_per_tensor.out", "cortex_m::quantize_per_tensor.out")


def test_claimants_without_a_file_are_named(tmp_path: Path) -> None:
    samples = _samples((1, 3, 10, 10))
    result = tosaic.export_model(
        _model(Division),
        samples[0],
        recipe="neutron+cortex-m",
        samples=samples,
        folder=tmp_path / "out",
        verbose=0,
    )
    assert not [each for each in result.files if each.suffix == ".pte"]
    assert not [each for each in result.files if each.name == "kernels.cortex_m.yaml"]
    (note,) = (each for each in result.notes if each.startswith("there is no .pte file"))
    assert "is for neutron" in note
