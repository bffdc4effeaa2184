"""The cost of a program on a device as data: `DeviceCost` and its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tosaic.base.options import is_one_of, refusal
from tosaic.base.reportable import Reportable
from tosaic.base.visible import one_line
from tosaic.devices.tool_cost import CostSummary
from tosaic.profiling.steps import NodeOrigin, ProfiledNode

__all__ = ["CostCopy", "CostRow", "CostShare", "DeviceCost", "GroupCost"]


@dataclass(frozen=True)
class CostRow:
    """An operation of the device, with the nodes that it computes.

    Attributes
    ----------
    operator : int or None
        The index in the ``.tosa`` file of the operator that the operation comes from. None: unknown.
    device_op : str
        The operation by the tool's name: ``Conv2D``, or ``MemoryCopy`` for a copy that the tool
        adds.
    nodes : tuple of ProfiledNode
        The node of the operator, then the nodes that are fused into it, which have no further cost.
        Empty if no operator is known.
    result : str
        The tensor that the operation writes: a tensor of the file, or one that the tool added.
    cycles : int
    share : float
        Part of the cycles of the program, from 0 to 1.
    npu_cycles : int
        Cycles in which the device computes.
    sram_cycles, dram_cycles, on_chip_flash_cycles, off_chip_flash_cycles : int
        Cycles of access to each memory. They overlap with each other, and with computing.
    sram_bytes : int
        Bytes of SRAM in use while the operation runs.
    macs : int
        Multiply-accumulates.
    mac_use : float
        The share of the device's multiply-accumulates in these cycles that is used, from 0 to 1.
    group : str
        The group of a split program, such as ``group0``; empty for other programs.
    """

    operator: int | None
    device_op: str
    nodes: tuple[ProfiledNode, ...]
    result: str
    cycles: int
    share: float
    npu_cycles: int
    sram_cycles: int
    dram_cycles: int
    on_chip_flash_cycles: int
    off_chip_flash_cycles: int
    sram_bytes: int
    macs: int
    mac_use: float
    group: str = ""

    @property
    def node(self) -> str:
        """The name of the node, which in TOSA is the name of its result; without a node, `result`."""
        return self.nodes[0].name if self.nodes else self.result

    @property
    def op(self) -> str:
        """The operator of the node, such as ``tosa.conv2d``; empty if no operator is known."""
        return self.nodes[0].op if self.nodes else ""

    @property
    def fused(self) -> tuple[str, ...]:
        """The names of the nodes that are fused into the row."""
        return tuple(node.name for node in self.nodes[1:])

    @property
    def origins(self) -> tuple[NodeOrigin, ...]:
        """The calls of torch from which the node comes."""
        return self.nodes[0].origins if self.nodes else ()

    @property
    def module_path(self) -> str:
        """The path of the module, such as ``features.0.1``; empty if torch did not record it."""
        return next((each.module_path for each in self.origins), "")

    @property
    def source(self) -> str:
        """The source line, such as ``model.py:41``; empty if torch did not record it."""
        return next((each.source for each in self.origins), "")

    @property
    def torch_operator(self) -> str:
        """The calls of torch that the node computes: ``aten.pad.default + aten.conv2d.default``."""
        return " + ".join(dict.fromkeys(each.torch_operator for each in self.origins))


@dataclass(frozen=True)
class CostShare:
    """The costs of rows with a common property.

    Attributes
    ----------
    name : str
        The value of the property, such as the module ``features.0``.
    rows : int
    cycles : int
    share : float
        Part of `DeviceCost.cycles`, from 0 to 1.
    macs : int
    mac_use : float
        As in `CostRow`.
    """

    name: str
    rows: int
    cycles: int
    share: float
    macs: int
    mac_use: float


@dataclass(frozen=True)
class GroupCost:
    """A group of a split program.

    Attributes
    ----------
    name : str
        Such as ``group0``.
    claimant : str
    summary : CostSummary or None
        None: no tool estimates for the claimant, and no number includes the group.
    """

    name: str
    claimant: str
    summary: CostSummary | None


@dataclass(frozen=True)
class CostCopy:
    """A value that passes between parts of a split program. The time of the copy is not estimated.

    Attributes
    ----------
    value : str
    made_by : str
        The group, or ``host``.
    read_by : tuple of str
        The groups, or ``host``.
    bytes : int
    """

    value: str
    made_by: str
    read_by: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class DeviceCost(CostSummary, Reportable):
    """The estimated cost of one run of a program on a device. `tosaic.device_cost` makes it.

    In a terminal, it prints as a table of 80 columns; in a notebook, it is shown as HTML. The cycles of
    `rows` add up to `cycles`. All numbers are estimates of `source`.

    For a split program, cycles and multiply-accumulates are sums over the groups. The groups run one after
    the other, so `sram_bytes` is that of the largest group. The other memories hold the constants of all
    groups, and are sums. The host's nodes, copies between parts, and groups without an estimate are not
    included in any number: `host`, `copies` and `groups` list them.

    Attributes
    ----------
    rows : tuple of CostRow
        In the order in which the device runs them. An operation that is part of another one's command has no
        row: its node is fused into the row of that command.
    groups : tuple of GroupCost
        The groups of a split program.
    host : tuple of ProfiledNode
        The nodes of a split program that the host computes.
    copies : tuple of CostCopy
        The values that pass between groups and host.
    """

    rows: tuple[CostRow, ...] = field(default=(), repr=False)
    groups: tuple[GroupCost, ...] = field(default=(), repr=False)
    host: tuple[ProfiledNode, ...] = field(default=(), repr=False)
    copies: tuple[CostCopy, ...] = field(default=(), repr=False)

    @property
    def unattributed_cycles(self) -> int:
        """Cycles of rows without a node."""
        return sum(row.cycles for row in self.rows if not row.nodes)

    @property
    def is_complete(self) -> bool:
        """True if the whole run is estimated: no node is on the host or in a group without estimate."""
        return not self.host and all(group.summary is not None for group in self.groups)

    def by(self, what: str) -> tuple[CostShare, ...]:
        """Adds up the rows with a common property.

        Parameters
        ----------
        what : {"module", "operator", "device_op", "node", "source", "torch_operator", "group"}
            A row counts for the operator and the first origin of its first node, and for all calls of torch
            that this node computes together: ``aten.pad.default + aten.conv2d.default``.

        Returns
        -------
        tuple of CostShare
            The most cycles first. They add up to `cycles`.

        Raises
        ------
        InvalidGraph
            `what` is something else.
        """
        if not is_one_of(what, tuple(_KEYS)):
            raise refusal("by", "what", "one of " + ", ".join(map(repr, _KEYS)), what)
        return self._shares(_KEYS[what])

    def by_module(self, depth: int | None = None) -> tuple[CostShare, ...]:
        """Adds up the rows of each module.

        Parameters
        ----------
        depth : int, optional
            Count only this many first parts of the path: 2 makes ``layers.0`` of ``layers.0.attention.q``.

        Returns
        -------
        tuple of CostShare
            The most cycles first. They add up to `cycles`. Nodes outside of modules have an empty path.

        Raises
        ------
        InvalidGraph
            `depth` is no positive number.
        """
        if depth is not None and (type(depth) is not int or depth < 1):
            raise refusal("by_module", "depth", "a positive number, or None", depth)
        return self._shares(lambda row: ".".join(row.module_path.split(".")[:depth]))

    def _shares(self, key: Callable[[CostRow], str]) -> tuple[CostShare, ...]:
        found: dict[str, list[CostRow]] = {}
        for row in self.rows:
            found.setdefault(key(row), []).append(row)
        shares = []
        for name, rows in found.items():
            cycles, macs = sum(row.cycles for row in rows), sum(row.macs for row in rows)
            use = macs / (cycles * self.macs_per_cycle) if cycles and self.macs_per_cycle else 0.0
            share = cycles / self.cycles if self.cycles else 0.0
            shares.append(CostShare(name, len(rows), cycles, share, macs, use))
        return tuple(sorted(shares, key=lambda each: -each.cycles))

    def as_dict(self) -> dict[str, Any]:
        """Returns all numbers as plain data, which `to_json` writes."""
        return dict(self.report().data)

    def to_json(self) -> str:
        """Returns all numbers as JSON."""
        return self.report().json

    def __repr__(self) -> str:
        return one_line(
            f"<tosaic.cost.DeviceCost on {self.device}: {self.cycles:,} cycles, {len(self.rows)} rows>"
        )


_KEYS: Mapping[str, Callable[[CostRow], str]] = {
    "module": lambda row: row.module_path,
    "operator": lambda row: row.op,
    "device_op": lambda row: row.device_op,
    "node": lambda row: row.node,
    "source": lambda row: row.source,
    "torch_operator": lambda row: row.torch_operator,
    "group": lambda row: row.group,
}
