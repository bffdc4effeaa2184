"""A device of a user: `tiny_npu.py` is all that it needs, and CONTRIBUTING.md shows that file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic.cost.file_operators import file_operators
from tosaic.devices import (
    CostSummary,
    Device,
    Limit,
    Operators,
    Payload,
    ToolCost,
    ToolRow,
    limit_names,
    register,
    registry,
)

from devices.tiny_npu import DEVICE

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("tiny_npu.py")
NPU = "tiny-npu-16"


@pytest.fixture(autouse=True)
def no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that a test registers exist in this test only."""
    monkeypatch.setattr(registry, "_registered", [])
    return


@pytest.fixture
def npu() -> Device:
    return register(DEVICE)


def network() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=3)
    return nn.Sequential(*layers, nn.Sigmoid()).eval(), (torch.randn(1, 3, 16, 16),)


def quantized() -> tuple[Any, tuple[torch.Tensor]]:
    model, inputs = network()
    return tosaic.quantize(torch.export.export(model, inputs), [inputs], progress=False), inputs


def test_contributing_shows_the_file_of_the_device() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split("\n## Add a device\n")[1].split("\n## ")[0]
    (shown,) = [part for part in section.split("```python\n")[1:] if part.startswith('"""A device outside')]
    assert shown.partition("```")[0] == FILE.read_text()
    assert len(FILE.read_text().splitlines()) <= 60


def test_a_device_is_claimed_lowered_saved_run_and_reported(npu: Device, tmp_path: Path) -> None:
    program, inputs = quantized()
    split = tosaic.lower(program, unsupported="split", claimants=[NPU])
    plan = split.partitions
    assert [(group.claimant, len(group.nodes)) for group in plan.groups] == [(NPU, 3)]
    assert {refusal.rule for refusal in plan.why("conv2d_1").refusals} == {"operator", "stride"}
    assert tosaic.compare(program, split, inputs).ok
    assert NPU in str(split)

    path = tmp_path / "tiny.pte"
    split.save(path)
    split.save(tmp_path / "folder")
    (delegate,) = tosaic.load_pte(path).delegates
    assert (delegate.backend, delegate.payload_kind) == ("TinyBackend", "tiny")
    assert delegate.payload == npu.payload.compile(split.parts[0].to_bytes(), ())  # type: ignore[union-attr]
    file = tosaic.load_pte(path, sources={"delegate0": tmp_path / "folder" / "group0.tosa"})
    np.testing.assert_array_equal(file.run(*inputs), split.run(*inputs))
    with pytest.raises(tosaic.UnsupportedOp, match="got a program of the tiny NPU, which only the device"):
        tosaic.load_pte(path).run(*inputs)


def test_the_recipe_of_a_device_exports(npu: Device, tmp_path: Path) -> None:
    assert "tiny-npu" in tosaic.recipes.names()
    model, inputs = network()
    result = tosaic.export_model(model, inputs, recipe="tiny-npu", samples=[inputs], folder=tmp_path / "out")
    assert result.ok
    assert {group.claimant for group in result.lowered.partitions.groups} == {NPU}
    assert (tmp_path / "out" / "groups" / "group0.tiny").read_bytes().startswith(b"TINY")
    assert NPU in (tmp_path / "out" / "report.html").read_text()


def test_a_device_says_what_programs_cost(tmp_path: Path) -> None:
    asked = []

    def cost(tosa: bytes, member: str, options: Mapping[str, str], flags: Sequence[str]) -> ToolCost:
        asked.append((member, dict(options), list(flags)))
        operators = len(file_operators(tosa) or ())
        rows = tuple(ToolRow(i, "Step", "", 10, macs=100) for i in range(operators - 2, operators))
        return ToolCost(summary, rows)

    summary = CostSummary(NPU, "analytic", "", "", 1e6, 20, 20, 512, 0, 0, 0, 200, 16)
    payload = replace(
        DEVICE.payload,
        cost=cost,
        compile_with_summary=lambda tosa, flags: (DEVICE.payload.compile(tosa, flags), summary),
    )
    register(replace(DEVICE, payload=payload))
    model, inputs = network()
    result = tosaic.export_model(model, inputs, recipe="tiny-npu", samples=[inputs], folder=tmp_path / "out")
    assert result.costs == {"group0": summary}
    assert f"group0: 20 cycles, 512 B SRAM on {NPU} (analytic)" in str(result)
    found = tosaic.device_cost(result.lowered, memory_mode="mine", flags=["-x"])
    assert asked == [(NPU, {"memory_mode": "mine"}, ["-x"])]
    assert (found.cycles, found.source, found.mac_use) == (20, "analytic", 0.625)
    assert found.unattributed_cycles == 0
    assert "sigmoid" in [node.op for node in found.host]
    with pytest.raises(tosaic.UnsupportedOp, match=f"expected one of .*{NPU}"):
        tosaic.device_cost(result.lowered.parts[0], "cortex-m55")


@pytest.mark.filterwarnings("ignore")
def test_a_partitioner_of_executorch_lowers_for_a_device(npu: Device, tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    from executorch.exir import to_edge_transform_and_lower

    program, _ = quantized()
    partitioner = tosaic.executorch.TosaicPartitioner(NPU)
    edge = to_edge_transform_and_lower(program.to_exported(), partitioner=[partitioner])
    (tmp_path / "tiny.pte").write_bytes(edge.to_executorch().buffer)
    (delegate,) = tosaic.load_pte(tmp_path / "tiny.pte").delegates
    assert (delegate.backend, delegate.payload[:4]) == ("TinyBackend", b"TINY")


def test_the_command_line_knows_the_devices_of_installed_packages(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    info = packages / "tiny_npu-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(FILE, packages)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-npu\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tosaic.devices]\ntiny-npu = tiny_npu:DEVICE\n")
    model, inputs = network()
    torch.export.save(torch.export.export(model, inputs), tmp_path / "model.pt2")
    np.save(tmp_path / "samples.npy", inputs[0].numpy())
    environment = {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = "export model.pt2 --recipe tiny-npu --samples samples.npy -o out --json"
    done = subprocess.run(
        [sys.executable, "-m", "tosaic", *command.split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [group["claimant"] for group in json.loads(done.stdout)["groups"]] == [NPU]
    assert (tmp_path / "out" / "groups" / "group0.tiny").exists()


def test_a_device_of_no_package_is_not_a_claimant() -> None:
    with pytest.raises(tosaic.InvalidGraph, match="unknown claimant"):
        tosaic.Claimant.named(NPU)
    register(DEVICE)
    assert register(DEVICE) is DEVICE
    assert tosaic.Claimant.named("Tiny-NPU-64").kind == "tiny-npu-64"
    assert tosaic.Claimant.names()[-2:] == DEVICE.names


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "vgf", "members": ()}, "there is a device 'vgf' already"),
        ({"name": "x", "members": ["vgf"]}, "there is a claimant 'vgf' already"),
        ({"name": "x", "members": ["x"]}, "there is a recipe 'tiny-npu' already"),
        ({"name": "x", "members": ["x"], "recipes": ()}, "there is a payload 'tiny' already"),
        ({"operators": [Operators(["tosa.conv2"])]}, "unknown operator of TOSA.*'tosa.conv2'"),
        ({"operators": [Operators(["conv"])]}, "unknown operator of TOSA.*'conv'"),
        ({"target": "", "limits": ()}, "unknown canonical operator"),
        ({"limits": [Limit(["tosa.add"], "strid")]}, "unknown quantity.*Did you mean 'stride'"),
        ({"limits": [Limit(["tosa.add"], "stride", when="odd")]}, "unknown condition"),
        ({"target": "TOSA-1.0"}, "the target has no profile"),
        ({"limits": [Limit(["tosa.matmul"], "stride")]}, "a limit of 'tosa.matmul' never applies"),
        ({"semantics": "mine"}, "unknown integer semantics"),
        ({"kernels": {NPU: "fast"}}, "unknown kernels"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused(changes: dict[str, Any], message: str) -> None:
    register(replace(DEVICE, name="other", members=["other"]))
    with pytest.raises(tosaic.InvalidGraph, match=message):
        register(replace(DEVICE, **changes))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Operators("tosa.conv2d"), r"\[Operators\] unknown value of 'names'.*a list of texts"),
        (lambda: Operators(["tosa.conv2d"], input="i8"), r"'input'.*expected a list of texts, got 'i8'"),
        (lambda: Operators(["tosa.conv2d"], result=[8]), "'result'"),
        (lambda: Limit("tosa.conv2d", "stride"), r"\[Limit\] unknown value of 'names'"),
    ],
)
def test_a_text_in_place_of_a_list_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=message):
        make()


def test_an_object_that_is_not_a_device_is_refused() -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"expected a tosaic\.devices\.Device"):
        register("tiny-npu")  # type: ignore[arg-type]


def test_a_device_without_a_payload_has_no_delegates() -> None:
    bare = replace(DEVICE, name="bare", members=(), payload=None, recipes=())
    register(bare)
    with pytest.raises(tosaic.InvalidGraph, match="expected a TOSA target, 'vgf' or an Ethos-U"):
        tosaic.executorch.TosaicPartitioner("bare")


def test_every_record_of_tosaic_can_be_written_in_python() -> None:
    """The tables of the core's records, through `Device`, are the same records."""
    for device in registry.built_in_devices():
        fields = device.core.fields
        if not fields["has_limits"]:
            continue
        assert replace(device).core.fields == fields
        assert replace(device).core is not device.core
    quantities, conditions = limit_names()
    rows = [row for device in registry.built_in_devices() for row in device.limits]
    assert {row.quantity for row in rows} <= set(quantities)
    assert {row.when for row in rows} <= set(conditions)


def test_a_tool_that_refuses_a_group_is_reported(tmp_path: Path) -> None:
    def refuse(tosa: bytes, flags: Any) -> bytes:
        raise tosaic.UnsupportedOp("the compiler refuses the group: too deep")

    payload = Payload("mine", refuse, runtime="MineBackend", backend="TosaicMineBackend")
    register(replace(DEVICE, name="mine", members=(), payload=payload, recipes=()))
    program, _ = quantized()
    split = tosaic.lower(program, unsupported="split", claimants=["mine"])
    with pytest.raises(tosaic.UnsupportedOp, match="too deep"):
        split.save(tmp_path / "mine.pte")


def test_a_tool_that_is_not_installed_is_named(npu: Device, tmp_path: Path) -> None:
    """Before, the system's error for the missing tool was reported as an error of the written file."""

    def absent(tosa: bytes, flags: Any) -> bytes:
        return subprocess.run(["no-such-compiler"], input=tosa, capture_output=True, check=True).stdout

    payload = Payload("absent", absent, runtime="AbsentBackend", backend="TosaicAbsentBackend")
    register(replace(DEVICE, name="absent", members=(), payload=payload, recipes=()))
    model, inputs = network()
    with pytest.raises(tosaic.UnsupportedOp, match=r"tool of .* payloads cannot be run.*no-such-compiler"):
        tosaic.export_model(
            model, inputs, recipe="tiny-npu", claimants=["absent"], samples=[inputs], folder=tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()
