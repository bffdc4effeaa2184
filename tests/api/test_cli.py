"""The command line: output, files, exit codes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import tosaic
from tosaic.cli import main


def run(capsys, *argv: str) -> tuple[int, str, str]:
    try:
        code = main(argv)
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    return code, out, err


def test_lower_writes_the_file(files, case, capsys) -> None:
    code, out, _ = run(
        capsys, "lower", "model.pt2", "-o", "out.tosa", "--dump", "stages", "--report", "report.html"
    )
    assert code == 0
    assert out.startswith("forward lowered to TOSA-1.0+FP\n")
    assert out.endswith("\nwrote out.tosa\n")
    assert Path("out.tosa").stat().st_size > 0
    assert any(Path("stages").iterdir())
    assert Path("report.html").read_text().startswith("<!doctype html>")


def test_lower_of_an_archive_equals_lower_of_the_export(files, capsys) -> None:
    assert run(capsys, "lower", "model.tosaic", "-o", "a.tosa", "--no-locations")[0] == 0
    assert run(capsys, "lower", "model.pt2", "-o", "b.tosa", "--no-locations")[0] == 0
    assert Path("a.tosa").read_bytes() == Path("b.tosa").read_bytes()


@pytest.mark.parametrize(
    "argv",
    [
        ("lower", "model.pt2"),
        ("quantize", "model.pt2", "--samples", "x.npz", "-o", "q.tosaic"),
        ("check", "model.pt2"),
        ("inspect", "model.tosa", "--memory", "--layout"),
        ("run", "model.tosa", "--input", "x.npz", "-o", "y.npz"),
        ("run", "model.tosa", "--input", "x.npz", "-o", "y.npz", "--profile"),
        ("lower", "model.pt2", "--profile", "lower.trace.json"),
        ("compare", "model.pt2", "model.tosa", "--input", "x.npz"),
        ("diff", "model.pt2", "model.tosaic"),
        ("passes",),
        ("ops",),
    ],
    ids=lambda argv: argv[0],
)
def test_every_command_prints_json(files, capsys, argv) -> None:
    code, out, err = run(capsys, *argv, "--json")
    assert (code, err) == (0, "")
    assert isinstance(json.loads(out, parse_constant=pytest.fail), dict)


def test_a_profiled_run_writes_the_same_outputs(files, capsys) -> None:
    assert run(capsys, "run", "model.tosa", "--input", "x.npz", "-o", "plain.npz")[0] == 0
    command = ("run", "model.tosa", "--input", "x.npz", "-o", "y.npz", "--runs", "3", "--profile")
    code, out, _ = run(capsys, *command)
    assert code == 0
    assert out.startswith("wrote y.npz\n")
    assert "\nprofile of forward @tosa\n" in out
    assert "the sum of the medians of 3 runs" in out
    assert max(map(len, out.splitlines())) <= 80
    with np.load("plain.npz") as plain, np.load("y.npz") as profiled:
        assert plain.files == profiled.files
        for name in plain.files:
            np.testing.assert_array_equal(plain[name], profiled[name])


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("p.trace.json", '{"traceEvents": '),
        ("p.json", '{\n "name": '),
        ("p.html", "<!doctype"),
        ("p", "profile of "),
    ],
)
def test_a_profile_is_written_as_its_name_says(files, capsys, name, start) -> None:
    for command in (
        ("run", "model.tosa", "--input", "x.npz", "-o", "y.npz", "--runs", "1", "--profile", name),
        ("lower", "model.pt2", "-o", "out.tosa", "--profile", name),
    ):
        Path(name).unlink(missing_ok=True)
        code, out, _ = run(capsys, *command)
        assert code == 0
        assert f"\nwrote {name}\n" in out
        assert Path(name).read_text().startswith(start)


def test_the_profile_of_a_lowering_has_import_passes_and_bytes(files, capsys) -> None:
    code, out, _ = run(capsys, "lower", "model.pt2", "-o", "out.tosa", "--profile", "--json")
    assert code == 0
    names = [step["name"] for step in json.loads(out)["profile"]["steps"]]
    assert (names[0], names[-1]) == ("import", "bytes")
    assert "legalize-tosa" in names


def test_a_refused_profile_leaves_no_file(files, capsys) -> None:
    command = ("run", "model.tosa", "--input", "x.npz", "-o", "y.npz", "--profile", "no/p.json")
    assert run(capsys, *command)[0] == 2
    assert not Path("y.npz").exists()
    assert run(capsys, "lower", "model.pt2", "-o", "out.tosa", "--profile", "no/p.json")[0] == 2
    assert not Path("out.tosa").exists()


class Noisy(torch.nn.Module):
    """Draws random numbers, which no kernel computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(x.sigmoid()) + x


@pytest.fixture
def refused(files, unliftable):
    """Adds files that commands refuse to the folder of valid ones."""
    torch.export.save(unliftable, "bad.pt2")
    torch.export.save(torch.export.export(Noisy(), (torch.from_numpy(np.load("x.npz")["x"]),)), "noisy.pt2")
    Path("words.txt").write_text("hello")
    Path("cut.tosa").write_bytes(Path("model.tosa").read_bytes()[:100])
    np.savez("wrong.npz", x=np.zeros((1, 2), np.float32))
    return files


@pytest.mark.parametrize(
    ("argv", "code", "kind"),
    [
        (("lower", "nowhere.pt2"), 2, "FileNotFoundError"),
        (("lower", "bad.pt2"), 3, "UnsupportedOp"),
        (("lower", "model.pt2", "--target", "TOSA-9"), 2, "InvalidGraph"),
        (("lower", "model.pt2", "-o", "no/such/folder/x.tosa"), 2, "WriteError"),
        (("lower", "model.pt2", "--bind", "x"), 2, "usage"),
        (("lower",), 2, "usage"),
        (("lower", "model.pt2", "--no-such-option"), 2, "usage"),
        (("lower", "model.pt2", "--weight-bits", "4"), 2, "InvalidGraph"),
        (("lower", "model.pt2", "--calibrate", "wrong.npz"), 2, "LayoutMismatch"),
        (("quantize", "model.pt2"), 2, "usage"),
        (("quantize", "nowhere.pt2", "--samples", "x.npz"), 2, "FileNotFoundError"),
        (("quantize", "model.pt2", "--samples", "nowhere.npz"), 2, "FileNotFoundError"),
        (("quantize", "model.pt2", "--samples", "wrong.npz"), 2, "LayoutMismatch"),
        (("quantize", "model.pt2", "--samples", "x.npz", "-o", "no/such/folder/x"), 2, "WriteError"),
        (("quantize", "model.pt2", "--samples", "x.npz", "-o", "q.tosa"), 2, "InvalidGraph"),
        (("quantize", "model.tosa", "--samples", "x.npz"), 2, "InvalidGraph"),
        (("quantize", "noisy.pt2", "--samples", "x.npz"), 3, "UnsupportedOp"),
        (("quantize", "model.pt2", "--samples", "x.npz", "--weight-bits", "9"), 2, "InvalidGraph"),
        (("quantize", "model.pt2", "--samples", "x.npz", "--workers", "0"), 2, "usage"),
        (("quantize", "model.pt2", "--samples", "x.npz", "--config", "int3"), 2, "usage"),
        (("check", "words.txt"), 2, "InvalidGraph"),
        (("check", "model.pt2", "--target"), 2, "usage"),
        (("inspect", "cut.tosa"), 2, "InvalidGraph"),
        (("inspect", "bad.pt2", "--layout"), 3, "UnsupportedOp"),
        (("run", "model.tosa", "--input", "wrong.npz", "-o", "y.npz"), 2, "LayoutMismatch"),
        (("run", "model.tosa", "--input", "x.npz"), 2, "usage"),
        (("run", "model.tosa", "--input", "x.npz", "-o", "y.npz", "--runs", "2"), 2, "InvalidGraph"),
        (("run", "model.tosa", "--input", "x.npz", "-o", "y.npz", "--profile", "no/p.json"), 2, "WriteError"),
        (("run", "model.tosa", "--input", "x.npz", "-o", "y.npz", "--profile", "y.npz"), 2, "InvalidGraph"),
        (("run", "model.tosa", "--input", "x.npz", "-o", "y.npz", "--profile", "--runs", "0"), 2, "usage"),
        (("run", "model.tosa", "--input", "wrong.npz", "-o", "y.npz", "--profile"), 2, "LayoutMismatch"),
        (("run", "nowhere.tosa", "--input", "x.npz", "-o", "y.npz", "--profile"), 2, "FileNotFoundError"),
        (("lower", "model.pt2", "--profile", "no/such/folder/p.html"), 2, "WriteError"),
        (("run", "noisy.pt2", "--input", "x.npz", "-o", "y.npz"), 3, "UnsupportedOp"),
        (("compare", "model.pt2", "cut.tosa", "--input", "x.npz"), 2, "InvalidGraph"),
        (("compare", "model.pt2", "model.tosa", "--input", "x.npz", "--threshold", "a"), 2, "usage"),
        (("diff", "model.pt2", "words.txt"), 2, "InvalidGraph"),
        (("passes", "more"), 2, "usage"),
        (("ops", "more"), 2, "usage"),
        (("demo", "--out", "model.pt2/below"), 2, ""),
        (("frobnicate",), 2, "usage"),
        ((), 2, "usage"),
    ],
    ids=lambda value: "-".join(value[:3]) if isinstance(value, tuple) else None,
)
def test_every_command_prints_json_when_it_fails(refused, capsys, argv, code, kind) -> None:
    found, out, err = run(capsys, *argv, "--json")
    error = json.loads(out, parse_constant=pytest.fail)["error"]
    assert found == error["exit_code"] == code
    assert kind in error["kind"]
    assert f"tosaic: {error['message']}" in err
    if error["kind"] in ("InvalidGraph", "UnsupportedOp", "LayoutMismatch"):
        assert error["problems"]
        assert all(problem["what"] in error["message"] for problem in error["problems"])


def test_a_failed_check_prints_json_too(refused, capsys) -> None:
    for argv in (("check", "bad.pt2"), ("diff", "model.pt2", "bad.pt2")):
        code, out, _ = run(capsys, *argv, "--json")
        assert code == 1
        assert isinstance(json.loads(out), dict)


def test_an_interrupted_command_and_an_internal_error_print_json_too(files, monkeypatch, capsys) -> None:
    from tosaic.api import calls

    for raised, code in ((KeyboardInterrupt(), 130), (RuntimeError("broken"), 4)):

        def fail(*_, raised=raised, **__):
            raise raised

        monkeypatch.setattr(calls, "lower", fail)
        found, out, _ = run(capsys, "lower", "model.pt2", "--json")
        error = json.loads(out)["error"]
        assert (found, error["exit_code"]) == (code, code)


def test_dot_and_markdown_are_wrapped_in_json_with_option_json(files, capsys) -> None:
    code, out, _ = run(capsys, "inspect", "model.tosa", "--dot", "--json")
    assert (code, json.loads(out)["dot"][:7]) == (0, "digraph")
    code, out, _ = run(capsys, "ops", "--markdown", "--json")
    assert (code, json.loads(out)["markdown"][:1]) == (0, "#")


def test_without_json_an_error_leaves_standard_output_empty(refused, capsys) -> None:
    for argv in (("lower", "bad.pt2"), ("lower", "nowhere.pt2"), ("lower",)):
        assert run(capsys, *argv)[1] == ""


def test_check_passes(files, capsys) -> None:
    code, out, _ = run(capsys, "check", "model.pt2")
    assert code == 0
    assert out.startswith("ok: ")


def test_check_fails_with_reasons(unliftable, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    torch.export.save(unliftable, "bad.pt2")
    code, out, _ = run(capsys, "check", "bad.pt2")
    assert code == 1
    assert out.startswith("FAILED: ")
    code, _, err = run(capsys, "lower", "bad.pt2", "-o", "bad.tosa")
    assert code == 3
    assert err.startswith("tosaic: [")
    assert not Path("bad.tosa").exists()


def test_inspect_prints_inputs_outputs_and_operators(files, capsys) -> None:
    code, out, _ = run(capsys, "inspect", "model.tosa", "--layout", "--memory")
    assert code == 0
    for expected in ("tosa.conv2d", "dim orders", "arena", "boundary"):
        assert expected in out


def test_inspect_with_option_layout_adds_the_layout_plan(files, capsys) -> None:
    for file in ("model.pt2", "model.tosaic"):
        code, out, _ = run(capsys, "inspect", file, "--layout", "--memory", "--text")
        assert code == 0
        for expected in (
            "boundary",
            "arena",
            "transposes",
            "proof",
            "max_pool wants channels last",
            "graph @",
        ):
            assert expected in out
        plain = run(capsys, "inspect", file, "--memory", "--text")[1]
        assert set(plain.split()) <= set(out.split())
        code, out, _ = run(capsys, "inspect", file, "--layout", "--memory", "--json")
        data = json.loads(out)
        assert data["layout"]["transposes"][0]["value"] in data["layout"]["orders"]
        assert data["layout"]["is_minimal"]
        assert data["memory"]["arena_bytes"] > 0
        assert data["inputs"]


def test_inspect_with_option_csv_writes_the_memory_plan(files, capsys) -> None:
    assert run(capsys, "inspect", "model.tosa", "--memory", "--csv", "plan.csv")[0] == 0
    lines = Path("plan.csv").read_text().splitlines()
    assert lines[0].startswith("name,part,kind,path,dtype,shape,nbytes,first,last,arena,offset,alias")
    assert len(lines) > 2
    code, _, err = run(capsys, "inspect", "model.tosa", "--csv", "nowhere/plan.csv")
    assert code == 2
    assert "nowhere" in err


def test_partition_with_option_memory_shows_one_plan(files, capsys) -> None:
    argv = ("partition", "model.pt2", "--claimants", "TOSA-1.0+FP", "--memory")
    code, out, _ = run(capsys, *argv, "--csv", "plan.csv", "--report", "plan.html")
    assert code == 0
    assert out.startswith("memory of forward\n")
    assert "group0" in out
    assert "group0" in Path("plan.csv").read_text()
    assert "<svg" in Path("plan.html").read_text()
    code, out, _ = run(capsys, *argv, "--json")
    data = json.loads(out)
    assert (code, data["gap"]) == (0, data["peak"] - data["lower_bound"])


def test_inspect_with_option_memory_compares_the_plan_of_a_pte_file(files, capsys) -> None:
    tosaic.lower("model.pt2").save("model.pte")
    code, out, _ = run(capsys, "inspect", "model.pte", "--memory", "--csv", "file.csv")
    assert code == 0
    assert out.startswith("memory of model.pte\n")
    assert "delegate0" in Path("file.csv").read_text()
    data = json.loads(run(capsys, "inspect", "model.pte", "--memory", "--json")[1])
    assert data["methods"]["forward"]["ok"] is True


def test_inspect_prints_the_graph_in_two_forms(files, capsys) -> None:
    code, out, _ = run(capsys, "inspect", "model.pt2", "--text")
    assert code == 0
    assert "graph @forward stage=exported {" in out
    code, out, _ = run(capsys, "inspect", "model.pt2", "--dot")
    assert code == 0
    assert out.startswith("digraph")


def test_inspect_reads_graph_text(files, case, capsys) -> None:
    Path("graph.txt").write_text(case.program.text())
    assert run(capsys, "inspect", "graph.txt")[0] == 0


@pytest.mark.parametrize(
    ("file", "name", "out"), [("model.pt2", "x.npz", "y.npz"), ("model.tosa", "x.npy", "y.npy")]
)
def test_run_writes_the_outputs(files, case, capsys, file, name, out) -> None:
    assert run(capsys, "run", file, "--input", name, "-o", out)[0] == 0
    loaded = np.load(out)
    array = loaded if out.endswith(".npy") else loaded[loaded.files[0]]
    np.testing.assert_allclose(array, case.eager(), rtol=1e-5, atol=1e-6)


def test_run_refuses_a_wrong_shape(files, capsys) -> None:
    np.save("x.npy", np.zeros((1, 3, 8, 8), np.float32))
    code, _, err = run(capsys, "run", "model.pt2", "--input", "x.npy", "-o", "y.npy")
    assert code == 2
    assert err == "tosaic: [run] input 'x' has the wrong shape: expected [2,3,8,8], got [1,3,8,8]\n"


def test_compare_fails_below_the_threshold(files, capsys) -> None:
    argv = ("compare", "model.pt2", "model.tosa", "--input", "x.npz")
    assert run(capsys, *argv)[0] == 0
    code, out, _ = run(capsys, *argv, "--threshold", "1000")
    assert (code, out[:8]) == (1, "FAILED: ")


def test_diff_says_how_graphs_differ(files, capsys) -> None:
    code, out, _ = run(capsys, "diff", "model.pt2", "model.tosa")
    assert code == 1
    assert "model.pt2 and model.tosa differ" in out


def test_bind_sets_the_sizes_of_symbolic_dimensions(dynamic, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    torch.export.save(dynamic, "dynamic.pt2")
    code, _, err = run(capsys, "lower", "dynamic.pt2")
    assert code == 3
    assert "axis 0 of input 'input'" in err
    assert run(capsys, "lower", "dynamic.pt2", "--bind", "input:0=2")[0] == 0
    code, _, err = run(capsys, "lower", "dynamic.pt2", "--bind", "input=2")
    assert code == 2
    assert "'input=2' is not INPUT:AXIS=SIZE, such as x:0=1" in err


def test_a_missing_file_is_a_usage_error(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("nowhere.pt2", "nowhere.tosa", "nowhere"):
        code, _, err = run(capsys, "inspect", name)
        assert code == 2
        assert f"there is no file '{name}'" in err


def test_a_damaged_file_is_a_usage_error(files, capsys) -> None:
    Path("model.tosa").write_bytes(Path("model.tosa").read_bytes()[:100])
    code, _, err = run(capsys, "inspect", "model.tosa")
    assert code == 2
    assert err.startswith("tosaic: [tosa")
    Path("model.pt2").write_bytes(b"PK nonsense")
    code, _, err = run(capsys, "inspect", "model.pt2")
    assert code == 2
    assert err.startswith("tosaic: [pt2] 'model.pt2': it is no zip archive")


def test_a_call_that_needs_torch_says_so_where_torch_is_missing(files, capsys, monkeypatch) -> None:
    class NeedsTorch(torch.nn.Module):
        def forward(self, x):
            return torch.logaddexp2(x, x * 2)

    torch.export.save(torch.export.export(NeedsTorch(), (torch.ones(3),)), "needs_torch.pt2")
    assert run(capsys, "inspect", "needs_torch.pt2")[0] == 0
    monkeypatch.delitem(sys.modules, "tosaic.fx.running.eager", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(capsys, "inspect", "model.pt2")[0] == 0
    code, _, err = run(capsys, "inspect", "needs_torch.pt2")
    assert code == 3
    assert err.startswith("tosaic: [pt2] 'needs_torch.pt2': aten.logaddexp2.default has no row of its own")
    assert "torch.export.load" in err


def test_no_command_is_a_usage_error(capsys) -> None:
    code, out, _ = run(capsys)
    assert code == 2
    assert "commands:" in out
    assert run(capsys, "nonsense")[0] == 2


def test_an_internal_error_has_its_own_exit_code(files, capsys, monkeypatch) -> None:
    monkeypatch.setattr("tosaic.api.calls.program_of", lambda *args, **kwargs: 1 / 0)
    code, _, err = run(capsys, "check", "model.pt2")
    assert code == 4
    assert "ZeroDivisionError" in err
    assert err.endswith("This is a fault of tosaic; please report it.\n")


def test_the_commands_passes_and_ops_print_tables(capsys) -> None:
    assert "legalize-tosa" in run(capsys, "passes")[1]
    assert "tosa.conv2d" in run(capsys, "ops")[1]


def test_the_version_is_printed(capsys) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("tosaic ")


# ---- standard output and standard error ----


def command(*argv: str, redirect: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own, through a shell that redirects its streams."""
    words = shlex.join([sys.executable, "-m", "tosaic", *argv])
    package = str(Path(tosaic.__file__).parents[1])
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words} {redirect}"],
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "argv",
    [
        ("passes",),
        ("passes", "--json"),
        ("ops", "--markdown"),
        ("--version",),
        ("--help",),
        ("lower", "--help"),
        (),
        ("nonsense", "--json"),
        ("inspect", "nowhere", "--json"),
        ("diff", "a.txt", "b.txt"),
        ("diff", "a.txt", "b.txt", "--json"),
    ],
    ids=" ".join,
)
def test_the_exit_code_is_2_if_standard_output_is_on_a_full_disk(tmp_path, monkeypatch, argv) -> None:
    monkeypatch.chdir(tmp_path)
    for name, op in (("a.txt", "relu"), ("b.txt", "neg")):
        Path(name).write_text(GRAPH.format(op))
    done = command(*argv, redirect=">/dev/full")
    assert done.returncode == 2
    message = "tosaic: [output] standard output could not be written: got No space left on device\n"
    assert done.stderr.endswith(message)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


GRAPH = """tosaic 1
graph @forward stage=exported {{
  input %x: f32[3] path="x"
  %y: f32[3] = {}(%x)
  return %y path="out"
}}
"""


@pytest.mark.parametrize("argv", [("ops", "--markdown"), ("diff", "a.txt", "b.txt")], ids=" ".join)
def test_a_pipe_whose_reader_ends_does_not_change_the_exit_code(tmp_path, monkeypatch, argv) -> None:
    monkeypatch.chdir(tmp_path)
    for name, op in (("a.txt", "relu"), ("b.txt", "neg")):
        Path(name).write_text(GRAPH.format(op))
    expected = command(*argv, redirect="> out.txt").returncode
    assert expected == (1 if argv[0] == "diff" else 0)
    done = command(*argv, redirect="| exec true")
    assert (done.returncode, done.stderr) == (expected, "")


def test_a_full_or_closed_standard_error_does_not_change_the_exit_code(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for redirect in ("2>/dev/full", "2>&-"):
        done = command("inspect", "nowhere", "--json", redirect=redirect)
        assert done.returncode == 2
        assert json.loads(done.stdout)["error"]["kind"] == "FileNotFoundError"


def test_names_that_standard_output_cannot_encode_are_printed_in_escapes(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.txt").write_text(GRAPH.format("relu"))
    name = os.fsdecode(b"\xff.tosa")
    done = command("lower", "model.txt", "-o", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nwrote \\udcff.tosa\n")
    assert Path(name).exists()
    np.savez("x.npz", x=np.zeros(3, np.float32))
    done = command("run", "model.txt", "--input", "x.npz", "-o", os.fsdecode(b"\xff.npz"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["output"] in ("\\udcff.npz", os.fsdecode(b"\xff.npz"))


def test_run_writes_arrays_of_any_name(tmp_path, monkeypatch, capsys) -> None:
    class Named(torch.nn.Module):
        def forward(self, file: torch.Tensor, allow_pickle: torch.Tensor) -> torch.Tensor:
            file.add_(1)
            return file * allow_pickle

    monkeypatch.chdir(tmp_path)
    example = (torch.ones(3), torch.ones(3))
    tosaic.from_exported(torch.export.export(Named(), example)).save("model.tosaic")
    for name in ("file", "allow_pickle"):
        np.save(f"{name}.npy", np.full(3, 3, np.float32))
    with zipfile.ZipFile("x.npz", "w") as archive:
        archive.write("file.npy")
        archive.write("allow_pickle.npy")
    assert run(capsys, "run", "model.tosaic", "--input", "x.npz", "-o", "y.npz")[0] == 0
    with np.load("y.npz") as found:
        assert {name: found[name].tolist() for name in found.files} == {
            "file": [4, 4, 4],
            "out": [12, 12, 12],
        }


def test_lower_overwrites_the_file_that_it_reads_only_if_option_o_names_it(files, capsys) -> None:
    before = Path("model.tosa").read_bytes()
    code, _, err = run(capsys, "lower", "model.tosa")
    assert (code, err) == (
        2,
        "tosaic: [--output] the file to write is the one to read: expected the name of another file\n",
    )
    assert Path("model.tosa").read_bytes() == before
    assert run(capsys, "lower", "model.tosa", "-o", "model.tosa")[0] == 0


def test_inspect_with_option_quantization_lists_floats_and_integers(files, capsys) -> None:
    code, out, _ = run(capsys, "inspect", "model.pt2", "--quantization", "--json")
    assert code == 0
    data = json.loads(out)
    assert data["is_integer"] is False
    assert data["values"] == []
    assert all(f["reasons"] for f in data["floats"])
