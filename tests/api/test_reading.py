"""Every function that reads files raises our error for a file that cannot be read, and names the file."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from tosaic.program.samples import load_arrays

READERS: dict[str, Callable[[str], Any]] = {
    "load": tosaic.load,
    "load_tosa": tosaic.load_tosa,
    "open_program": tosaic.open_program,
    "open_program of .tosa": lambda path: tosaic.open_program(path + ".tosa"),
    "open_program of .pt2": lambda path: tosaic.open_program(path + ".pt2"),
    "lower": tosaic.lower,
    "check": tosaic.check,
    "arrays": load_arrays,
}
every_reader = pytest.mark.parametrize("read", READERS.values(), ids=READERS)
NO_UTF_8 = os.fsdecode(b"d\xff")


@every_reader
def test_a_missing_file_is_named_by_every_reader(read: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(
        tosaic.MissingFileError, match=r"^\[\w+\] there is no file '.*/no where/nothing"
    ) as error:
        read(str(tmp_path / "no where" / "nothing"))
    assert isinstance(error.value, FileNotFoundError)
    assert isinstance(error.value, tosaic.ReadError)
    assert isinstance(error.value, tosaic.Error)
    assert error.value.errno == 2


@every_reader
def test_a_missing_file_in_a_folder_that_is_not_utf_8_is_named_in_escapes(read, tmp_path: Path) -> None:
    with pytest.raises(tosaic.MissingFileError, match=r"there is no file '.*/d\\udcff/nothing"):
        read(str(tmp_path / NO_UTF_8 / "nothing"))


@every_reader
def test_a_file_that_the_system_refuses_to_open_is_named(read: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(tosaic.ReadError, match=r"could not be read: got File name too long$") as error:
        read(str(tmp_path / ("x" * 300)))
    assert not isinstance(error.value, FileNotFoundError)
    (tmp_path / "file").touch()
    with pytest.raises(tosaic.ReadError, match=r"could not be read: got Not a directory$"):
        read(str(tmp_path / "file" / "model"))
    for suffix in ("", ".tosa", ".pt2"):
        (tmp_path / f"loop{suffix}").symlink_to(tmp_path / f"loop{suffix}")
    with pytest.raises(tosaic.ReadError, match="could not be read: got Too many levels of symbolic links"):
        read(str(tmp_path / "loop"))


def test_files_in_folders_that_are_not_utf_8_are_read(files: Path, case) -> None:
    folder = files / NO_UTF_8
    folder.mkdir()
    for name in ("model.pt2", "model.tosaic", "model.tosa", "x.npz"):
        (files / name).rename(folder / name)
        if name == "x.npz":
            assert load_arrays(folder / name)
        else:
            assert len(tosaic.open_program(folder / name).graph) > 0


# ---- arrays ----


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def npz(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


X = np.arange(600, dtype=np.float32)
HUGE = (
    b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }".ljust(117)
    + b"\n"
)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def in_directory(data: bytes, at: int, value: int) -> bytes:
    """Returns the archive with `value` at byte `at` of the first entry of its central directory."""
    place = data.index(b"PK\x01\x02") + at
    return data[:place] + bytes([value]) + data[place + 1 :]


DAMAGED = {
    "empty": b"",
    "text": b"x = 1\n",
    "an npy of objects": npy(np.array([{}, 1], dtype=object)),
    "an npz of objects": npz({"x.npy": npy(np.array([{}, 1], dtype=object))}),
    "a cut npy": npy(X)[:300],
    "a cut npz": npz({"x.npy": npy(X)})[:900],
    "a wrong checksum": flipped(npz({"x.npy": npy(X)}), 700),
    "wrong deflated data": flipped(npz({"x.npy": npy(X)}, zipfile.ZIP_DEFLATED), 60),
    "wrong lzma data": flipped(npz({"x.npy": npy(X)}, zipfile.ZIP_LZMA), 60),
    "an unknown method": in_directory(npz({"x.npy": npy(X)}), 10, 99),
    "encrypted": in_directory(npz({"x.npy": npy(X)}), 8, 1),
    "a header that is no Python": npy(X).replace(b"{'descr'", b"{{descr'"),
    "a header of a huge shape": HUGE,
    "a member that is no array": npz({"x.npy": npy(X), "note.txt": b"hello"}),
    "two arrays of one name": npz({"x.npy": npy(X), "x": npy(X)}),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_arrays_that_cannot_be_read_are_an_error_that_names_the_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(data)
    with pytest.raises(
        tosaic.InvalidGraph, match=r"^\[samples\] '.*x.npz' cannot be read: expected an .npy"
    ) as error:
        load_arrays(path)
    assert "pickle" not in str(error.value) or "object" in str(error.value).lower()


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]
)
def test_arrays_that_are_damaged_anywhere_are_read_or_refused(method: int, tmp_path: Path) -> None:
    whole = npz({"x.npy": npy(X), "y.npy": npy(X.astype(np.int8))}, method)
    path = tmp_path / "x.npz"
    refused = 0
    for at in range(0, len(whole), max(1, len(whole) // 150)):
        for data in (flipped(whole, at), whole[:at]):
            path.write_bytes(data)
            try:
                load_arrays(path)
            except tosaic.InvalidGraph:
                refused += 1
    assert refused > 150


@every_reader
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_may_have_no_end_is_refused(read: Callable[[str], Any], kind: str, tmp_path: Path) -> None:
    """A link of a stranger's folder may lead to /dev/zero, and a pipe may never be written."""
    for suffix in ("", ".tosa", ".pt2"):
        path = tmp_path / f"m{suffix}"
        path.symlink_to("/dev/zero") if kind == "device" else os.mkfifo(path)
    with pytest.raises(tosaic.ReadError, match=r"'m[.a-z0-9]*' could not be read: got a device or pipe"):
        read(str(tmp_path / "m"))


def test_a_sidecar_that_may_have_no_end_is_refused(tmp_path: Path) -> None:
    exported = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    lowered = tosaic.lower(exported)
    lowered.save(tmp_path / "m.tosa")
    (tmp_path / "m.tosa.json").symlink_to("/dev/zero")
    with pytest.raises(tosaic.ReadError, match="a device or pipe"):
        tosaic.load_tosa(tmp_path / "m.tosa")
    lowered.save(tmp_path / "m.tosa")  # does not replace a file that is no sidecar of tosaic's
    assert (tmp_path / "m.tosa.json").is_symlink()


def test_what_the_caller_pipes_is_read(tmp_path: Path) -> None:
    exported = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    text = tosaic.from_exported(exported).graph.text()
    code = "import tosaic; print(len(tosaic.open_program('/dev/stdin').graph))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"
