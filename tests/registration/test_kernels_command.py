"""The command ``tosaic kernels``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tosaic
from tosaic.cli import main
from tosaic.pte.file_writer import FileWriter
from tosaic.pte.method_writer import MethodWriter, PtePayload


def _write(path: str, kernels: list[str], *, delegate: bool = False) -> None:
    """Writes a file that calls kernels of one operand, one after another."""
    file = FileWriter()
    writer = MethodWriter(file, "forward")
    x = value = writer.tensor("f32", (2, 3))
    for kernel in kernels:
        name, _, overload = kernel.partition(".")
        made = writer.tensor("f32", (2, 3))
        writer.call(name, overload, [value], [made])
        value = made
    if delegate:
        made = writer.tensor("f32", (2, 3))
        writer.delegate(PtePayload("Npu", b"payload"), [value], [made])
        value = made
    writer.finish([x], [value])
    Path(path).write_bytes(file.finish())


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write("a.pte", ["aten::relu.out", "aten::relu.out", "aten::sigmoid.out"])
    _write("b.pte", ["aten::relu.out", "aten::tanh.out"], delegate=True)
    _write("npu.pte", [], delegate=True)


@pytest.mark.usefixtures("files")
def test_kernels_prints_the_list_and_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "a.pte", "b.pte", "-o", "ops.yaml", "--report", "kernels.html"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3 kernels for 2 programs\n")
    assert out.endswith("\nwrote ops.yaml\n")
    assert Path("ops.yaml").read_text() == tosaic.registration.kernel_list(["a.pte", "b.pte"]).to_yaml()
    assert "v1/6;0,1|6;0,1|6;0,1" in Path("ops.yaml").read_text()
    assert "aten::sigmoid.out" in Path("kernels.html").read_text()
    assert main(["kernels", "a.pte", "-o", "ops.yaml", "--all-dtypes"]) == 0
    assert "- default" in Path("ops.yaml").read_text()
    assert "v1/6" not in Path("ops.yaml").read_text()


@pytest.mark.usefixtures("files")
def test_kernels_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "a.pte", "b.pte", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {each["operator"]: each["calls"] for each in data["kernels"]} == {
        "aten::relu.out": 3,
        "aten::sigmoid.out": 1,
        "aten::tanh.out": 1,
    }
    assert [each["backend"] for each in data["backends"]] == ["Npu"]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["none.pte"], "there is no file 'none.pte'"),
        (["words.txt"], "[pte]"),
        ([], "the following arguments are required: FILE"),
        (["npu.pte", "-o", "ops.yaml"], "no operator is left to the host"),
        (["a.pte", "--all-dtypes"], "no list is written"),
        (["a.pte", "-o", "nowhere/ops.yaml"], "the folder of 'ops.yaml' is missing"),
        (["."], "'.' is a folder"),
    ],
)
def test_kernels_refuses_what_has_no_list(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("words.txt").write_text("hello, world: this is no program")
    assert main(["kernels", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not Path("ops.yaml").exists()


@pytest.mark.usefixtures("files")
def test_a_program_with_nothing_on_the_host_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "npu.pte"]) == 0
    assert "nothing is left to the host" in capsys.readouterr().out
