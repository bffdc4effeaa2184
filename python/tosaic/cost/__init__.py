"""The cost of a program on a device: cycles and memory, by node, module and source line.

`tosaic.device_cost` is the entry point. The device's own tool, such as Vela, makes the
estimates, or tosaic's own model, which needs no tool.
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
