"""The cost of split programs: groups add up, and what is not estimated is listed."""

from __future__ import annotations

from pathlib import Path

import pytest
import tosaic
from cost.networks import quantized, split

pytest.importorskip("ethosu.vela", reason="Vela is not installed")

U55 = "ethos-u55-128"


def test_the_groups_of_a_split_program_add_up() -> None:
    program = split("interrupted", U55)
    cost = tosaic.device_cost(program)
    alone = [tosaic.device_cost(part, U55) for part in program.parts]
    assert len(alone) == 2
    assert cost.cycles == sum(each.cycles for each in alone) == sum(row.cycles for row in cost.rows)
    assert cost.sram_bytes == max(each.sram_bytes for each in alone)
    assert cost.off_chip_flash_bytes == sum(each.off_chip_flash_bytes for each in alone)
    assert [(each.name, each.claimant, each.summary.cycles) for each in cost.groups] == [
        (f"group{i}", U55, each.cycles) for i, each in enumerate(alone)
    ]
    assert {row.group for row in cost.rows if row.module_path == "before"} == {"group0"}
    assert {row.group for row in cost.rows if row.module_path == "after"} == {"group1"}
    assert sum(row.share for row in cost.rows) == pytest.approx(1)


def test_what_the_host_does_is_listed_by_name_and_not_counted() -> None:
    program = split("interrupted", U55)
    cost = tosaic.device_cost(program)
    assert not cost.is_complete
    assert "flip" in [node.op for node in cost.host]
    assert len(cost.host) == sum(group is None for group in program.partitions.group_of)
    crossing = [(each.value, each.bytes) for each in program.partitions.borders]
    assert [(each.value, each.bytes) for each in cost.copies] == crossing
    assert [(each.made_by, each.read_by) for each in cost.copies if each.value == "flip"] == [
        ("host", ("group1",))
    ]
    text = str(cost)
    assert "not estimated  3 nodes on the host: 1 x quantize, 1 x flip, 1 x dequantize" in text
    assert "not estimated  4 values copied between parts" in text
    assert max(map(len, text.splitlines())) <= 80
    assert {each["op"] for each in cost.as_dict()["host"]} == {"quantize", "flip", "dequantize"}


def test_a_group_without_an_estimate_is_listed() -> None:
    program = tosaic.lower(quantized("strided"), unsupported="split", claimants=[U55, "cortex-m55"])
    cost = tosaic.device_cost(program)
    without = [each.name for each in cost.groups if each.summary is None]
    assert without == [each.name for each in cost.groups if each.claimant == "cortex-m55"]
    assert without
    assert not cost.is_complete
    assert f"not estimated  {without[0]}" in str(cost)
    only = tosaic.lower(quantized("interrupted"), unsupported="split", claimants=["cortex-m55"])
    with pytest.raises(tosaic.UnsupportedOp, match=r"no tool estimates.*got group0 for 'cortex-m55'"):
        tosaic.device_cost(only)


def test_a_device_stands_for_the_claimants_of_its_family() -> None:
    program = split("interrupted", U55)
    larger = tosaic.device_cost(program, "ethos-u55-256", memory_mode="Sram_Only")
    assert (larger.device, larger.memory_mode, larger.macs_per_cycle) == ("ethos-u55-256", "Sram_Only", 256)
    assert larger.cycles < tosaic.device_cost(program, memory_mode="Sram_Only").cycles
    with pytest.raises(tosaic.UnsupportedOp, match="group0 for 'ethos-u55-128'"):
        tosaic.device_cost(program, "ethos-u85-256")
    with pytest.raises(tosaic.InvalidGraph, match="'device'"):
        tosaic.device_cost(program, "TOSA-1.0+INT")


def test_the_folder_of_a_split_program_costs_the_same(tmp_path: Path) -> None:
    program = split("interrupted", U55)
    program.save(tmp_path / "parts")
    assert tosaic.device_cost(tmp_path / "parts") == tosaic.device_cost(program)
    (tmp_path / "parts" / "group1.tosa").unlink()
    with pytest.raises(tosaic.MissingFileError):
        tosaic.device_cost(tmp_path / "parts")
