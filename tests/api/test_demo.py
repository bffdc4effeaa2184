"""The command `tosaic demo`, as a user runs it."""

from __future__ import annotations

import json

import pytest
from tosaic.cli import main
from tosaic.demo import run_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return run_demo(tmp_path_factory.mktemp("demo") / "out")


def test_every_check_holds(demo) -> None:
    assert [check.what for check in demo.checks if not check.ok] == []
    assert demo.ok


def test_it_measures_four_engines_against_float64(demo) -> None:
    engines = [run.engine for run in demo.runs]
    assert engines == ["torch, float32", "tosaic, as exported", "tosaic, as TOSA", "TOSA reference model"]
    assert all(run.accuracy > 0.95 for run in demo.runs)
    assert all(0 < run.error.relative < 1e-5 for run in demo.runs)


def test_it_prints_one_screen(demo) -> None:
    text = demo.report().text
    assert text.startswith("ok: handwritten digits, from torch.export to TOSA\n")
    assert len(text.splitlines()) <= 40
    for expected in ("accuracy", "transposes", "file", "arena", "TOSA reference model"):
        assert expected in text


def test_it_writes_a_tosa_file_a_page_and_data(demo) -> None:
    tosa, page, data = demo.files
    assert tosa.name == "digits.tosa"
    assert tosa.stat().st_size == len(demo.lowered.to_bytes())
    assert "digits" in page.read_text()
    assert json.loads(data.read_text())["ok"] is True


def test_the_command_fails_when_a_check_fails(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("tosaic.demo._LEAST_ACCURACY", 1.01)
    assert main(["demo", "--out", str(tmp_path / "d")]) == 1
    assert capsys.readouterr().out.startswith("FAILED: handwritten digits")
    assert main(["demo", "--out", str(tmp_path / "d"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_a_missing_extra_is_named(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "the demo needs sklearn: pip install 'tosaic[demo]'" in capsys.readouterr().err
