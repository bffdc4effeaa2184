"""Damaged files and texts: an error that says what is wrong and where, never a crash; exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from errors.broken import export
from refusals import refusal
from tosaic import _core


@pytest.fixture(scope="module")
def data() -> bytes:
    return tosaic.lower(export(torch.relu, torch.randn(1, 2, 8, 8))).to_bytes()


def test_an_empty_file_is_refused() -> None:
    assert refusal(tosaic.InvalidGraph, _core.deserialize, b"") == (
        "[tosa] the file is truncated: expected at least 8 bytes, got 0"
    )


def test_a_truncated_file_is_refused_wherever_it_ends(data: bytes) -> None:
    for size in range(len(data) - 8):
        text = refusal(tosaic.InvalidGraph, _core.deserialize, data[:size])
        assert "truncated" in text, (size, text)


def test_a_file_of_another_kind_is_refused(data: bytes) -> None:
    text = refusal(tosaic.InvalidGraph, _core.deserialize, data[:4] + b"TFL3" + data[8:])
    assert text == "[tosa] not a TOSA file: expected the identifier 'TOSA' at byte 4, got 'TFL3'"


def test_a_file_of_another_version_is_refused(data: bytes) -> None:
    """Replaces each i32 1 of the file by 9; one of them is the major number in the version table."""
    found = []
    for at in range(8, len(data) - 4):
        if data[at : at + 4] == b"\x01\x00\x00\x00":
            changed = data[:at] + b"\x09\x00\x00\x00" + data[at + 4 :]
            try:
                _core.deserialize(changed)
            except tosaic.Error as error:
                if "version" in str(error):
                    found.append(str(error))
    assert found == ["[tosa] unknown version of the format: expected TOSA 1.0 or 1.1, got 9.0.0"]


GRAPH = """tosaic 1
graph @forward stage=exported {{
  input %x: f32[2,3] path="x"
  {line}
  return %y path="out"
}}
"""


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (
            "%y: f32[2,3] = relux(%x)",
            tosaic.InvalidGraph,
            "[parse] unknown operator: expected a name of the operator table, got relux (line 4, column 18)",
        ),
        (
            "%y: f32[2,3] = relu(%z)",
            tosaic.InvalidGraph,
            '[parse] unknown value: expected a name defined above, got "z" (line 4, column 24)',
        ),
        (
            "%y: f33[2,3] = relu(%x)",
            tosaic.InvalidGraph,
            "[parse] unknown dtype: expected bool, i8, i32, f16, f32 ..., got f33 (line 4, column 7)",
        ),
        (
            "%y: f32[3,2] = relu(%x)",
            tosaic.InvalidGraph,
            "[verify] the stored type of result 'y' of relu is not the inferred one: expected f32[2,3], "
            "got f32[3,2] (node 'y')",
        ),
        (
            "%y: f32[2,3] = softmax(%x) {axes=1}",
            tosaic.InvalidGraph,
            "[parse] softmax has no such attribute: expected axis, dtype, got axes (line 4, column 31)",
        ),
        (
            "%y: f32[2,3] = tosa.tanh(%x)",
            tosaic.SpecViolation,
            "[verify] tosa.tanh may not stand at stage exported",
        ),
    ],
)
def test_malformed_text_names_line_and_column(line: str, kind: Any, message: str) -> None:
    assert refusal(kind, _core.Graph.parse, GRAPH.format(line=line)).startswith(message)


def test_text_of_another_version_or_kind_is_refused() -> None:
    assert refusal(tosaic.InvalidGraph, _core.Graph.parse, "tosaic 9\n").startswith(
        "[parse] unknown version of the text form: expected tosaic 1, got tosaic 9 (line 1, column 1)"
    )
    assert refusal(tosaic.InvalidGraph, _core.Graph.parse, "").startswith(
        "[parse] not the text form of a graph"
    )


def test_a_truncated_text_is_refused_wherever_it_ends() -> None:
    text = GRAPH.format(line="%y: f32[2,3] = relu(%x)").rstrip()
    for size in range(len(text)):
        assert refusal(tosaic.Error, _core.Graph.parse, text[:size]).startswith(("[parse]", "[verify]"))


def test_a_graph_without_its_weights_is_refused_when_it_is_run() -> None:
    model = torch.nn.Linear(8, 40)
    text = tosaic.from_exported(torch.export.export(model, (torch.ones(1, 8),))).text()
    graph = _core.Graph.parse(text)
    assert graph.text() == text
    message = refusal(tosaic.InvalidGraph, tosaic.program.from_graph(graph).run, np.ones((1, 8), np.float32))
    assert message.startswith("[storage] constant 'weight' has no data (node 'linear'")
    assert message.endswith("It was read from a text form without its weights; bind them first.")


# ---- the command line ----


def tosaic_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tosaic", *arguments], cwd=folder, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> Path:
    where = tmp_path_factory.mktemp("files")
    (where / "good.tosa").write_bytes(data)
    (where / "cut.tosa").write_bytes(data[: len(data) // 2])
    (where / "noise.tosa").write_bytes(bytes(range(256)) * 4)
    (where / "noise.pt2").write_bytes(b"PK\x03\x04" + bytes(range(256)))
    (where / "noise.txt").write_bytes(b"\xff\xfe\x00" * 30)
    (where / "words.txt").write_text("hello")
    np.savez(where / "x.npz", x=np.zeros((1, 2, 8, 8), np.float32))
    np.savez(where / "wrong.npz", x=np.zeros((1, 2, 8, 9), np.float32))
    np.savez(where / "names.npz", z=np.zeros((1, 2, 8, 8), np.float32))
    (where / "objects.npy").write_bytes(
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }" + b" " * 62
    )
    torch.export.save(export(lambda x: torch.special.i0(x), torch.ones(2)), where / "i0.pt2")
    return where


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["inspect", "nowhere.tosa"], 2, "there is no file 'nowhere.tosa'"),
        (["inspect", "cut.tosa"], 2, "[tosa] the file is truncated"),
        (["inspect", "noise.tosa"], 2, "[tosa] not a TOSA file"),
        (["inspect", "noise.pt2"], 2, "noise.pt2"),
        (["inspect", "noise.txt"], 2, "'noise.txt' is not a program"),
        (["inspect", "words.txt"], 2, "[parse] not the text form of a graph"),
        (["lower", "i0.pt2"], 3, "operator 'aten.special_i0.default' is foreign to tosaic"),
        (["lower", "i0.pt2"], 3, "takes no descriptions of operators. docs/reference/cli.md"),
        (["lower", "i0.pt2", "--target", "TOSA-7"], 2, "[target] unknown target"),
        (["check", "i0.pt2"], 1, ""),
        (
            ["run", "good.tosa", "--input", "wrong.npz", "-o", "y.npz"],
            2,
            "has the wrong shape: expected [1,2,8,8]",
        ),
        (["run", "good.tosa", "--input", "names.npz", "-o", "y.npz"], 2, "x"),
        (["run", "good.tosa", "--input", "objects.npy", "-o", "y.npz"], 2, ""),
        (["run", "good.tosa", "--input", "good.tosa", "-o", "y.npz"], 2, ""),
        (["run", "good.tosa", "--input", "x.npz", "-o", "no/such/folder/y.npz"], 2, ""),
        (["lower", "i0.pt2", "--bind", "x"], 2, "'x' is not INPUT:AXIS=SIZE"),
        (["frobnicate"], 2, "invalid choice"),
        ([], 2, ""),
        (["run", "good.tosa", "--input", "x.npz", "-o", "y.npz"], 0, ""),
    ],
)
def test_exit_codes_of_the_command(folder: Path, arguments: list[str], code: int, message: str) -> None:
    done = tosaic_command(folder, *arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    ours = [
        line for line in done.stderr.splitlines() if "torch/export/" not in line
    ]  # torch logs the exceptions of its own attempts
    assert "Traceback" not in "\n".join(ours)
