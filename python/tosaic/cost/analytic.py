"""tosaic's own estimate of what a ``.tosa`` file costs: `analytic_cost`.

The model is in ``cpp/tosaic/cost``. It needs no tool. ``docs/measured/cost_model.md`` compares it with Vela.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tosaic import _core
from tosaic.cost.attribution import node_of
from tosaic.cost.device_cost import CostRow, DeviceCost
from tosaic.cost.file_operators import file_operators
from tosaic.devices.tool_cost import CostSummary

__all__ = ["analytic_cost", "has_analytic_cost"]


def has_analytic_cost(member: str) -> bool:
    """True if the model has a device, such as ``ethos-u85-256``."""
    return member in _core.cost_devices()


def analytic_cost(tosa: bytes, member: str, options: Mapping[str, str]) -> DeviceCost:
    """Returns the estimated cost of a ``.tosa`` file.

    Parameters
    ----------
    tosa : bytes
    member : str
        A device for which `has_analytic_cost` is true.
    options : mapping of str to str
        ``memory_mode`` and ``system_config``, if they differ from those for which payloads are compiled.

    Raises
    ------
    InvalidGraph
        The file is damaged, or there is no such memory mode or system configuration.
    """
    graph = _core.deserialize(tosa)
    found = _core.estimate_cost(graph, member, **options)
    summary = _summary(found, member)
    places = {name: i for i, each in enumerate(file_operators(tosa) or ()) for name in each.outputs}
    nodes = list(graph.nodes)
    rows = tuple(_row(row, nodes, places, found, summary) for row in found["rows"])
    return DeviceCost(**summary.totals, rows=rows)


def _summary(found: Mapping[str, Any], member: str) -> CostSummary:
    results, constants = found["result_bytes"], found["constant_bytes"]
    memory = dict.fromkeys(("sram", "dram", "on_chip_flash", "off_chip_flash"), 0)
    memory["on_chip_flash" if found["constants_near"] else found["far"]] += constants
    if found["results_near"]:
        memory["sram"] += results
    else:
        memory["sram"] += min(results, found["cache_bytes"])
        memory[found["far"]] += results
    return CostSummary(
        device=member,
        source="analytic",
        memory_mode=found["memory_mode"],
        system_config=found["system_config"],
        clock_hz=found["clock_hz"],
        cycles=sum(row["cycles"] for row in found["rows"]),
        npu_cycles=sum(min(row["cycles"], row["npu_cycles"]) for row in found["rows"]),
        macs=sum(row["macs"] for row in found["rows"]),
        macs_per_cycle=found["macs_per_cycle"],
        **{f"{name}_bytes": size for name, size in memory.items()},
    )


def _row(
    row: Mapping[str, Any],
    nodes: list[_core.Node],
    places: Mapping[str, int],
    found: Mapping[str, Any],
    summary: CostSummary,
) -> CostRow:
    own = [nodes[i] for i in row["nodes"]]
    most = row["cycles"] * summary.macs_per_cycle
    far = {found["far"]: row["far_cycles"]}
    return CostRow(
        operator=next((places[each.name] for each in own[0].results if each.name in places), None),
        device_op=row["device_op"],
        nodes=tuple(map(node_of, own)),
        result=own[0].name,
        cycles=row["cycles"],
        share=row["cycles"] / summary.cycles if summary.cycles else 0.0,
        npu_cycles=row["npu_cycles"],
        sram_cycles=row["near_cycles"],
        dram_cycles=far.get("dram", 0),
        on_chip_flash_cycles=far.get("on_chip_flash", 0),
        off_chip_flash_cycles=far.get("off_chip_flash", 0),
        sram_bytes=row["result_bytes"],
        macs=row["macs"],
        mac_use=min(1.0, row["macs"] / most) if most else 0.0,
    )
