"""Signatures that contradict themselves or their graph are refused by `load` and `Program`."""

from __future__ import annotations

import copy
import io
import json
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from tosaic.ports.signature import Tree

Point = namedtuple("Point", ["u", "v"])


@dataclass
class Result:
    first: Any
    second: Any


torch.export.register_dataclass(Result)


class Every(torch.nn.Module):
    """Each kind of nesting, a constant and a keyword."""

    def forward(self, d: dict[str, Any], point: Any, flag: bool = True, *, k: Any) -> dict[str, Any]:
        return {
            "o": d["a"] * 2,
            "t": (d["b"] + k, None),
            "p": Point(point.u, -point.v),
            "r": Result(k * 3, 7),
        }


A, B = np.ones(2, np.float32), np.zeros(3, np.float32)
CALL = (({"a": A, "b": B}, Point(A, B), True), {"k": B})


def run(program: tosaic.Program) -> Any:
    return program.run(*CALL[0], **CALL[1])


@pytest.fixture(scope="module")
def program() -> tosaic.Program:
    a, b = torch.tensor(A), torch.tensor(B)
    call = ({"a": a, "b": b}, Point(a, b), True)
    return tosaic.from_exported(torch.export.export(Every(), call, {"k": b}))


class Archive:
    """A saved program whose manifest the tests replace."""

    def __init__(self, program: tosaic.Program, path: Path) -> None:
        program.save(path)
        with zipfile.ZipFile(path) as archive:
            self._members = {name: archive.read(name) for name in archive.namelist()}
        self._path = path
        self.manifest = json.loads(self._members["manifest.json"])

    def load(self, manifest: Any) -> tosaic.Program:
        with zipfile.ZipFile(self._path, "w") as archive:
            for name, data in self._members.items():
                archive.writestr(name, json.dumps(manifest) if name == "manifest.json" else data)
        return tosaic.load(self._path)


@pytest.fixture
def archive(program: tosaic.Program, tmp_path: Path) -> Archive:
    return Archive(program, tmp_path / "model.tosaic")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def changed(manifest: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    again = copy.deepcopy(manifest)
    holder = again
    for key in path[:-1]:
        holder = holder[key]
    change(holder, path[-1])
    return again


def put(value: Any) -> Callable[[Any, Any], None]:
    return lambda holder, key: holder.__setitem__(key, value)


def twice(holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[f"{key} again"] = holder[key]


CHANGES = [
    *(put(value) for value in ([], {}, None, -1, 99, 1.5, True, [[]], "x", "leaf", "tuple", "dict", "none")),
    lambda holder, key: holder.__delitem__(key),
    twice,
]


def test_a_signature_that_is_changed_anywhere_is_refused_by_load_or_runs(archive: Archive) -> None:
    refused = 0
    signature = archive.manifest["signature"]
    for path in places(signature):
        for change in CHANGES:
            manifest = {**archive.manifest, "signature": changed(signature, path, change)}
            try:
                program = archive.load(manifest)
            except tosaic.InvalidGraph as error:
                assert "'model.tosaic' cannot be read" in str(error)  # noqa: PT017
                refused += 1
                continue
            try:
                run(program)
            except tosaic.InternalError:
                raise
            except tosaic.Error:  # the changed signature demands another call, and the error says so
                continue
    assert refused > 500


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("outputs", "keys"), ["o", "o", "p", "r"], "outputs: a dict has distinct keys"),
        (("outputs", "keys"), ["o"], "outputs: a dict of 4 has 1 keys"),
        (("outputs", "kind"), "set", "outputs: there is no kind 'set' of type ''"),
        (("arg_names",), [1], "inputs: the names of parameters are strings"),
        (("output_leaves",), [], "outputs: 7 leaves in the structure, and 0 are described"),
        (
            ("output_leaves", 0, "index"),
            77,
            r"outputs: the graph gives those at \[0, .*, and the signature wants",
        ),
        (
            ("input_leaves", 0, "index"),
            1,
            r"inputs: the graph takes those at \[0, 1, .*the signature gives \[1, 1,",
        ),
        (("input_leaves", 0, "index"), True, "inputs: InputLeaf.* is no leaf"),
    ],
)
def test_the_refusal_says_what_contradicts_what(archive: Archive, path, value, message) -> None:
    manifest = {**archive.manifest, "signature": changed(archive.manifest["signature"], path, put(value))}
    with pytest.raises(tosaic.InvalidGraph, match=f"a signature that is not the graph's: {message}"):
        archive.load(manifest)


def test_a_signature_that_is_nested_too_deeply_is_refused(archive: Archive) -> None:
    for depth in (250, 600, 5000):
        nested = "leaf"
        for _ in range(depth):
            nested = f'{{"kind": "tuple", "children": [{nested}], "keys": [], "type": ""}}'
        text = json.dumps(archive.manifest).replace('"outputs": {', f'"outputs": {nested}, "was": {{', 1)
        with zipfile.ZipFile(archive._path, "w") as made:
            for name, data in archive._members.items():
                made.writestr(name, text if name == "manifest.json" else data)
        with pytest.raises(tosaic.InvalidGraph, match=r"'model\.tosaic' cannot be read"):
            tosaic.load(archive._path)


def test_a_program_refuses_the_signature_of_another_graph(program: tosaic.Program, case) -> None:
    with pytest.raises(
        tosaic.InvalidGraph, match=r"^\[Program\] the signature is not that of the graph: got inputs"
    ):
        tosaic.Program(case.program.graph, program.signature)
    wrong = replace(program.signature, outputs=Tree("dict", (Tree("leaf"),), ("a", "b")))
    with pytest.raises(tosaic.InvalidGraph, match="outputs: a dict of 1 has 2 keys"):
        tosaic.Program(program.graph, wrong)
    again = tosaic.Program(program.graph, program.signature)
    np.testing.assert_array_equal(run(again)["o"], run(program)["o"])


def test_results_have_their_classes_if_these_are_loaded(archive: Archive) -> None:
    result = run(archive.load(archive.manifest))
    assert type(result["p"]) is Point
    assert type(result["r"]) is Result
    assert result["r"].second == 7


def test_a_result_whose_class_has_other_fields_now_is_a_dict_by_name(archive: Archive) -> None:
    text = json.dumps(archive.manifest)
    for old, new in (('"first"', '"other"'), ('"u"', '"w"')):
        text = text.replace(old, new)
    program = archive.load(json.loads(text))
    other = namedtuple("Other", ["w", "v"])
    result = program.run({"a": A, "b": B}, other(A, B), True, k=B)
    assert set(result["r"]) == {"other", "second"}
    assert result["p"]._fields == ("w", "v")


@pytest.mark.parametrize(
    "name", ["os:system", "subprocess:run", "subprocess:Popen", "builtins:exec", "builtins:type"]
)
def test_an_archive_calls_nothing_but_classes_that_hold_values(
    archive: Archive, tmp_path: Path, name: str
) -> None:
    assert name.partition(":")[0] in sys.modules or name.startswith("subprocess")
    made = tmp_path / "made"
    text = json.dumps(archive.manifest).replace(f"{__name__}:Result", name)
    keys = {"os:system": "command", "builtins:exec": "source"}.get(name, "args")
    manifest = json.loads(text.replace('"first"', f'"{keys}"'))
    for leaf in manifest["signature"]["output_leaves"]:
        if "first" in leaf["path"] or keys in leaf["path"]:
            leaf["index"], leaf["value"] = (
                None,
                f"touch {made}" if name != "builtins:exec" else f"open({str(made)!r}, 'w')",
            )
    result = run(archive.load(manifest))["r"]
    assert not made.exists()
    assert isinstance(result, dict)


def test_a_weight_of_another_dtype_or_shape_than_the_graph_says_is_refused(tmp_path: Path) -> None:
    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(320.0).reshape(40, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.t()

    x = np.ones((1, 8), np.float32)
    program = tosaic.from_exported(torch.export.export(Weighted(), (torch.tensor(x),)))
    archive = Archive(program, tmp_path / "model.tosaic")
    weight = np.arange(320, dtype=np.float32).reshape(40, 8)
    text = "expected float32 of shape [40, 8], got"
    for array, message in (
        (weight.T, f"{text} float32 of shape [8, 40]"),
        (weight.view(np.int32), f"{text} int32 of shape [40, 8]"),
        (weight.view(np.int8), f"{text} int8 of shape [40, 32]"),
        (weight[:3], "expected 1280 bytes, got 96"),
        (weight.astype(np.float64), "expected 1280 bytes, got 2560"),
        (weight.astype(">f4"), ""),
        (np.asfortranarray(weight), ""),
    ):
        buffer = io.BytesIO()
        np.save(buffer, array)
        archive._members["weights/0.npy"] = buffer.getvalue()
        if message:
            with pytest.raises(tosaic.InvalidGraph) as error:
                archive.load(archive.manifest)
            assert message in str(error.value)
        else:
            np.testing.assert_array_equal(archive.load(archive.manifest).run(x), program.run(x))


class Bag:
    """A class whose fields torch does not name."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items


torch.utils._pytree.register_pytree_node(
    Bag, lambda bag: (bag.items, None), lambda items, _: Bag(list(items)), serialized_type_name="tests.Bag"
)


def test_a_result_whose_class_has_no_field_names_is_a_dict_by_position() -> None:
    class Bagging(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Bag:
            return Bag([x + 1, x * 3])

    program = tosaic.from_exported(torch.export.export(Bagging(), (torch.ones(2),)))
    for runnable in (program, tosaic.lower(program)):
        found = runnable.run(A)
        assert {key: array.tolist() for key, array in found.items()} == {0: [2, 2], 1: [3, 3]}
