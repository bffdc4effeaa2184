"""The report of an export."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from tosaic.exporting.result import ExportResult
from tosaic.report.cost import cost_text
from tosaic.report.document import Report
from tosaic.report.numbers import count, decibels, memory, time
from tosaic.report.partition import describe_split
from tosaic.report.parts import Section, table

if TYPE_CHECKING:
    from tosaic.ports.ports import Port


def describe_export(result: ExportResult) -> Report:
    """Makes a report of an export: the checks, groups, boundary, files and times."""
    lowered = result.lowered
    plan = lowered.partitions
    host = sum(group is None for group in plan.group_of)
    failed = [check.name for check in result.checks if not check.ok]
    facts = [
        ("recipe", result.recipe.name),
        ("groups", f"{count(len(plan.groups), 'group')}, {count(host, 'node')} on the host"),
        ("transposed", memory(lowered.transposed_bytes)),
        ("checks", f"failed: {', '.join(failed)}" if failed else f"{len(result.checks)} passed"),
        ("accuracy", f"{decibels(result.accuracy_db)} dB against the model in floats"),
        ("time", time(sum(result.seconds[name] for name in result.seconds if ":" not in name))),
    ]
    facts += [("cost", f"{name}: {cost_text(each)}") for name, each in result.costs.items()]
    if result.folder is not None:
        facts.append(("folder", str(result.folder)))
    facts += [("note", note) for note in result.notes]
    return Report(
        title=f"export {result.name}",
        ok=result.ok,
        facts=tuple(facts),
        sections=tuple(_sections(result)),
        data=_data(result),
    )


def _sections(result: ExportResult) -> Iterator[Section]:
    checks = [
        (
            check.name,
            "ok" if check.ok else "wrong",
            decibels(check.db),
            f"{check.differing:,}",
            f"{check.elements:,}",
            check.what,
        )
        for check in result.checks
    ]
    marked = [i for i, check in enumerate(result.checks) if not check.ok]
    yield Section("checks", table(("check", "", "least dB", "differ", "elements", "of what"), checks, marked))
    plan = result.lowered.partitions
    groups = [
        (group.name, group.claimant, f"{len(group.nodes):,}", f"{group.macs:,}") for group in plan.groups
    ]
    yield Section("groups", table(("group", "claimant", "nodes", "MACs"), groups))
    yield Section("inputs and outputs", table(_PORT_COLUMNS, list(_ports(result))))
    if result.files:
        folder = result.folder
        assert folder is not None
        files = [(str(each.relative_to(folder)),) for each in result.files]
        yield Section("files", table(("file",), files), folded=len(files) > 16)
    seconds = [(name, time(each)) for name, each in result.seconds.items()]
    yield Section("times", table(("step", "time"), seconds), folded=True)
    yield Section("recipe", str(result.recipe), folded=True)
    for section in describe_split(result.lowered).sections:
        yield Section(f"partition: {section.title}", section.body, folded=True)


_PORT_COLUMNS = ("", "name", "type", "dim order", "scale", "zero point")


def _ports(result: ExportResult) -> Iterator[tuple[str, ...]]:
    for role, ports in (("input", result.lowered.inputs), ("output", result.lowered.outputs)):
        for port in ports:
            axes = "".join(map(str, port.dim_order)) or "-"
            yield (role, port.path or port.name, port.type_text, axes, *_scale(port))


def _scale(port: Port) -> tuple[str, str]:
    qparams = port.qparams
    if qparams is None:
        return "-", "-"
    if len(qparams.scales) > 1:
        return f"{len(qparams.scales)} scales", "-"
    return f"{qparams.scale:.6g}", str(qparams.zero_point)


def _data(result: ExportResult) -> dict[str, object]:
    return {
        "name": result.name,
        "recipe": result.recipe.name,
        "ok": result.ok,
        "accuracy_db": result.accuracy_db,
        "checks": [
            {
                "name": check.name,
                "what": check.what,
                "ok": check.ok,
                "db": check.db,
                "differing": check.differing,
                "elements": check.elements,
            }
            for check in result.checks
        ],
        "groups": [
            {
                "name": group.name,
                "claimant": group.claimant,
                "nodes": list(group.nodes),
                "macs": group.macs,
            }
            for group in result.lowered.partitions.groups
        ],
        "transposed_bytes": result.lowered.transposed_bytes,
        "io": result.io.fields(),
        "costs": {name: asdict(each) for name, each in result.costs.items()},
        "notes": list(result.notes),
        "seconds": result.seconds,
        "folder": None if result.folder is None else str(result.folder),
        "files": [str(each) for each in result.files],
    }
