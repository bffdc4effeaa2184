"""Archives that expand and arrays that claim a size: refused before memory is taken, by every reader."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from api.conftest import Counter
from tosaic.cli import main
from tosaic.program.samples import load_arrays

GIB = 1 << 30


@pytest.fixture(scope="module")
def program() -> Any:
    return tosaic.from_exported(torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),)))


def header(elements: int) -> bytes:
    """Returns the header of an array of f32 with one axis."""
    buffer = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (elements,)}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def peak(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def expanding(path: Path, *, size: int, members: int = 1) -> Path:
    """Writes an .npz file of zeros that unpacks to `size` bytes a member, without making them here."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(members):
            with archive.open(f"x{i}.npy", "w", force_zip64=True) as member:
                head = header(size // 4)
                member.write(head)
                block = bytes(1 << 20)
                for _ in range(size >> 20):
                    member.write(block)
    return path


def claiming(path: Path, claimed: int) -> Path:
    """Changes the sizes that the directory of an archive claims, so that a test need not pack gigabytes."""
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = claimed.to_bytes(4, "little")
    path.write_bytes(data)
    return path


def test_samples_that_unpack_to_far_more_than_the_file_are_refused(program: Any, tmp_path: Path) -> None:
    path = claiming(expanding(tmp_path / "x.npz", size=1 << 20), GIB + 1)

    def read() -> None:
        with pytest.raises(tosaic.InvalidGraph, match=f"{GIB + 1} bytes when it is unpacked, of"):
            load_arrays(path)
        with pytest.raises(tosaic.InvalidGraph, match="when it is unpacked"):
            tosaic.quantize(program, [str(path)], progress=False)

    assert peak(read) < 8 << 20
    program.save(tmp_path / "m.tosaic")
    assert main(["run", str(tmp_path / "m.tosaic"), "--input", str(path), "-o", str(tmp_path / "y.npz")]) == 2


def test_the_sizes_of_all_members_count(tmp_path: Path) -> None:
    path = expanding(tmp_path / "x.npz", size=1 << 20, members=2)
    loaded = load_arrays(path)
    assert sorted(loaded) == ["x0", "x1"]
    with pytest.raises(tosaic.InvalidGraph, match="when it is unpacked"):
        load_arrays(claiming(path, GIB))


@pytest.mark.parametrize("suffix", ["npy", "npz", "packed"])
def test_an_array_that_claims_more_than_it_has_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix[:3]}"
    data = header(9999999999999) + bytes(16)
    if suffix == "npy":
        path.write_bytes(data)
    else:
        path = tmp_path / "x.npz"
        method = zipfile.ZIP_STORED if suffix == "npz" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("x.npy", data)

    def read() -> None:
        with pytest.raises(tosaic.InvalidGraph, match="claims 39999999999996 bytes and has 16"):
            load_arrays(path)

    assert peak(read) < 1 << 20


def test_compressed_samples_of_a_usual_size_are_read(tmp_path: Path) -> None:
    x = np.zeros((64, 3, 32, 32), np.float32)
    np.savez_compressed(tmp_path / "x.npz", x=x, y=np.asfortranarray(x[0]))
    loaded = load_arrays(tmp_path / "x.npz")
    assert np.array_equal(loaded["x"], x)
    assert np.array_equal(loaded["y"], x[0])


def test_members_of_an_archive_that_are_the_same_bytes_are_refused(tmp_path: Path) -> None:
    """A thousand entries of one place would be a thousand copies in memory."""
    exported = torch.export.export(torch.nn.Linear(64, 64).eval(), (torch.ones(1, 64),))
    path = tmp_path / "m.tosaic"
    tosaic.from_exported(exported).save(path)
    with zipfile.ZipFile(path, "a") as archive:
        for i in range(9):
            again = zipfile.ZipInfo(f"weights/{i + 5}.npy")
            known = archive.getinfo("weights/0.npy")
            for name in ("compress_size", "file_size", "CRC", "header_offset"):
                setattr(again, name, getattr(known, name))
            archive.filelist.append(again)
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(tosaic.InvalidGraph, match="when it is unpacked"):
        tosaic.load(path)


def test_a_trusted_program_that_expands_is_refused(tmp_path: Path) -> None:
    exported = torch.export.export(torch.nn.ReLU(), (torch.ones(4),))
    torch.export.save(exported, tmp_path / "m.pt2")
    with zipfile.ZipFile(tmp_path / "m.pt2") as source:
        members = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(tmp_path / "big.pt2", "w") as archive:
        for name, data in members.items():
            grown = name.endswith("models/model.json")
            method = zipfile.ZIP_DEFLATED if grown else zipfile.ZIP_STORED
            archive.writestr(name, data + b" " * (80 << 20) * grown, method)
    from tosaic.fx.running.eager import load_exported

    with pytest.raises(tosaic.InvalidGraph, match="when it is unpacked"):
        load_exported(tmp_path / "big.pt2", trust=True)


def test_a_sidecar_cannot_claim_states_of_terabytes(tmp_path: Path) -> None:
    path = tmp_path / "m.tosa"
    tosaic.lower(torch.export.export(Counter(), (torch.ones(4),))).save(path, sidecar=True)
    beside = tmp_path / "m.tosa.json"
    fields = json.loads(beside.read_text())
    (state,) = (each for each in fields["inputs"] if each["initial"] is not None)
    state["initial"]["shape"] = [1 << 36]
    beside.write_text(json.dumps(fields))
    with pytest.raises(tosaic.InvalidGraph, match="expected states of at most 4294967296 bytes"):
        tosaic.open_program(path)


def test_an_array_of_an_archive_has_nothing_behind_its_elements(tmp_path: Path) -> None:
    exported = torch.export.export(torch.nn.Linear(64, 64).eval(), (torch.ones(1, 64),))
    tosaic.from_exported(exported).save(tmp_path / "m.tosaic")
    with zipfile.ZipFile(tmp_path / "m.tosaic") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "m.tosaic", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data + bytes(4) * name.endswith(".npy"))
    with pytest.raises(tosaic.InvalidGraph, match="claims 16384 bytes and has 16388"):
        tosaic.load(tmp_path / "m.tosaic")


def test_regions_of_a_text_cannot_be_nested_without_end() -> None:
    inner = "  %a: f32[1] = cond() regions {\n graph @r stage=exported {\n"
    text = "tosaic 1\ngraph @g stage=exported {\n" + inner * 5000
    with pytest.raises(tosaic.InvalidGraph, match="regions are nested too deeply"):
        tosaic.program.Graph.parse(text)
