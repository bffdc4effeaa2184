"""``tosaic cost``, and the costs that an export shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import tosaic
from cost.networks import Residual, lowered, split
from tosaic.cli import main

pytest.importorskip("ethosu.vela", reason="Vela is not installed")

U85 = "ethos-u85-256"


@pytest.fixture
def file(tmp_path: Path) -> str:
    lowered("residual").save(tmp_path / "model.tosa")
    return str(tmp_path / "model.tosa")


def test_the_command_prints_what_the_call_returns(file: str, tmp_path: Path, capsys) -> None:
    report = tmp_path / "cost.html"
    mode = ("--memory-mode", "Dedicated_Sram_384KB")
    assert main(["cost", file, "--device", U85, *mode, "--report", str(report)]) == 0
    cost = tosaic.device_cost(file, U85, memory_mode="Dedicated_Sram_384KB")
    assert capsys.readouterr().out == f"{cost}\n"
    assert report.read_text().startswith("<!doctype")
    assert main(["cost", file, "--device", U85, *mode, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(cost.to_json())


def test_flags_and_configurations_are_options(file: str, capsys) -> None:
    more = ("--system-config", "Ethos_U85_SYS_DRAM_Low", "--flag=--optimise=Size")
    assert main(["cost", file, "--device", U85, *more, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    expected = tosaic.device_cost(
        file, U85, system_config="Ethos_U85_SYS_DRAM_Low", flags=["--optimise=Size"]
    )
    assert data == json.loads(expected.to_json())


def test_the_folder_of_a_split_program_needs_no_device(tmp_path: Path, capsys) -> None:
    split("interrupted", "ethos-u55-128").save(tmp_path / "parts")
    assert main(["cost", str(tmp_path / "parts")]) == 0
    assert "not estimated  3 nodes on the host" in capsys.readouterr().out


def test_refusals_have_their_exit_codes(file: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["cost", file]) == 2
    assert "'device': expected one of" in capsys.readouterr().err
    assert main(["cost", file, "--device", "cortex-m55"]) == 3
    assert main(["cost", "missing.tosa", "--device", U85]) == 2
    assert main(["cost", file, "--device", U85, "--report", "no/folder.html"]) == 2
    capsys.readouterr()
    monkeypatch.setattr("tosaic.devices.device_compilers.find_spec", lambda name: None)
    code = main(["cost", file, "--device", U85, "--method", "tool"])
    assert code != 0
    err = capsys.readouterr().err.strip()
    assert err.endswith("vela is not installed: pip install 'tosaic[devices]'")
    assert "\n" not in err
    assert main(["cost", file, "--device", U85]) == 0
    assert "estimated by  analytic" in capsys.readouterr().out


def test_the_method_is_an_option(file: str, capsys) -> None:
    assert main(["cost", file, "--device", U85, "--method", "analytic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "analytic"


def test_an_export_shows_what_the_compiler_of_its_payloads_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tosaic.devices import device_compilers

    runs = []
    run = device_compilers._run
    monkeypatch.setattr(device_compilers, "_run", lambda tool, *rest: (runs.append(tool), run(tool, *rest)))
    torch.manual_seed(0)
    x = torch.randn(1, 8, 32, 32)
    result = tosaic.export_model(Residual().eval(), (x,), recipe="ethos-u85", samples=[(x,)], verbose=0)
    assert result.costs == {}
    assert "cost " not in str(result)
    result.save(tmp_path / "out")
    assert runs == ["vela"] * len(result.lowered.parts) != []
    assert list(result.costs) == [group.name for group in result.lowered.partitions.groups]
    cost = tosaic.device_cost(result.lowered)
    assert sum(each.cycles for each in result.costs.values()) == cost.cycles
    assert [each.summary for each in cost.groups] == list(result.costs.values())
    first = result.costs["group0"]
    line = f"group0: {first.cycles:,} cycles, {first.sram_bytes / 1024:.1f} KiB SRAM, "
    assert line in str(result)
    assert line in (tmp_path / "out" / "report.txt").read_text()
    written = json.loads((tmp_path / "out" / "report.json").read_text())["costs"]["group0"]
    assert (written["cycles"], written["sram_bytes"]) == (first.cycles, first.sram_bytes)
    assert tosaic.device_cost(tmp_path / "out" / "groups") == cost
