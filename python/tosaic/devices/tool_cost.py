"""The cost of a ``.tosa`` file by a device's tool: `CostSummary`, `ToolRow` and `ToolCost`.

Rows name operators by their index in the file. `tosaic.device_cost` attributes them to nodes, modules and
source lines.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

__all__ = ["CostSource", "CostSummary", "ToolCost", "ToolRow"]

CostSource: TypeAlias = Literal["vela", "analytic"]
"""The source of an estimate: Vela, or tosaic's own model."""


@dataclass(frozen=True)
class CostSummary:
    """The estimated cost of one run of a program on a device.

    Attributes
    ----------
    device : str
        Such as ``ethos-u85-256``.
    source : {"vela", "analytic"}
        The tool that made the estimate.
    memory_mode, system_config : str
        As the tool names them; empty if it has none.
    clock_hz : float
        Cycles of the device per second.
    cycles : int
        Cycles of a run.
    npu_cycles : int
        Cycles in which the device computes; others wait for memory.
    sram_bytes, dram_bytes, on_chip_flash_bytes, off_chip_flash_bytes : int
        The most memory in use. Constants are in flash, or in DRAM.
    macs : int
        Multiply-accumulates of a run, as the tool counts them.
    macs_per_cycle : int
        The most multiply-accumulates that the device computes in a cycle.
    """

    device: str
    source: CostSource
    memory_mode: str
    system_config: str
    clock_hz: float
    cycles: int
    npu_cycles: int
    sram_bytes: int
    dram_bytes: int
    on_chip_flash_bytes: int
    off_chip_flash_bytes: int
    macs: int
    macs_per_cycle: int

    @property
    def totals(self) -> dict[str, Any]:
        """The attributes above, by name."""
        return {each.name: getattr(self, each.name) for each in fields(CostSummary)}

    @property
    def seconds(self) -> float:
        """The time of a run."""
        return self.cycles / self.clock_hz if self.clock_hz else 0.0

    @property
    def mac_use(self) -> float:
        """The share of the multiply-accumulates of all cycles that is used, from 0 to 1."""
        most = self.cycles * self.macs_per_cycle
        return self.macs / most if most else 0.0


@dataclass(frozen=True)
class ToolRow:
    """An operation of the device, in the order in which it runs.

    Attributes
    ----------
    operator : int or None
        The index in the file of the operator that it comes from. None: the tool does not report it.
    device_op : str
        The operation by the tool's name: ``Conv2D``, ``MemoryCopy``.
    result : str
        The tensor that the operation writes: a tensor of the file, or one that the tool added.
    cycles, npu_cycles : int
        As in `CostSummary`.
    sram_cycles, dram_cycles, on_chip_flash_cycles, off_chip_flash_cycles : int
        Cycles of access to each memory. They overlap with each other, and with computing.
    sram_bytes : int
        Bytes of SRAM in use while the operation runs.
    macs : int
    leader : int or None
        The row that includes its cycles, if both rows are one command.
    """

    operator: int | None
    device_op: str
    result: str
    cycles: int
    npu_cycles: int = 0
    sram_cycles: int = 0
    dram_cycles: int = 0
    on_chip_flash_cycles: int = 0
    off_chip_flash_cycles: int = 0
    sram_bytes: int = 0
    macs: int = 0
    leader: int | None = None


@dataclass(frozen=True)
class ToolCost:
    """The cost of a ``.tosa`` file.

    Attributes
    ----------
    summary : CostSummary
    rows : tuple of ToolRow
        Their cycles add up to those of the summary, as far as the tool reports them by row.
    """

    summary: CostSummary
    rows: tuple[ToolRow, ...]
