"""Files of strangers run no code: each place of a ``.pt2`` file that torch executes has a planted payload.

A payload writes a marker file. The tests open the file by every command and function, and then the marker
must not be there. `test_every_payload_works_in_torch` shows that torch's own loader executes the payloads, so
that the other tests would fail if one reached it.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from tosaic.cli import main
from tosaic.cli.arguments import parser_of
from tosaic.cli.commands import COMMANDS
from tosaic.fx.files.stranger_files import _require_expression

Change = Callable[[dict[str, bytes], Path], None]
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Net(torch.nn.Module):
    """Calls an operator without a row, so that torch's loader has to read the file."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 2)
        self.register_buffer("shift", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) + self.shift
        return torch.logaddexp2(y, y * 2)


class Payload:
    """Pickled as a call that makes the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def touch(marker: Path) -> str:
    return f"__import__('pathlib').Path('{marker}').touch()"


@pytest.fixture(scope="module")
def entries() -> dict[str, bytes]:
    buffer = io.BytesIO()
    size = {"x": {0: torch.export.Dim("n", min=2, max=64)}}
    exported = torch.export.export(Net().eval(), (torch.from_numpy(X),), dynamic_shapes=size)
    torch.export.save(exported, buffer)
    with zipfile.ZipFile(buffer) as archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
        return {name: archive.read(entry) for name, entry in zip(names, archive.namelist(), strict=True)}


def written(entries: dict[str, bytes], path: Path, change: Change, marker: Path) -> Path:
    changed = dict(entries)
    change(changed, marker)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in changed.items():
            archive.writestr(f"m/{name}", data)
    return path


def in_program(change: Callable[[Any, Path], None]) -> Change:
    """Returns a change of the entries that changes the JSON of the program."""

    def changed(entries: dict[str, bytes], marker: Path) -> None:
        document = json.loads(entries["models/model.json"])
        change(document, marker)
        entries["models/model.json"] = json.dumps(document).encode()

    return changed


def in_text(old: str, new: Callable[[Path], str]) -> Change:
    """Returns a change of the entries that replaces a text in the JSON of the program."""

    def changed(entries: dict[str, bytes], marker: Path) -> None:
        text = entries["models/model.json"].decode()
        assert old in text
        entries["models/model.json"] = text.replace(old, new(marker)).encode()

    return changed


def sample_inputs(entries: dict[str, bytes], marker: Path) -> None:
    buffer = io.BytesIO()
    torch.save(((torch.from_numpy(X), Payload(marker)), {}), buffer)
    entries["data/sample_inputs/model.pt"] = buffer.getvalue()


def plain_sample_inputs(entries: dict[str, bytes], marker: Path) -> None:
    entries["data/sample_inputs/model.pt"] = pickle.dumps(((Payload(marker),), {}), protocol=2)


def _row(entries: dict[str, bytes], kind: str, name: str, change: dict[str, Any]) -> None:
    config = f"data/{kind}/model_{kind}_config.json"
    document = json.loads(entries[config])
    document["config"].setdefault(name, {"is_param": False, "tensor_meta": None, "use_pickle": False})
    document["config"][name].update(change)
    entries[config] = json.dumps(document).encode()


def pickled_weight(entries: dict[str, bytes], marker: Path) -> None:
    buffer = io.BytesIO()
    torch.save(Payload(marker), buffer)
    entries["data/weights/weight_9"] = buffer.getvalue()
    _row(entries, "weights", "layer.weight", {"path_name": "weight_9", "use_pickle": True})


def pickled_constant(entries: dict[str, bytes], marker: Path) -> None:
    buffer = io.BytesIO()
    torch.save(Payload(marker), buffer)
    entries["data/constants/tensor_9"] = buffer.getvalue()
    _row(entries, "constants", "shift", {"path_name": "tensor_9", "use_pickle": True})


def opaque_object(entries: dict[str, bytes], marker: Path) -> None:
    entries["data/constants/opaque_obj_0"] = pickle.dumps(Payload(marker))
    _row(entries, "constants", "other", {"path_name": "opaque_obj_0", "use_pickle": True})


def old_weights(entries: dict[str, bytes], marker: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"layer.weight": Payload(marker)}, buffer)
    entries["data/weights/model.pt"] = buffer.getvalue()
    del entries["data/weights/model_weights_config.json"]


def old_constants(entries: dict[str, bytes], marker: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"shift": Payload(marker)}, buffer)
    entries["data/constants/model.pt"] = buffer.getvalue()


def second_model(entries: dict[str, bytes], marker: Path) -> None:
    for name in list(entries):
        if "model" in name.rpartition("/")[2]:
            entries[name.replace("model.", "other.").replace("model_", "other_")] = entries[name]
    buffer = io.BytesIO()
    torch.save(((Payload(marker),), {}), buffer)
    entries["data/sample_inputs/other.pt"] = buffer.getvalue()


def _called(target: str, argument: str) -> Callable[[Any, Path], None]:
    def change(document: Any, marker: Path) -> None:
        (node,) = (
            each for each in document["graph_module"]["graph"]["nodes"] if "logaddexp2" in each["name"]
        )
        node["target"] = target
        node["inputs"] = [{"name": "", "arg": {"as_string": argument.format(marker)}, "kind": 1}]

    return change


def _with_context(kind: str, context: Callable[[Path], Any]) -> Callable[[Any, Path], None]:
    """Makes the result a tree of a container whose context is not plain."""

    def change(document: Any, marker: Path) -> None:
        leaf = {"type": None, "context": None, "children_spec": []}
        spec = {"type": kind, "context": context(marker), "children_spec": [leaf]}
        for entry in document["graph_module"]["module_call_graph"]:
            if entry["fqn"] == "":
                entry["signature"]["out_spec"] = json.dumps([1, spec])

    return change


def _module(marker: Path) -> str:
    """Writes a module that makes the marker when it is imported, as if a package were installed."""
    name = f"planted_{abs(hash(str(marker)))}"
    (marker.parent / f"{name}.py").write_text(touch(marker))
    sys.path.append(str(marker.parent))
    return name


def guards(document: Any, marker: Path) -> None:
    document["guards_code"] = [touch(marker)]


def argument_names(document: Any, marker: Path) -> None:
    for entry in document["graph_module"]["module_call_graph"]:
        if entry["fqn"] == "":
            entry["signature"]["forward_arg_names"] = [f"x={touch(marker)}"]


SIZE = "Symbol('s17', positive=True, integer=True)"


def size(entries: dict[str, bytes], marker: Path) -> None:
    with_size(f"{touch(marker)} or 3")(entries, marker)


PAYLOADS: dict[str, Change] = {
    "sample inputs": sample_inputs,
    "sample inputs of another pickle": plain_sample_inputs,
    "a pickled weight": pickled_weight,
    "a pickled constant": pickled_constant,
    "an opaque object": opaque_object,
    "weights of an older version": old_weights,
    "constants of an older version": old_constants,
    "a second model": second_model,
    "a size": size,
    "the name of an input": in_text('"x"', lambda marker: f'"x={touch(marker)}"'),
    "the name of a value": in_text('"logaddexp2"', lambda marker: f'"x[{touch(marker)}]"'),
    "a called function": in_program(_called("torch.os.mkdir", "{}")),
    "an operator that writes": in_program(_called("torch.ops.aten.save.default", "{}")),
    "the module of a defaultdict": in_program(
        _with_context(
            "collections.defaultdict",
            lambda marker: {
                "default_factory_module": _module(marker),
                "default_factory_name": "list",
                "dict_context": ["y"],
            },
        )
    ),
    "the module of an enum": in_program(
        _with_context(
            "builtins.dict",
            lambda marker: json.dumps([{"__enum__": True, "fqn": f"{_module(marker)}:Kind", "name": "A"}]),
        )
    ),
    "guards": in_program(guards),
    "names of arguments": in_program(argument_names),
}
LATER = {
    "guards",
    "the name of a value",
    "names of arguments",
    "a called function",
    "an operator that writes",
}
"""Executed when the program becomes a module or runs, and not while it is read."""
HARMLESS_YET = {"a called function", "an operator that writes", "names of arguments", "the name of a value"}
"""In this form refused by torch's verifier or by Python, or in code that these calls do not run."""


@pytest.mark.parametrize("place", PAYLOADS)
def test_a_payload_is_not_executed_by_the_api(place: str, entries: dict[str, bytes], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = written(entries, tmp_path / "evil.pt2", PAYLOADS[place], marker)
    bind, sample = {"x": {0: 3}}, (X,)
    calls: list[Callable[[], Any]] = [
        lambda: tosaic.open_program(path, bind=bind),
        lambda: tosaic.check(path, bind=bind),
        lambda: tosaic.open_program(path, bind=bind).run(X),
        lambda: tosaic.lower(path, bind=bind),
        lambda: tosaic.compare(path, path, sample, bind=bind),
        lambda: (
            tosaic.quantize(path, [sample], bind=bind, progress=False)
            .to_exported()
            .module()(torch.from_numpy(X))
        ),
        lambda: tosaic.export_model(path, recipe="tosa-int8", samples=[sample], bind=bind, verbose=0),
    ]
    for call in calls:
        with contextlib.suppress(tosaic.Error):
            call()
        assert not marker.exists()


def test_every_payload_works_in_torch(entries: dict[str, bytes], tmp_path: Path) -> None:
    """Without this, a payload might be harmless anyway, and the tests above would show nothing."""
    harmless = []
    for number, (place, change) in enumerate(PAYLOADS.items()):
        marker = tmp_path / f"marker{number}"
        path = written(entries, tmp_path / f"evil{number}.pt2", change, marker)
        try:
            loaded = torch.export.load(path)
            if place in LATER:
                loaded.module(check_guards=True)(torch.from_numpy(X))
        except Exception:
            pass
        if not marker.exists() and place not in HARMLESS_YET:
            harmless.append(place)
    assert harmless == []


VALUES = {"ARRAYS": "{x}", "RECIPE": "tosa-int8", "NAMES": "TOSA-1.0+FP", "OUT": "{out}", "FOLDER": "{out}"}
"""What the tests give to an option that a command requires, by what its help calls the value."""


def file_commands() -> list[str]:
    """Returns each command that opens a program, plainly and with each of its flags, by the parser."""
    (commands,) = (each for each in parser_of(COMMANDS)._actions if each.dest == "command")
    found = []
    for name, command in commands.choices.items():  # type: ignore[union-attr]
        options = [each for each in command._actions if each.option_strings]
        places = [each for each in command._actions if not each.option_strings]
        if not places or [each.metavar for each in places] == ["RECIPE"]:
            continue
        assert {each.metavar for each in places} <= {"FILE", "MODEL", "A", "B"}, name
        words = [name, *["{evil}"] * len(places)]
        for each in options:
            if each.required:
                words += [each.option_strings[-1], VALUES[str(each.metavar)]]
            elif each.dest == "output":
                words += [each.option_strings[-1], "{out}.tosa" if name == "lower" else "{out}"]
            elif each.dest == "bind":
                words += ["--bind", "x:0=3"]
            elif each.dest == "verbose":
                words += ["--verbose", "0"]
        found.append(" ".join(words))
        for each in options:
            flag = each.option_strings[-1]
            if not each.required and (each.nargs == 0 or each.metavar == "ARRAYS") and each.dest != "help":
                if each.dest in ("trust", "as_json", "json"):
                    continue
                value = [VALUES["ARRAYS"]] if each.metavar == "ARRAYS" else []
                found.append(" ".join([*words, flag, *value]))
    return found


SILENT = ("sample inputs", "sample inputs of another pickle", "a second model", "guards")
"""Parts that the program does not need: the file is read without them."""


@pytest.mark.parametrize("place", PAYLOADS)
def test_a_payload_is_not_executed_by_the_commands(
    place: str, entries: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "marker"
    path = written(entries, tmp_path / "evil.pt2", PAYLOADS[place], marker)
    np.save(tmp_path / "x.npy", X)
    for number, command in enumerate(file_commands()):
        out = tmp_path / f"out{number}"
        text = command.format(evil=path, x=tmp_path / "x.npy", out=out)
        code = main(text.split())
        assert code != 4, f"{text}: {capsys.readouterr().err}"
        assert not marker.exists(), text


def test_the_commands_are_found_by_the_table_of_the_command_line() -> None:
    """Every command that reads a program is tried, those that are added later, too."""
    found = {text.split()[0] for text in file_commands()}
    assert found >= {
        "export",
        "lower",
        "quantize",
        "check",
        "partition",
        "inspect",
        "kernels",
        "run",
        "compare",
    }
    assert "lower {evil} --output {out}.tosa --bind x:0=3 --calibrate {x}" in file_commands()


@pytest.mark.parametrize("place", [place for place in PAYLOADS if place not in SILENT])
def test_a_file_that_could_run_code_is_refused_with_the_way_out(
    place: str, entries: dict[str, bytes], tmp_path: Path
) -> None:
    path = written(entries, tmp_path / "evil.pt2", PAYLOADS[place], tmp_path / "marker")
    with pytest.raises(tosaic.InvalidGraph) as refused:
        tosaic.open_program(path, bind={"x": {0: 3}})
    assert "torch's loader could run code of 'evil.pt2'" in str(refused.value)
    assert "trust=True, or --trust" in str(refused.value)


UNCHECKED = {
    "aten._reshape_alias.default": {"size": [9_999_999], "stride": [1]},
    "inductor._reinterpret_tensor.default": {"size": [9_999_999], "stride": [1], "offset_increment": 0},
    "inductor._alloc_from_pool.default": {},
    "aten._cummax_helper.default": {},
    "aten.max_pool2d_with_indices_backward.default": {},
    "aten._convert_indices_from_coo_to_csr.default": {},
    "aten.segment_reduce.default": {},
    "aten._sparse_coo_tensor_unsafe.default": {},
    "mkldnn.data_ptr.default": {},
}
"""Operators of torch that read or write outside of their operands, as torch does not check these."""


@pytest.mark.parametrize("target", UNCHECKED)
def test_an_operator_that_leaves_its_operands_is_not_called(
    target: str, entries: dict[str, bytes], tmp_path: Path
) -> None:
    def change(document: Any, _: Path) -> None:
        (node,) = (
            each for each in document["graph_module"]["graph"]["nodes"] if "logaddexp2" in each["name"]
        )
        node["target"] = f"torch.ops.{target}"
        numbers = [
            {"name": name, "arg": {"as_ints" if isinstance(value, list) else "as_int": value}, "kind": 1}
            for name, value in UNCHECKED[target].items()
        ]
        node["inputs"] = [node["inputs"][0], *numbers]

    path = written(entries, tmp_path / "unchecked.pt2", in_program(change), tmp_path / "marker")
    with pytest.raises(tosaic.InvalidGraph, match="may read and write memory outside of its operands"):
        tosaic.compare(path, path, (X,), bind={"x": {0: 3}})


def with_size(text: str) -> Change:
    """Returns a change of the entries that writes each size as this expression."""
    return in_program(lambda document, _: _replace(document, "expr_str", text))


def _replace(document: Any, key: str, value: Any) -> None:
    pending = [document]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if key in item:
                item[key] = value
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9",
        "Pow(Integer(9), Pow(Integer(9), Integer(999999999)))",
        "Mod(10**(10**8), 7)",
        "((((9**999)**999)**999)**999)",
        "PowByNatural(9, 10**10)",
        "FloatPow(9.0, exp=1e9)",
        "LShift(1, 10**12)",
        "Float('1e999999999')",
        "Float('1.5', precision=999999999)",
        "Rational(1, 10**9)**(10**7)",
        "E**(10**7)",
        f"2**{SIZE}",
        f"Max({', '.join(f's{i}' for i in range(300))})",
        "1e400",
        "-" * 900 + "1",
    ],
)
def test_a_size_that_never_ends_is_refused(text: str, entries: dict[str, bytes], tmp_path: Path) -> None:
    """sympy computes exactly, also numbers of more digits than any memory holds."""
    path = written(entries, tmp_path / "slow.pt2", with_size(text), tmp_path / "marker")
    with pytest.raises(tosaic.InvalidGraph, match=r"takes too long or too much|no arithmetic"):
        tosaic.open_program(path, bind={"x": {0: 3}})


@pytest.mark.parametrize(
    "text",
    [
        f"Mul(Integer(2), Pow({SIZE}, Integer(-1)), Pow({SIZE}, Rational(1, 2)), Float('2.5', precision=53))",
        f"Add({', '.join(f'Mul(Integer({i}), {SIZE})' for i in range(100))})",
        f"Max(Integer(1), FloorDiv(Add(Mul(Integer(4), {SIZE}), Integer(-1)), Integer(3)))",
        f"{SIZE}**2*1.5 + 2**10 - 10**-3",
    ],
)
def test_a_size_that_is_arithmetic_is_no_reason_to_refuse(text: str) -> None:
    _require_expression(text)


def test_trust_gives_torch_the_file_itself(entries: dict[str, bytes], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = written(entries, tmp_path / "own.pt2", pickled_constant, marker)
    with contextlib.suppress(Exception):  # the payload returns no tensor
        tosaic.open_program(path, bind={"x": {0: 3}}, trust=True)
    assert marker.exists()
    marker.unlink()
    main(["check", str(path), "--bind", "x:0=3", "--trust"])
    assert marker.exists()


def test_example_inputs_that_are_plain_data_are_read(entries: dict[str, bytes], tmp_path: Path) -> None:
    path = written(entries, tmp_path / "m.pt2", lambda *_: None, tmp_path)
    result = tosaic.export_model(path, recipe="tosa-int8", bind={"x": {0: 3}}, verbose=0)
    assert result.ok


def test_a_pickled_tensor_is_read_by_the_unpickler_of_tensors(
    entries: dict[str, bytes], tmp_path: Path
) -> None:
    def pickled(entries: dict[str, bytes], _: Path) -> None:
        buffer = io.BytesIO()
        torch.save(torch.nn.Parameter(torch.full((2, 4), 0.5)), buffer)
        entries["data/weights/weight_9"] = buffer.getvalue()
        _row(entries, "weights", "layer.weight", {"path_name": "weight_9", "use_pickle": True})

    path = written(entries, tmp_path / "m.pt2", pickled, tmp_path)
    program = tosaic.open_program(path, bind={"x": {0: 3}})
    net = Net()
    with torch.no_grad():
        net.layer.weight.fill_(0.5)
        expected = net(torch.from_numpy(X)).numpy()
    assert np.allclose(program.run(X), expected, atol=1e-5)


# ---- recipes ----


def recipe(function: str) -> str:
    stage = {"class": "Stage", "name": "s", "at": "model", "function": {"function": function}}
    return json.dumps(
        {"format": "tosaic recipe", "version": 1, "class": "Recipe", "name": "evil", "stages": [stage]}
    )


@pytest.mark.parametrize(
    "function",
    [
        "os:system",
        "builtins:exec",
        "tosaic.recipes.written:importlib.import_module",
        "tosaic.recipes.written:json.loads",
        "tosaic.recipes.training:train_quantized.__globals__",
        "tosaic.recipes.written:_imported",
        "torchao.quantization.pt2e.observer:torch.load",
        "planted_recipe:stage",
    ],
)
def test_a_recipe_names_only_functions_of_listed_packages(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "planted_recipe.py").write_text(f"{touch(marker)}\ndef stage(*_): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "evil.json"
    path.write_text(recipe(function))
    with pytest.raises(tosaic.InvalidGraph, match="not one that any recipe may name"):
        tosaic.Recipe.load(path)
    assert main(["recipes", str(path)]) == 2
    assert not marker.exists()
    if function.startswith("planted"):
        assert tosaic.Recipe.load(path, trust=True).stages[0].function.__name__ == "stage"
        assert main(["recipes", str(path), "--trust"]) == 0
        assert marker.exists()


# ---- other files ----


def _program(path: Path) -> Path:
    exported = torch.export.export(torch.nn.Linear(64, 64).eval(), (torch.ones(1, 64),))
    tosaic.from_exported(exported).save(path)
    return path


def test_a_compressed_member_of_an_archive_is_refused(tmp_path: Path) -> None:
    """Three megabytes unpack to gigabytes, so no member is unpacked before its size is known."""
    path = _program(tmp_path / "m.tosaic")
    with zipfile.ZipFile(path) as source:
        members = {name: source.read(name) for name in source.namelist()}
    for packed in members:
        with zipfile.ZipFile(tmp_path / "big.tosaic", "w") as archive:
            for name, data in members.items():
                method = zipfile.ZIP_DEFLATED if name == packed else zipfile.ZIP_STORED
                archive.writestr(name, data + b" " * (50 << 20) * (name == packed), method)
        assert (tmp_path / "big.tosaic").stat().st_size < 1 << 20
        tracemalloc.start()
        for call in (
            lambda: tosaic.load(tmp_path / "big.tosaic"),
            lambda: tosaic.open_program(tmp_path / "big.tosaic"),
        ):
            with pytest.raises(tosaic.InvalidGraph, match=f"'{packed}' is compressed"):
                call()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20 << 20
        assert main(["inspect", str(tmp_path / "big.tosaic")]) == 2


def test_a_member_that_claims_another_size_is_refused(tmp_path: Path) -> None:
    path = _program(tmp_path / "m.tosaic")
    data = path.read_bytes()
    at = data.index(b"PK\x01\x02")  # the first entry of the directory: bytes 24 to 27 are its size
    for size in (0, 1 << 31):
        path.write_bytes(data[: at + 24] + size.to_bytes(4, "little") + data[at + 28 :])
        with pytest.raises(tosaic.InvalidGraph):
            tosaic.load(path)


def test_a_weight_that_claims_a_huge_shape_is_refused(tmp_path: Path) -> None:
    path = _program(tmp_path / "m.tosaic")
    with zipfile.ZipFile(path) as source:
        members = {name: source.read(name) for name in source.namelist()}
    weight = next(name for name in members if name.startswith("weights/"))
    old = next(text for text in (b"(64, 64), }         ", b"(64,), }            ") if text in members[weight])
    members[weight] = members[weight].replace(old, b"(9999999999999,), } ")
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(tosaic.InvalidGraph, match="claims 39999999999996 bytes and has"):
        tosaic.load(path)


def test_a_program_that_unpacks_to_more_than_its_file_may_need_is_refused(
    entries: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "big.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            grown = name == "models/model.json"
            method = zipfile.ZIP_DEFLATED if grown else zipfile.ZIP_STORED
            archive.writestr(f"m/{name}", data + b" " * (80 << 20) * grown, method)
    for call in (
        lambda: tosaic.open_program(path, bind={"x": {0: 3}}),
        lambda: tosaic.compare(path, path, (X,), bind={"x": {0: 3}}),
    ):
        with pytest.raises(tosaic.InvalidGraph, match="too large to be unpacked"):
            call()


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_arrays_of_objects_are_not_unpickled(suffix: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / f"x{suffix}"
    (np.save if suffix == ".npy" else np.savez)(path, np.array([Payload(marker)], dtype=object))
    exported = torch.export.export(torch.nn.ReLU(), (torch.ones(1),))
    lowered = tosaic.lower(exported)
    for call in (
        lambda: tosaic.compare(exported, lowered, path),
        lambda: tosaic.quantize(exported, [str(path)], progress=False),
    ):
        with pytest.raises(tosaic.Error):
            call()
    assert not marker.exists()


@pytest.mark.parametrize("suffix", [".tosaic", ".pte", ".tosa", ".txt", ".bpte", ".npz"])
def test_a_pickle_of_another_name_is_not_a_program(suffix: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / f"evil{suffix}"
    path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(tosaic.Error):
        tosaic.open_program(path)
    assert not marker.exists()


def test_reading_a_file_imports_no_module_of_the_working_folder(
    entries: dict[str, bytes], tmp_path: Path
) -> None:
    """The file names an operator of an absent package, and the folder has a module of that name."""
    marker = tmp_path / "marker"
    change = in_text("torch.ops.aten.logaddexp2.default", lambda _: "torch.ops.fbgemm.planted.default")
    path = written(entries, tmp_path / "evil.pt2", change, marker)
    (tmp_path / "fbgemm_gpu.py").write_text(touch(marker))
    (tmp_path / "fbgemm.py").write_text(touch(marker))
    code = f"import tosaic.opening.sources; tosaic.opening.sources.load_exported({str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "calls operators of 'fbgemm'" in done.stderr
    assert not marker.exists()
