"""The report of what a program costs on a device: totals, nodes, modules and operators by cycles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from tosaic.devices.tool_cost import CostSummary
from tosaic.report.document import Report
from tosaic.report.numbers import count, memory, short, time
from tosaic.report.parts import Section, table

if TYPE_CHECKING:
    from tosaic.cost.device_cost import CostRow, CostShare, DeviceCost

__all__ = ["cost_text", "describe_device_cost", "memories_of"]

_SHOWN, _FEW = 12, 8
_OPERATOR, _NODE, _SOURCE, _NAME = 16, 18, 14, 46
"""The longest texts in tables for a terminal. Without a column of sources, nodes get its width."""


def cost_text(summary: CostSummary) -> str:
    """Returns cycles and memory as one line."""
    return f"{summary.cycles:,} cycles, {memories_of(summary)} on {summary.device} ({summary.source})"


def memories_of(summary: CostSummary) -> str:
    """Returns the memory that is used, as one line."""
    named = (
        ("SRAM", summary.sram_bytes),
        ("DRAM", summary.dram_bytes),
        ("on-chip flash", summary.on_chip_flash_bytes),
        ("off-chip flash", summary.off_chip_flash_bytes),
    )
    return ", ".join(f"{memory(size)} {name}" for name, size in named if size or name == "SRAM")


def describe_device_cost(cost: DeviceCost) -> Report:
    """Makes a report of what a program costs on a device."""
    facts: list[tuple[str, str]] = [("estimated by", cost.source)]
    if cost.memory_mode:
        facts.append(("memory mode", f"{cost.memory_mode}, {cost.system_config}"))
    waits = cost.cycles - cost.npu_cycles
    facts += [
        ("cycles", f"{cost.cycles:,}: {time(cost.seconds)} at {cost.clock_hz / 1e6:,.0f} MHz"),
        ("computing", f"{cost.npu_cycles:,} cycles, {waits:,} wait for memory"),
        ("memory", memories_of(cost)),
        ("MACs", f"{cost.macs:,}, {cost.mac_use:.1%} of what the device could compute"),
    ]
    if cost.unattributed_cycles:
        facts.append(("of no node", f"{cost.unattributed_cycles:,} cycles"))
    facts += _not_estimated(cost)
    return Report(
        title=f"cost on {cost.device}",
        facts=tuple(facts),
        sections=tuple(_sections(cost)),
        data=_data(cost),
    )


def _not_estimated(cost: DeviceCost) -> Iterator[tuple[str, str]]:
    """Yields what the estimates leave out: a name and its value."""
    for group in cost.groups:
        if group.summary is None:
            yield "not estimated", f"{group.name}, which is for {group.claimant}"
    if cost.host:
        kinds = Counter(node.op for node in cost.host).most_common()
        shown = ", ".join(f"{number} x {op}" for op, number in kinds[:_FEW])
        more = f" and {count(len(kinds) - _FEW, 'operator')}" if len(kinds) > _FEW else ""
        yield "not estimated", f"{count(len(cost.host), 'node')} on the host: {shown}{more}"
    if cost.copies:
        size = memory(sum(copy.bytes * len(copy.read_by) for copy in cost.copies))
        yield "not estimated", f"{count(len(cost.copies), 'value')} copied between parts, {size}"


def _sections(cost: DeviceCost) -> Iterator[Section]:
    nodes = _by_node(cost)
    more = f" ({_SHOWN} of {len(nodes):,})" if len(nodes) > _SHOWN else ""
    columns = ("cycles", "share", "MAC use", "operator", "node (+ fused)", "from")
    yield Section(f"nodes{more}", table(columns, [_node_row(cost, each) for each in nodes[:_SHOWN]]))
    if any(row.origins for row in cost.rows):
        yield _shares(cost, "module", cost.by_module(), _SHOWN)
        yield _shares(cost, "call of torch", cost.by("torch_operator"), _FEW)
    yield _shares(cost, "operator", cost.by("operator"), _FEW)
    yield _shares(cost, "what the device does", cost.by("device_op"), _FEW, folded=True)
    if len(cost.groups) > 1:
        groups = [
            (each.name, each.claimant, "-", "-")
            if each.summary is None
            else (each.name, each.claimant, f"{each.summary.cycles:,}", memory(each.summary.sram_bytes))
            for each in cost.groups
        ]
        yield Section("groups", table(("group", "claimant", "cycles", "SRAM"), groups))
    yield Section("all rows", table(_ROW_COLUMNS, [_full_row(row) for row in cost.rows]), folded=True)
    if cost.host:
        host = [(node.name, node.op, *_place(node.origins)) for node in cost.host]
        yield Section("host", table(("node", "operator", "module", "from"), host), folded=True)
    if cost.copies:
        copies = [
            (each.value, each.made_by, ", ".join(each.read_by), memory(each.bytes)) for each in cost.copies
        ]
        yield Section("copies", table(("value", "from", "to", "bytes"), copies), folded=True)


def _by_node(cost: DeviceCost) -> list[list[CostRow]]:
    """Returns the rows of each node, the most cycles first."""
    found: dict[tuple[str, str], list[CostRow]] = {}
    for row in cost.rows:
        found.setdefault((row.group, row.node), []).append(row)
    return sorted(found.values(), key=lambda rows: -sum(row.cycles for row in rows))


def _node_row(cost: DeviceCost, rows: Sequence[CostRow]) -> tuple[str, ...]:
    first = rows[0]
    cycles, macs = sum(row.cycles for row in rows), sum(row.macs for row in rows)
    fused = len({name for row in rows for name in row.fused})
    more = f" +{fused}" if fused else ""
    room = _NODE if any(row.source for row in cost.rows) else _NODE + _SOURCE
    return (
        short(cycles),
        f"{sum(row.share for row in rows):.1%}",
        _use(macs, cycles * cost.macs_per_cycle),
        _cut_end(_plain(first.op) or first.device_op, _OPERATOR),
        _cut_end(first.node, room - len(more)) + more,
        _cut_begin(first.source, _SOURCE),
    )


def _use(macs: int, most: int) -> str:
    return f"{macs / most:.1%}" if macs and most else "-"


def _plain(op: str) -> str:
    """Returns operators of TOSA or torch without their common prefixes: ``aten.pad.default + ...``."""
    ops = (each.removeprefix("tosa.").removeprefix("aten.") for each in op.split(" + "))
    return " + ".join(each.removesuffix(".default") for each in ops)


def _cut_end(text: str, longest: int) -> str:
    """Returns the begin of a text, at most this many characters."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _cut_begin(text: str, longest: int) -> str:
    """Returns the end of a text, at most this many characters."""
    return text if len(text) <= longest else f"...{text[3 - longest :]}"


def _shares(
    cost: DeviceCost, what: str, shares: Sequence[CostShare], shown: int, *, folded: bool = False
) -> Section:
    more = f" ({shown} of {len(shares):,})" if len(shares) > shown else ""
    rows = [
        (
            short(each.cycles),
            f"{each.share:.1%}",
            _use(each.macs, each.cycles * cost.macs_per_cycle),
            str(each.rows),
            _cut_begin(_plain(each.name), _NAME) or "-",
        )
        for each in shares[:shown]
    ]
    columns = ("cycles", "share", "MAC use", "rows", what)
    return Section(f"by {what}{more}", table(columns, rows), folded=folded)


_ROW_COLUMNS = (
    "operator",
    "cycles",
    "computing",
    "SRAM cycles",
    "DRAM cycles",
    "flash cycles",
    "SRAM",
    "MACs",
    "MAC use",
    "device does",
    "node",
    "fused",
    "module",
    "from",
)


def _full_row(row: CostRow) -> tuple[str, ...]:
    return (
        "-" if row.operator is None else str(row.operator),
        f"{row.cycles:,}",
        f"{row.npu_cycles:,}",
        f"{row.sram_cycles:,}",
        f"{row.dram_cycles:,}",
        f"{row.on_chip_flash_cycles + row.off_chip_flash_cycles:,}",
        memory(row.sram_bytes),
        f"{row.macs:,}",
        f"{row.mac_use:.1%}",
        row.device_op,
        f"{row.group}: {row.node}" if row.group else row.node,
        " + ".join(row.fused),
        row.module_path,
        row.source,
    )


def _place(origins: Sequence[Any]) -> tuple[str, str]:
    return (origins[0].module_path, origins[0].source) if origins else ("", "")


def _data(cost: DeviceCost) -> dict[str, Any]:
    return {
        **cost.totals,
        "seconds": cost.seconds,
        "mac_use": cost.mac_use,
        "unattributed_cycles": cost.unattributed_cycles,
        "is_complete": cost.is_complete,
        "rows": [_row_data(row) for row in cost.rows],
        "modules": [asdict(each) for each in cost.by_module()],
        "groups": [asdict(each) for each in cost.groups],
        "host": [asdict(each) for each in cost.host],
        "copies": [asdict(each) for each in cost.copies],
    }


def _row_data(row: CostRow) -> dict[str, Any]:
    data = {each.name: getattr(row, each.name) for each in fields(row) if each.name != "nodes"}
    return {
        **data,
        "node": row.node,
        "op": row.op,
        "module_path": row.module_path,
        "source": row.source,
        "nodes": [asdict(node) for node in row.nodes],
    }
