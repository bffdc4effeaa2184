"""The walk-throughs of CONTRIBUTING: the code that it shows does what it says."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from tosaic.cli import main
from tosaic.cli.commands import COMMANDS

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
