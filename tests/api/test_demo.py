"""The command `tosaic demo`, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tosaic
from tosaic.cli import main
from tosaic.cli.demo import run_demo

FLOATS = ("torch, float32", "float32, as exported", "float32, as TOSA", "float32, reference model")
INTEGERS = ("int8, q/dq", "int8, integer arithmetic", "int8, as TOSA", "int8, reference model")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return run_demo(tmp_path_factory.mktemp("demo") / "out")


def test_every_check_holds(demo) -> None:
    assert [check.what for check in demo.checks if not check.ok] == []
    assert demo.ok


def test_it_measures_floats_and_integers_against_float64(demo) -> None:
    runs = {run.engine: run for run in demo.runs}
    assert tuple(runs) == FLOATS + INTEGERS
    assert all(run.accuracy > 0.95 for run in demo.runs)
    assert all(0 < runs[name].error.relative < 1e-5 and runs[name].agreement == 1 for name in FLOATS)
    assert all(runs[name].error.sqnr_db > 30 and runs[name].agreement > 0.99 for name in INTEGERS)


def test_the_integers_equal_the_reference_model(demo) -> None:
    details = {check.what: check.detail for check in demo.checks}
    assert details["int8, reference model: the same integers"] == "0 of 3,600 elements differ"
    assert details["int8, integer arithmetic: the same integers"] == "0 of 3,600 elements differ"
    assert demo.lowered_int8.target == "TOSA-1.0+INT"


def test_it_calibrates_on_pictures_that_are_not_held_out(demo) -> None:
    assert demo.calibration_images == demo.quantized.samples * demo.images == 1080


def test_it_prints_one_screen(demo) -> None:
    lines = demo.report().text.splitlines()
    assert lines[0] == "ok: handwritten digits, from torch.export to TOSA, as floats and as int8"
    assert len(lines) <= 36
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for expected in ("accuracy", "agreement", "ms/picture", "transposes", "file", "arena", "KiB", *INTEGERS):
        assert expected in text


def test_it_writes_two_tosa_files_a_page_and_data(demo) -> None:
    floats, integers, page, data = demo.files
    assert (floats.name, integers.name) == ("digits.tosa", "digits_int8.tosa")
    assert floats.stat().st_size == len(demo.lowered.to_bytes())
    assert integers.stat().st_size == len(demo.lowered_int8.to_bytes())
    assert integers.stat().st_size < 0.5 * floats.stat().st_size
    assert "int8: operators" in page.read_text()
    assert json.loads(data.read_text())["ok"] is True
    assert tosaic.load_tosa(integers).graph.inputs[0].value.dtype == "i8"


def test_the_command_fails_when_a_check_fails(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("tosaic.cli.demo._LEAST_ACCURACY", 1.01)
    assert main(["demo", "--out", str(tmp_path / "d")]) == 1
    assert capsys.readouterr().out.startswith("FAILED: handwritten digits")
    assert main(["demo", "--out", str(tmp_path / "d"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_a_missing_extra_is_named(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "the demo needs sklearn: pip install 'tosaic[demo]'" in capsys.readouterr().err


def test_it_needs_neither_torchao_nor_executorch(tmp_path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torchao', 'executorch', 'tqdm', 'transformers']))\n"
        "from tosaic.cli import main; sys.exit(main(['demo', '--out', sys.argv[1]]))"
    )
    package = str(Path(tosaic.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "out")],
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok: ")
