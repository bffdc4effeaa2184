"""The sidecar of a .tosa file: what it records, how it is checked, and how the two files are written."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import tosaic
from torch import nn
from tosaic.cli import main
from tosaic.lowering.sidecar import sidecar_path

Q = torch.ops.quantized_decomposed
INT8, UINT8 = (-128, 127, torch.int8), (0, 255, torch.uint8)


def rounded(x: torch.Tensor, scale: float, zero: int, kind: tuple[Any, ...] = INT8) -> torch.Tensor:
    return Q.dequantize_per_tensor(Q.quantize_per_tensor(x, scale, zero, *kind), scale, zero, *kind)


class Quantized(nn.Module):
    """Nested inputs and outputs, an index, an image in channels-last order, a constant result."""

    def forward(self, batch: dict[str, torch.Tensor], *, at: torch.Tensor) -> dict[str, Any]:
        image = rounded(batch["image"], 0.02, 3)
        mask = rounded(batch["mask"], 1 / 128, 0, UINT8)
        total = rounded(image * mask, 0.02, 3)
        return {"total": total, "rows": [total.flatten(2)[:, :, :4], at + 1, 7]}


class Counter(nn.Module):
    """A float buffer that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


def call() -> tuple[tuple[Any, ...], dict[str, Any]]:
    image = torch.linspace(-2, 2, 60).reshape(1, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    batch = {"image": image, "mask": torch.linspace(0, 2, 60).reshape(1, 3, 4, 5)}
    return (batch,), {"at": torch.arange(3)}


def exported() -> Any:
    args, kwargs = call()
    return torch.export.export(Quantized(), args, kwargs, strict=False)


def in_order(array: np.ndarray[Any, Any], order: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def flat(result: Any) -> list[Any]:
    return [result["total"], *result["rows"]]


def assert_equal_results(a: Any, b: Any) -> None:
    for x, y in zip(flat(a), flat(b), strict=True):
        assert np.array_equal(x, y)
        assert np.asarray(x).dtype == np.asarray(y).dtype


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("TOSA-1.0+INT", {}),
        ("TOSA-1.0+FP+INT", {}),
        ("TOSA-1.0+FP+INT", {"orders": {"inputs": {0: "channels_last", 1: "nhwc"}, "outputs": "contiguous"}}),
        ("TOSA-1.0+INT", {"io": {"inputs": {"batch['image']": "uint8"}, "outputs": {0: "int8"}}}),
    ],
)
def test_a_file_with_its_sidecar_runs_as_the_lowered_program(
    target: str, options: dict[str, Any], tmp_path: Path
) -> None:
    lowered = tosaic.lower(exported(), target=target, **options)
    size = lowered.save(tmp_path / "m.tosa", sidecar=True)
    assert (tmp_path / "m.tosa").read_bytes() == lowered.to_bytes()
    assert (tmp_path / "m.tosa").stat().st_size == size
    read = tosaic.load_tosa(tmp_path / "m.tosa")
    assert read.signature == lowered.signature
    for own, other in ((read.inputs, lowered.inputs), (read.outputs, lowered.outputs)):
        assert [(p.path, p.dtype, p.shape, p.dim_order) for p in own] == [
            (p.path, p.dtype, p.shape, p.dim_order) for p in other
        ]
        assert [p.qparams for p in own] == [p.qparams for p in other]
    (batch,), kwargs = call()
    for port in lowered.inputs[:2]:
        key = port.path.split("'")[1]
        if port.dtype != "f32":
            batch[key] = in_order(port.qparams.quantize(batch[key].numpy()), port.dim_order)
        elif options.get("orders") and key == "mask":
            batch[key] = np.ascontiguousarray(batch[key].numpy().transpose(0, 2, 3, 1))
    assert_equal_results(read.run(batch, **kwargs), lowered.run(batch, **kwargs))


def test_the_loaded_program_refuses_another_layout_and_dtype(tmp_path: Path) -> None:
    orders = {"inputs": {"batch['image']": "channels_last"}}
    lowered = tosaic.lower(exported(), target="TOSA-1.0+INT", orders=orders)
    lowered.save(tmp_path / "m.tosa", sidecar=True)
    read = tosaic.load_tosa(tmp_path / "m.tosa")
    (batch,), kwargs = call()
    contiguous = {**batch, "image": batch["image"].contiguous()}
    with pytest.raises(tosaic.LayoutMismatch, match=r"batch\['image'\]' lies in another dim order"):
        read.run(contiguous, **kwargs)
    with pytest.raises(tosaic.LayoutMismatch, match=r"batch\['mask'\]' has the wrong dtype"):
        read.run({**batch, "mask": batch["mask"].double()}, **kwargs)
    with pytest.raises(tosaic.LayoutMismatch, match=r"batch\['mask'\]' has the wrong shape"):
        read.run({**batch, "mask": batch["mask"][:, :, :2]}, **kwargs)


def test_without_its_sidecar_a_file_is_bare(tmp_path: Path) -> None:
    lowered = tosaic.lower(exported(), target="TOSA-1.0+INT")
    lowered.save(tmp_path / "m.tosa", sidecar=True)
    bare = tosaic.load_tosa(tmp_path / "m.tosa", sidecar=False)
    assert [port.dtype for port in bare.inputs] == ["i8", "i8", "i32"]
    lowered.save(tmp_path / "m.tosa")
    assert not sidecar_path(tmp_path / "m.tosa").exists()


@pytest.mark.parametrize("target", ["TOSA-1.0+FP", "TOSA-1.0+FP+variable"])
def test_states_persist_in_the_loaded_program(target: str, tmp_path: Path) -> None:
    lowered = tosaic.lower(torch.export.export(Counter(), (torch.ones(4),)), target=target)
    lowered.save(tmp_path / "m.tosa", sidecar=True)
    read = tosaic.load_tosa(tmp_path / "m.tosa")
    x = np.array([1, 2, 3, 4], np.float32)
    for _ in range(3):
        assert np.array_equal(read.run(x), lowered.run(x))
    read.reset_state()
    lowered.reset_state()
    assert np.array_equal(read.run(x), lowered.run(x))


class Returns(nn.Module):
    """Returns inputs, one value twice, and a value that is its new state, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> dict[str, Any]:
        y = rounded(rounded(x, 0.02, 3) + rounded(self.last, 0.04, 0), 0.04, 0)
        self.last.copy_(y)
        return {"y": y, "twice": (y, at), "x": x, "at": at}


@pytest.mark.parametrize("target", ["TOSA-1.0+FP+INT", "TOSA-1.0+FP+INT+variable"])
@pytest.mark.parametrize("io", [None, {"outputs": {"out['y']": "uint8", "out['twice'][0]": "int8"}}])
def test_a_value_that_is_returned_twice_or_is_an_input_has_its_name_in_the_file(
    target: str, io: Any, tmp_path: Path
) -> None:
    x, at = torch.linspace(-1, 1, 6).reshape(2, 3), torch.arange(3)
    lowered = tosaic.lower(torch.export.export(Returns(), (x, at)), target=target, io=io)
    lowered.save(tmp_path / "m.tosa", sidecar=True)
    read = tosaic.load_tosa(tmp_path / "m.tosa")
    for _ in range(3):
        found, expected = read.run(x, at), lowered.run(x, at)
        for a, b in zip(
            [found["y"], *found["twice"], found["x"], found["at"]],
            [expected["y"], *expected["twice"], expected["x"], expected["at"]],
            strict=True,
        ):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b)


def test_a_sidecar_of_another_file_is_refused(tmp_path: Path) -> None:
    lowered = tosaic.lower(exported(), target="TOSA-1.0+INT")
    lowered.save(tmp_path / "m.tosa", sidecar=True)
    (tmp_path / "m.tosa").write_bytes(lowered.to_bytes(locations=False))
    with pytest.raises(
        tosaic.InvalidGraph, match=r"'m.tosa.json' is the sidecar of another file than 'm.tosa'"
    ):
        tosaic.load_tosa(tmp_path / "m.tosa")
    assert tosaic.load_tosa(tmp_path / "m.tosa", sidecar=False).stage == "tosa"


def test_compare_and_the_command_line_use_the_sidecar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    program = exported()
    tosaic.from_exported(program).save("m.tosaic")
    assert (
        main(
            [
                "lower",
                "m.tosaic",
                "--target",
                "TOSA-1.0+INT",
                "--sidecar",
                "--orders",
                "inputs=contiguous",
                "--json",
            ]
        )
        == 0
    )
    assert sidecar_path("m.tosa").exists()
    (batch,), kwargs = call()
    arrays = {
        "batch['image']": batch["image"].numpy(),
        "batch['mask']": batch["mask"].numpy(),
        "at": kwargs["at"].numpy(),
    }
    np.savez("x.npz", **arrays)
    capsys.readouterr()
    assert main(["run", "m.tosa", "--input", "x.npz", "-o", "y.npz", "--json"]) == 0
    expected = tosaic.lower(program, target="TOSA-1.0+INT").run(batch, **kwargs)  # channels last, as traced
    assert np.array_equal(np.load("y.npz")["out['total']"], expected["total"])
    assert tosaic.compare(program, "m.tosa", arrays).ok
    capsys.readouterr()
    assert main(["inspect", "m.tosa"]) == 0
    assert "batch['image']" in capsys.readouterr().out


# ---- writing ----


@pytest.mark.parametrize("fails", ["m.tosa", "m.tosa.json"])
def test_a_refused_save_leaves_both_old_files(fails: str, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        blocked = tmp_path / fails  # a folder in the place of the file cannot be replaced, even by root
        other = tmp_path / ("m.tosa" if fails == "m.tosa.json" else "m.tosa.json")
        blocked.mkdir()
        other.write_text("old")
    else:
        blocked, other = tmp_path / fails, tmp_path / ("m.tosa" if fails == "m.tosa.json" else "m.tosa.json")
        blocked.write_text("old")
        other.write_text("old")
        blocked.chmod(0o444)
    lowered = tosaic.lower(exported(), target="TOSA-1.0+INT")
    with pytest.raises(tosaic.WriteError, match=fails.replace(".", r"\.")):
        lowered.save(tmp_path / "m.tosa", sidecar=True)
    assert other.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.tosa", "m.tosa.json"]


def test_a_signature_that_cannot_be_written_leaves_both_old_files(tmp_path: Path) -> None:
    lowered = tosaic.lower(exported(), target="TOSA-1.0+INT")
    leaves = [dataclasses.replace(leaf, value=object()) for leaf in lowered.signature.output_leaves]
    lowered._signature = dataclasses.replace(lowered.signature, output_leaves=tuple(leaves))
    for name in ("m.tosa", "m.tosa.json"):
        (tmp_path / name).write_text("old")
    with pytest.raises(tosaic.UnsupportedOp, match="cannot be written"):
        lowered.save(tmp_path / "m.tosa", sidecar=True)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"old"}


def test_a_file_of_another_tool_with_the_name_of_a_sidecar_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "m.tosa.json").write_text('{"format": "something else"}')
    tosaic.lower(exported(), target="TOSA-1.0+INT").save(tmp_path / "m.tosa")
    assert (tmp_path / "m.tosa.json").exists()


# ---- damage ----


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sidecar") / "m.tosa"
    program = torch.export.export(Counter(), (torch.ones(4),))
    tosaic.lower(program, target="TOSA-1.0+FP").save(path, sidecar=True)
    return path


def load_with(saved: Path, folder: Path, text: str | bytes) -> tosaic.Program:
    (folder / "m.tosa").write_bytes(saved.read_bytes())
    data = text if isinstance(text, bytes) else text.encode()
    sidecar_path(folder / "m.tosa").write_bytes(data)
    return tosaic.load_tosa(folder / "m.tosa")


def with_entry(data: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    copied = json.loads(json.dumps(data))
    *path, last = [int(part) if part.isdecimal() else part for part in place.split(".")]
    target: Any = copied
    for part in path:
        target = target[part]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return copied


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("version", 2, "it has another version: expected 1, got 2"),
        ("format", "x", "format is damaged: expected 'tosaic sidecar', got 'x'"),
        ("kind", "pte", "kind is damaged: expected 'tosa', got 'pte'"),
        ("file", ..., "file is damaged: expected an entry"),
        ("file.sha256", "0" * 64, "the sidecar of another file"),
        ("file.bytes", -1, "file.bytes is damaged"),
        ("inputs", [], "inputs is damaged: expected 2 entries, as the file has, got 0"),
        ("inputs.0.shape", [5], "as the file has, got"),
        ("inputs.0.shape", [10**30], "integer of at most 64 bits"),
        ("inputs.0.order", [1], "a permutation of 1 axes"),
        ("inputs.0.source", "f64", "inputs.0..source is damaged|inputs\\[0\\].source is damaged"),
        ("inputs.0.source", "f32", "f32, f16 or bf16 with qparams, or an integer"),
        ("inputs.0.range", [0], "two integers in order"),
        ("inputs.0.physical", 1, "expected true or false, got 1"),
        ("inputs.0.path", None, "expected a string, got None"),
        ("outputs.0.mutated_input", 9, "expected an input below 2, got 9"),
        ("signature.inputs", {}, "entries that fit the file, got"),
        ("signature.input_leaves", [], "the signature of the file, got"),
        ("signature", 3, "entries that fit the file"),
    ],
)
def test_a_damaged_entry_is_named(saved: Path, tmp_path: Path, place: str, value: Any, message: str) -> None:
    data = json.loads(sidecar_path(saved).read_text())
    with pytest.raises(tosaic.InvalidGraph, match=message):
        load_with(saved, tmp_path, json.dumps(with_entry(data, place, value)))


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[1]", b"nul", b"{" * 100_000, b'{"version": 1e999}'])
def test_other_bytes_are_refused(saved: Path, tmp_path: Path, text: bytes) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"m\.tosa\.json"):
        load_with(saved, tmp_path, text)


def test_a_compressed_state_of_another_size_is_refused(saved: Path, tmp_path: Path) -> None:
    import base64
    import zlib

    data = json.loads(sidecar_path(saved).read_text())
    (at,) = [i for i, entry in enumerate(data["inputs"]) if entry["initial"]]
    bomb = base64.b64encode(zlib.compress(bytes(10_000_000))).decode()
    for packed, message in (
        (bomb, "expected 16 bytes"),
        ("!", "compressed bytes"),
        ("AAAA", "compressed bytes"),
    ):
        damaged = with_entry(data, f"inputs.{at}.initial.zlib", packed)
        with pytest.raises(tosaic.InvalidGraph, match=message):
            load_with(saved, tmp_path, json.dumps(damaged))


_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3,
    10**18,
    10**40,
    0.5,
    "",
    "x",
    "f32",
    "i8",
    [],
    [0],
    [[]],
    {},
    {"a": 1},
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    found = [path] if path else []
    for key, value in items:
        found += places(value, (*path, key))
    return found


def test_no_damage_crashes(saved: Path, tmp_path: Path) -> None:
    """Every entry is replaced and removed; what loads nevertheless runs, or is refused by name."""
    data = json.loads(sidecar_path(saved).read_text())
    rng = random.Random(7)
    for place in places(data):
        for value in (..., *rng.sample(_VALUES, 4)):
            copied = json.loads(json.dumps(data))
            target: Any = copied
            for key in place[:-1]:
                target = target[key]
            if value is ...:
                del target[place[-1]]
            else:
                target[place[-1]] = value
            try:
                program = load_with(saved, tmp_path, json.dumps(copied))
                program.run(np.ones(4, np.float32))
            except tosaic.InternalError:
                raise AssertionError(f"{place} = {value!r}") from None
            except tosaic.Error:
                pass


def test_no_truncation_crashes(saved: Path, tmp_path: Path) -> None:
    text = sidecar_path(saved).read_bytes()
    for size in range(0, len(text) - 2, max(1, len(text) // 60)):
        with pytest.raises(tosaic.InvalidGraph):
            load_with(saved, tmp_path, text[:size])


def test_states_that_a_sidecar_could_not_be_read_with_are_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reader refuses more than 4 GiB of states: such a file was written, and nobody could open it."""
    lowered = tosaic.lower(torch.export.export(Counter(), (torch.ones(4),)), target="TOSA-1.0+FP+variable")
    (size,) = (port.initial.array.nbytes for port in lowered.graph.inputs if port.initial is not None)
    monkeypatch.setattr("tosaic.lowering.sidecar._MOST_BYTES", size)
    lowered.save(tmp_path / "m.tosa", sidecar=True)
    tosaic.load_tosa(tmp_path / "m.tosa")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("tosaic.lowering.sidecar._MOST_BYTES", size - 1)
    message = rf"too large for a sidecar: expected at most {size - 1} bytes in all, got {size} bytes"
    with pytest.raises(tosaic.InvalidGraph, match=message):
        lowered.save(tmp_path / "m.tosa", sidecar=True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    lowered.save(tmp_path / "bare.tosa")
    x = np.ones(4, np.float32)
    assert np.array_equal(tosaic.load_tosa(tmp_path / "bare.tosa").run(x), lowered.run(x))
