"""The walk-throughs of CONTRIBUTING: the code that it shows does what it says."""

from __future__ import annotations

import ast
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tosaic
from tosaic.base import file_kinds
from tosaic.cli import main
from tosaic.cli.commands import COMMANDS
from tosaic.opening.sources import READERS

PAGE = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text()
GRAPH = """tosaic 1
graph @forward stage=exported {
  input %x: f32[4] path="x"
  %y: f32[4] = relu(%x)
  %z: f32[4] = exp(%y)
  return %z path="out"
}
"""


def section(title: str) -> str:
    """Returns the text of a section, up to the next one."""
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def code_of(title: str) -> str:
    """Returns the first block of Python of a section."""
    found = re.search(r"^```python\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
    assert found is not None, f"section '{title}' shows no code"
    return found[1]


def module_of(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, name, "exec"), module.__dict__)
    return module


def test_the_command_of_the_walk_through_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = module_of("tosaic.cli.commands.nodes", code_of("Add a command"), monkeypatch)
    monkeypatch.setitem(COMMANDS, "nodes", module)
    file = tmp_path / "two.txt"
    file.write_text(GRAPH)
    assert main(["nodes", str(file)]) == 0
    assert capsys.readouterr().out == "2 nodes\n"
    assert main(["nodes", str(file), "--json"]) == 0
    assert capsys.readouterr().out.split() == ["{", '"nodes":', "2", "}"]
    assert main(["nodes", str(tmp_path / "none.txt")]) == 2
    assert "none.txt" in capsys.readouterr().err


def test_a_command_is_in_one_list_and_one_module() -> None:
    folder = Path(sys.modules["tosaic.cli.commands"].__path__[0])
    assert {path.stem for path in folder.glob("*.py")} == {*COMMANDS, "__init__"}
    for name, module in COMMANDS.items():
        assert module.SUMMARY[0].islower(), name
        assert not module.SUMMARY.endswith("."), name


def test_the_file_format_of_the_walk_through_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = module_of("chains", code_of("Add a file format"), monkeypatch)
    monkeypatch.setitem(READERS, module.CHAIN, module.read_chain)
    file = tmp_path / "two.chain"
    file.write_text("[3] relu exp\n")
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    np.testing.assert_allclose(tosaic.open_program(file).run(x), np.exp(np.maximum(x, 0)), rtol=1e-6)
    assert tosaic.lower(file, target="TOSA-1.0+FP").graph.stage == "tosa"
    assert main(["inspect", str(file)]) == 0
    assert "relu" in capsys.readouterr().out
    file.write_text("[3] nothing\n")
    assert main(["check", str(file)]) in (2, 3)
    assert "nothing" in capsys.readouterr().err


def test_suffixes_of_programs_stand_in_one_table() -> None:
    """No module of the package compares a path with such a suffix by itself."""
    package = Path(tosaic.__path__[0])
    suffixes = {kind.suffix for kind in vars(file_kinds).values() if isinstance(kind, file_kinds.FileKind)}
    assert {kind.suffix for kind in READERS} < suffixes
    found = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        if path.name != "file_kinds.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in suffixes
    ]
    assert found == []
