"""The cost of whole programs equals Vela's, and each cycle belongs to a node."""

from __future__ import annotations

import csv
import json
import pickle
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import tosaic
from cost.networks import lowered

pytest.importorskip("ethosu.vela", reason="Vela is not installed")

U85, U55 = "ethos-u85-256", "ethos-u55-128"
CASES = [
    *(
        (name, U85, mode)
        for name in ("spotter", "attention", "residual")
        for mode in ("Sram_Only", "Dedicated_Sram_384KB")
    ),
    *((name, U55, mode) for name in ("spotter", "residual") for mode in ("Shared_Sram", "Sram_Only")),
]


@cache
def cost_of(name: str, device: str, mode: str | None = None) -> tosaic.cost.DeviceCost:
    return tosaic.device_cost(lowered(name), device, memory_mode=mode)


def tables_of_vela(file: Path, device: str, system: str, mode: str) -> tuple[list[dict], dict]:
    """Runs Vela by itself; returns its tables of layers and of totals."""
    start = "import sys; from ethosu.vela.vela import main; sys.exit(main())"
    flags = [f"--accelerator-config={device}", "--config=Arm/vela.ini", f"--system-config={system}"]
    more = [
        f"--memory-mode={mode}",
        "--output-format=raw",
        "--verbose-performance",
        f"--output-dir={file.parent}",
    ]
    subprocess.run([sys.executable, "-c", start, *flags, *more, str(file)], check=True, capture_output=True)
    tables = [
        list(csv.DictReader(next(file.parent.glob(pattern)).read_text().splitlines()))
        for pattern in ("*_per-layer.csv", "*_summary_*.csv")
    ]
    return tables[0], tables[1][0]


@pytest.mark.parametrize(("name", "device", "mode"), CASES)
def test_rows_add_up_to_the_total_and_belong_to_nodes(name: str, device: str, mode: str) -> None:
    cost = cost_of(name, device, mode)
    assert (cost.device, cost.source, cost.memory_mode) == (device, "vela", mode)
    assert sum(row.cycles for row in cost.rows) == cost.cycles > 0
    assert cost.unattributed_cycles <= 0.01 * cost.cycles
    assert sum(row.share for row in cost.rows) == pytest.approx(1)
    assert all(row.cycles > 0 for row in cost.rows)
    for shares in (cost.by_module(), cost.by("operator"), cost.by("node")):
        assert sum(each.cycles for each in shares) == cost.cycles
        assert sum(each.macs for each in shares) == sum(row.macs for row in cost.rows)


@pytest.mark.parametrize("name", ["spotter", "attention", "residual"])
def test_each_node_of_the_program_is_in_one_row(name: str) -> None:
    cost = cost_of(name, U85, "Sram_Only")
    fused = [name for row in cost.rows for name in row.fused]
    own = {row.node for row in cost.rows}  # some need several operations
    assert sorted(fused) == sorted({node.name for node in lowered(name).graph.nodes} - own)


def test_rows_and_totals_are_those_of_vela(tmp_path: Path) -> None:
    file = tmp_path / "model.tosa"
    lowered("residual").save(file)
    for device, system, mode in (
        (U85, "Ethos_U85_SYS_DRAM_Low", "Dedicated_Sram_256KB"),
        (U55, "Ethos_U55_Deep_Embedded", "Shared_Sram"),
    ):
        layers, totals = tables_of_vela(file, device, system, mode)
        cost = tosaic.device_cost(file, device, memory_mode=mode, system_config=system)
        paid = [row for row in layers if row["Op Cycles"] != "0"]
        numbers = [(row.device_op, row.cycles, row.npu_cycles, row.macs, row.sram_bytes) for row in cost.rows]
        names = ("Op Cycles", "NPU", "MAC Count", "Staging Usage")
        assert numbers == [(row["NNG Operator"], *(int(row[name]) for name in names)) for row in paid]
        uses = [float(row["Util% (MAC)"]) / 100 for row in paid]
        assert [row.mac_use for row in cost.rows] == pytest.approx(uses)
        assert (cost.cycles, cost.npu_cycles) == (int(totals["cycles_total"]), int(totals["cycles_npu"]))
        assert cost.clock_hz == float(totals["core_clock"])
        assert cost.seconds == pytest.approx(float(totals["inference_time"]))
        for memory in ("sram", "dram", "on_chip_flash", "off_chip_flash"):
            kibibytes = float(totals[f"{memory}_memory_used"])
            assert getattr(cost, f"{memory}_bytes") == kibibytes * 1024
        for path in tmp_path.glob("*.csv"):
            path.unlink()


def test_convolutions_belong_to_their_modules() -> None:
    cost = cost_of("residual", U55, "Shared_Sram")
    macs = {row.module_path: row.macs for row in cost.rows if row.op == "tosa.conv2d"}
    assert macs == {
        "first": 16 * 16 * 16 * 8 * 9,
        "second": 16 * 16 * 16 * 16 * 9,
        "shortcut": 16 * 16 * 16 * 8,
    }
    assert {share.name for share in cost.by_module()} == {"first", "second", "shortcut", ""}
    rows = [row for row in cost.rows if row.macs]
    assert {row.source.partition(":")[0] for row in rows} == {"networks.py"}
    assert {origin.torch_operator for row in rows for origin in row.origins} == {"aten.conv2d.default"}


def test_a_node_counts_for_all_calls_of_torch_that_it_computes() -> None:
    cost = cost_of("spotter", U85, "Sram_Only")
    calls = {each.name: each for each in cost.by("torch_operator")}
    both = "aten.conv2d.default + aten.batch_norm.default"
    assert [row.module_path for row in cost.rows if row.torch_operator == both] == ["stem.0"]
    assert calls["aten.conv2d.default"].rows == 4
    assert "conv2d + batch_norm" in str(cost)


def test_modules_are_added_up_to_a_depth() -> None:
    cost = cost_of("spotter", U85, "Sram_Only")
    full = cost.by_module()
    assert {"blocks.0.0", "blocks.0.2", "blocks.1.0", "stem.0", "head"} <= {each.name for each in full}
    (blocks,) = (each for each in cost.by_module(1) if each.name == "blocks")
    inside = [each for each in full if each.name.startswith("blocks.")]
    assert blocks.cycles == sum(each.cycles for each in inside) > 0
    assert {each.name for each in cost.by_module(2)} >= {"blocks.0", "blocks.1"}
    for wrong in (0, -1, True, "2"):
        with pytest.raises(tosaic.InvalidGraph, match="'depth': expected a positive number"):
            cost.by_module(wrong)
    with pytest.raises(tosaic.InvalidGraph, match="'what': expected one of 'module', 'operator'"):
        cost.by("color")


def test_fused_nodes_are_in_the_row_that_pays_for_them() -> None:
    cost = cost_of("residual", U85, "Sram_Only")
    graph = lowered("residual").graph
    kinds = {node.name: node.op for node in graph.nodes}
    for row in cost.rows:
        if row.op == "tosa.conv2d":
            assert "tosa.rescale" in [kinds[name] for name in row.fused]
    adding = [row for row in cost.rows if {"tosa.add", "tosa.maximum"} & {node.op for node in row.nodes}]
    assert len(adding) == 1, "the relu is part of the command of the addition"
    assert f" +{len(adding[0].fused)}  " in str(cost)


def test_memory_is_that_of_the_mode() -> None:
    only, dedicated = (cost_of("residual", U85, mode) for mode in ("Sram_Only", "Dedicated_Sram_384KB"))
    assert only.on_chip_flash_bytes > 0 == only.dram_bytes
    assert dedicated.dram_bytes > 0 == dedicated.on_chip_flash_bytes
    assert any(row.dram_cycles for row in dedicated.rows)
    assert "KiB SRAM, " in str(only)
    assert "KiB on-chip flash" in str(only)
    assert "KiB DRAM" in str(dedicated)
    shared = cost_of("residual", U55)
    assert (shared.memory_mode, shared.system_config) == ("Shared_Sram", "Ethos_U55_High_End_Embedded")
    assert shared.off_chip_flash_bytes > 0
    assert cost_of("residual", U85).memory_mode == "Sram_Only"


def test_a_file_costs_the_same_as_the_program(tmp_path: Path) -> None:
    program = lowered("spotter")
    expected = cost_of("spotter", U85, None)
    program.save(tmp_path / "with.tosa", sidecar=True)
    program.save(tmp_path / "plain.tosa")
    assert tosaic.device_cost(tmp_path / "with.tosa", U85) == expected
    assert tosaic.device_cost(str(tmp_path / "plain.tosa"), U85) == expected
    assert tosaic.device_cost(tosaic.load_tosa(tmp_path / "with.tosa"), U85) == expected
    assert tosaic.device_cost(program, tosaic.Claimant.named(U85)) == expected


def test_a_file_without_locations_is_tied_to_its_operators(tmp_path: Path) -> None:
    lowered("spotter").save(tmp_path / "bare.tosa", locations=False)
    cost = tosaic.device_cost(tmp_path / "bare.tosa", U85)
    expected = cost_of("spotter", U85, None)
    assert [(row.operator, row.node, row.op) for row in cost.rows] == [
        (row.operator, row.node, row.op) for row in expected.rows
    ]
    assert cost.unattributed_cycles == 0
    assert [each.name for each in cost.by_module()] == [""]
    assert all(row.source == "" for row in cost.rows)
    assert "by operator" in str(cost)
    assert "by module" not in str(cost)


def test_flags_reach_the_tool() -> None:
    found = tosaic.device_cost(lowered("residual"), U85, flags=["--system-config=Ethos_U85_SYS_DRAM_Low"])
    assert (found.system_config, found.clock_hz) == ("Ethos_U85_SYS_DRAM_Low", 500e6)
    with pytest.raises(tosaic.UnsupportedOp, match=r"unrecognized arguments: --wrong"):
        tosaic.device_cost(lowered("residual"), U85, flags=["--wrong"])


def test_a_cost_is_saved_printed_and_pickled() -> None:
    cost = cost_of("attention", U85, "Dedicated_Sram_384KB")
    data = json.loads(cost.to_json(), parse_constant=pytest.fail)
    assert data == json.loads(json.dumps(cost.as_dict()))
    assert sum(row["cycles"] for row in data["rows"]) == data["cycles"] == cost.cycles
    assert sum(module["cycles"] for module in data["modules"]) == cost.cycles
    assert data["rows"][0]["nodes"][0]["origins"]
    assert pickle.loads(pickle.dumps(cost)) == cost
    assert max(map(len, str(cost).splitlines())) <= 80
    html = cost._repr_html_()
    assert "<table" in html
    assert "all rows" in html
    assert repr(cost) == f"<tosaic.cost.DeviceCost on {U85}: {cost.cycles:,} cycles, {len(cost.rows)} rows>"


def test_wrong_arguments_are_refused_with_what_there_is(tmp_path: Path) -> None:
    program = lowered("residual")
    for match, arguments, options in (
        (
            "unknown value of 'memory_mode': expected one of Sram_Only, Shared_Sram",
            (U85,),
            {"memory_mode": "X"},
        ),
        ("'system_config': expected one of .*Ethos_U85_SYS_DRAM_Mid", (U85,), {"system_config": "X"}),
        ("'device': expected one of .*ethos-u55-128.*: got None|got None", (), {}),
        ("ethos-u85-999", ("ethos-u85-999",), {}),
        (
            "either 'memory_mode' or the flag --memory-mode",
            (U85,),
            {"memory_mode": "Sram_Only", "flags": ["--memory-mode=Sram_Only"]},
        ),
    ):
        with pytest.raises(tosaic.InvalidGraph, match=match):
            tosaic.device_cost(program, *arguments, **options)
    with pytest.raises(tosaic.InvalidGraph, match=r"is not lowered.*tosaic.lower lowers programs"):
        tosaic.device_cost(program.source, U85)
    with pytest.raises(tosaic.InvalidGraph, match=r"suffix \.tosa, or the folder of a split"):
        tosaic.device_cost(tmp_path / "model.txt", U85)
    with pytest.raises(tosaic.MissingFileError):
        tosaic.device_cost(tmp_path / "model.tosa", U85)
    (tmp_path / "bad.tosa").write_bytes(b"\0" * 64)
    with pytest.raises(tosaic.Error):
        tosaic.device_cost(tmp_path / "bad.tosa", U85)


@pytest.mark.parametrize("device", ["cortex-m55", "neutron", "vgf", "TOSA-1.0+INT"])
def test_devices_without_estimates_say_which_have_them(device: str) -> None:
    with pytest.raises(tosaic.UnsupportedOp, match=rf"costs on '{re.escape(device)}': .*{U85}") as found:
        tosaic.device_cost(lowered("residual"), device)
    assert "\n" not in str(found.value)


def test_what_the_tool_refuses_is_refused() -> None:
    floats = tosaic.lower(
        tosaic.program.from_graph(
            tosaic.program.Graph.parse(
                'tosaic 1\ngraph @f stage=exported {\ninput %x: f32[4] path="x"\n%y: f32[4] = exp(%x)\n'
                'return %y path="out"\n}\n'
            )
        ),
        target="TOSA-1.0+FP",
    )
    with pytest.raises(tosaic.UnsupportedOp, match="vela cannot compile the file"):
        tosaic.device_cost(floats, U85)


def test_without_vela_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lowered("residual")
    monkeypatch.setattr("tosaic.devices.device_compilers.find_spec", lambda name: None)
    with pytest.raises(ImportError) as found:
        tosaic.device_cost(program, U85, method="tool", memory_mode="Sram_Only")
    assert str(found.value) == "vela is not installed: pip install 'tosaic[devices]'"


def test_the_tool_estimates_if_it_is_installed() -> None:
    program = lowered("residual")
    assert tosaic.device_cost(program, U85).source == "vela"
    assert tosaic.device_cost(program, U85, method="tool") == tosaic.device_cost(program, U85)
    own = tosaic.device_cost(program, U85, method="analytic")
    assert (own.source, own.clock_hz) == ("analytic", 1e9)
