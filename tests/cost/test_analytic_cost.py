"""Estimates by tosaic's own model, without any tool."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import tosaic
from cost.networks import lowered, split
from tosaic import _core

U85, U55 = "ethos-u85-256", "ethos-u55-128"
RESCALE = "scale32=true, rounding_mode=single_round, per_channel=false, input_unsigned=false"


@pytest.fixture(autouse=True)
def without_vela(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tosaic.devices.device_compilers.find_spec", lambda name: None)


def rescale(name: str, value: str, kind: str, *, factor: float = 0.75, zero: int = 0) -> str:
    """Returns a RESCALE to a type, by a factor between 0.5 and 1 or by one."""
    dtype = kind.partition("[")[0]
    multiplier, shift = (1 << 30, 30) if factor == 1 else (round(factor * (1 << 31)), 31)
    return (
        f"%{name}: {kind} = tosa.rescale(%{value}) {{input_zp={zero}, output_zp=0, dtype={dtype}, {RESCALE}, "
        f"output_unsigned=false, multiplier=[{multiplier}], shift=[{shift}]}}"
    )


def estimate(
    lines: list[str], inputs: dict[str, str], output: str, device: str = U85
) -> tosaic.cost.DeviceCost:
    text = ["tosaic 1", "graph @forward stage=tosa {"]
    text += [f'input %{name}: {kind} path="{name}"' for name, kind in inputs.items()]
    text += [*lines, f'return %{output} path="out"', "}"]
    program = tosaic.program.from_graph(_core.Graph.parse("\n".join(text)))
    return tosaic.device_cost(program, device, method="analytic")


@pytest.mark.parametrize("name", ["spotter", "attention", "residual"])
@pytest.mark.parametrize("device", [U85, "ethos-u85-1024", U55, "ethos-u55-256", "ethos-u65-512"])
def test_rows_add_up_and_have_all_nodes(name: str, device: str) -> None:
    cost = tosaic.device_cost(lowered(name), device, method="analytic")
    assert cost.source == "analytic"
    assert sum(row.cycles for row in cost.rows) == cost.cycles > 0
    assert sum(row.macs for row in cost.rows) == cost.macs > 0
    assert sum(row.share for row in cost.rows) == pytest.approx(1)
    assert all(row.cycles > 0 and row.cycles >= row.npu_cycles for row in cost.rows)
    assert cost.unattributed_cycles == 0
    own = {row.node for row in cost.rows}
    fused = [name for row in cost.rows for name in row.fused]
    assert sorted(fused) == sorted({node.name for node in lowered(name).graph.nodes} - own)


def test_without_the_tool_the_model_estimates_and_says_so() -> None:
    cost = tosaic.device_cost(lowered("residual"), U85)
    assert cost.source == "analytic"
    assert "estimated by  analytic" in str(cost)
    assert "(analytic)" in tosaic.report.cost.cost_text(cost)
    with pytest.raises(ImportError, match=r"^vela is not installed: pip install 'tosaic\[devices\]'$"):
        tosaic.device_cost(lowered("residual"), U85, method="tool")
    with pytest.raises(ImportError, match="vela is not installed"):  # flags are for the tool
        tosaic.device_cost(lowered("residual"), U85, flags=["--optimise=Size"])


def test_rows_are_tied_to_modules_and_lines() -> None:
    cost = tosaic.device_cost(lowered("residual"), U85, method="analytic")
    macs = {row.module_path: row.macs for row in cost.rows if row.op == "tosa.conv2d"}
    assert macs == {
        "first": 16 * 16 * 16 * 8 * 9,
        "second": 16 * 16 * 16 * 16 * 9,
        "shortcut": 16 * 16 * 16 * 8,
    }
    assert {share.name for share in cost.by_module()} == {"first", "second", "shortcut", ""}
    assert {row.source.partition(":")[0] for row in cost.rows if row.op == "tosa.conv2d"} == {"networks.py"}


def test_an_estimate_is_saved_printed_and_pickled(tmp_path: Path) -> None:
    cost = tosaic.device_cost(lowered("spotter"), U85, memory_mode="Dedicated_Sram_384KB")
    data = json.loads(cost.to_json(), parse_constant=pytest.fail)
    assert data["source"] == "analytic"
    assert sum(row["cycles"] for row in data["rows"]) == data["cycles"]
    assert pickle.loads(pickle.dumps(cost)) == cost
    assert max(map(len, str(cost).splitlines())) <= 80
    lowered("spotter").save(tmp_path / "model.tosa")
    again = tosaic.device_cost(tmp_path / "model.tosa", U85, memory_mode="Dedicated_Sram_384KB")
    assert (again.cycles, len(again.rows)) == (cost.cycles, len(cost.rows))


def test_memory_is_that_of_the_mode() -> None:
    program = lowered("residual")
    near = tosaic.device_cost(program, U85)
    far = tosaic.device_cost(program, U85, memory_mode="Dedicated_Sram_384KB")
    assert near.on_chip_flash_bytes > 0 == near.dram_bytes
    assert far.dram_bytes > 0 == far.on_chip_flash_bytes
    assert far.cycles > near.cycles
    assert any(row.dram_cycles for row in far.rows)
    shared = tosaic.device_cost(program, U55)
    assert (shared.memory_mode, shared.system_config) == ("Shared_Sram", "Ethos_U55_High_End_Embedded")
    assert shared.off_chip_flash_bytes > 0
    slow = tosaic.device_cost(program, U85, system_config="Ethos_U85_SYS_DRAM_Low")
    assert slow.clock_hz == 500e6


def test_groups_of_a_split_program_add_up() -> None:
    program = split("interrupted", U55)
    cost = tosaic.device_cost(program)
    alone = [tosaic.device_cost(part, U55) for part in program.parts]
    assert cost.source == "analytic"
    assert cost.cycles == sum(each.cycles for each in alone) == sum(row.cycles for row in cost.rows)
    assert not cost.is_complete


def test_wrong_arguments_are_refused_with_what_there_is() -> None:
    program = lowered("residual")
    for match, options in (
        ("'memory_mode': expected one of Sram_Only, Shared_Sram", {"memory_mode": "X"}),
        ("'system_config': expected one of .*Ethos_U85_SYS_DRAM_Mid", {"system_config": "X"}),
        ("'method': expected one of 'auto', 'tool', 'analytic'", {"method": "guess"}),
        ("'flags': expected none", {"method": "analytic", "flags": ["--optimise=Size"]}),
    ):
        with pytest.raises(tosaic.InvalidGraph, match=match):
            tosaic.device_cost(program, U85, **options)
    with pytest.raises(tosaic.UnsupportedOp, match=rf"costs on 'cortex-m55': .*{U85}"):
        tosaic.device_cost(program, "cortex-m55", method="analytic")


S = "[1,32,32,64]"


def test_narrow_operators_cost_half_of_wide_ones() -> None:
    narrow = [rescale("a", "x", f"i32{S}"), rescale("b", "z", f"i32{S}"), f"%s: i32{S} = tosa.add(%a, %b)"]
    inputs = {"x": f"i8{S}", "z": f"i8{S}"}
    cost = estimate([*narrow, rescale("y", "s", f"i8{S}")], inputs, "y")
    assert [row.cycles for row in cost.rows] == [32 * 32 * 64 / 4]
    assert sorted(cost.rows[0].fused) == ["a", "b", "y"]
    wide = estimate([f"%y: i32{S} = tosa.add(%x, %z)"], {"x": f"i32{S}", "z": f"i32{S}"}, "y")
    assert wide.cycles == 32 * 32 * 64 / 2


def test_a_rescale_with_two_readers_is_not_merged() -> None:
    lines = [rescale("a", "x", f"i32{S}"), f"%p: i32{S} = tosa.add(%a, %a)", rescale("y", "p", f"i8{S}")]
    cost = estimate(lines, {"x": f"i8{S}"}, "y")
    assert "rescale" in [row.device_op for row in cost.rows]


def test_mul_scales_its_operands_by_one_only() -> None:
    def rows(factor: float) -> list[str]:
        lines = [rescale(name, value, f"i32{S}", factor=factor) for name, value in (("a", "x"), ("b", "z"))]
        lines += [f"%s: i32{S} = tosa.mul(%a, %b) {{shift=0}}", rescale("y", "s", f"i8{S}")]
        return [row.device_op for row in estimate(lines, {"x": f"i8{S}", "z": f"i8{S}"}, "y").rows]

    assert rows(1) == ["mul"]
    assert "rescale" in rows(0.75)


def test_a_maximum_over_the_last_axis_is_expensive() -> None:
    last = estimate(
        ["%y: i8[1,1024,1] = tosa.reduce_max(%x) {axis=2, nan_mode=propagate}"], {"x": "i8[1,1024,64]"}, "y"
    )
    middle = estimate(
        ["%y: i8[1,1,64] = tosa.reduce_max(%x) {axis=1, nan_mode=propagate}"], {"x": "i8[1,1024,64]"}, "y"
    )
    assert last.cycles > 10 * middle.cycles


def test_permutations_cost_their_passes() -> None:
    def passes(shape: str, to: str, order: str, device: str = U85) -> list[int]:
        lines = [f"%y: i8{to} = tosa.transpose(%x) {{perm={order}}}"]
        return [row.cycles for row in estimate(lines, {"x": f"i8{shape}"}, "y", device).rows]

    assert len(passes("[1,1024,64]", "[1,64,1024]", "[0,2,1]")) == 1
    assert len(passes("[8,16,32,64]", "[8,32,16,64]", "[0,2,1,3]")) == 5
    assert passes("[1,64,1,64]", "[1,1,64,64]", "[0,2,1,3]") == []
    swap, turn = (passes("[32,32,32]", "[32,32,32]", order, U55)[0] for order in ("[0,2,1]", "[1,2,0]"))
    assert turn == pytest.approx(2 * swap)
