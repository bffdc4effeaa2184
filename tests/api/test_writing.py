"""Every file is written completely or not at all; an error names the file and what prevents the writing."""

from __future__ import annotations

import ast
import os
import resource
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tosaic
from tosaic.base.writing import whole_file
from tosaic.cli import main

PACKAGE = Path(tosaic.__file__).parent


@dataclass(frozen=True)
class Writer:
    """Something that writes the file `name`."""

    name: str
    write: Callable[[Any, str], Any]


def by_command(*argv: str) -> Callable[[Any, str], None]:
    """Runs the command with the file's path for PLACE; raises OSError if the exit code is not 0."""

    def write(case: Any, place: str) -> None:
        code = main([place if word == "PLACE" else word for word in argv])
        if code:
            raise OSError(code, "the command failed")

    return write


WRITERS = [
    Writer("model.tosaic", lambda case, place: case.program.save(place)),
    Writer("model.tosa", lambda case, place: case.lowered.save(place)),
    Writer("report.html", lambda case, place: case.lowered.report().save(place)),
    Writer("report.json", lambda case, place: case.program.report().save(place)),
    Writer("report.txt", lambda case, place: case.lowered.report().save(place)),
    Writer("out.tosa", by_command("lower", "given.pt2", "-o", "PLACE")),
    Writer("lowered.html", by_command("lower", "given.pt2", "-o", "ok.tosa", "--report", "PLACE")),
    Writer("y.npz", by_command("run", "given.tosa", "--input", "x.npz", "-o", "PLACE")),
    Writer("y.npy", by_command("run", "given.tosa", "--input", "x.npz", "-o", "PLACE")),
    Writer(
        "compared.json",
        by_command("compare", "given.pt2", "given.tosa", "--input", "x.npz", "--report", "PLACE"),
    ),
]
every_writer = pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)


@pytest.fixture
def given(files: Path) -> Path:
    (files / "model.pt2").rename(files / "given.pt2")
    (files / "model.tosa").rename(files / "given.tosa")
    (files / "model.tosaic").unlink()
    return files


@contextmanager
def a_full_disk(size: int = 100) -> Iterator[None]:
    """Limits the size of every file to `size` bytes.

    No bytecode is written meanwhile: CPython 3.11 would keep a file that is cut off, and each later import of
    that module would fail.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"ok.tosa"}


@every_writer
def test_a_full_disk_leaves_the_old_file_and_nothing_else(writer: Writer, case, given: Path, capfd) -> None:
    place = given / "folder" / writer.name
    place.parent.mkdir()
    place.write_bytes(b"the old contents")
    (given / "ok.tosa").touch()
    with a_full_disk(), pytest.raises(OSError):  # noqa: PT011
        writer.write(case, str(place))
    assert place.read_bytes() == b"the old contents"
    assert names(place.parent) == {writer.name}
    if "command failed" not in capfd.readouterr().err:
        writer.write(case, str(place))
        assert place.read_bytes() != b"the old contents"


def test_a_full_disk_is_an_error_that_names_the_file(case, tmp_path: Path) -> None:
    with a_full_disk(), pytest.raises(tosaic.WriteError) as error:
        case.program.save(tmp_path / "model.tosaic")
    assert str(error.value) == "[write] 'model.tosaic' could not be written: got File too large"
    assert isinstance(error.value, tosaic.Error)
    assert isinstance(error.value, OSError)
    assert error.value.errno == 27


@every_writer
def test_a_missing_folder_is_named(writer: Writer, case, given: Path, capfd) -> None:
    with pytest.raises(OSError) as error:  # noqa: PT011
        writer.write(case, f"nowhere/deep/{writer.name}")
    told = capfd.readouterr().err + str(error.value)
    assert f"[write] the folder of '{writer.name}' is missing: expected the folder '" in told
    assert "nowhere/deep', got no such folder" in told
    assert not (given / "nowhere").exists()


@every_writer
def test_a_folder_in_the_place_of_the_file_is_named(writer: Writer, case, given: Path, capfd) -> None:
    (given / writer.name).mkdir()
    with pytest.raises(OSError) as error:  # noqa: PT011
        writer.write(case, writer.name)
    told = capfd.readouterr().err + str(error.value)
    assert f"[write] '{writer.name}' is a folder: expected the path of a file" in told


def test_a_file_in_the_place_of_a_folder_is_named(case, given: Path, capfd) -> None:
    (given / "file").touch()
    with pytest.raises(tosaic.WriteError, match="the folder 'file' cannot be made: got a file in its place"):
        tosaic.lower(case.program, dump="file")
    with pytest.raises(tosaic.WriteError, match=r"of 'x.tosa' is missing.*got a file in its place"):
        case.lowered.save(given / "file" / "x.tosa")
    assert main(["lower", "given.pt2", "--dump", "file/stages"]) == 2
    assert "the folder 'file/stages' cannot be made: got a file in its place" in capfd.readouterr().err


def test_a_dump_on_a_full_disk_leaves_the_old_stages(case, tmp_path: Path) -> None:
    tosaic.lower(case.program, dump=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with a_full_disk(), pytest.raises(tosaic.WriteError):
        tosaic.lower(case.program, dump=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_program_that_cannot_be_written_leaves_the_old_file(case, tmp_path: Path) -> None:
    """The signature is refused only after the weights were written."""
    place = tmp_path / "model.tosaic"
    case.program.save(place)
    before = place.read_bytes()
    signature = case.program.signature
    leaf = type(signature.output_leaves[0])("out", None, object())
    odd = tosaic.Program(case.program.graph, replace(signature, output_leaves=(leaf,)))
    with pytest.raises(tosaic.UnsupportedOp, match="the constant 'out' of the signature cannot be written"):
        odd.save(place)
    assert place.read_bytes() == before
    assert names(tmp_path) == {"model.tosaic"}


def test_an_interruption_leaves_the_old_file(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"old")

    def interrupted() -> None:
        with whole_file(place) as file:
            file.write(b"half of the")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert place.read_bytes() == b"old"
    assert names(tmp_path) == {"file"}


def test_a_file_has_the_permissions_of_the_old_file_or_of_any_new_file(case, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    case.lowered.save(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "new").chmod(0o640)
    case.lowered.save(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_read_only_file_is_not_replaced(case, tmp_path: Path, monkeypatch) -> None:
    place = tmp_path / "model.tosa"
    place.write_bytes(b"old")
    # Any user but root is refused. Root may write every file, and runs these tests in some environments.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(tosaic.WriteError, match=r"'model.tosa' may not be written"):
        case.lowered.save(place)
    assert place.read_bytes() == b"old"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_a_link(case, tmp_path: Path, exists: bool) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "model.tosa", tmp_path / "link.tosa"
    if exists:
        target.write_bytes(b"old")
    link.symlink_to("far/model.tosa")
    case.lowered.save(link)
    assert link.is_symlink()
    assert target.read_bytes() == case.lowered.to_bytes()
    assert names(tmp_path / "far") == {"model.tosa"}


def test_a_device_is_written_and_not_replaced(case) -> None:
    case.lowered.save("/dev/null")
    case.program.save("/dev/null")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with pytest.raises(tosaic.WriteError, match="'full' could not be written: got No space left on device"):
        case.lowered.save("/dev/full")


def test_a_reader_of_the_old_file_can_read_it_to_the_end(case, tmp_path: Path) -> None:
    place = tmp_path / "model.tosaic"
    case.program.save(place)
    before = place.read_bytes()
    with place.open("rb") as reader:
        tosaic.lower(case.program).source.save(place)
        assert reader.read() == before


def test_a_name_of_the_greatest_length_is_written(case, tmp_path: Path) -> None:
    case.lowered.save(tmp_path / ("m" * 250 + ".tosa"))
    with pytest.raises(tosaic.WriteError, match="could not be written: got File name too long"):
        case.lowered.save(tmp_path / ("m" * 300))


def writes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each call that writes a file or makes a folder."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [
            a.value for a in (*node.args, *(k.value for k in node.keywords)) if isinstance(a, ast.Constant)
        ]
        opens = name in ("open", "ZipFile") and any(
            isinstance(mode, str) and set(mode) & set("wax") and set(mode) <= set("wabxt+") for mode in modes
        )
        if (
            opens
            or name in ("mkdir", "makedirs", "tofile")
            or (name in ("write_bytes", "write_text") and isinstance(node.func, ast.Attribute))
        ):
            yield node.lineno, ast.unparse(node)


def test_only_one_module_writes_files() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for _, text in writes(ast.parse(path.read_text()))
        if path.name != "writing.py"
    }
    assert found == {
        "program/archive_writer.py: zipfile.ZipFile(file, 'w', zipfile.ZIP_STORED)",  # a file of writing.py
        "fx/files/libraries.py: zipfile.ZipFile(made, 'w', zipfile.ZIP_STORED)",  # into memory
        "fx/files/stranger_files.py: zipfile.ZipFile(segments, 'w', zipfile.ZIP_STORED)",  # into memory
    }
    planted = "open(p, 'w'); p.open('wb'); q.write_text(t); p.mkdir(); np.load(p); open(p)"
    assert [text for _, text in writes(ast.parse(planted))] == [
        "open(p, 'w')",
        "p.open('wb')",
        "q.write_text(t)",
        "p.mkdir()",
    ]


def open_files() -> set[int]:
    found = set()
    for number in range(1024):
        with suppress(OSError):
            os.fstat(number)
            found.add(number)
    return found


def test_no_file_stays_open(case, tmp_path: Path) -> None:
    before = open_files()
    for _ in range(3):
        case.lowered.save(tmp_path / "model.tosa")
        with a_full_disk(), pytest.raises(tosaic.WriteError):
            case.lowered.save(tmp_path / "model.tosa")
    assert open_files() == before


def test_folders_that_are_not_utf_8_are_named_in_escapes(case, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"d\xff")
    with pytest.raises(
        tosaic.WriteError, match=r"folder of 'x.tosa' is missing: expected .*/d\\udcff', got no"
    ):
        case.lowered.save(folder / "x.tosa")
    with pytest.raises(
        tosaic.WriteError, match=r"folder of 'x.html' is missing: expected .*/d\\udcff', got no"
    ):
        case.lowered.report().save(folder / "x.html")
    with pytest.raises(tosaic.WriteError, match=r"folder of 'x.tosaic' is missing: .*/d\\udcff', got no"):
        case.program.save(folder / "x.tosaic")
    folder.touch()
    with pytest.raises(tosaic.WriteError, match=r"the folder '.*/d\\udcff' cannot be made: got a file"):
        tosaic.lower(case.program, dump=folder)
    with pytest.raises(tosaic.WriteError, match=r"the folder of 'x' is missing: .*/d\\udcff', got a file"):
        case.lowered.save(folder / "x")
    folder.unlink()
    folder.mkdir()
    with pytest.raises(tosaic.WriteError, match=r"'d\\udcff' is a folder: .* got '.*/d\\udcff'"):
        case.lowered.save(folder)
    case.lowered.save(folder / "x.tosa")
    tosaic.lower(case.program, dump=folder / "stages")
    assert tosaic.load_tosa(folder / "x.tosa").stage == "tosa"


def test_a_missing_working_folder_and_a_folder_with_too_long_a_name_are_our_errors(
    case, tmp_path: Path, monkeypatch
) -> None:
    with pytest.raises(tosaic.WriteError, match=r"'x\.tosa' could not be written: got File name too long"):
        case.lowered.save(tmp_path / ("y" * 300) / "x.tosa")
    with pytest.raises(tosaic.WriteError, match=r"the folder '.*yyy' cannot be made: got File name too long"):
        tosaic.lower(case.program, dump=tmp_path / ("y" * 300))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for save in (case.lowered.save, case.program.save, case.lowered.report().save):
        with pytest.raises(
            tosaic.WriteError, match=r"^\[write\] 'x' could not be written: got No such file or"
        ):
            save("x")
    with pytest.raises(tosaic.WriteError, match=r"the folder 'x' cannot be made: got No such file or"):
        tosaic.lower(case.program, dump="x")
    with pytest.raises(tosaic.MissingFileError, match=r"^\[load\] there is no file 'x'$"):
        tosaic.load("x")


def test_a_dangling_link_in_the_place_of_a_folder_is_reported_as_such(case, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("link", "loop"):
        with pytest.raises(tosaic.WriteError, match=r"cannot be made: got a link that leads nowhere$"):
            tosaic.lower(case.program, dump=tmp_path / name)


def test_a_program_is_not_saved_as_an_archive_with_the_suffix_of_a_tosa_file(
    case: Any, tmp_path: Path
) -> None:
    case.lowered.save(tmp_path / "a.tosa")
    program = tosaic.load_tosa(tmp_path / "a.tosa")
    for place in (tmp_path / "b.tosa", str(tmp_path / "b.tosa")):
        with pytest.raises(
            tosaic.InvalidGraph,
            match=r"^\[save\] a program is saved as an archive, which is no \.tosa file: expected another "
            r"suffix, such as \.tosaic, got 'b\.tosa'\. A \.tosa file is written by tosaic\.lower\(program, ",
        ):
            program.save(place)
    assert not (tmp_path / "b.tosa").exists()
    tosaic.lower(program, target="TOSA-1.0+FP").save(tmp_path / "b.tosa")
    assert (tmp_path / "b.tosa").read_bytes() == (tmp_path / "a.tosa").read_bytes()
