"""Estimates for whole programs: the estimates of the device's tool, or of tosaic's model, by group."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from tosaic import _core
from tosaic.base.dtypes import bytes_of
from tosaic.base.file_kinds import TOSA
from tosaic.base.options import file_path, invalid, refusal, shown, unsupported
from tosaic.base.reading import read_bytes
from tosaic.cost.analytic import analytic_cost, has_analytic_cost
from tosaic.cost.attribution import attributed, node_of
from tosaic.cost.device_cost import CostCopy, CostRow, DeviceCost, GroupCost
from tosaic.devices.device import Device
from tosaic.devices.registry import core_claimant, device_of, devices
from tosaic.devices.tool_cost import CostSummary, ToolCost
from tosaic.lowering.lowered import Lowered
from tosaic.partitions.claimant import Claimant
from tosaic.partitions.plan import HOST
from tosaic.partitions.split_folder import SavedGroup, is_split_folder, saved_split
from tosaic.partitions.split_lowered import SplitLowered
from tosaic.program.program import Program

__all__ = ["estimated_cost"]

_WHERE = "device_cost"
_Method = Literal["tool", "analytic"]
_METHODS = get_args(_Method)


def estimated_cost(
    program: Any,
    device: Any,
    method: str,
    memory_mode: str | None,
    system_config: str | None,
    flags: Any,
) -> DeviceCost:
    """Returns the cost; see `tosaic.device_cost`."""
    member = device.kind if isinstance(device, Claimant) else device
    if member is not None and not isinstance(member, str):
        raise refusal(_WHERE, "device", f"one of {', '.join(_with_costs())}", device)
    given = {"memory_mode": memory_mode, "system_config": system_config}
    if not isinstance(flags, list | tuple) or not all(isinstance(flag, str) for flag in flags):
        raise refusal(_WHERE, "flags", "a list of strings", flags)
    options = {name: value for name, value in given.items() if value is not None}
    if method not in ("auto", *_METHODS):
        raise refusal(_WHERE, "method", "one of " + ", ".join(map(repr, ("auto", *_METHODS))), method)
    if method == "analytic" and flags:
        raise refusal(_WHERE, "flags", "none: they are for the tool, and method is 'analytic'", list(flags))
    wished: _Method | None = "tool" if flags or method == "tool" else None
    asked = _Asked("analytic" if method == "analytic" else wished, options, tuple(flags))
    if member is not None and device_of(member.lower()) is not None:
        member = member.lower()
    if isinstance(program, SplitLowered):
        return _cost_of_split(program.graph, _parts_of(program), member, asked)
    if isinstance(program, str | os.PathLike) and is_split_folder(program):
        host, parts = saved_split(_WHERE, program)
        return _cost_of_split(host.graph, parts, member, asked)
    tosa = _bytes_of(program)
    if member is None:
        raise refusal(_WHERE, "device", f"one of {', '.join(_with_costs())}", device)
    return _cost_of_file(tosa, member, asked)


@dataclass(frozen=True)
class _Asked:
    """Who is to estimate, and with what."""

    method: _Method | None
    options: Mapping[str, str]
    flags: tuple[str, ...]

    def estimates(self, device: Device | None, member: str) -> bool:
        """True if there is an estimate for a member of a device."""
        by_tool = self.method != "analytic" and _estimate_of(device) is not None
        return by_tool or (self.method != "tool" and has_analytic_cost(member))

    def resolved(self, device: Device | None, member: str) -> _Method:
        """Returns who estimates: without a wish, the tool if it is installed or there is nobody else."""
        if self.method is not None:
            return self.method
        known = has_analytic_cost(member)
        return "tool" if not known or (_estimate_of(device) and _is_installed(device)) else "analytic"


def _is_installed(device: Device | None) -> bool:
    require = None if device is None or device.payload is None else device.payload.require_tool
    try:
        if require is not None:
            require()
    except ImportError:
        return False
    return True


def _parts_of(split: SplitLowered) -> list[SavedGroup]:
    takers = [split.claimants[group.claimant] for group in split.partitions.groups]
    return [
        SavedGroup(
            group.name, taker.kind, part.to_bytes() if isinstance(part, Lowered) and taker.target else None
        )
        for group, taker, part in zip(split.partitions.groups, takers, split.parts, strict=True)
    ]


def _bytes_of(program: Any) -> bytes:
    """Returns the ``.tosa`` file of a program."""
    if isinstance(program, Lowered):
        return program.to_bytes()
    if isinstance(program, Program) and program.stage == "tosa":
        return _core.serialize(program.graph)
    if isinstance(program, str | os.PathLike):
        if not TOSA.holds(program):
            expected = f"a file with the suffix {TOSA.suffix}, or the folder of a split program"
            raise refusal(_WHERE, "program", expected, os.fspath(program))
        return read_bytes(_WHERE, file_path(_WHERE, program))
    what = f"a program at stage {program.stage}" if isinstance(program, Program) else shown(program)
    raise invalid(
        _WHERE,
        "what is to be estimated is not lowered",
        expected="a Lowered, a SplitLowered, a program at stage tosa, or the path of a .tosa file",
        got=what,
        hint="tosaic.lower lowers programs",
    )


def _with_costs() -> list[str]:
    """Returns the devices with estimates."""
    return [
        name
        for each in devices()
        for name in each.names
        if _estimate_of(each) is not None or has_analytic_cost(name)
    ]


def _estimate_of(device: Device | None) -> Callable[..., ToolCost] | None:
    """Returns the function that estimates for a device."""
    return None if device is None or device.payload is None else device.payload.cost


def _cost_of_file(tosa: bytes, member: str, asked: _Asked) -> DeviceCost:
    device = device_of(member)
    if not asked.estimates(device, member):
        core_claimant(member)  # refuses a name that is neither a device nor a target
        who = "model of tosaic" if asked.method == "analytic" else "tool"
        raise unsupported(
            _WHERE,
            f"no {who} estimates what a program costs on '{member}'",
            expected=f"one of {', '.join(_with_costs())}",
        )
    if asked.resolved(device, member) == "analytic":
        return analytic_cost(tosa, member, asked.options)
    estimate = _estimate_of(device)
    assert estimate is not None
    cost = estimate(tosa, member, asked.options, asked.flags)
    return DeviceCost(**cost.summary.totals, rows=attributed(tosa, cost))


def _cost_of_split(
    host: _core.Graph,
    parts: Sequence[SavedGroup],
    member: str | None,
    asked: _Asked,
) -> DeviceCost:
    """Adds up the groups that have an estimate, and lists everything that is not estimated."""
    family = None if member is None else device_of(member)
    if member is not None and family is None:
        core_claimant(member)
        raise refusal(_WHERE, "device", f"one of {', '.join(_with_costs())}", member)
    groups: list[GroupCost] = []
    rows: list[CostRow] = []
    asked = _one_method(parts, member, asked)
    for part in parts:
        own = device_of(part.claimant)
        is_meant = own is not None and (family is None or family.name == own.name)
        if part.tosa is None or not is_meant or not asked.estimates(own, member or part.claimant):
            groups.append(GroupCost(part.name, part.claimant, None))
            continue
        found = _cost_of_file(part.tosa, member or part.claimant, asked)
        groups.append(GroupCost(part.name, part.claimant, CostSummary(**found.totals)))
        rows += [replace(row, group=part.name) for row in found.rows]
    summaries = [each.summary for each in groups if each.summary is not None]
    if not summaries:
        claimants = ", ".join(f"{each.name} for '{each.claimant}'" for each in groups) or "no group"
        raise unsupported(
            _WHERE,
            "no tool estimates what a group of the program costs",
            expected=f"a group for one of {', '.join(_with_costs())}",
            got=claimants,
        )
    total = _added(summaries)
    names = {each.name for each in groups}
    graphs = list(_with_regions(host))
    return DeviceCost(
        **total.totals,
        rows=tuple(replace(row, share=row.cycles / total.cycles if total.cycles else 0.0) for row in rows),
        groups=tuple(groups),
        host=tuple(node_of(node) for graph in graphs for node in graph.nodes if not _group_of(node, names)),
        copies=tuple(copy for graph in graphs for copy in _copies(graph, names)),
    )


def _one_method(parts: Sequence[SavedGroup], member: str | None, asked: _Asked) -> _Asked:
    """Asks the same for all groups: if a tool is not installed, tosaic's own model."""
    names = [member or part.claimant for part in parts if part.tosa is not None]
    known = [name for name in names if has_analytic_cost(name)]
    found = {asked.resolved(device_of(name), name) for name in known}
    return replace(asked, method="analytic") if "analytic" in found else asked


def _added(summaries: Sequence[CostSummary]) -> CostSummary:
    """Returns the cost of groups that run one after the other."""
    first = summaries[0]
    cycles = sum(each.cycles for each in summaries)
    seconds = sum(each.seconds for each in summaries)
    clocks = {each.clock_hz for each in summaries}
    most = sum(each.cycles * each.macs_per_cycle for each in summaries)
    return CostSummary(
        device=_joined(each.device for each in summaries),
        source=first.source,
        memory_mode=_joined(each.memory_mode for each in summaries),
        system_config=_joined(each.system_config for each in summaries),
        clock_hz=first.clock_hz if len(clocks) == 1 or not seconds else cycles / seconds,
        cycles=cycles,
        npu_cycles=sum(each.npu_cycles for each in summaries),
        sram_bytes=max(each.sram_bytes for each in summaries),
        dram_bytes=sum(each.dram_bytes for each in summaries),
        on_chip_flash_bytes=sum(each.on_chip_flash_bytes for each in summaries),
        off_chip_flash_bytes=sum(each.off_chip_flash_bytes for each in summaries),
        macs=sum(each.macs for each in summaries),
        macs_per_cycle=round(most / cycles) if cycles else first.macs_per_cycle,
    )


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _with_regions(graph: _core.Graph) -> Iterator[_core.Graph]:
    yield graph
    for node in graph.nodes:
        for region in node.regions:
            yield from _with_regions(region)


def _group_of(node: _core.Node, groups: Collection[str]) -> str:
    """Returns the group that a node calls; empty for a node of the host."""
    target = str(node.attrs["target"]) if node.op == "opaque" else ""
    return target if target in groups else ""


def _copies(host: _core.Graph, groups: Collection[str]) -> Iterator[CostCopy]:
    """Yields the values that pass between groups and host."""
    for value in host.values:
        if value.kind == "constant":
            continue
        made_by = HOST if value.producer is None else _group_of(value.producer, groups) or HOST
        readers = [_group_of(user, groups) or HOST for user in value.users] + [HOST] * value.is_output
        read_by = tuple(dict.fromkeys(each for each in readers if each != made_by))
        if read_by:
            yield CostCopy(value.name, made_by, read_by, bytes_of(value))
