"""JSON of files: values that are nested too deeply and halves of characters are refused in one line."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import tosaic
from tosaic.base.json_text import DEEPEST, parsed_json
from tosaic.cli import main

DEEP = 100_000


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


REFUSED = r"levels are nested|half a character"
HALF = '"x\\ud800"'


@pytest.fixture
def archive(tmp_path: Path) -> Callable[[Callable[[Any], str]], Path]:
    """Returns a function that writes an archive of tosaic with another manifest."""
    exported = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    tosaic.from_exported(exported).save(tmp_path / "m.tosaic")

    def changed(change: Callable[[Any], str]) -> Path:
        with zipfile.ZipFile(tmp_path / "m.tosaic") as source:
            members = {name: source.read(name).decode() for name in source.namelist()}
        members["manifest.json"] = change(json.loads(members["manifest.json"]))
        with zipfile.ZipFile(tmp_path / "changed.tosaic", "w") as made:
            for name, data in members.items():
                made.writestr(name, data)
        return tmp_path / "changed.tosaic"

    return changed


def _in_signature(value: str) -> Callable[[Any], str]:
    def change(manifest: Any) -> str:
        manifest["signature"]["arg_names"] = ["PLACE"]
        return json.dumps(manifest).replace('"PLACE"', value)

    return change


@pytest.mark.parametrize("value", [nested(DEEP), nested(DEEPEST + 1), HALF], ids=["deep", "limit", "half"])
def test_an_archive_with_such_a_manifest_is_refused(
    value: str, archive: Any, tmp_path: Path, capsys: Any
) -> None:
    path = archive(_in_signature(value))
    with pytest.raises(tosaic.InvalidGraph, match=REFUSED):
        tosaic.load(path)
    assert main(["inspect", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_deep_tree_of_arguments_in_an_archive_is_refused(archive: Any) -> None:
    def change(manifest: Any) -> str:
        tree: Any = "leaf"
        for _ in range(DEEPEST // 2):
            tree = {"kind": "list", "children": [tree], "keys": [], "type": ""}
        manifest["signature"]["inputs"] = tree
        return json.dumps(manifest)

    with pytest.raises(tosaic.InvalidGraph):
        tosaic.load(archive(change))


@pytest.mark.parametrize("value", [nested(DEEP), nested(DEEPEST + 1), HALF], ids=["deep", "limit", "half"])
def test_other_files_with_such_values_are_refused(value: str, tmp_path: Path, capsys: Any) -> None:
    plan = '{"name": "p", "arenas": [], "steps": [], "live_bytes": [0], "buffers": [], "x": PLACE}'
    recipe = (
        '{"format": "tosaic recipe", "version": 1, "class": "Recipe", "name": "r", "io": {"inputs": PLACE}}'
    )
    path = tmp_path / "file.json"
    readers: list[tuple[str, Callable[[], Any]]] = [
        (plan, lambda: tosaic.memory.MemoryPlan.from_json(path)),
        (recipe, lambda: tosaic.Recipe.load(path)),
        ('{"a": PLACE}', lambda: tosaic.IoQuant.from_json(path.read_text())),
    ]
    for text, read in readers:
        path.write_text(text.replace("PLACE", value))
        with pytest.raises(tosaic.InvalidGraph, match=REFUSED):
            read()
    path.write_text(recipe.replace("PLACE", value))
    assert main(["recipes", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_values_up_to_the_limit_are_read() -> None:
    assert parsed_json(nested(DEEPEST - 1)) == json.loads(nested(DEEPEST - 1))
    assert parsed_json('"gr\\u00f6\\u00dfe \\ud83d\\ude00"') == "größe 😀"
    assert parsed_json(b'{"a": [1, 2.5, null, true]}') == {"a": [1, 2.5, None, True]}


def test_a_key_that_occurs_twice_is_refused(archive: Any, tmp_path: Path) -> None:
    """Readers take one or the other, so two of them may see two programs in one file."""

    def change(manifest: Any) -> str:
        return json.dumps(manifest)[:-1] + ', "weights": []}'

    for call in (tosaic.load, tosaic.open_program):
        with pytest.raises(tosaic.InvalidGraph, match="the key 'weights' occurs twice"):
            call(archive(change))
    with pytest.raises(ValueError, match="the key 'a' occurs twice"):
        parsed_json('[{"b": {"a": 1, "c": 2, "a": 3}}]')
