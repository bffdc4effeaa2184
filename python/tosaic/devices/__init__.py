"""Devices: records of the operators that a device supports, and the tools that compile and run for it.

>>> import tosaic.devices
>>> [device.name for device in tosaic.devices.devices()][:3]
['host', 'vgf', 'ethos-u55']
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
