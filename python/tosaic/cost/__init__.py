"""What a program costs on a device: cycles and memory, by node, module and source line.

`tosaic.device_cost` is the way in. The tool of the device estimates, e.g. Vela.
"""

from __future__ import annotations

from tosaic.cost.call import device_cost
from tosaic.cost.device_cost import CostCopy, CostRow, CostShare, DeviceCost, GroupCost

__all__ = ["CostCopy", "CostRow", "CostShare", "DeviceCost", "GroupCost", "device_cost"]
