"""Writes the folder of an export.

::

    model.pte, model.pte.json       groups as delegates, if their claimants have runtimes; its sidecar
    groups/                         what `SplitLowered.save` writes
    groups/group0.vgf, group0.vela  the payloads that tools of devices made
    groups/group0.inputs.npz        inputs of a group, for claimants without a public tool
    io.json                         the integers at inputs and outputs
    scenario/                       inputs and expected outputs for a run elsewhere
    programs/                       the float program, and the quantized one
    recipe.json, report.html, report.json, report.txt
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.file_kinds import PTE
from tosaic.base.options import invalid
from tosaic.base.writing import make_folder, whole_folder, write_arrays, write_bytes, write_text
from tosaic.exporting.scenario import write_scenario
from tosaic.lowering.lowered import Lowered
from tosaic.partitions.payload_kinds import has_kernels, is_kernels
from tosaic.pte.group_payloads import MethodPayloads
from tosaic.pte.method_writer import PtePayload
from tosaic.pte.save import save_pte

if TYPE_CHECKING:
    from tosaic.exporting.result import ExportResult


_REPORTS = ("report.html", "report.json", "report.txt")
_WRITTEN_LAST = ("recipe.json", "recipe.txt", *_REPORTS)


def write_folder(result: ExportResult, path: str | os.PathLike[str]) -> tuple[Path, tuple[Path, ...]]:
    """Writes the files of an export; see `ExportResult.save`. Returns the folder and the files."""
    final = Path(path)
    with whole_folder(final) as folder:
        _write(result, folder)
        _write_recipe(result, folder)
        names = [each.relative_to(folder) for each in folder.rglob("*") if each.is_file()]
        _write_reports(result, folder, final, sorted([*names, *map(Path, _REPORTS)]))
    return final, tuple(sorted(each for each in final.rglob("*") if each.is_file()))


def _write(result: ExportResult, folder: Path) -> None:
    lowered = result.lowered
    payloads = _payloads(result)
    result.costs = {name: each.cost for name, each in payloads.items() if each.cost is not None}
    groups = folder / "groups"
    lowered.save(groups)
    for name, payload in payloads.items():
        kind = dict(payload.specs).get("output_format", b"").decode()
        if kind != "tosa":
            write_bytes(groups / f"{name}.{kind}", payload.data)
    for name, arrays in _entering(result).items():
        write_arrays(groups / f"{name}.inputs.npz", arrays)
    reason = _why_no_pte(result)
    if not reason:
        try:
            save_pte(lowered, folder / f"{result.name}{PTE.suffix}", payloads=payloads, sidecar=True)
        except _core.UnsupportedOp as error:  # a node has no kernel
            reason = str(error)
    if reason:
        result.notes = tuple(dict.fromkeys([*result.notes, f"there is no .pte file: {reason}"]))
    write_text(folder / "io.json", result.io.to_json() + "\n")
    if result.samples:
        file = folder / f"{result.name}{PTE.suffix}"
        write_scenario(result, folder / "scenario", program=file.name if file.exists() else None)
    programs = make_folder(folder / "programs")
    result.program.save(programs / "float.tosaic")
    if result.quantized is not None:
        result.quantized.save(programs / "quantized.tosaic")
    for name, contents in result.added.items():
        if (folder / name).exists() or name in _WRITTEN_LAST:
            raise invalid(
                "add_file",
                f"the export has a file or folder '{name}' itself, and a stage adds another one",
                expected="another name",
            )
        make_folder((folder / name).parent)
        write_bytes(folder / name, contents)


def _why_no_pte(result: ExportResult) -> str:
    """Returns the groups whose claimants have neither a payload nor kernels; empty if a file can have all."""
    lowered = result.lowered
    takers = ((group, lowered.claimants[group.claimant]) for group in lowered.partitions.groups)
    return "; ".join(
        f"group '{group.name}' is for {taker.name}, which has no payload and no kernels"
        for group, taker in takers
        if not (taker.target or is_kernels(taker) or has_kernels(taker))
    )


def _write_recipe(result: ExportResult, folder: Path) -> None:
    try:
        text = result.recipe.to_json()
    except _core.InvalidGraph:  # a function of the recipe is not importable by name
        write_text(folder / "recipe.txt", f"{result.recipe!r}\n")
    else:
        write_text(folder / "recipe.json", text)


def _write_reports(result: ExportResult, folder: Path, final: Path, names: list[Path]) -> None:
    """Writes the reports, which list the files with their paths in the final folder."""
    shown = replace(result, folder=final, files=tuple(final / name for name in names))
    report = shown.report()
    for name in _REPORTS:
        report.save(folder / name)


def _payloads(result: ExportResult) -> dict[str, PtePayload]:
    """Compiles the payload of each group whose claimant reads TOSA; all files share the result."""
    lowered = result.lowered
    compiler = MethodPayloads(lowered.claimants, {}, result.recipe.flags)
    found: dict[str, PtePayload] = {}
    for group, part in zip(lowered.partitions.groups, lowered.parts, strict=True):
        if isinstance(part, Lowered):
            payload = compiler.payload(group.name, part, group.claimant)
            if payload is not None:
                found[group.name] = payload
    return found


def _entering(result: ExportResult) -> dict[str, Mapping[str, Any]]:
    """Returns the inputs of each group whose claimant does not read TOSA, on the first sample."""
    lowered = result.lowered
    wanted = [
        group.name for group in lowered.partitions.groups if not lowered.claimants[group.claimant].target
    ]
    if not wanted or not result.samples:
        return {}
    found = lowered.entering(list(result.samples[:1]))
    parts = dict(zip((group.name for group in lowered.partitions.groups), lowered.parts, strict=True))
    return {
        name: {
            port.name: np.array(array) for port, array in zip(parts[name].inputs, found[name][0], strict=True)
        }
        for name in wanted
        if found[name]
    }
