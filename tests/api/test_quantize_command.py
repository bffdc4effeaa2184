"""The commands `tosaic quantize` and `tosaic lower --calibrate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic.annotation.observers import ACTIVATION_OBSERVERS
from tosaic.cli import main
from tosaic.cli.options import OBSERVERS

QUANTIZE = ("quantize", "model.pt2", "--samples", "stack.npz", "-o", "q.tosaic")


@pytest.fixture
def stack(files, case):
    """Adds a stack of samples, stack.npz, to the folder of files."""
    rows = np.random.default_rng(5).standard_normal((12, *case.array.shape[1:]), np.float32)
    np.savez("stack.npz", x=rows)
    return rows


def run(capsys, *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    return (code, *capsys.readouterr())


def test_it_writes_the_program_that_the_function_makes(stack, case, capsys) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    expected = tosaic.quantize(case.exported, stack)
    assert expected.samples == 6
    expected.save("expected.tosaic")
    assert Path("q.tosaic").read_bytes() == Path("expected.tosaic").read_bytes()


def test_it_says_what_became_integers_on_one_screen_of_80_columns(stack, capsys) -> None:
    code, out, _ = run(capsys, *QUANTIZE)
    assert code == 0
    lines = out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    for expected in (
        "forward quantized",
        "samples      6",
        "weights      2 int8 in -127..127 per channel",
        "biases       2 int32",
        "arithmetic   integers only, with TOSA-1.0+INT",
        "the activation after it bounds it",
    ):
        assert expected in out
    assert lines[-1] == "wrote q.tosaic"


def test_its_json_has_the_numbers(stack, capsys) -> None:
    data = json.loads(run(capsys, *QUANTIZE, "--config", "int16x8", "--weight-bits", "4", "--json")[1])
    assert data["output"] == "q.tosaic"
    assert data["samples"] == 6
    assert data["seconds"] > 0
    assert set(data["activations"]) == {"int16"}
    assert data["weights"] == {"int8 in -7..7 per channel": 2}
    assert data["target"] == "TOSA-1.0+INT+int16"
    assert data["floats"] == []
    assert data["constant_bytes"]["after"] < data["constant_bytes"]["before"] / 3


def test_the_report_is_written_too(stack, capsys) -> None:
    assert run(capsys, *QUANTIZE, "--report", "q.html")[0] == 0
    assert "results without a scale of their own" in Path("q.html").read_text()


def test_the_other_commands_read_the_archive(stack, case, capsys) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    assert run(capsys, "lower", "q.tosaic", "--target", "TOSA-1.0+INT", "-o", "q.tosa")[0] == 0
    assert run(capsys, "check", "q.tosaic", "--target", "TOSA-1.0+INT")[0] == 0
    assert run(capsys, "compare", "q.tosaic", "q.tosa", "--input", "x.npz")[0] == 0
    assert "quantized values" in run(capsys, "inspect", "q.tosaic", "--quantization")[1]
    assert run(capsys, "run", "q.tosaic", "--input", "x.npz", "-o", "y.npz")[0] == 0
    with np.load("y.npz") as found:
        assert np.abs(found[found.files[0]] - case.eager()).max() < 0.1


def test_a_target_without_integers_is_refused_for_a_quantized_archive(stack, capsys) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    message = (
        "the program is quantized, and the target has no integer arithmetic: expected a target with profile "
        "INT, such as TOSA-1.0+INT, got TOSA-1.0+FP. To compute the rounded numbers with floats, lower what "
        "QuantizedProgram.to_exported() returns."
    )
    code, _, err = run(capsys, "lower", "q.tosaic", "-o", "q.tosa")
    assert (code, err) == (3, f"tosaic: [lower] {message}\n")
    assert not Path("q.tosa").exists()
    assert run(capsys, "check", "q.tosaic")[0] == 1


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ((), "TOSA-1.0+INT"),
        (("--config", "int16x8"), "TOSA-1.0+INT+int16"),
        (("--config", "uint8"), "TOSA-1.0+INT"),
    ],
    ids=["int8", "int16x8", "uint8"],
)
def test_lower_calibrate_equals_quantize_and_lower(stack, capsys, options, target) -> None:
    code, out, _ = run(capsys, "lower", "model.pt2", "--calibrate", "stack.npz", "-o", "a.tosa", *options)
    assert code == 0
    assert out.startswith(f"forward lowered to {target}\n")
    assert "calibrated on  6 samples in" in out
    assert run(capsys, *QUANTIZE, *options)[0] == 0
    assert run(capsys, "lower", "q.tosaic", "--target", target, "-o", "b.tosa")[0] == 0
    assert Path("a.tosa").read_bytes() == Path("b.tosa").read_bytes()


def test_lower_calibrate_lowers_to_another_target_if_asked(stack, capsys) -> None:
    argv = ("lower", "model.pt2", "--calibrate", "stack.npz", "-o", "a.tosa", "--json")
    code, out, _ = run(capsys, *argv, "--target", "TOSA-1.0+INT+FP")
    data = json.loads(out)
    assert (code, data["target"]) == (0, "TOSA-1.0+INT+FP")
    assert data["quantization"]["samples"] == 6


def test_processes_make_the_same_file_from_several_files_of_samples(stack, capsys) -> None:
    np.savez("a.npz", x=stack[:4])
    np.savez("b.npz", x=stack[4:])
    assert run(capsys, *QUANTIZE)[0] == 0
    alone = Path("q.tosaic").read_bytes()
    argv = ("quantize", "model.pt2", "--samples", "b.npz", "--samples", "a.npz", "--workers", "2")
    assert run(capsys, *argv, "-o", "q.tosaic")[0] == 0
    assert Path("q.tosaic").read_bytes() == alone


def test_groups_of_weights_reach_the_file(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exported = torch.export.export(nn.Linear(32, 4).eval(), (torch.zeros(1, 32),))
    torch.export.save(exported, "model.pt2")
    np.save("x.npy", np.random.default_rng(0).standard_normal((8, 32), np.float32))
    argv = ("quantize", "model.pt2", "--samples", "x.npy", "-o", "q.tosaic")
    code, out, _ = run(capsys, *argv, "--weight-bits", "4", "--group-size", "8")
    assert code == 0
    assert "1 int8 in -7..7 per channel and group of 8" in out


@pytest.mark.parametrize("observer", ["minmax", "moving_average", "percentile", "mse", "entropy"])
def test_the_observer_option_sets_the_observer_of_the_configuration(stack, case, capsys, observer) -> None:
    assert run(capsys, *QUANTIZE, "--observer", observer)[0] == 0
    tosaic.quantize(case.exported, stack, config=tosaic.QConfig.int8(observer=observer)).save("e.tosaic")
    assert Path("q.tosaic").read_bytes() == Path("e.tosaic").read_bytes()


def test_the_parser_knows_the_observers_of_configurations() -> None:
    assert tuple(ACTIVATION_OBSERVERS) == OBSERVERS


# ---- errors ----


def test_infinite_numbers_are_refused_with_the_sample_and_nothing_is_written(stack, capsys) -> None:
    stack[7, 0, 0, 0] = np.inf
    np.savez("stack.npz", x=stack)
    for options in ((), ("--workers", "1")):
        code, _, err = run(capsys, *QUANTIZE, *options)
        assert code == 2
        assert "[calibrate] sample 3: tensor 'x' has numbers that are not finite" in err
        assert not list(Path().glob("*q.tosaic*")) + list(Path().glob(".tosaic-*"))


def test_the_place_of_the_file_is_checked_before_samples_run(stack, monkeypatch, capsys) -> None:
    monkeypatch.setattr(tosaic, "quantize", lambda *_, **__: pytest.fail("samples ran"))
    code, _, err = run(capsys, *QUANTIZE[:-1], "no/such/folder/q.tosaic")
    assert (code, "the folder of 'q.tosaic' is missing" in err) == (2, True)
    code, _, err = run(capsys, *QUANTIZE[:-1], "q.tosa")
    assert (code, "a quantized program is saved as an archive" in err) == (2, True)
    code, _, err = run(capsys, "quantize", "model.tosaic", "--samples", "stack.npz")
    assert (code, "the file to write is the one to read" in err) == (2, True)


def test_options_of_quantization_without_samples_are_refused(stack, capsys) -> None:
    code, _, err = run(capsys, "lower", "model.pt2", "--group-size", "8")
    assert code == 2
    assert err == "tosaic: [--group-size] nothing is quantized: expected --calibrate ARRAYS in addition\n"


def test_an_interrupt_leaves_no_file(stack, monkeypatch, capsys) -> None:
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tosaic.calibration.draft.chosen_qparams", interrupted)
    for options in ((), ("--workers", "1")):
        code, out, err = run(capsys, *QUANTIZE, *options)
        assert (code, out, err) == (130, "", "tosaic: interrupted\n")
        assert not list(Path().glob("*q.tosaic*")) + list(Path().glob(".tosaic-*"))


def test_help_loads_neither_torch_nor_the_core() -> None:
    code = (
        "import sys; from tosaic.cli import main\n"
        "try: main([sys.argv[1], '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'tosaic._core'} & set(sys.modules)"
    )
    package = str(Path(tosaic.__file__).parents[1])
    for command in ("quantize", "lower"):
        done = subprocess.run(
            [sys.executable, "-c", code, command],
            env={**os.environ, "PYTHONPATH": package},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "--weight-bits" in done.stdout
