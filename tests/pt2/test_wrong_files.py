"""Wrong and hostile `.pt2` files: each is refused by an error of tosaic that says what is wrong."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import tosaic
from torch import nn
from tosaic.pt2.program import read_pt2

MODEL = "m/models/model.json"
WEIGHTS = "m/data/weights/model_weights_config.json"


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("pt2") / "m.pt2"
    torch.export.save(torch.export.export(nn.Linear(4, 4), (torch.ones(2, 4),)), path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(
    entries: dict[str, bytes], path: Path, compression: int = zipfile.ZIP_STORED, **more: bytes
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as out:
        for name, data in (entries | more).items():
            out.writestr(name, data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises((tosaic.InvalidGraph, tosaic.UnsupportedOp)) as failed:
        read_pt2(path)
    text = str(failed.value)
    assert text.startswith(f"[pt2] '{path.name}': ")
    return text


def edited(entries: dict[str, bytes], name: str, edit: Callable[[Any], None]) -> dict[str, bytes]:
    document = json.loads(entries[name])
    edit(document)
    return entries | {name: json.dumps(document).encode()}


def test_compressed_entries_are_read(entries: dict[str, bytes], tmp_path: Path) -> None:
    packed = read_pt2(written(entries, tmp_path / "packed.pt2", zipfile.ZIP_DEFLATED))
    plain = read_pt2(written(entries, tmp_path / "plain.pt2"))
    assert packed.graph.text() == plain.graph.text()
    weights = [each.array.tobytes() for each in packed.graph.constants.values()]
    assert weights == [each.array.tobytes() for each in plain.graph.constants.values()]


def test_an_entry_that_unpacks_to_too_much_is_refused(entries: dict[str, bytes], tmp_path: Path) -> None:
    bomb = {"m/data/weights/weight_0": bytes(65 << 20)}
    path = written(entries | bomb, tmp_path / "bomb.pt2", zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    assert "'data/weights/weight_0' is too large to be unpacked or copied" in refusal(path)


@pytest.mark.parametrize("name", ["m/../x", "/etc/x", "m//x", "m/./x", "m\\x"])
def test_an_entry_with_a_hostile_path_is_refused(
    entries: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    text = refusal(written(entries, tmp_path / "m.pt2", **{name: b""}))
    assert "an entry has no plain path" in text


def test_an_entry_that_occurs_twice_is_refused(entries: dict[str, bytes], tmp_path: Path) -> None:
    path = written(entries, tmp_path / "m.pt2")
    with zipfile.ZipFile(path, "a") as out, pytest.warns(UserWarning, match="Duplicate name"):
        out.writestr(MODEL, b"{}")
    assert "the entry 'models/model.json' occurs twice" in refusal(path)


def test_a_cut_file_is_refused(entries: dict[str, bytes], tmp_path: Path) -> None:
    data = written(entries, tmp_path / "m.pt2").read_bytes()
    for size in range(0, len(data), len(data) // 40):
        (tmp_path / "cut.pt2").write_bytes(data[:size])
        refusal(tmp_path / "cut.pt2")


def test_another_major_version_is_refused_and_both_are_named(
    entries: dict[str, bytes], tmp_path: Path
) -> None:
    changed = edited(entries, MODEL, lambda found: found["schema_version"].update(major=9, minor=1))
    text = refusal(written(changed, tmp_path / "m.pt2"))
    assert "another major version of the format: expected 8.x, got 9.1" in text


def _meta(**changes: Any) -> Callable[[Any], None]:
    return lambda found: found["config"]["weight"]["tensor_meta"].update(changes)


def _ints(*values: int) -> list[dict[str, int]]:
    return [{"as_int": value} for value in values]


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (_meta(sizes=_ints(4, 5)), "'weight' is not inside of its storage"),
        (_meta(sizes=_ints(1 << 40, 1 << 40)), "'weight' is not inside of its storage"),
        (_meta(sizes=_ints(1 << 40, 4), strides=_ints(0, 1)), "too large to be unpacked or copied"),
        (_meta(sizes=_ints(-4, 4)), "sizes and strides of 0 to 63 bits"),
        (_meta(sizes=_ints(1 << 63, 4)), "sizes and strides of 0 to 63 bits"),
        (_meta(strides=_ints(-4, 1)), "sizes and strides of 0 to 63 bits"),
        (_meta(strides=_ints(1)), "expected 2 strides"),
        (_meta(storage_offset={"as_int": 1}), "'weight' is not inside of its storage"),
        (_meta(storage_offset={"as_int": -1}), "'weight' begins before its storage"),
        (_meta(storage_offset={"as_int": 1 << 62}), "'weight' is not inside of its storage"),
        (_meta(dtype=99), "a dtype"),
        (_meta(dtype="7"), "a dtype"),
        (_meta(device={"type": "cuda", "index": 0}), "'weight' has no plain memory on the CPU"),
        (lambda found: found["config"]["weight"].update(path_name="../weight_0"), "there is no entry"),
        (lambda found: found["config"]["weight"].update(use_pickle=True), "'weight' is pickled"),
        (lambda found: found["config"].pop("weight"), "there is no tensor 'weight'"),
        (lambda found: found.update(config=[]), "model_weights_config.json' is damaged"),
    ],
)
def test_a_wrong_weight_is_refused(
    entries: dict[str, bytes], tmp_path: Path, edit: Callable[[Any], None], text: str
) -> None:
    assert text in refusal(written(edited(entries, WEIGHTS, edit), tmp_path / "m.pt2"))


def _node(edit: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda found: edit(found["graph_module"]["graph"]["nodes"][0])


def _first_input(value: Any) -> Callable[[Any], None]:
    return _node(lambda node: node["inputs"][0].update(arg=value))


def _signature(edit: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda found: edit(found["graph_module"]["signature"])


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda found: found.pop("graph_module"), "graph_module is damaged"),
        (lambda found: found.update(schema_version=None), "the version is damaged"),
        (lambda found: found["schema_version"].update(major="8"), "the version is damaged"),
        (_node(lambda node: node.update(inputs={})), "node 0 of the graph is damaged"),
        (_node(lambda node: node.update(target=3)), "node 0 of the graph is damaged"),
        (
            _node(lambda node: node.update(outputs=[{"as_tensor": {"name": "input"}}])),
            "names that occur once",
        ),
        (_node(lambda node: node["inputs"][0]["arg"].update(as_int=1)), "an object with one entry"),
        (
            _node(lambda node: node["inputs"][0].update(arg={"as_tensor": {"name": "x"}})),
            "node 0 of the graph",
        ),
        (_first_input({"as_int": 1 << 70}), "at most 64 bits"),
        (
            _node(lambda node: node["metadata"].update(nn_module_stack="a,b")),
            "node 0 of the graph is damaged",
        ),
        (_signature(lambda found: found.update(input_specs=[])), "the signature is damaged"),
        (_signature(lambda found: found["input_specs"].__setitem__(0, {"what": {}})), "a kind of input"),
        (_signature(lambda found: found.update(output_specs=3)), "the list of outputs is damaged"),
        (
            lambda found: found["graph_module"]["module_call_graph"][0]["signature"].update(in_spec="["),
            "the JSON of a tree spec cannot be read",
        ),
    ],
)
def test_a_wrong_graph_is_refused(
    entries: dict[str, bytes], tmp_path: Path, edit: Callable[[Any], None], text: str
) -> None:
    assert text in refusal(written(edited(entries, MODEL, edit), tmp_path / "m.pt2"))


@pytest.mark.parametrize("data", [b"", b"[" * 100_000, b'{"a": 1e', b"9" * 5000, b"\xff\xfe"])
def test_json_that_cannot_be_read_is_refused(entries: dict[str, bytes], tmp_path: Path, data: bytes) -> None:
    text = refusal(written(entries | {MODEL: data}, tmp_path / "m.pt2"))
    assert "the JSON of models/model.json cannot be read" in text


def test_an_argument_that_the_operator_does_not_take_is_refused_at_its_node(
    entries: dict[str, bytes], tmp_path: Path
) -> None:
    changed = edited(entries, MODEL, _node(lambda node: node["inputs"][1].update(arg={"as_string": "w"})))
    with pytest.raises(tosaic.InvalidGraph, match="the operator does not take these arguments") as failed:
        read_pt2(written(changed, tmp_path / "m.pt2"))
    assert "node 'linear'" in str(failed.value)
