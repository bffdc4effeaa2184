"""Devices: records that say what a device takes and what becomes of it, and what runs or compiles for them.

>>> import tosaic.devices
>>> [device.name for device in tosaic.devices.devices()][:3]
['host', 'vgf', 'ethos-u55']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosaic.devices.device import Device, DeviceRecipe, Limit, Operators, Payload
from tosaic.devices.engines import Engine
from tosaic.devices.tool_cost import CostSummary, ToolCost, ToolRow

if TYPE_CHECKING:
    from tosaic.devices.registry import devices, limit_names, register

__all__ = [
    "CostSummary",
    "Device",
    "DeviceRecipe",
    "Engine",
    "Limit",
    "Operators",
    "Payload",
    "ToolCost",
    "ToolRow",
    "devices",
    "limit_names",
    "register",
]


def __getattr__(name: str) -> Any:
    """Returns a function about all devices, which needs the core: the command line does without."""
    if name not in ("devices", "limit_names", "register"):
        raise AttributeError(f"module 'tosaic.devices' has no attribute {name!r}")
    from tosaic.devices import registry

    return getattr(registry, name)
