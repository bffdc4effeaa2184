"""The folder of a split program: writes it, and reads it back as a program that calls the groups.

::

    group0.tosa, group0.tosa.json    the lowered group and its sidecar
    group1.tosaic                    a group whose claimant does not read TOSA
    host.tosaic                      the nodes of the host, and a call of each group
    partitions.json                  the files of each group, its claimant, ports, nodes and temporary buffer
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.file_kinds import ARCHIVE, TOSA
from tosaic.base.json_fields import Fields, read_json
from tosaic.base.options import checked
from tosaic.base.reading import read_bytes
from tosaic.base.writing import check_place, make_folder, moved, write_text
from tosaic.lowering.lowered import Lowered
from tosaic.lowering.sidecar import sidecar_path
from tosaic.program.part_call import PartCall
from tosaic.program.program import Program

if TYPE_CHECKING:
    import os

    from tosaic.partitions.claimant import Claimant
    from tosaic.partitions.plan import Group
    from tosaic.ports.ports import Port

_FORMAT, _VERSION = "tosaic partitions", 1
_LISTING, _HOST = "partitions.json", "host.tosaic"
_FILES = re.compile(r"partitions\.json|host\.tosaic|group[0-9]+\.(tosa|tosa\.json|tosaic)")


def save_folder(
    path: str | os.PathLike[str],
    host: Program,
    groups: Sequence[Group],
    parts: Sequence[Lowered | Program],
    claimants: Mapping[str, Claimant],
) -> tuple[Path, ...]:
    """Writes the folder; see `SplitLowered.save`. Parts are by group, and claimants by name.

    First, all files are written to a folder next to the target, and the target paths are checked. Then the
    old listing is removed, and the files are renamed, the listing last. So a folder with listing is complete.
    """
    folder = make_folder(path)
    earlier = _files_of(folder)
    with tempfile.TemporaryDirectory(prefix=".partitions-", dir=folder) as beside:
        files_of_groups, entries = _write_groups(Path(beside), groups, parts, claimants)
        host.save(Path(beside, _HOST))
        content = {"format": _FORMAT, "version": _VERSION, "host": _HOST, "groups": entries}
        write_text(Path(beside, _LISTING), json.dumps(content, indent=1) + "\n")
        written = [*files_of_groups, Path(beside, _HOST), Path(beside, _LISTING)]
        for file in written:
            check_place(folder / file.name)
        with suppress(FileNotFoundError):
            (folder / _LISTING).unlink()
        files = [moved(file, folder / file.name) for file in written]
    for file in earlier - set(files):
        with suppress(OSError):
            file.unlink()
    return tuple(file for file in files if file.suffix != ".json" or file.name == _LISTING)


def _write_groups(
    folder: Path,
    groups: Sequence[Group],
    parts: Sequence[Lowered | Program],
    claimants: Mapping[str, Claimant],
) -> tuple[list[Path], list[dict[str, Any]]]:
    """Writes the files of the groups; returns them, and the entries of the listing."""
    files: list[Path] = []
    entries: list[dict[str, Any]] = []
    for group, part in zip(groups, parts, strict=True):
        claimant = claimants[group.claimant]
        tosa, program = folder / f"{group.name}{TOSA.suffix}", folder / f"{group.name}{ARCHIVE.suffix}"
        if isinstance(part, Lowered):
            part.save(tosa, sidecar=True)
            files += [tosa, sidecar_path(tosa)]
        if not claimant.target:
            (part.source if isinstance(part, Lowered) else part).save(program)
            files.append(program)
        entries.append(
            {
                "name": group.name,
                "claimant": group.claimant,
                "target": claimant.target or None,
                "file": tosa.name if claimant.target else program.name,
                "arithmetic": tosa.name if isinstance(part, Lowered) else None,
                "semantics": claimant.semantics if isinstance(part, Lowered) else None,
                "inputs": _entries(part.inputs),
                "outputs": _entries(part.outputs),
                "nodes": list(group.nodes),
                "scratch_bytes": group.scratch_bytes,
            }
        )
    return files, entries


def _entries(ports: Sequence[Port]) -> list[dict[str, Any]]:
    return [{"name": p.name, "type": p.type_text, "dim_order": list(p.dim_order)} for p in ports]


def _files_of(folder: Path) -> set[Path]:
    """Returns the files of a split that the folder's listing names; empty if there is no such listing.

    A new save removes these files, so a forged listing must not be able to name other files of the folder.
    """
    found = {_LISTING}
    try:
        listing = _listing("save", folder)
        found.add(listing.text("host"))
        for entry in listing.each("groups"):
            found.add(entry.text("file"))
            if entry.value("arithmetic") is not None:
                found |= {entry.text("arithmetic"), sidecar_path(Path(entry.text("arithmetic"))).name}
    except _core.Error:
        return set()
    return {folder / name for name in found if _FILES.fullmatch(name)}


def _listing(where: str, folder: Path) -> Fields:
    fields = read_json(where, read_bytes(where, folder / _LISTING))
    fields.require_format(_FORMAT, _VERSION)
    return fields


@checked
def load_split(path: str | os.PathLike[str]) -> Program:
    """Reads a folder that `SplitLowered.save` wrote.

    Parameters
    ----------
    path : path
        The folder.

    Returns
    -------
    Program
        The program of the host. A run calls the groups: their ``.tosa`` files run on tosaic, and its results
        are the results of the split program. Models of groups replace them by name, as in
        `SplitLowered.prepare`.

    Raises
    ------
    MissingFileError
        The folder, or a file that its listing names, does not exist.
    ReadError
        The system refuses to read a file.
    InvalidGraph
        A file is damaged, or belongs to another split.

    Examples
    --------
    >>> split.save("parts")  # doctest: +SKIP
    >>> tosaic.partitions.load_split("parts").run(x)  # doctest: +SKIP
    """
    from tosaic.lowering.tosa_file import load_tosa
    from tosaic.program.archive import load

    folder = Path(path)
    listing = _listing("load_split", folder)
    calls: dict[str, PartCall] = {}
    for entry in listing.each("groups"):
        lowered = entry.value("arithmetic") is not None
        file = _beside(folder, entry, "arithmetic" if lowered else "file")
        part = load_tosa(file) if lowered else load(file)
        for side, ports in (("inputs", part.inputs), ("outputs", part.outputs)):
            expected = [(each.text("type"), each.axes("dim_order")) for each in entry.each(side)]
            found = [(port.type_text, tuple(port.dim_order)) for port in ports]
            if found != expected:
                raise entry.error(
                    side, f"{_shown(expected)}, as the listing has", f"{_shown(found)} in {file.name}"
                )
        calls[entry.text("name")] = PartCall(entry.text("name"), part)
    host = load(_beside(folder, listing, "host"))
    return host.with_overrides(calls) if calls else host


def _beside(folder: Path, entry: Fields, key: str) -> Path:
    name = entry.text(key)
    if Path(name).name != name:
        raise entry.error(key, "the name of a file in the folder", name)
    return folder / name


def _shown(ports: list[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{text} {order}" for text, order in ports) or "none"


@dataclass(frozen=True)
class SavedGroup:
    """A group in a folder.

    Attributes
    ----------
    name : str
    claimant : str
    tosa : bytes or None
        The ``.tosa`` file for its claimant; None if the claimant does not read TOSA.
    """

    name: str
    claimant: str
    tosa: bytes | None


def is_split_folder(path: str | os.PathLike[str]) -> bool:
    """True for a folder that has the listing of a split program."""
    return (Path(path) / _LISTING).is_file()


def saved_split(where: str, path: str | os.PathLike[str]) -> tuple[Program, tuple[SavedGroup, ...]]:
    """Reads a folder without making a program that runs: the host, and the files of the groups.

    The errors are those of `load_split`.
    """
    from tosaic.program.archive import load

    folder = Path(path)
    listing = _listing(where, folder)
    groups = [
        SavedGroup(
            entry.text("name"),
            entry.text("claimant"),
            None if entry.value("target") is None else read_bytes(where, _beside(folder, entry, "file")),
        )
        for entry in listing.each("groups")
    ]
    return load(_beside(folder, listing, "host")), tuple(groups)
